//! The store of `examples/graceful_shutdown` on a disk that fails and whose power can be cut: what was acknowledged is there afterwards,
//! and nothing is there that is not whole.

#[path = "../examples/graceful_shutdown/clients.rs"]
mod clients;
#[allow(dead_code, reason = "the example itself uses all of it")]
#[path = "../examples/graceful_shutdown/store/mod.rs"]
mod store;

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate::blocking::JobState;
use tollgate::prelude::*;

use store::disk::Disk;
use store::log::{Log, LogError, Recovered};
use store::record::Record;
use store::{APPEND, Cause, FlushError, LAST_FLUSH, PutError, SYNC, Store};

/// At how many points a run of the tests cuts the power.
const POINTS: u64 = 200;

/// Repeats one point. Which thread is how far at the cut is up to the system, so a failure may need several tries.
const SEED: &str = "TOLLGATE_POWER_CUT_SEED";

/// How long a test waits for what must happen before it gives up. No test passes by waiting this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// More than any test lets wait.
const MAX_WAITING: usize = 64;

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime can be started")
}

/// Runs a test on a runtime of its own, within its patience.
fn run(test: impl Future<Output = ()>) {
    runtime().block_on(async {
        tokio::time::timeout(PATIENCE, test).await.expect("what was waited for never happened");
    });
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

// ---- a disk whose power can be cut ----

/// A disk in memory, which knows what was synced.
#[derive(Clone)]
struct Ram {
    platter: Arc<Mutex<Platter>>,
    appends: Gate,
    syncs: Gate,
}

struct Platter {
    bytes: Vec<u8>,
    /// How many of them last.
    synced: usize,
    /// Appends and syncs until one fails half done.
    left: Option<u64>,
    /// One has.
    failed: bool,
    /// Then the power is cut. Else the disk goes on.
    cuts: bool,
    off: bool,
    random: StdRng,
}

fn failed() -> io::Error {
    io::Error::other("the disk failed")
}

impl Platter {
    /// Whether this is the step that fails. An error when the power was cut before.
    fn is_fatal(&mut self) -> io::Result<bool> {
        if self.off {
            return Err(failed());
        }
        let is_fatal = self.left == Some(0) && !self.failed;
        self.failed |= is_fatal;
        self.off = self.failed && self.cuts;
        self.left = self.left.map(|left| left.saturating_sub(1));
        Ok(is_fatal)
    }
}

impl Ram {
    fn new(bytes: Vec<u8>, seed: u64) -> Self {
        let synced = bytes.len();
        let random = StdRng::seed_from_u64(seed);
        let platter =
            Platter { bytes, synced, left: None, failed: false, cuts: true, off: false, random };
        let platter = Arc::new(Mutex::new(platter));
        Ram { platter, appends: Gate::default(), syncs: Gate::default() }
    }

    fn with_power(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let platter = self.platter.lock();
        if platter.off { Err(failed()) } else { Ok(platter) }
    }

    /// After so many appends and syncs the next one fails half done; with `cuts` since the power is cut.
    fn fail_after(&self, steps: u64, cuts: bool) {
        let mut platter = self.platter.lock();
        (platter.left, platter.cuts) = (Some(steps), cuts);
    }

    fn has_failed(&self) -> bool {
        self.platter.lock().failed
    }

    /// What is found when the power is back: what was synced, and of the rest nothing, a part, a part of which not every
    /// sector was written, or all.
    fn after_cut(&self, random: &mut StdRng) -> Ram {
        let platter = self.platter.lock();
        let (lasts, rest) = platter.bytes.split_at(platter.synced);
        let mut found = rest[..random.random_range(0..=rest.len())].to_vec();
        match random.random_range(0..4) {
            0 => found.clear(),
            1 => {
                let hole = random.random_range(0..=found.len());
                found[hole..].fill(0);
            }
            2 => found = rest.to_vec(),
            _ => {}
        }
        Ram::new([lasts, &found].concat(), random.random())
    }
}

impl Disk for Ram {
    fn len(&self) -> io::Result<u64> {
        Ok(self.with_power()?.bytes.len() as u64)
    }

    fn read(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        Ok(self.with_power()?.bytes[from as usize..to as usize].to_vec())
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.appends.pass();
        let mut platter = self.platter.lock();
        if platter.is_fatal()? {
            let written = platter.random.random_range(0..=bytes.len());
            platter.bytes.extend(&bytes[..written]);
            return Err(failed());
        }
        platter.bytes.extend(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let (to, is_fatal) = {
            let mut platter = self.platter.lock();
            (platter.bytes.len(), platter.is_fatal()?)
        };
        // Others append meanwhile: that is not synced.
        self.syncs.pass();
        std::thread::yield_now();
        let mut platter = self.platter.lock();
        // The power may be cut when all is done, but before anybody is told.
        if !(is_fatal || platter.off) || platter.random.random() {
            platter.synced = platter.synced.max(to);
        } else if is_fatal {
            // A system that could not write may drop what it had: the next sync succeeds without it.
            let synced = platter.synced;
            platter.bytes[synced.min(to)..to].fill(0);
        }
        if is_fatal || platter.off { Err(failed()) } else { Ok(()) }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut platter = self.with_power()?;
        platter.bytes.truncate(length as usize);
        platter.synced = platter.synced.min(length as usize);
        Ok(())
    }
}

/// Where a disk can be held up.
#[derive(Clone, Default)]
struct Gate {
    door: Arc<(Mutex<Door>, Condvar)>,
}

struct Door {
    shut: bool,
    waiting: watch::Sender<usize>,
}

impl Default for Door {
    fn default() -> Self {
        Door { shut: false, waiting: watch::Sender::new(0) }
    }
}

impl Gate {
    fn pass(&self) {
        let (door, opened) = &*self.door;
        let mut door = door.lock();
        if !door.shut {
            return;
        }
        door.waiting.send_modify(|waiting| *waiting += 1);
        opened.wait_while(&mut door, |door| door.shut);
        door.waiting.send_modify(|waiting| *waiting -= 1);
    }

    /// From now on everybody waits here, until the returned guard is dropped.
    fn shut(&self) -> Shut {
        self.door.0.lock().shut = true;
        Shut(self.clone())
    }
}

/// A gate that is shut. Also a test that fails opens it, and leaves no thread behind.
struct Shut(Gate);

impl Shut {
    async fn somebody_waits(&self) {
        let mut waiting = self.0.door.0.lock().waiting.subscribe();
        waiting.wait_for(|&waiting| waiting > 0).await.expect("the gate is there");
    }

    fn open(self) {}
}

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.door.0.lock().shut = false;
        self.0.door.1.notify_all();
    }
}

