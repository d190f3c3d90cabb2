//! A small log-structured store that many tasks write to, and that ends in good order on ctrl-c or
//! SIGTERM: no acknowledged write is lost, and what could not be stopped is named.
//!
//! ```text
//! cargo run --release --example graceful_shutdown -- \
//!     [DIR] [--writers N] [--seconds N] [--deadline-ms N] [--stuck]
//! ```
//!
//! Where to look first: `store/mod.rs`, with the scopes and the shutdown. `store/log.rs` holds the
//! log and its recovery, `clients.rs` those who write.
//!
//! Exit codes: 0 when everything ended by the deadline, 1 when a write, the last flush or the check
//! of the store failed, 2 when it cannot start (a bad directory, a bad number), 3 or
//! `--exit-code-on-stuck` when something had not ended by the deadline, 130 when a second signal
//! came during the shutdown.

mod args;
#[path = "../shared/causes.rs"]
mod causes;
mod clients;
#[path = "../shared/signals.rs"]
mod signals;
mod store;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tollgate::prelude::*;

use crate::args::Args;
use crate::causes::with_causes;
use crate::clients::Tally;
use crate::signals::Signals;
use crate::store::disk::{DirError, FileDisk};
use crate::store::log::{Log, OpenError};
use crate::store::{Ended, PutError, StartError, Store};

const FAILED: u8 = 1;
const CANNOT_RUN: u8 = 2;
const SECOND_SIGNAL: u8 = 130;

/// Appends that run at once. More would only take turns at the log.
const APPENDS: u64 = 2;

/// Appends that wait for their turn. One more is refused, and its client offers it again later.
const MAX_WAITING: usize = 64;

/// The job that `--stuck` starts.
const STUCK: &str = "a job that never ends";

/// Why it could not start.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot make a temporary directory")]
    Temporary(#[source] io::Error),
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error("cannot open the store in {dir}")]
    Open { dir: String, source: OpenError },
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error("cannot start the store")]
    Start(#[from] StartError),
}

/// How it went.
#[derive(Debug)]
enum Outcome {
    Complete,
    /// Something had not ended by the deadline.
    Stuck,
    Failed,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(Outcome::Complete) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => FAILED.into(),
        Ok(Outcome::Stuck) => args.exit_code_on_stuck.into(),
        Err(error) => {
            eprintln!("graceful_shutdown: {}", with_causes(&error));
            CANNOT_RUN.into()
        }
    }
}

fn run(args: &Args) -> Result<Outcome, Error> {
    let temporary = match args.dir {
        Some(_) => None,
        None => Some(TempDir::new().map_err(Error::Temporary)?),
    };
    let given = args.dir.as_deref();
    let dir = given.or(temporary.as_ref().map(TempDir::path)).unwrap_or(Path::new("."));
    let (log, contents) = open(dir)?;
    let runtime = tokio::runtime::Runtime::new().map_err(Error::Runtime)?;
    let run = log.opened_at();
    let (outcome, tallies) = runtime.block_on(serve(args, log))?;
    if !matches!(outcome, Outcome::Complete) {
        // What is left may still have the store.
        return Ok(outcome);
    }
    let (_, reopened) = open(dir)?;
    Ok(check(run, &contents, &tallies, &reopened))
}

fn open(dir: &Path) -> Result<(Log, BTreeMap<String, Vec<u8>>), Error> {
    let opened = Log::open(FileDisk::open(dir)?);
    let (log, recovered) =
        opened.map_err(|source| Error::Open { dir: dir.display().to_string(), source })?;
    let (keys, cut) = (recovered.contents.len(), recovered.cut);
    let how = match (recovered.clean, recovered.cut) {
        (true, _) => "shut down cleanly".to_owned(),
        (false, 0) => "no torn record".to_owned(),
        (false, _) => format!("{cut} bytes of a torn end cut off"),
    };
    say(format_args!("opened {}: {keys} keys, {how}", dir.display()));
    Ok((log, recovered.contents))
}

