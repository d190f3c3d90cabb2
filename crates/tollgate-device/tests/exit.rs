//! The exit of a process with pools and devices in it. Each test runs itself again as a process, and looks at how that ends.
#![cfg(unix)]

mod support;

use futures_lite::future::block_on;
use std::future::pending;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio, exit};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;
use support::{Gate, bound, kernel};
use tollgate_device::admission::ManualTime;
use tollgate_device::backend::Backend;
use tollgate_device::host::{HostDevice, HostKernel};
use tollgate_device::{
    BlockingTask, DeviceContext, DeviceKind, DevicePool, DeviceProfile, ExitPolicy,
};

/// After this time a process that hangs is killed, and its test fails. No test passes by waiting this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells the process which test's it is.
const CASE: &str = "TOLLGATE_EXIT_CASE";

type Pool = DevicePool<HostDevice>;

struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

/// In the process: does `body`, and says nothing. In the test: runs `name` as a process, and says how that ended.
fn process(name: &str, body: impl FnOnce()) -> Option<Ended> {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        body();
        return None;
    }
    let this = std::env::current_exe().expect("a test knows its own path");
    let mut child = Command::new(this)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test starts again");
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |mut stream: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut said = String::new();
            stream.read_to_string(&mut said).expect("what it says is text");
            said
        })
    };
    let (stdout, stderr) = (read(Box::new(stdout)), read(Box::new(stderr)));
    let child = Arc::new(Mutex::new(child));
    let watched = Arc::clone(&child);
    let (done, ended) = channel::<()>();
    let watchdog = thread::spawn(move || {
        let late = ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        if late {
            // its streams end with it, so the test goes on
            let _ = watched.lock().unwrap().kill();
        }
        late
    });
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    drop(done);
    let late = watchdog.join().unwrap();
    let status = child.lock().unwrap().wait().expect("a process can be waited for");
    assert!(!late, "it hung:\n{stdout}\n{stderr}");
    Some(Ended { status, stdout, stderr })
}

impl Ended {
    #[track_caller]
    fn code(&self, code: i32) -> &Self {
        let Ended { status, stdout, stderr } = self;
        assert_eq!(status.code(), Some(code), "{status}\n{stdout}\n{stderr}");
        self
    }

    #[track_caller]
    fn says(&self, text: &str) -> &Self {
        let Ended { stdout, stderr, .. } = self;
        assert!(stdout.contains(text), "it does not say {text:?}:\n{stdout}\n{stderr}");
        self
    }

    #[track_caller]
    fn complains(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "it does not say {text:?}:\n{}", self.stderr);
        self
    }

    /// Nothing went wrong on the way out.
    #[track_caller]
    fn quietly(&self) {
        assert_eq!(self.stderr, "", "it complains:\n{}", self.stdout);
    }
}

fn pool_of(name: &str, policy: ExitPolicy) -> Pool {
    let device = HostDevice::builder().name(name).build().unwrap();
    DevicePool::builder(device, DeviceProfile::new(6, 3)).exit(policy).build().unwrap()
}

fn pool() -> Pool {
    pool_of("gpu", ExitPolicy::wait())
}

/// Has what the process never drops.
fn never_dropped(pool: Pool) -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| pool)
}

/// Much more than the process needs to end when nobody waits for this.
fn take_time() {
    for _ in 0..300 {
        thread::spawn(|| {}).join().unwrap();
    }
}

fn wait_for_the_end(context: &DeviceContext) {
    block_on(context.token().cancelled());
}

/// Runs until it is asked to end, takes some more time, and says that it has ended. It has begun when this returns.
fn start_job(pool: &Pool, says: &'static str) -> BlockingTask<()> {
    let (begun, begins) = channel();
    let job = pool.job("a job that ends").submit_blocking_with(move |context| {
        begun.send(()).unwrap();
        wait_for_the_end(&context);
        take_time();
        println!("{says}");
    });
    begins.recv().unwrap();
    job.unwrap()
}

/// Never ends. It has begun when this returns.
fn start_stuck_job(pool: &Pool) -> BlockingTask<()> {
    let (begun, begins) = channel();
    let job = pool.job("a job that never ends").submit_blocking(move || {
        begun.send(()).unwrap();
        block_on(pending::<()>());
    });
    begins.recv().unwrap();
    job.unwrap()
}

/// Uses what a thread that blocks on a future has in its thread-local storage, which is gone before the exit's hooks run.
fn use_the_thread(pool: &Pool) {
    pool.job("a job before").submit_blocking(|| {}).unwrap().join().unwrap();
}