// ---- what was acknowledged is there ----

/// What clients were told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Acknowledged,
    NotWritten,
    Unknown,
}

impl Told {
    fn by(result: &Result<(), PutError>) -> Self {
        match result {
            Ok(()) => Told::Acknowledged,
            Err(PutError::NotWritten(_)) => Told::NotWritten,
            Err(PutError::Unknown(_)) => Told::Unknown,
        }
    }
}

fn open(disk: &Ram) -> (Log, Recovered) {
    Log::open(disk.clone()).expect("there is power, and the log begins as a log")
}

/// Holds what a reopened store has against what its clients were told.
fn check(told: &BTreeMap<String, Told>, found: &Recovered) -> Result<(), String> {
    for (key, told) in told {
        let is_there = found.contents.contains_key(key);
        match told {
            Told::Acknowledged if !is_there => {
                return Err(format!("{key} was acknowledged and is lost"));
            }
            Told::NotWritten if is_there => return Err(format!("{key} was refused and is there")),
            _ => {}
        }
    }
    for (key, value) in &found.contents {
        if !told.contains_key(key) {
            return Err(format!("{key} is there and nobody wrote it"));
        }
        if *value != clients::value(key) {
            return Err(format!("{key} holds something else than was written"));
        }
    }
    Ok(())
}

