//! A query service on two devices, under more load than they can carry. The devices are on the CPU:
//! their streams, memory, copies and kernels do real work, and every answer is checked.
//!
//! ```text
//! cargo run --release --example device_pool -- \
//!     [--seconds N] [--clients N] [--seed N] [--json FILE]
//! ```
//!
//! Where to look first: `service.rs`, with the pools, `Service::ask` and the shutdown, then
//! `query.rs`, with the jobs of one query. Neither knows which driver it has, but for where the
//! devices are made; `kernels.rs` is what a driver adds. `load.rs` asks, `live.rs` shows, `report.rs`
//! checks.
//!
//! Exit codes: 0, or 1 when a check fails, 2 when it cannot start (a bad number, a file that cannot
//! be written), 130 when ctrl-c ended it and 143 when SIGTERM did.

mod args;
#[path = "../shared/causes.rs"]
mod causes;
mod columns;
mod interrupt;
mod kernels;
mod live;
mod load;
mod query;
mod report;
mod service;
#[path = "../shared/signals.rs"]
mod signals;

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser as _;
use indicatif::HumanCount;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::args::Args;
use crate::causes::with_causes;
use crate::columns::Columns;
use crate::interrupt::Interrupt;
use crate::live::Live;
use crate::load::Ledger;
use crate::report::{EventFigures, Report};
use crate::service::{Service, SetupError};

const CHECK_FAILED: u8 = 1;
const CANNOT_RUN: u8 = 2;

/// Why it could not run.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("cannot write {path}")]
    Output { path: PathBuf, source: io::Error },
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for signals")]
    Signals(#[source] io::Error),
    #[error("cannot start the service")]
    Setup(#[from] SetupError),
    #[error("cannot write the figures as JSON")]
    Json(#[source] serde_json::Error),
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(report) if !report.check.ok => CHECK_FAILED.into(),
        Ok(report) => report.interrupted_by.map_or(0, interrupt::exit_code).into(),
        Err(error) => {
            eprintln!("device_pool: {}", with_causes(&error));
            CANNOT_RUN.into()
        }
    }
}

fn run(args: &Args) -> Result<Report, Error> {
    // A mistyped name is found before anything is run.
    if let Some(path) = &args.json {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.map_err(|source| Error::Output { path: path.clone(), source })?;
    }
    let runtime = tokio::runtime::Runtime::new().map_err(Error::Runtime)?;
    let report = runtime.block_on(serve(args))?;
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report).map_err(Error::Json)?;
        fs::write(path, json).map_err(|source| Error::Output { path: path.clone(), source })?;
    }
    // A reader that has gone away (`| head`) is no reason to fail.
    let _ = print(&report, args.json.as_deref());
    Ok(report)
}

async fn serve(args: &Args) -> Result<Report, Error> {
    let handle = tokio::runtime::Handle::current();
    let interrupt = Interrupt::listen(&handle).map_err(Error::Signals)?;
    let service = Arc::new(Service::start(Arc::new(Columns::generate(args.seed)))?);
    let observers: Vec<_> = service
        .events()
        .into_iter()
        .map(|events| tokio::spawn(EventFigures::follow(events)))
        .collect();
    let ledger = Arc::new(Mutex::new(Ledger::new()));
    let until = Instant::now() + args.seconds;
    let clients = load::start(&service, &ledger, args.clients, args.seed, until, interrupt.token());
    watch(clients, &service, &ledger, &interrupt).await;

    // The clients had the other handles.
    let service = Arc::into_inner(service).expect("all clients have ended");
    let shutdown = service.shut_down().await;
    let mut events = Vec::new();
    for observer in observers {
        // It ends with its pool.
        events.push(observer.await.unwrap_or_default());
    }
    let ledger = ledger.lock();
    Ok(Report::new(args, interrupt.by(), &ledger, &events, shutdown))
}

/// Shows what goes on until all clients have ended.
async fn watch(
    mut clients: JoinSet<()>,
    service: &Service,
    ledger: &Mutex<Ledger>,
    interrupt: &Interrupt,
) {
    let mut live = Live::begin();
    live.say(&service::description());
    let mut told = false;
    let mut looks = tokio::time::interval(live::EVERY);
    loop {
        tokio::select! {
            biased;
            () = interrupt.token().cancelled(), if !told => {
                told = true;
                let signal = interrupt.by().unwrap_or_default();
                live.say(&format!("{signal}: ending in good order; once more ends it at once"));
            }
            client = clients.join_next() => match client {
                None => break,
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
                Some(Ok(())) => {}
            },
            _ = looks.tick() => {
                let counts = ledger.lock().counts();
                live.show(&service.snapshots(), counts);
            }
        }
    }
    live.finish();
}

fn print(report: &Report, json: Option<&Path>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let Report { seed, clients, offered, shutdown, .. } = report;
    writeln!(out, "seed {seed}, {clients} clients, {} queries", HumanCount(*offered))?;
    writeln!(out, "{}\n{}", report.outcomes_table(), report.pools_table())?;
    writeln!(out, "both: sums, and the peaks of a tracker that both pools share\n")?;
    if report.check.ok {
        writeln!(
            out,
            "check ok: answers equal the serial computation's, offered = done + refused + timed out \
             + cancelled, and all permits and bytes are back"
        )?;
    } else {
        writeln!(out, "check FAILED")?;
        for problem in &report.check.problems {
            writeln!(out, "  {problem}")?;
        }
    }
    let (state, took) =
        (if shutdown.complete { "complete" } else { "NOT complete" }, shutdown.took_seconds);
    writeln!(out, "\nshutdown: {state} after {took:.3} s")?;
    for text in &shutdown.reports {
        writeln!(out, "{text}")?;
    }
    if let Some(signal) = report.interrupted_by {
        writeln!(out, "{signal} ended the run early: the figures are those of the part that ran")?;
    }
    if let Some(path) = json {
        writeln!(out, "figures: {}", path.display())?;
    }
    out.flush()
}
