//! What a run found: the one structure behind the tables and the JSON file.

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use indicatif::HumanCount;
use serde::Serialize;
use tollgate::device::{Class, EventKind, EventStream};
use tollgate::prelude::*;

use crate::args::Args;
use crate::load::{Ledger, WAYS};
use crate::service::{ATTEMPTS, DEVICES, EXECUTING, Shutdown};

/// Everything that a run found. Times are in milliseconds unless the name says otherwise.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) clients: u16,
    pub(crate) seconds: f64,
    /// The signal that ended the run before its time.
    pub(crate) interrupted_by: Option<&'static str>,
    pub(crate) offered: u64,
    pub(crate) outcomes: Vec<OutcomeFigures>,
    pub(crate) wrong: u64,
    pub(crate) pools: Vec<PoolFigures>,
    pub(crate) tracker: TrackerFigures,
    pub(crate) check: Check,
    pub(crate) shutdown: ShutdownFigures,
}

#[derive(Debug, Serialize)]
pub(crate) struct OutcomeFigures {
    pub(crate) outcome: &'static str,
    pub(crate) count: u64,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) max: Option<f64>,
}

/// A pool at its end.
#[derive(Debug, Serialize)]
pub(crate) struct PoolFigures {
    pub(crate) device: String,
    pub(crate) peak_attempts: u64,
    pub(crate) peak_active: u64,
    pub(crate) peak_executing: u64,
    pub(crate) peak_queued: u64,
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    pub(crate) missed_deadline: u64,
    pub(crate) auxiliary: u64,
    pub(crate) events: EventFigures,
}

/// What somebody who followed a pool's events saw.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct EventFigures {
    pub(crate) enqueued: u64,
    pub(crate) started: u64,
    pub(crate) ended: u64,
    /// Those of the ended ones that were cleanups.
    pub(crate) cleanups: u64,
    pub(crate) missed: u64,
}

/// What both pools counted together.
#[derive(Debug, Serialize)]
pub(crate) struct TrackerFigures {
    pub(crate) peak_active: u64,
    pub(crate) peak_executing: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) ok: bool,
    pub(crate) problems: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ShutdownFigures {
    pub(crate) complete: bool,
    pub(crate) took_seconds: f64,
    pub(crate) reports: Vec<String>,
}

impl EventFigures {
    /// Follows the events until the pool has ended.
    pub(crate) async fn follow(mut events: EventStream) -> Self {
        let mut figures = Self::default();
        while let Some(event) = events.recv().await {
            match event.what {
                EventKind::Enqueued => figures.enqueued += 1,
                EventKind::Started { .. } => figures.started += 1,
                EventKind::CancellationRequested => {}
                EventKind::Ended(_) => {
                    figures.ended += 1;
                    figures.cleanups += u64::from(event.kind == DeviceKind::CLEANUP);
                }
            }
        }
        Self { missed: events.missed(), ..figures }
    }
}

impl Report {
    pub(crate) fn new(
        args: &Args,
        interrupted_by: Option<&'static str>,
        ledger: &Ledger,
        events: &[EventFigures],
        shutdown: Shutdown,
    ) -> Self {
        let check = Check::of(ledger, events, &shutdown);
        let pools = shutdown.snapshots.iter().zip(&shutdown.attempts).zip(events);
        let pools = pools
            .map(|((snapshot, &attempts), &events)| PoolFigures::new(snapshot, attempts, events));
        Self {
            seed: args.seed,
            clients: args.clients,
            seconds: args.seconds.as_secs_f64(),
            interrupted_by,
            offered: ledger.counts().0,
            outcomes: WAYS
                .iter()
                .zip(&ledger.ended)
                .map(|(outcome, times)| OutcomeFigures::new(outcome, times))
                .collect(),
            wrong: ledger.wrong,
            pools: pools.collect(),
            tracker: TrackerFigures {
                peak_active: shutdown.tracker.peak_active,
                peak_executing: shutdown.tracker.peak_executing,
            },
            check,
            shutdown: ShutdownFigures {
                complete: shutdown.complete,
                took_seconds: shutdown.took.as_secs_f64(),
                reports: shutdown.reports,
            },
        }
    }