/// One life of a store, which ends with a power cut or another failure of the disk, a shutdown, or both at once.
async fn live_and_reopen(seed: u64) -> Result<(), String> {
    let mut random = StdRng::seed_from_u64(seed);
    let disk = Ram::new(Vec::new(), random.random());
    let (log, _) = open(&disk);
    let scope = Scope::root("store");
    let appends = random.random_range(1..=3);
    let store = Store::start(log, &scope, &Handle::current(), appends, MAX_WAITING)
        .map_err(|error| format!("the store did not start: {error}"))?;

    let told: Arc<Mutex<BTreeMap<String, Told>>> = Arc::default();
    let acknowledged = watch::Sender::new(0_u64);
    let cuts = random.random_ratio(2, 3);
    let fails_while_open = random.random();
    if fails_while_open {
        disk.fail_after(random.random_range(0..400), cuts);
    }
    let mut tasks = JoinSet::new();
    for client in 0..random.random_range(1..=8) {
        let (told, acknowledged) = (Arc::clone(&told), acknowledged.clone());
        let task = clients::write(store.writer().clone(), client, move |key, result| {
            told.lock().insert(key.to_owned(), Told::by(result));
            acknowledged.send_modify(|count| *count += u64::from(result.is_ok()));
        });
        let task = store.clients().track("client", task).map_err(|error| error.to_string())?;
        tasks.spawn(task);
    }
    if fails_while_open {
        // Each is told.
        while tasks.join_next().await.is_some() {}
    } else {
        let enough = random.random_range(0..200);
        let mut count = acknowledged.subscribe();
        let _ = count.wait_for(|&count| count >= enough).await;
        if random.random_ratio(3, 4) {
            disk.fail_after(random.random_range(0..12), cuts);
        }
    }
    let ended = store.shutdown(Deadline::after(PATIENCE)).await;
    while tasks.join_next().await.is_some() {}

    if !ended.report.complete {
        return Err(format!("the shutdown did not complete: {}", ended.report));
    }
    if let Some(Err(Cause::Log(LogError::Damaged { at }))) = ended.scrubbed {
        return Err(format!("the scrubber found damage at byte {at}"));
    }
    let told = std::mem::take(&mut *told.lock());
    let after_cut = disk.after_cut(&mut random);
    let (log, found) = open(&after_cut);
    check(&told, &found)?;
    if !disk.has_failed() {
        // Nothing kept it from ending well.
        ended.flush.map_err(|error| format!("{error:?}"))?;
        if !found.clean || found.cut > 0 {
            return Err(format!("the log is not marked, {} bytes cut", found.cut));
        }
        if let Some((key, _)) = told.iter().find(|(_, told)| **told == Told::Unknown) {
            return Err(format!("nobody was told about {key}"));
        }
    }

    // What was cut off does not come back, and what is written then can be read.
    let mut expected = found.contents;
    let key = clients::key(log.opened_at(), 0, 0);
    let value = clients::value(&key);
    let more = Record::Put { key: key.clone(), value: value.clone() };
    log.append(&more).and_then(|_| log.finish()).map_err(|error| error.to_string())?;
    expected.insert(key, value);
    let (_, again) = open(&after_cut);
    if again.contents != expected || !again.clean {
        return Err("the second life of the log is not what was written to it".into());
    }
    Ok(())
}

#[test]
fn no_acknowledged_write_is_lost_wherever_the_power_is_cut() {
    let seeds: Vec<u64> = match std::env::var(SEED) {
        Ok(seed) => vec![seed.parse().unwrap_or_else(|_| panic!("{SEED} is no number: {seed}"))],
        Err(_) => {
            let first: u64 = rand::random();
            (0..POINTS).map(|point| first.wrapping_add(point)).collect()
        }
    };
    let runtime = runtime();
    for seed in seeds {
        let life = async { tokio::time::timeout(PATIENCE, live_and_reopen(seed)).await };
        let life = runtime.block_on(life).unwrap_or_else(|_| Err("it never ended".into()));
        life.unwrap_or_else(|error| panic!("{error}; repeat it with {SEED}={seed}"));
    }
}

