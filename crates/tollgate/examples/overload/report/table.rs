//! The figures as a table: one column per step, one row per figure.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanCount;

use super::{ServiceName, Step};

/// A figure's name and its value in each step.
pub(crate) type Row = (&'static str, Vec<String>);

/// The rows of the table, here and on the page.
pub(crate) fn rows(steps: &[Step]) -> Vec<Row> {
    let row = |name, value: &dyn Fn(&Step) -> String| (name, steps.iter().map(value).collect());
    vec![
        row("offered", &|step| count(step.offered)),
        row("done", &|step| count(step.done)),
        row("refused: queue full", &|step| count(step.refused.queue_full)),
        row("refused: deadline", &|step| count(step.refused.deadline)),
        row("refused: closed", &|step| count(step.refused.closed)),
        row("cancelled", &|step| count(step.cancelled)),
        row("goodput, /s", &|step| count(step.goodput_per_second.round() as u64)),
        row("latency p50, ms", &|step| millis(step.latency_ms.p50)),
        row("latency p99, ms", &|step| millis(step.latency_ms.p99)),
        row("latency p99.9, ms", &|step| millis(step.latency_ms.p999)),
        row("latency slope, ms/s", &|step| {
            step.latency_slope_ms_per_second.map_or_else(none, |slope| format!("{slope:+.1}"))
        }),
        row("health p99, ms", &|step| millis(step.health_ms.p99)),
        row("offered late p99, ms", &|step| millis(step.generator_late_ms.p99)),
        row("peak threads", &|step| step.peak_threads.map_or_else(none, count)),
        row("peak memory, MiB", &|step| {
            step.peak_memory_bytes.map_or_else(none, |bytes| count(bytes >> 20))
        }),
    ]
}

/// The table, or one per service where the terminal is too narrow for all columns.
pub(crate) fn text(steps: &[Step]) -> String {
    let whole = table(steps);
    let terminal = whole.width().map_or(usize::MAX, usize::from);
    if width(&whole) <= terminal {
        return format!("{whole}\n");
    }
    let services = steps.chunk_by(|a, b| a.service == b.service);
    services.map(|steps| format!("{}\n", table(steps))).collect()
}

fn table(steps: &[Step]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let columns = steps.iter().map(|step| format!("{}\n{} x", short_name(step.service), step.load));
    table.set_header(std::iter::once(String::new()).chain(columns));
    for (name, values) in rows(steps) {
        table.add_row(std::iter::once(name.to_owned()).chain(values));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn width(table: &Table) -> usize {
    table.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

/// Keeps the columns narrow.
fn short_name(service: ServiceName) -> &'static str {
    match service {
        ServiceName::Tollgate => "tollgate",
        ServiceName::SpawnBlocking => "bare",
    }
}

fn count(value: u64) -> String {
    HumanCount(value).to_string()
}

fn millis(value: Option<f64>) -> String {
    match value {
        None => none(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) if value < 1000.0 => format!("{value:.1}"),
        Some(value) => count(value.round() as u64),
    }
}

/// What the system does not tell, or nothing was recorded of.
fn none() -> String {
    "-".to_owned()
}