    /// What became of the queries, and how long that took.
    pub(crate) fn outcomes_table(&self) -> Table {
        let mut table = table(["", "queries", "share", "p50, ms", "p99, ms", "max, ms"]);
        for OutcomeFigures { outcome, count, p50, p99, max } in &self.outcomes {
            let share = match self.offered {
                0 => "-".to_owned(),
                offered => format!("{:.1} %", *count as f64 / offered as f64 * 100.0),
            };
            let cells = [(*outcome).to_owned(), HumanCount(*count).to_string(), share];
            table.add_row(cells.into_iter().chain([p50, p99, max].map(|time| millis(*time))));
        }
        table
    }

    /// A column per pool, and one for what one tracker counted over both.
    pub(crate) fn pools_table(&self) -> Table {
        let names = self.pools.iter().map(|pool| pool.device.clone());
        let header: Vec<_> =
            [String::new()].into_iter().chain(names).chain(["both".to_owned()]).collect();
        let mut table = table(header);
        let mut row = |name: &str, of: fn(&PoolFigures) -> u64, both: Option<u64>| {
            let counts = self.pools.iter().map(|pool| HumanCount(of(pool)).to_string());
            let both = both.map_or_else(|| "-".to_owned(), |both| HumanCount(both).to_string());
            table.add_row([name.to_owned()].into_iter().chain(counts).chain([both]));
        };
        let sum = |of: fn(&PoolFigures) -> u64| Some(self.pools.iter().map(of).sum());
        let Self { tracker, .. } = self;
        row("attempts admitted", |it| it.admitted, sum(|it| it.admitted));
        row("refused, queue full", |it| it.refused, sum(|it| it.refused));
        row("late before admission", |it| it.missed_deadline, sum(|it| it.missed_deadline));
        row("auxiliary jobs", |it| it.auxiliary, sum(|it| it.auxiliary));
        row("cleanups", |it| it.events.cleanups, sum(|it| it.events.cleanups));
        row("most attempts", |it| it.peak_attempts, None);
        row("most jobs queued", |it| it.peak_queued, None);
        row("most jobs active", |it| it.peak_active, Some(tracker.peak_active));
        row("most executing", |it| it.peak_executing, Some(tracker.peak_executing));
        row("jobs seen to end", |it| it.events.ended, sum(|it| it.events.ended));
        row("events missed", |it| it.events.missed, sum(|it| it.events.missed));
        table
    }
}

impl OutcomeFigures {
    fn new(outcome: &'static str, times: &Histogram<u64>) -> Self {
        let millis = |micros: u64| (!times.is_empty()).then_some(micros as f64 / 1e3);
        Self {
            outcome,
            count: times.len(),
            p50: millis(times.value_at_quantile(0.5)),
            p99: millis(times.value_at_quantile(0.99)),
            max: millis(times.max()),
        }
    }
}

impl PoolFigures {
    fn new(snapshot: &DeviceSnapshot, admitted: u64, events: EventFigures) -> Self {
        // An attempt waits for its root permit, and then for the permit of its cleanup.
        let refused = [Class::Root, Class::Release]
            .map(|of| snapshot.class(of).map(|class| class.refused).unwrap_or_default());
        Self {
            device: snapshot.name.clone(),
            peak_attempts: snapshot.peak_attempts,
            peak_active: snapshot.peak_active,
            peak_executing: snapshot.peak_executing,
            peak_queued: snapshot.peak_queued,
            admitted,
            refused: refused.iter().map(|refused| refused.queue_full).sum(),
            missed_deadline: refused.iter().map(|refused| refused.deadline).sum(),
            auxiliary: snapshot.class(Class::Auxiliary).map_or(0, |class| class.admitted),
            events,
        }
    }
}