#[test]
fn a_log_that_ends_anywhere_reopens_with_the_records_that_are_whole() {
    let disk = Ram::new(Vec::new(), 0);
    let (log, _) = open(&disk);
    let mut ends = vec![log.opened_at()];
    for write in 0..5 {
        let key = clients::key(0, 0, write);
        let value = clients::value(&key);
        ends.push(log.append(&Record::Put { key, value }).expect("there is power"));
    }
    let bytes = disk.platter.lock().bytes.clone();
    for end in 0..=bytes.len() {
        let whole = ends.iter().filter(|&&mark| mark <= end as u64).count().saturating_sub(1);
        // Cut off there, and with zeros where the rest was to be written.
        let torn = Ram::new(bytes[..end].to_vec(), 0);
        let holed = Ram::new(bytes.iter().copied().take(end).chain([0; 100]).collect(), 0);
        for (disk, how) in [(torn, "cut off"), (holed, "zeros from there")] {
            let begun = end as u64 >= ends[0];
            if !begun && how == "zeros from there" {
                assert!(Log::open(disk).is_err(), "{end}: this is no log");
                continue;
            }
            let (log, found) = open(&disk);
            let keys: Vec<_> = found.contents.keys().cloned().collect();
            let expected: Vec<_> =
                (0..whole as u64).map(|write| clients::key(0, 0, write)).collect();
            assert_eq!(keys, expected, "at byte {end}, {how}");
            assert_eq!(log.opened_at(), ends[whole], "at byte {end}, {how}");
            assert!(!found.clean, "at byte {end}, {how}");
        }
    }
}

// ---- the order of the shutdown ----

/// A store on a disk that can be held up, with one append at a time.
fn held_up() -> (Ram, Scope, Store) {
    let disk = Ram::new(Vec::new(), 0);
    let (log, _) = open(&disk);
    let scope = Scope::root("store");
    let store = Store::start(log, &scope, &Handle::current(), 1, MAX_WAITING);
    (disk, scope, store.expect("the store starts"))
}

/// The jobs that a report names.
fn jobs(report: &ScopeReport) -> Vec<(String, JobState)> {
    let members = report.nodes.iter().flat_map(|node| &node.members);
    members.flat_map(|member| &member.jobs).map(|job| (job.name.to_string(), job.state)).collect()
}

fn put(store: &Store, key: &str) -> impl Future<Output = Result<(), PutError>> + use<> {
    let (writer, key) = (store.writer().clone(), key.to_owned());
    async move { writer.put(key.clone(), clients::value(&key)).await }
}

fn is_closed(result: &Result<(), PutError>) -> bool {
    let Err(PutError::NotWritten(RunError::Refused(refused))) = result else { return false };
    matches!(refused, AcquireError::Closed { what: Closed::Scope, .. })
}

/// A18. A14: what waits is reported as queued.
#[test]
fn a_shutdown_refuses_what_waits_and_flushes_what_was_appended() {
    run(async {
        let (disk, scope, store) = held_up();
        let gate = disk.appends.shut();
        let runs = tokio::spawn(put(&store, "runs"));
        gate.somebody_waits().await;
        let mut waits = pin!(put(&store, "waits"));
        assert!(poll_once(waits.as_mut()).await.is_pending());
        let states = [JobState::Running, JobState::Queued].map(|state| (APPEND.to_owned(), state));
        let report = scope.report();
        let mut appends = jobs(&report);
        appends.retain(|(name, _)| name == APPEND);
        assert_eq!(appends, states, "{report}");

        let late = put(&store, "late");
        let mut shutdown = pin!(store.shutdown(Deadline::after(PATIENCE)));
        assert!(poll_once(shutdown.as_mut()).await.is_pending());
        let told = [waits.await, late.await];
        assert!(told.iter().all(is_closed), "{told:?}");

        // What runs has promised to end, and the flush to come after it.
        let report = scope.report();
        assert!(!report.complete, "{report}");
        assert!(jobs(&report).contains(&states[0]), "{report}");
        assert!(report.nodes.iter().any(|node| !node.leases.is_empty()), "{report}");
        gate.open();
        let ended = shutdown.await;
        assert!(ended.report.complete, "{}", ended.report);
        assert!(ended.flush.is_ok(), "{:?}", ended.flush);
        assert!(runs.await.expect("it is not aborted").is_ok(), "it was appended, and flushed");

        let (_, found) = open(&disk);
        assert!(found.clean);
        assert_eq!(found.contents.into_keys().collect::<Vec<_>>(), ["runs"]);
    });
}

