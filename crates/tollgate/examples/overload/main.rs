//! A service that reads, hashes and compresses real files, under up to four times the load that
//! it can carry: once over tollgate, once over bare `spawn_blocking`.
//!
//! ```text
//! cargo run --release --example overload -- \
//!     [DIR] [--seconds-per-step N] [--json FILE] [--html FILE] [--seed N]
//! ```
//!
//! Where to look first: `service/over_tollgate.rs` and, beside it, `service/over_spawn_blocking.rs`.
//! The rest offers load (`load`), measures (`measure`) and reports (`report`); `experiment` says in
//! which order.
//!
//! Exit codes: 0, or 1 when the run's check of itself fails, 2 when it cannot start (a bad
//! directory, an unreadable file, a bad number), 130 when ctrl-c ended it. A promise that was not
//! kept is printed as missed and changes no exit code, since a busy machine is reason enough.

mod args;
#[path = "../shared/causes.rs"]
mod causes;
mod corpus;
mod experiment;
mod interrupt;
mod load;
mod measure;
mod output;
mod progress;
mod report;
mod service;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Args;
use crate::causes::with_causes;
use crate::corpus::Corpus;
use crate::experiment::Error;
use crate::output::OutputFile;
use crate::report::{Report, page, table};

const SELF_CHECK_FAILED: u8 = 1;
const CANNOT_RUN: u8 = 2;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(report) if !report.self_check.ok => SELF_CHECK_FAILED.into(),
        Ok(report) if report.interrupted => interrupt::EXIT_CODE.into(),
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overload: {}", with_causes(&error));
            CANNOT_RUN.into()
        }
    }
}

fn run(args: &Args) -> Result<Report, Error> {
    // All names are looked at before anything is measured, so that a mistyped one costs no run.
    let corpus = Corpus::find(&args.dir.clone().unwrap_or_else(output::repository))?;
    let html = OutputFile::create(args.html.clone().unwrap_or_else(output::default_page))?;
    let json = args.json.clone().map(OutputFile::create).transpose()?;

    let report = experiment::run(args, corpus)?;

    html.write(&page::html(&report).map_err(Error::Plot)?)?;
    if let Some(json) = &json {
        json.write(&serde_json::to_string_pretty(&report).map_err(Error::Json)?)?;
    }
    // A reader that has gone away (`| head`) is no reason to fail.
    let _ = print(&report, &html, json.as_ref());
    Ok(report)
}

fn print(report: &Report, html: &OutputFile, json: Option<&OutputFile>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "\n{}\n", report.summary())?;
    if !report.steps.is_empty() {
        write!(out, "{}", table::text(&report.steps))?;
        writeln!(
            out,
            "bare: every call through `spawn_blocking`; threads and memory: of the process\n"
        )?;
    }
    for bar in &report.bars {
        writeln!(out, "{bar}")?;
    }
    if report.self_check.ok {
        let what = "answers equal the serial pass's, offered = done + refused + cancelled";
        writeln!(out, "self-check ok: {what}")?;
    } else {
        writeln!(out, "self-check FAILED")?;
        for problem in &report.self_check.problems {
            writeln!(out, "  {problem}")?;
        }
    }
    writeln!(out, "\nshutdown\n{}", report.shutdown_text())?;
    if report.interrupted {
        writeln!(out, "ctrl-c ended the run early: the figures are those of the part that ran")?;
    }
    writeln!(out, "plots: {html}")?;
    if let Some(json) = json {
        writeln!(out, "figures: {json}")?;
    }
    out.flush()
}