impl Check {
    fn of(ledger: &Ledger, events: &[EventFigures], shutdown: &Shutdown) -> Self {
        let mut problems = Vec::new();
        let mut holds = |holds: bool, problem: &dyn Fn() -> String| {
            if !holds {
                problems.push(problem());
            }
        };

        // Every query has one outcome.
        let (offered, ended) = ledger.counts();
        let [done, refused, timed_out, cancelled, failed] = ended;
        let open = ledger.ends.iter().filter(|end| end.is_none()).count();
        holds(open == 0, &|| format!("{open} queries have no outcome"));
        let twice = ledger.ended_twice;
        holds(twice == 0, &|| format!("{twice} outcomes of queries that had one"));
        holds(offered == done + refused + timed_out + cancelled, &|| {
            format!(
                "offered {offered}, but done {done} + refused {refused} + timed out {timed_out} + \
                 cancelled {cancelled}"
            )
        });
        let (wrong, first) = (ledger.wrong, ledger.first_problem.as_deref().unwrap_or_default());
        holds(wrong == 0, &|| format!("{wrong} of {done} answers are wrong; first {first}"));
        holds(failed == 0, &|| format!("{failed} queries failed; first {first}"));

        // The pools kept their bounds, and have everything back.
        for snapshot in &shutdown.snapshots {
            let DeviceSnapshot { name, peak_attempts, peak_executing, .. } = snapshot;
            holds(*peak_attempts <= u64::from(ATTEMPTS), &|| {
                format!("{name} had {peak_attempts} attempts at once, and may have {ATTEMPTS}")
            });
            holds(*peak_executing <= u64::from(EXECUTING), &|| {
                format!("{name} executed {peak_executing} at once, and may {EXECUTING}")
            });
            let left = snapshot.queued + snapshot.active + snapshot.ending + snapshot.attempts;
            holds(left == 0, &|| format!("{name} has {left} jobs and attempts left"));
            for class in &snapshot.classes {
                holds(class.free == class.capacity, &|| {
                    let out = class.capacity - class.free;
                    format!("{name} has {out} permits of class {} out", class.class)
                });
            }
        }
        let attempts = shutdown.snapshots.iter().zip(&shutdown.attempts);
        for (events, (snapshot, attempts)) in events.iter().zip(attempts) {
            let EventFigures { enqueued, ended, cleanups, missed, .. } = events;
            let (name, all) = (&snapshot.name, *missed == 0);
            holds(!all || enqueued == ended, &|| {
                format!("{name} accepted {enqueued} jobs, of which {ended} ended")
            });
            holds(!all || attempts == cleanups, &|| {
                format!("{name} admitted {attempts} attempts, of which {cleanups} were cleaned up")
            });
        }

        // What one tracker counts over both pools fits what each counted.
        let tracker = shutdown.tracker;
        holds(tracker.active == 0 && tracker.executing == 0, &|| {
            format!("{} jobs are active for the tracker", tracker.active)
        });
        let peaks = || shutdown.snapshots.iter().map(|snapshot| snapshot.peak_active);
        let (one, all) = (peaks().max().unwrap_or(0), peaks().sum());
        holds((one..=all).contains(&tracker.peak_active), &|| {
            format!("both had {} active at once, not {one} to {all}", tracker.peak_active)
        });
        let most = u64::from(DEVICES * EXECUTING);
        holds(tracker.peak_executing <= most, &|| {
            format!("both executed {} at once, and may {most}", tracker.peak_executing)
        });

        // Nothing is left of it.
        holds(shutdown.complete, &|| "the shutdown is not complete".to_owned());
        let bytes = shutdown.bytes_left;
        holds(bytes == 0, &|| format!("{bytes} bytes are in use on devices"));
        holds(shutdown.devices_gone, &|| "threads of a device have not ended".to_owned());
        Self { ok: problems.is_empty(), problems }
    }
}

fn table<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header.into_iter().map(Into::into).collect::<Vec<String>>());
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn millis(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}