/// A20
#[test]
fn no_report_is_complete_while_the_last_flush_runs() {
    run(async {
        let (disk, scope, store) = held_up();
        put(&store, "before").await.expect("the store is open");
        let gate = disk.syncs.shut();
        let mut shutdown = pin!(store.shutdown(Deadline::after(PATIENCE)));
        tokio::select! {
            biased;
            ended = shutdown.as_mut() => panic!("it ended before the flush: {}", ended.report),
            () = gate.somebody_waits() => {}
        }
        let report = scope.report();
        assert!(!report.complete, "{report}");
        let flush = (LAST_FLUSH.to_owned(), JobState::Running);
        assert!(jobs(&report).contains(&flush), "{report}");
        assert!(scope.child("too late").is_err());

        gate.open();
        let ended = shutdown.await;
        assert!(ended.report.complete && ended.flush.is_ok(), "{ended:?}");
        assert!(open(&disk).1.clean);
    });
}

/// A7, A15
#[test]
fn a_write_whose_client_has_left_keeps_the_store_busy_until_it_ends() {
    run(async {
        let (disk, scope, store) = held_up();
        let gate = disk.appends.shut();
        let runs = tokio::spawn(put(&store, "runs"));
        gate.somebody_waits().await;
        let mut waits = Box::pin(put(&store, "waits"));
        assert!(poll_once(waits.as_mut()).await.is_pending());
        drop(waits);
        runs.abort();
        assert!(runs.await.is_err_and(|error| error.is_cancelled()));

        let report = scope.report();
        let abandoned = (APPEND.to_owned(), JobState::Abandoned);
        assert!(jobs(&report).contains(&abandoned), "{report}");
        // The scrubber's thread may still be on its way.
        let waiting = (APPEND.to_owned(), JobState::Queued);
        assert!(!jobs(&report).contains(&waiting), "{report}");

        let mut shutdown = pin!(store.shutdown(Deadline::after(PATIENCE)));
        assert!(poll_once(shutdown.as_mut()).await.is_pending());
        assert!(jobs(&scope.report()).contains(&abandoned), "{}", scope.report());
        gate.open();
        let ended = shutdown.await;
        assert!(ended.report.complete && ended.flush.is_ok(), "{ended:?}");
        let (_, found) = open(&disk);
        assert_eq!(found.contents.into_keys().collect::<Vec<_>>(), ["runs"]);
    });
}

/// A21
#[test]
fn a_store_dropped_on_a_worker_of_its_runtime_can_still_be_ended() {
    run(async {
        let (disk, scope, store) = held_up();
        put(&store, "written").await.expect("the store is open");
        tokio::spawn(async move { drop(store) }).await.expect("no panic");
        let report = scope.shutdown(Deadline::after(PATIENCE)).await;
        assert!(report.complete, "{report}");
        let (_, found) = open(&disk);
        assert!(found.contents.contains_key("written") && !found.clean);
    });
}

#[test]
fn a_shutdown_that_misses_its_deadline_leaves_no_client_waiting() {
    run(async {
        let (disk, scope, store) = held_up();
        let gate = disk.syncs.shut();
        let leads = tokio::spawn(put(&store, "leads"));
        gate.somebody_waits().await;
        // Appended, and waiting to lead, or still to be appended.
        let follows = tokio::spawn(put(&store, "follows"));

        let ended = store.shutdown(Deadline::after(Duration::ZERO)).await;
        assert!(!ended.report.complete, "{}", ended.report);
        let named = jobs(&ended.report).into_iter().find(|(name, _)| name == SYNC);
        assert!(named.is_some_and(|(_, at)| at != JobState::Queued), "{}", ended.report);
        assert!(matches!(ended.flush, Err(FlushError::Late)), "{:?}", ended.flush);
        gate.open();
        for put in [leads, follows] {
            assert!(put.await.expect("no panic").is_err(), "nothing was flushed");
        }
        let report = scope.shutdown(Deadline::after(PATIENCE)).await;
        assert!(report.complete, "{report}");
        assert!(!open(&disk).1.clean, "the log is not marked");
    });
}
