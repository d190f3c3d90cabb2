//! Shows on stderr what goes on: a table on a terminal, and otherwise a line now and then.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use tollgate::device::Class;
use tollgate::prelude::*;

use crate::load::WAYS;

/// How often the table is drawn anew.
pub(crate) const EVERY: Duration = Duration::from_millis(100);

/// How often there is a line where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Live {
    /// Draws nothing when stderr is not a terminal.
    bar: ProgressBar,
    begun: Instant,
    next_line: Option<Instant>,
}

impl Live {
    pub(crate) fn begin() -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{msg}");
        bar.set_style(style.expect("the template is well-formed"));
        let begun = Instant::now();
        let plain = !std::io::stderr().is_terminal();
        Self { bar, begun, next_line: plain.then_some(begun) }
    }

    pub(crate) fn show(
        &mut self,
        snapshots: &[DeviceSnapshot],
        (offered, ended): (u64, [u64; WAYS.len()]),
    ) {
        let ended =
            WAYS.iter().zip(ended).map(|(way, count)| format!("{} {way}", HumanCount(count)));
        let ended = ended.collect::<Vec<_>>().join(", ");
        let seconds = self.begun.elapsed().as_secs_f64();
        let line = format!("{seconds:.1} s: {} queries, {ended}", HumanCount(offered));
        match self.next_line {
            None => self.bar.set_message(format!("{}\n{line}", table(snapshots))),
            Some(next) if Instant::now() < next => {}
            Some(next) => {
                self.next_line = Some(next + LINE_EVERY);
                eprintln!("{line}");
                snapshots.iter().for_each(|snapshot| eprintln!("  {}", plain(snapshot)));
            }
        }
    }

    /// A line that stays, above the table.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Takes the table away.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}

fn table(snapshots: &[DeviceSnapshot]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["", "attempts", "waiting", "queued", "active", "executing", "auxiliary"]);
    for snapshot in snapshots {
        let counts = [
            snapshot.attempts,
            snapshot.waiting as u64,
            snapshot.queued,
            snapshot.active,
            snapshot.executing,
            auxiliary(snapshot),
        ];
        let counts = counts.map(|count| HumanCount(count).to_string());
        table.add_row(std::iter::once(snapshot.name.clone()).chain(counts));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn plain(snapshot: &DeviceSnapshot) -> String {
    let DeviceSnapshot { name, attempts, waiting, queued, active, executing, .. } = snapshot;
    let auxiliary = auxiliary(snapshot);
    format!(
        "{name}: {attempts} attempts, {waiting} waiting; jobs: {queued} queued, {active} active, \
         {executing} executing, {auxiliary} auxiliary",
    )
}

/// Auxiliary permits that are out.
fn auxiliary(snapshot: &DeviceSnapshot) -> u64 {
    snapshot.class(Class::Auxiliary).map_or(0, |class| class.capacity - class.free)
}