/// Runs the store until it is time to end, and ends it.
async fn serve(args: &Args, log: Log) -> Result<(Outcome, BTreeMap<usize, Tally>), Error> {
    let mut signals = Signals::listen().map_err(Error::Signals)?;
    let store = Store::start(
        log,
        &Scope::root("store"),
        &tokio::runtime::Handle::current(),
        APPENDS,
        MAX_WAITING,
    )?;
    if args.stuck {
        let stuck = store.storage().job(STUCK).submit(|| {
            loop {
                std::thread::park();
            }
        });
        // Nobody waits for it, and its scope still does.
        drop(stuck);
    }
    let mut clients = JoinSet::new();
    for number in 0..usize::from(args.writers) {
        let print = args.print_acks;
        let task = clients::write(store.writer().clone(), number, move |key, result| {
            if print && result.is_ok() {
                say(format_args!("acknowledged {key}"));
            }
        });
        let name: Arc<str> = format!("client {number}").into();
        let task = store.clients().track(name, task).map_err(StartError::from)?;
        clients.spawn(async move { (number, task.await) });
    }
    say(format_args!("{} clients write; ctrl-c or SIGTERM ends it", args.writers));

    let mut tallies = BTreeMap::new();
    let why = tokio::select! {
        signal = signals.next() => signal,
        () = after(args.lasts()) => "the time is up",
        // Each ends when the log fails.
        () = ended(&mut clients, &mut tallies) => "all clients ended",
    };
    say(format_args!("{why}: shutting down, within {:?}", args.deadline()));
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(SECOND_SIGNAL.into());
    });
    let Ended { report, flush, scrubbed } = store.shutdown(Deadline::after(args.deadline())).await;
    say(&report);

    let mut failed = false;
    match flush {
        Ok(()) => say("last flush: done, and the log is marked as cleanly shut down"),
        Err(error) => {
            failed = true;
            say(format_args!("last flush: {}", with_causes(&error)));
        }
    }
    if let Some(Err(error)) = scrubbed {
        failed = true;
        say(format_args!("scrubber: {}", with_causes(&error)));
    }
    if report.complete {
        ended(&mut clients, &mut tallies).await;
    } else {
        while let Some(Ok((number, tally))) = clients.try_join_next() {
            tallies.insert(number, tally);
        }
    }
    failed |= !tell(&tallies);
    let outcome = match (report.complete, failed) {
        (false, _) => Outcome::Stuck,
        (true, true) => Outcome::Failed,
        (true, false) => Outcome::Complete,
    };
    Ok((outcome, tallies))
}

async fn after(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

/// Waits until all clients have ended. What each did is kept if this is dropped.
async fn ended(clients: &mut JoinSet<(usize, Tally)>, tallies: &mut BTreeMap<usize, Tally>) {
    while let Some(client) = clients.join_next().await {
        match client {
            Ok((number, tally)) => drop(tallies.insert(number, tally)),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Prints what became of the writes. `false` when some are not known to last.
fn tell(tallies: &BTreeMap<usize, Tally>) -> bool {
    let acknowledged: u64 = tallies.values().map(|tally| tally.acknowledged).sum();
    let busy: u64 = tallies.values().map(|tally| tally.busy).sum();
    say(format_args!(
        "writes: {acknowledged} acknowledged, {busy} offered again after a full queue"
    ));
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    let mut all_known = true;
    for error in tallies.values().filter_map(|tally| tally.ended.as_ref()) {
        *reasons.entry(with_causes(error)).or_default() += 1;
        all_known &= matches!(error, PutError::NotWritten(_));
    }
    for (reason, times) in reasons {
        say(format_args!("  {times} {reason}"));
    }
    all_known
}

/// Whether the reopened store holds what it held before and every acknowledged write.
fn check(
    run: u64,
    before: &BTreeMap<String, Vec<u8>>,
    tallies: &BTreeMap<usize, Tally>,
    after: &BTreeMap<String, Vec<u8>>,
) -> Outcome {
    let lost = before.iter().filter(|(key, value)| after.get(*key) != Some(value)).count();
    let acknowledged = tallies
        .iter()
        .flat_map(|(&client, tally)| (0..tally.acknowledged).map(move |write| (client, write)))
        .map(|(client, write)| clients::key(run, client, write));
    let (mut checked, mut wrong) = (0_u64, 0_u64);
    for key in acknowledged {
        checked += 1;
        wrong += u64::from(after.get(&key) != Some(&clients::value(&key)));
    }
    if lost > 0 || wrong > 0 {
        say(format_args!(
            "check FAILED: {lost} keys of before and {wrong} acknowledged writes are lost or wrong"
        ));
        return Outcome::Failed;
    }
    say(format_args!("check ok: all {checked} acknowledged writes are in the reopened store"));
    Outcome::Complete
}

/// A line of output. A reader that has gone away (`| head`) is no reason to fail.
fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stdout(), "{line}");
}
