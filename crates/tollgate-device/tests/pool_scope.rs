//! Handles that may only run jobs, work that belongs to scopes, and pools that do.

mod support;

use support::PATIENCE;
use support::pools::*;
use tollgate_device::admission::{AcquireError, Closed, Deadline, Scope};
use tollgate_device::{DeviceKind, DeviceProfile, Refused};

fn profile() -> DeviceProfile {
    DeviceProfile::new(8, 2).auxiliary(2)
}

const CLOSED: Refused = Refused::Closed { what: Closed::Scope };

/// DEV-20
#[test]
fn a_handle_runs_jobs_and_keeps_the_pool_open() {
    let pool = pool(profile());
    let handle = pool.handle();
    let events = pool.events();
    assert_eq!(handle.device(), pool.device());
    drop(pool);
    let clone = handle.clone();
    drop(handle);
    assert_eq!(get(clone.job("run").run(async { 1 })).unwrap(), 1);
    assert_eq!(get(clone.job("b").submit_blocking(|| 2).unwrap()).unwrap(), 2);
    let attempt = get(clone.admission()).unwrap();
    assert_eq!(get(attempt.job("under").run(async { 3 })).unwrap(), 3);
    drop(attempt);
    drop(clone);
    let mut events = events;
    get(async { while events.recv().await.is_some() {} });
}

/// DEV-20
#[test]
fn a_handle_bound_to_a_scope_is_refused_once_that_closes_and_others_are_not() {
    let pool = pool(profile());
    let (scope, other) = (Scope::root("closes"), Scope::root("stays"));
    let plain = pool.handle();
    let bound = plain.scoped(&scope);
    get(bound.job("fine").run(async {})).unwrap();
    let attempt = get(bound.admission()).unwrap();
    let child = scope.child("child").unwrap();
    let below = plain.scoped(&child);
    scope.close();
    for handle in [&bound, &below] {
        assert_eq!(refused(get(handle.job("no").run(async {}))), CLOSED);
        assert_eq!(refused(handle.job("no").submit_blocking(|| ())), CLOSED);
        let error = get(handle.admission()).unwrap_err();
        let closed = AcquireError::Closed { lane: "root".into(), what: Closed::Scope };
        assert_eq!(*error.cause(), closed);
    }
    assert_eq!(refused(get(attempt.job("no").run(async {}))), CLOSED);
    let scan = attempt.job("no").kind(DeviceKind::AUXILIARY).submit_blocking(|| ());
    assert_eq!(refused(scan), CLOSED);
    assert_eq!(refused(get(pool.job("no").scope(&scope).run(async {}))), CLOSED);
    get(plain.job("fine").run(async {})).unwrap();
    get(bound.scoped(&other).job("fine").run(async {})).unwrap();
    get(attempt.release("free", async {}).unwrap()).unwrap();
    get(scope.drained());
    shut_down(&pool);
}

/// DEV-20
#[test]
fn jobs_that_were_accepted_finish_also_those_that_wait_for_a_worker_and_hold_the_scope() {
    let pool = pool(profile());
    let scope = Scope::root("scope");
    let handle = pool.handle().scoped(&scope);
    let (door, last) = (Door::new(), Door::new());
    let mut running = handle.job("running").run(door.pass());
    start(&mut running);
    door.wait();
    let mut queued = handle.job("queued").run(last.pass());
    start(&mut queued);
    let way = last.way();
    let blocking = handle.job("blocking").submit_blocking(move || way.block()).unwrap();
    last.wait();
    drop(handle);
    scope.close();
    let mut drained = scope.drained();
    start(&mut drained);
    let report = scope.report();
    let mut names: Vec<_> =
        report.nodes[0].members[0].jobs.iter().map(|it| it.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["blocking", "queued", "running"], "{report}");
    door.open();
    get(running).unwrap();
    last.wait();
    start(&mut drained);
    last.open();
    get(queued).unwrap();
    get(blocking).unwrap();
    get(drained);
    assert_idle(&pool);
}

/// DEV-20
#[test]
fn a_job_under_an_attempt_of_another_scope_holds_its_own() {
    let pool = pool(profile());
    let (theirs, own) = (Scope::root("attempt's"), Scope::root("job's"));
    for theirs in [None, Some(&theirs)] {
        let own = own.child("child").unwrap();
        let admission = pool.admission();
        let attempt = get(match theirs {
            Some(scope) => admission.scope(scope),
            None => admission,
        });
        let attempt = attempt.unwrap();
        let door = Door::new();
        let mut run = attempt.job("root").scope(&own).run(door.pass());
        start(&mut run);
        door.wait();
        own.close();
        let mut drained = own.drained();
        assert!(poll(&mut drained).is_pending(), "its permit is lent, but it is the scope's");
        let report = own.report();
        assert_eq!(report.nodes[0].members[0].jobs[0].name.as_str(), "root", "{report}");
        door.open();
        get(run).unwrap();
        get(drained);
        assert_eq!(refused(get(attempt.job("no").scope(&own).run(async {}))), CLOSED);
        get(attempt.job("fine").run(async {})).unwrap();
        get(attempt.release("free", async {}).unwrap()).unwrap();
    }
    theirs.close();
    get(theirs.drained());
    assert_idle(&pool);
}

