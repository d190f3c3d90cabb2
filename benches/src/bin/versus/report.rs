//! The table and the JSON.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use tollgate_benches::machine::Machine;

use crate::Args;
use crate::field::{RUNTIME_WORKERS, SPAWN_BLOCKING, Starter, is_ours};
use crate::fresh::Fresh;
use crate::measure::{Figures, Outcome};
use crate::workloads::{ONE_CALLER, Workload};

/// Everything a run found.
pub(crate) struct Report {
    machine: Machine,
    subscriber: bool,
    own_runtimes: bool,
    /// By entrant; what the same name is set up as on another side follows.
    settings: BTreeMap<&'static str, Vec<String>>,
    /// Names in the order of the fields, and whether each is one of ours.
    starters: Vec<(&'static str, bool)>,
    outcomes: Vec<(&'static str, Outcome)>,
    pub(crate) fresh: Option<Fresh>,
}

impl Report {
    pub(crate) fn new(machine: Machine, args: &Args) -> Self {
        Self {
            machine,
            subscriber: args.subscriber,
            own_runtimes: args.own_runtimes,
            settings: BTreeMap::new(),
            starters: Vec::new(),
            outcomes: Vec::new(),
            fresh: None,
        }
    }

    /// These take part from here on.
    pub(crate) fn enter(&mut self, field: &[Starter]) {
        for starter in field {
            self.settings.entry(starter.name).or_default().push(starter.settings());
            if self.starters.iter().all(|&(name, _)| name != starter.name) {
                self.starters.push((starter.name, is_ours(starter.name)));
            }
        }
    }

    pub(crate) fn add(&mut self, workload: &Workload, outcome: Outcome) {
        self.outcomes.push((workload.name, outcome));
    }

    pub(crate) fn outcome(&self, workload: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|(name, _)| *name == workload).map(|(_, outcome)| outcome)
    }

    fn peers(&self) -> impl Iterator<Item = &'static str> {
        self.starters.iter().filter(|(_, ours)| !ours).map(|(name, _)| *name)
    }

    /// One row per entrant, one column per workload.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Disabled);
        let head = self.outcomes.iter().map(|(workload, _)| *workload);
        table.set_header(["us per job (peer / tollgate)"].into_iter().chain(head));
        for &(name, ours) in &self.starters {
            let cells = self.outcomes.iter().map(|(_, outcome)| {
                let figures = outcome.figures.iter().find(|(of, _)| *of == name);
                let Some((_, figures)) = figures else { return String::new() };
                let us = figures.median;
                match outcome.ratio(name) {
                    Some(ratio) if !ours => format!("{us:.2} ({ratio:.2} x)"),
                    _ => format!("{us:.2}"),
                }
            });
            table.add_row(row(name, cells));
        }
        let each = |cell: fn(&Outcome) -> String| self.outcomes.iter().map(move |(_, o)| cell(o));
        table.add_row(row("rounds (dropped)", each(|o| format!("{} ({})", o.rounds, o.dropped))));
        table.add_row(row("A/A", each(|o| format!("{:.3}", o.again_over_first))));
        table.add_row(row("attempts", each(|o| o.attempts.to_string())));
        table.add_row(row("void", each(|o| o.void.as_ref().map_or("", |_| "VOID").to_owned())));
        if let Some(fresh) = &self.fresh {
            let what = format!("{} processes / {SPAWN_BLOCKING}", fresh.ratios.len());
            let cells = self.outcomes.iter().map(|(workload, _)| {
                if *workload == ONE_CALLER.name {
                    format!("({:.2} x)", fresh.ratio())
                } else {
                    String::new()
                }
            });
            table.add_row(row(&what, cells));
        }
        table
    }

    /// The report as it is written.
    pub(crate) fn json(&self) -> impl Serialize {
        let over_peers = self.outcomes.iter().flat_map(|(workload, outcome)| {
            self.peers()
                .filter_map(move |peer| Some((format!("{workload}/{peer}"), outcome.ratio(peer)?)))
        });
        let lone = format!("{}/{SPAWN_BLOCKING}", ONE_CALLER.name);
        Json {
            ratios: over_peers.collect(),
            fresh: self.fresh.iter().map(|fresh| (lone.clone(), fresh.ratio())).collect(),
            void: self.outcomes.iter().map(|(w, o)| (*w, o.void.is_some())).collect(),
            workloads: self.outcomes.iter().map(|(w, o)| (*w, JsonWorkload::from(o))).collect(),
            fresh_processes: self.fresh.clone(),
            settings: self.settings.clone(),
            runtime_workers: RUNTIME_WORKERS,
            own_runtimes: self.own_runtimes,
            subscriber: self.subscriber,
            machine: self.machine.clone(),
        }
    }
}

fn row(title: &str, cells: impl Iterator<Item = String>) -> Vec<Cell> {
    let cells = cells.map(|cell| Cell::new(cell).set_alignment(CellAlignment::Right));
    [Cell::new(title)].into_iter().chain(cells).collect()
}

#[derive(Serialize)]
struct Json {
    /// "workload/peer": the peer's time per job over tollgate's.
    ratios: BTreeMap<String, f64>,
    /// The same, as the median over fresh processes.
    fresh: BTreeMap<String, f64>,
    /// Workloads whose figures show nothing.
    void: BTreeMap<&'static str, bool>,
    workloads: BTreeMap<&'static str, JsonWorkload>,
    fresh_processes: Option<Fresh>,
    settings: BTreeMap<&'static str, Vec<String>>,
    runtime_workers: usize,
    own_runtimes: bool,
    subscriber: bool,
    machine: Machine,
}

#[derive(Serialize)]
struct JsonWorkload {
    /// Microseconds per job.
    us_per_job: BTreeMap<&'static str, Figures>,
    rounds: usize,
    dropped_rounds: usize,
    aa_ratio: f64,
    attempts: usize,
    void: Option<String>,
}

impl From<&Outcome> for JsonWorkload {
    fn from(outcome: &Outcome) -> Self {
        Self {
            us_per_job: outcome.figures.iter().cloned().collect(),
            rounds: outcome.rounds,
            dropped_rounds: outcome.dropped,
            aa_ratio: outcome.again_over_first,
            attempts: outcome.attempts,
            void: outcome.void.clone(),
        }
    }
}