struct Says(&'static str);

impl Drop for Says {
    fn drop(&mut self) {
        println!("{}", self.0);
    }
}

/// DEV-18
#[test]
fn a_process_with_an_idle_pool_that_is_never_dropped_ends_with_its_code() {
    let ended =
        process("a_process_with_an_idle_pool_that_is_never_dropped_ends_with_its_code", || {
            let pool = never_dropped(pool());
            use_the_thread(pool);
            exit(7);
        });
    if let Some(ended) = ended {
        ended.code(7).quietly();
    }
}

/// DEV-18
#[test]
fn a_blocking_job_is_waited_for_by_an_exit() {
    let ended = process("a_blocking_job_is_waited_for_by_an_exit", || {
        let pool = never_dropped(pool());
        use_the_thread(pool);
        drop(start_job(pool, "the job has ended"));
        exit(5);
    });
    if let Some(ended) = ended {
        ended.code(5).says("the job has ended").quietly();
    }
}

/// DEV-18
#[test]
fn a_blocking_job_is_waited_for_by_a_return_from_main() {
    let ended = process("a_blocking_job_is_waited_for_by_a_return_from_main", || {
        let pool = never_dropped(pool());
        drop(start_job(pool, "the job has ended"));
    });
    if let Some(ended) = ended {
        ended.code(0).says("the job has ended").quietly();
    }
}

/// DEV-18
#[test]
fn a_blocking_job_is_waited_for_when_the_process_fails_by_a_panic() {
    let ended = process("a_blocking_job_is_waited_for_when_the_process_fails_by_a_panic", || {
        drop(start_job(never_dropped(pool()), "the job has ended"));
        panic!("the process fails");
    });
    if let Some(ended) = ended {
        ended.code(101).says("the job has ended").complains("the process fails");
    }
}

/// DEV-18
#[test]
fn async_jobs_are_dropped_at_their_next_await_by_an_exit() {
    let ended = process("async_jobs_are_dropped_at_their_next_await_by_an_exit", || {
        let pool = never_dropped(pool());
        let (begun, begins) = channel();
        // two have the seats for execution, and the others wait
        for says in ["one dropped", "two dropped", "three dropped", "four dropped"] {
            let (says, begun) = (Says(says), begun.clone());
            let waits = async move {
                begun.send(()).unwrap();
                pending::<()>().await;
                drop(says);
            };
            drop(pool.job("waits").spawn(waits).unwrap());
        }
        begins.recv().unwrap();
        begins.recv().unwrap();
        let works = pool.job("works").kind(DeviceKind::SETUP).spawn_with(|context| async move {
            begun.send(()).unwrap();
            wait_for_the_end(&context);
            take_time();
            println!("what ran synchronously has ended");
            pending::<()>().await;
            println!("it went on");
        });
        drop(works.unwrap());
        begins.recv().unwrap();
        exit(9);
    });
    if let Some(ended) = ended {
        ended.code(9).says("one dropped").says("two dropped").says("three dropped");
        ended.says("four dropped").says("what ran synchronously has ended");
        assert!(!ended.stdout.contains("it went on"), "{}", ended.stdout);
        ended.quietly();
    }
}

/// DEV-18
#[test]
fn a_pool_that_lost_its_last_handle_is_waited_for() {
    let ended = process("a_pool_that_lost_its_last_handle_is_waited_for", || {
        let pool = pool();
        drop(start_job(&pool, "the job has ended"));
        drop(pool);
        exit(3);
    });
    if let Some(ended) = ended {
        ended.code(3).says("the job has ended").quietly();
    }
}

/// DEV-1, DEV-18
#[test]
fn a_pool_whose_last_handle_is_dropped_on_a_worker_is_waited_for() {
    let ended = process("a_pool_whose_last_handle_is_dropped_on_a_worker_is_waited_for", || {
        let pool = pool();
        drop(start_job(&pool, "the job has ended"));
        let (give, given) = channel::<Pool>();
        let (tell, told) = channel();
        let drops = pool.job("drops").spawn(async move {
            drop(given.recv().unwrap());
            tell.send(()).unwrap();
            pending::<()>().await;
        });
        drop(drops.unwrap());
        give.send(pool).unwrap();
        told.recv().unwrap();
        exit(4);
    });
    if let Some(ended) = ended {
        ended.code(4).says("the job has ended").quietly();
    }
}

/// DEV-18
#[test]
fn pools_of_two_devices_are_both_waited_for() {
    let ended = process("pools_of_two_devices_are_both_waited_for", || {
        let pools = [pool(), pool()];
        drop(start_job(&pools[0], "the job of the first has ended"));
        drop(start_job(&pools[1], "the job of the second has ended"));
        exit(6);
    });
    if let Some(ended) = ended {
        ended.code(6).says("the job of the first has ended");
        ended.says("the job of the second has ended").quietly();
    }
}

/// DEV-18: what is left is let go, by name, and the code is kept.
#[test]
fn a_bounded_policy_lets_go_of_what_never_ends_and_says_what_that_is() {
    let ended =
        process("a_bounded_policy_lets_go_of_what_never_ends_and_says_what_that_is", || {
            let pool = never_dropped(pool_of("gpu", ExitPolicy::within(Duration::from_millis(20))));
            use_the_thread(pool);
            drop(start_stuck_job(pool));
            exit(42);
        });
    if let Some(ended) = ended {
        ended.code(42).complains("still running at the exit of the process");
        ended.complains("a job that never ends");
    }
}

/// DEV-18: the process's time is not the one that a pool was given.
#[test]
fn a_bounded_policy_lets_go_also_in_a_pool_whose_time_stands_still() {
    let ended = process("a_bounded_policy_lets_go_also_in_a_pool_whose_time_stands_still", || {
        let (left, device) = (|left: &str| println!("left: {left}"), HostDevice::builder());
        let pool = DevicePool::builder(device.build().unwrap(), DeviceProfile::new(2, 2))
            .time(Arc::new(ManualTime::new()))
            .exit(ExitPolicy::within(Duration::from_millis(20)).on_leak(left))
            .build()
            .unwrap();
        drop(start_stuck_job(&pool));
        exit(43);
    });
    if let Some(ended) = ended {
        ended.code(43).says("left: pool").says("a job that never ends").quietly();
    }
}

/// DEV-18: nobody waits for a job that waits for nothing but this.
#[test]
fn an_exit_from_an_async_job_waits_for_the_others() {
    let ended = process("an_exit_from_an_async_job_waits_for_the_others", || {
        let pool = never_dropped(pool());
        drop(start_job(pool, "the other has ended"));
        // its task lies in the exiting worker's own slot when that exits
        let (wake, woken) = tokio::sync::oneshot::channel::<()>();
        let (begun, begins) = channel();
        let says = Says("the one that was woken has gone");
        let woken = pool.job("woken").spawn(async move {
            begun.send(()).unwrap();
            let _ = woken.await;
            pending::<()>().await;
            drop(says);
        });
        begins.recv().unwrap();
        drop(woken.unwrap());
        let exits = pool.job("exits").spawn(async move {
            wake.send(()).unwrap();
            exit(11);
        });
        let _ = exits.unwrap().join();
    });
    if let Some(ended) = ended {
        ended.code(11).says("the other has ended").says("the one that was woken has gone");
        ended.quietly();
    }
}

/// DEV-18
#[test]
fn an_exit_from_a_job_within_a_job_waits_for_the_others() {
    let ended = process("an_exit_from_a_job_within_a_job_waits_for_the_others", || {
        let pool = never_dropped(pool());
        drop(start_job(pool, "the other has ended"));
        let outer = pool.job("outer").spawn(async move {
            let inner = pool.job("inner").run(async { exit(12) });
            let _ = inner.await;
        });
        let _ = outer.unwrap().join();
    });
    if let Some(ended) = ended {
        ended.code(12).says("the other has ended").quietly();
    }
}

/// DEV-18
#[test]
fn an_exit_from_a_blocking_job_waits_for_the_others() {
    let ended = process("an_exit_from_a_blocking_job_waits_for_the_others", || {
        let pool = never_dropped(pool());
        drop(start_job(pool, "the other has ended"));
        let _ = pool.job("exits").submit_blocking(|| exit(13)).unwrap().join();
    });
    if let Some(ended) = ended {
        ended.code(13).says("the other has ended").quietly();
    }
}

fn wait_to_be_ended() -> ! {
    loop {
        thread::park();
    }
}

/// DEV-15, DEV-18: the job is still counted then, and can't leave while its callback exits.
#[test]
fn an_exit_from_a_completion_callback_waits_for_the_others() {
    let ended = process("an_exit_from_a_completion_callback_waits_for_the_others", || {
        let pool = never_dropped(pool());
        drop(start_job(pool, "the other has ended"));
        drop(pool.job("exits").on_complete(|| exit(14)).submit_blocking(|| {}).unwrap());
        wait_to_be_ended();
    });
    if let Some(ended) = ended {
        ended.code(14).says("the other has ended").quietly();
    }
}

struct Exits(i32);

impl Drop for Exits {
    fn drop(&mut self) {
        exit(self.0);
    }
}

/// DEV-18: likewise.
#[test]
fn an_exit_from_a_result_that_nobody_wants_waits_for_the_others() {
    let ended = process("an_exit_from_a_result_that_nobody_wants_waits_for_the_others", || {
        let pool = never_dropped(pool());
        drop(start_job(pool, "the other has ended"));
        let (go, gone) = channel();
        let task = pool.job("exits").spawn(async move {
            gone.recv().unwrap();
            Exits(15)
        });
        drop(task.unwrap());
        go.send(()).unwrap();
        wait_to_be_ended();
    });
    if let Some(ended) = ended {
        ended.code(15).says("the other has ended").quietly();
    }
}

/// DEV-18: likewise, of a job that never began.
#[test]
fn an_exit_from_a_capture_of_a_job_that_is_cancelled_waits_for_the_others() {
    let name = "an_exit_from_a_capture_of_a_job_that_is_cancelled_waits_for_the_others";
    let ended = process(name, || {
        let pool = never_dropped(pool());
        drop(start_job(pool, "the other has ended"));
        let task = pool.job("cancels").spawn(async move {
            let full = pool.job("full").spawn(pending::<()>()).unwrap();
            let exits = Exits(16);
            let queued = pool.job("queued").spawn(async move { drop(exits) }).unwrap();
            assert!(pool.snapshot().queued > 0);
            queued.cancel();
            drop(full);
        });
        drop(task.unwrap());
        wait_to_be_ended();
    });
    if let Some(ended) = ended {
        ended.code(16).says("the other has ended").quietly();
    }
}

/// DEV-18: likewise, of a job within another, dropped half way.
#[test]
fn an_exit_from_a_capture_of_a_job_that_is_dropped_waits_for_the_others() {
    let name = "an_exit_from_a_capture_of_a_job_that_is_dropped_waits_for_the_others";
    let ended = process(name, || {
        let pool = never_dropped(pool());
        drop(start_job(pool, "the other has ended"));
        let task = pool.job("outer").spawn(async move {
            let exits = Exits(17);
            let inner = pool.job("inner").run(async move {
                let _exits = exits;
                pending::<()>().await;
            });
            assert!(futures_lite::future::poll_once(inner).await.is_none());
        });
        drop(task.unwrap());
        wait_to_be_ended();
    });
    if let Some(ended) = ended {
        ended.code(17).says("the other has ended").quietly();
    }
}

/// Panics when it is dropped.
struct Rough;

impl Drop for Rough {
    fn drop(&mut self) {
        panic!("dropped roughly");
    }
}

/// DEV-18
#[test]
fn panics_on_the_way_out_neither_change_the_code_nor_keep_anything_from_being_waited_for() {
    let ended = process(
        "panics_on_the_way_out_neither_change_the_code_nor_keep_anything_from_being_waited_for",
        || {
            let rough = Rough;
            let policy = ExitPolicy::within(Duration::from_millis(20)).on_leak(move |_| {
                let _captured = &rough;
                panic!("the report fails")
            });
            let (stuck, pool) = (never_dropped(pool_of("stuck", policy)), pool());
            drop(start_stuck_job(stuck));
            let (begun, begins) = channel();
            let rough = Rough;
            let waits = pool.job("rough").on_complete(|| panic!("the callback fails"));
            let waits = waits.spawn(async move {
                begun.send(()).unwrap();
                pending::<()>().await;
                drop(rough);
            });
            drop(waits.unwrap());
            begins.recv().unwrap();
            drop(start_job(&pool, "the job has ended"));
            exit(16);
        },
    );
    if let Some(ended) = ended {
        ended.code(16).says("the job has ended").complains("the report fails");
        ended.complains("dropped roughly").complains("the callback fails");
    }
}

/// DEV-18, G9
#[test]
fn a_pool_that_outlives_its_device_lets_the_process_end_with_its_code() {
    let ended =
        process("a_pool_that_outlives_its_device_lets_the_process_end_with_its_code", || {
            let pool = never_dropped(pool());
            drop(start_job(pool, "the job has ended"));
            pool.backend().control().lose();
            assert!(pool.job("late").submit_blocking(|| {}).unwrap().join().is_err());
            exit(17);
        });
    if let Some(ended) = ended {
        ended.code(17).says("the job has ended").quietly();
    }
}

/// DEV-18, G9
#[test]
fn a_device_works_until_the_jobs_of_its_pool_have_ended() {
    let ended = process("a_device_works_until_the_jobs_of_its_pool_have_ended", || {
        let pool = never_dropped(pool());
        let (begun, begins) = channel();
        let job = pool.job("uses the device").submit_blocking_with(move |context| {
            begun.send(()).unwrap();
            wait_for_the_end(&context);
            take_time();
            let device = pool.backend();
            let stream = device.create_stream(0).unwrap();
            device.launch(&stream, kernel(|| println!("the kernel has run"))).unwrap();
            device.synchronize_stream(&stream).unwrap();
            println!("the job has ended");
        });
        begins.recv().unwrap();
        drop(job.unwrap());
        exit(18);
    });
    if let Some(ended) = ended {
        ended.code(18).says("the kernel has run").says("the job has ended").quietly();
    }
}

/// DEV-18: the exit holds no lock that anybody else needs while it waits.
#[test]
fn what_is_submitted_while_an_exit_waits_is_refused_at_once() {
    let ended = process("what_is_submitted_while_an_exit_waits_is_refused_at_once", || {
        let pool = never_dropped(pool());
        let (begun, begins) = channel();
        let job = pool.job("submits").submit_blocking_with(move |context| {
            begun.send(()).unwrap();
            wait_for_the_end(&context);
            // the pool's own lock, and that of the list of what is to end
            let late = thread::spawn(|| pool.job("late").spawn(async {}).map(drop));
            let error = late.join().unwrap().unwrap_err();
            println!("{error}");
            drop(HostDevice::builder().build().unwrap());
            println!("the job has ended");
        });
        begins.recv().unwrap();
        drop(job.unwrap());
        exit(21);
    });
    if let Some(ended) = ended {
        ended.code(21).says("the device pool is closed").says("the job has ended").quietly();
    }
}

/// A kernel that has begun when this returns, and then does this.
fn start_kernel(device: &HostDevice, then: impl FnOnce() + Send + 'static) {
    let stream = device.create_stream(0).unwrap();
    let (begun, begins) = channel();
    let begin = move || {
        begun.send(()).unwrap();
        then();
    };
    device.launch(&stream, kernel(begin)).unwrap();
    begins.recv().unwrap();
}

/// Opens a gate when it is dropped.
struct Opens(Gate);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// DEV-18
#[test]
fn a_kernel_that_runs_is_waited_for_and_one_that_has_not_begun_is_dropped() {
    let ended =
        process("a_kernel_that_runs_is_waited_for_and_one_that_has_not_begun_is_dropped", || {
            let device = bound(HostDevice::builder().engines(1).exit(ExitPolicy::wait()));
            let gate = Gate::default();
            let opens = Opens(gate.clone());
            start_kernel(&device, move || {
                gate.wait();
                take_time();
                println!("the kernel has ended");
            });
            let stream = device.create_stream(0).unwrap();
            let late = HostKernel::new("late", (), move |()| {
                let _opens = opens;
                println!("it began");
            });
            device.launch(&stream, late).unwrap();
            exit(19);
        });
    if let Some(ended) = ended {
        ended.code(19).says("the kernel has ended");
        assert!(!ended.stdout.contains("it began"), "{}", ended.stdout);
        ended.quietly();
    }
}

/// DEV-18
#[test]
fn a_kernel_that_never_ends_is_let_go_of_and_its_device_named() {
    let ended = process("a_kernel_that_never_ends_is_let_go_of_and_its_device_named", || {
        let policy = ExitPolicy::within(Duration::from_millis(20));
        let device = bound(HostDevice::builder().name("gpu7").ordinal(7).exit(policy));
        start_kernel(&device, || block_on(pending()));
        exit(20);
    });
    if let Some(ended) = ended {
        ended.code(20).complains("1 pieces of work of host device 7 \"gpu7\"");
    }
}

/// Uses the list of what is to end when it is dropped.
struct Builds(Sender<()>);

impl Drop for Builds {
    fn drop(&mut self) {
        drop(HostDevice::builder().build().unwrap());
        let _ = self.0.send(());
    }
}

/// DEV-18: what a policy has captured is dropped under no lock.
#[test]
fn what_a_policy_has_captured_may_build_a_device_when_it_is_dropped() {
    support::without_hanging(|| {
        let (tell, told) = channel();
        let builds = Builds(tell);
        let policy = ExitPolicy::wait().on_leak(move |_| {
            let _ = builds.0.send(());
        });
        let device = HostDevice::builder().exit(policy).build().unwrap();
        let control = device.control();
        drop(device);
        assert!(control.wait_ended(PATIENCE));
        drop(control);
        // whatever is registered next finds that it is over
        while told.try_recv().is_err() {
            drop(HostDevice::builder().build().unwrap());
        }
    });
}