/// DEV-15, DEV-20
#[test]
fn a_callback_comes_before_the_job_leaves_its_scope() {
    let pool = pool(profile());
    for case in 0..4 {
        let scope = Scope::root("scope");
        let attempt = get(pool.admission().scope(&scope)).unwrap();
        let (door, work) = (Door::new(), Door::new());
        let (way, pass, blocks) = (door.way(), work.pass(), work.way());
        let handle = pool.handle().scoped(&scope);
        let callback = move || way.block();
        match case {
            0 => {
                let job = handle.job("blocking").on_complete(callback);
                drop(job.submit_blocking(move || blocks.block()).unwrap());
                drop(attempt);
            }
            1 => {
                let job = pool.job("async").scope(&scope).on_complete(callback);
                drop(job.spawn(pass).unwrap());
                drop(attempt);
            }
            2 => {
                // the permit is the attempt's
                let job = attempt.job("lent").on_complete(callback);
                drop(job.submit_blocking(move || blocks.block()).unwrap());
                drop(attempt);
            }
            _ => drop(attempt.release_then("free", pass, callback).unwrap()),
        }
        drop(handle);
        scope.close();
        work.wait();
        work.open();
        door.wait();
        let mut drained = scope.drained();
        assert!(poll(&mut drained).is_pending(), "case {case}: its callback runs");
        door.open();
        get(drained);
    }
    settles(&pool);
}

/// DEV-20
#[test]
fn a_scope_that_is_cancelled_asks_its_jobs_by_their_tokens_and_nobody_else() {
    let pool = pool(DeviceProfile::new(8, 4));
    let scope = Scope::root("scope");
    let handle = pool.handle().scoped(&scope);
    let door = Door::new();
    let job = |way: Way| {
        move |cx: tollgate_device::DeviceContext| async move {
            way.pass().await;
            cx.token().is_cancelled()
        }
    };
    let mut asked = handle.job("asked").run_with(job(door.way()));
    start(&mut asked);
    let spared = pool.job("spared").spawn_with(job(door.way())).unwrap();
    let way = door.way();
    let blocking = handle.job("blocking").submit_blocking_with(move |cx| {
        way.block();
        cx.token().is_cancelled()
    });
    door.wait_for(3);
    scope.cancel();
    door.open();
    assert!(get(asked).unwrap(), "it is asked, and ends in its own time");
    assert!(get(blocking.unwrap()).unwrap());
    assert!(!get(spared).unwrap());
    get(scope.drained());
    assert_idle(&pool);
}

/// DEV-3, DEV-20
#[test]
fn whoever_waits_to_be_admitted_is_refused_when_the_scope_closes() {
    let pool = pool(DeviceProfile::new(1, 2).max_waiting(3));
    let scope = Scope::root("scope");
    let held = admit(&pool);
    let (mut theirs, mut other) = (pool.admission().scope(&scope), pool.admission());
    start(&mut theirs);
    start(&mut other);
    scope.close();
    let error = get(theirs).unwrap_err();
    assert!(matches!(error.cause(), AcquireError::Closed { what: Closed::Scope, .. }), "{error}");
    get(scope.drained());
    drop(held);
    drop(get(other).unwrap());
    assert_idle(&pool);
}

/// DEV-17, DEV-20
#[test]
fn a_pool_that_belongs_to_a_scope_is_reported_by_its_jobs_and_ends_with_it() {
    for dropped in [false, true] {
        let scope = Scope::root("service");
        let pool = builder(profile()).scope(&scope).build().unwrap();
        let handle = pool.handle();
        let attempt = admit(&pool);
        let door = Door::new();
        let way = door.way();
        let held = pool.job("held up").submit_blocking_with(move |cx| {
            way.block();
            cx.token().is_cancelled()
        });
        let held = held.unwrap();
        door.wait();
        let kept = (!dropped).then(|| pool.clone());
        drop((handle, pool));
        let report = get(scope.shutdown(Deadline::after(std::time::Duration::ZERO)));
        assert!(!report.complete);
        let member = &report.nodes[0].members[0];
        assert_eq!(&*member.name, "gpu");
        assert_eq!(member.jobs.len(), 1, "dropped: {dropped}: {report}");
        assert_eq!(member.jobs[0].name.as_str(), "held up");
        assert_eq!(member.threads, 3, "two workers, and whoever owns them");
        assert!(matches!(refused(get(attempt.job("no").run(async {}))), Refused::Closed { .. }));
        door.open();
        assert!(get(held).unwrap(), "it was asked to stop");
        get(attempt.release("free", async {}).unwrap()).unwrap();
        let report = get(scope.shutdown(Deadline::after(PATIENCE)));
        assert!(report.complete, "{report}");
        if let Some(pool) = kept {
            assert!(pool.is_closed());
            shut_down(&pool);
        }
    }
}

/// DEV-17
#[test]
fn a_pool_is_not_built_in_a_scope_that_is_not_open_and_one_that_ended_holds_none() {
    let scope = Scope::root("service");
    let pool = builder(profile()).scope(&scope).build().unwrap();
    shut_down(&pool);
    drop(pool);
    scope.close();
    get(scope.drained());
    let error = builder(profile()).scope(&scope).build().unwrap_err();
    assert!(matches!(error, tollgate_device::BuildError::Scope(_)), "{error}");
}
