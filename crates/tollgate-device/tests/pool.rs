//! Device pools on the host device: what is accepted, where it runs, what comes of it.

use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;
use tollgate_device::admission::{Deadline, Scope};
use tollgate_device::host::HostDevice;
use tollgate_device::{
    Class, DeviceKind, DevicePool, DeviceProfile, EventKind, Outcome, Phase, Reason, Refused,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn pool(profile: DeviceProfile) -> DevicePool<HostDevice> {
    let device = HostDevice::builder().name("gpu").build().expect("a host device");
    DevicePool::builder(device, profile).build().expect("a pool")
}

#[tokio::test]
async fn an_async_job_runs_on_a_named_worker_with_the_device_bound() {
    use tollgate_device::backend::Backend;
    let pool = pool(DeviceProfile::new(2, 2));
    let device = pool.backend().clone();
    let (name, bound) = pool
        .job("look")
        .run(async move { (std::thread::current().name().map(str::to_owned), device.is_bound()) })
        .await
        .unwrap();
    assert!(name.unwrap().starts_with("gpu:0-worker-"));
    assert!(bound);
    let report = pool.shutdown(Deadline::after(PATIENCE)).await;
    assert!(report.complete, "{report}");
}

#[tokio::test]
async fn a_full_class_refuses_at_once() {
    let pool = pool(DeviceProfile::new(1, 2));
    let (hold, held) = oneshot::channel::<()>();
    let first = pool.job("first").spawn(async move { drop(held.await) }).unwrap();
    let refused = pool.job("second").run(async {}).await.unwrap_err();
    assert_eq!(refused.refused(), Some(&Refused::ClassFull { class: Class::Root, capacity: 1 }));
    drop(hold);
    first.await.unwrap();
    pool.job("third").run(async {}).await.unwrap();
}

#[tokio::test]
async fn nested_jobs_run_inline_and_count() {
    let pool = pool(DeviceProfile::new(2, 2).auxiliary(2));
    let attempt = pool.admission().await.unwrap();
    let under = attempt.handle();
    let sum = attempt
        .job("outer")
        .run(async move {
            under.job("inner").kind(DeviceKind::AUXILIARY).run(async { 20 }).await.unwrap() + 1
        })
        .await
        .unwrap();
    assert_eq!(sum, 21);
    assert_eq!(pool.snapshot().peak_active, 2);
    attempt.release("clean", async {}).unwrap().await.unwrap();
    assert_eq!(pool.snapshot().attempts, 0);
    let report = pool.shutdown(Deadline::after(PATIENCE)).await;
    assert!(report.complete, "{report}");
}

#[tokio::test]
async fn blocking_jobs_deliver_and_panic_as_errors() {
    let pool = pool(DeviceProfile::new(2, 2));
    let (send, recv) = mpsc::channel();
    let task =
        pool.job("b").on_complete(move || send.send(()).unwrap()).submit_blocking(|| 7).unwrap();
    assert_eq!(task.await.unwrap(), 7);
    recv.recv().unwrap();
    let task = pool.job("p").submit_blocking(|| panic!("no")).unwrap();
    let error = task.await.unwrap_err();
    assert!(matches!(error.reason(), Reason::Panicked(panic) if panic.message() == Some("no")));
}

#[tokio::test]
async fn events_come_in_order() {
    let pool = pool(DeviceProfile::new(2, 2));
    let mut events = pool.events();
    pool.job("one").run(async {}).await.unwrap();
    let mut kinds = Vec::new();
    while let Some(event) = events.try_recv() {
        kinds.push(event.what);
    }
    assert_eq!(
        kinds,
        [
            EventKind::Enqueued,
            EventKind::Started { worker: Some(0) },
            EventKind::Ended(Outcome::Finished)
        ]
    );
    pool.close();
    pool.request_exit().unwrap();
    pool.wait(Phase::Supervisor, Deadline::after(PATIENCE)).await.unwrap();
    assert_eq!(events.recv().await, None);
}

#[tokio::test]
async fn an_attached_pool_ends_with_its_scope() {
    let scope = Scope::root("service");
    let device = HostDevice::builder().build().unwrap();
    let pool = DevicePool::builder(device, DeviceProfile::new(2, 2)).scope(&scope).build().unwrap();
    pool.job("one").run(async {}).await.unwrap();
    let report = scope.shutdown(Deadline::after(PATIENCE)).await;
    assert!(report.complete, "{report}");
    assert!(pool.is_closed());
    let _ = Arc::new(pool);
}
