//! The figures as a page that needs nothing but itself.

use std::fmt::Write as _;
use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::{Report, ServiceName, Step, table};

const TEMPLATE: &str = include_str!("page.html");
const SIZE: (u32, u32) = (900, 420);

/// Any failure to draw.
pub(crate) type PlotError = Box<dyn std::error::Error>;

/// A line of a plot.
struct Line {
    name: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

/// What a plot needs beside its lines.
struct Axes {
    x: &'static str,
    y: &'static str,
    /// Where no line is.
    legend: SeriesLabelPosition,
}

const TOLLGATE: RGBColor = RGBColor(26, 127, 55);
const TOLLGATE_LIGHT: RGBColor = RGBColor(130, 200, 150);
const BARE: RGBColor = RGBColor(180, 35, 24);
const BARE_LIGHT: RGBColor = RGBColor(235, 155, 145);

/// The whole page.
pub(crate) fn html(report: &Report) -> Result<String, PlotError> {
    let top_load = report.steps.iter().map(|step| step.load).fold(0.0, f64::max);
    let mut page = TEMPLATE.to_owned();
    for (place, text) in [
        ("{{summary}}", escape(&report.summary())),
        ("{{latency}}", latency(&report.steps)?),
        ("{{goodput}}", goodput(&report.steps)?),
        ("{{timeline}}", timeline(&report.steps, top_load)?),
        ("{{top_load}}", top_load.to_string()),
        ("{{table}}", figures(&report.steps)),
        ("{{bars}}", bars(report)),
        ("{{shutdown}}", escape(&report.shutdown_text())),
    ] {
        page = page.replace(place, &text);
    }
    Ok(page)
}

fn latency(steps: &[Step]) -> Result<String, PlotError> {
    let line = |name, color, service, value: fn(&Step) -> Option<f64>| Line {
        name,
        color,
        points: by_load(steps, service, value),
    };
    let lines = [
        line("tollgate p50", TOLLGATE_LIGHT, ServiceName::Tollgate, |step| step.latency_ms.p50),
        line("tollgate p99", TOLLGATE, ServiceName::Tollgate, |step| step.latency_ms.p99),
        line("bare p50", BARE_LIGHT, ServiceName::SpawnBlocking, |step| step.latency_ms.p50),
        line("bare p99", BARE, ServiceName::SpawnBlocking, |step| step.latency_ms.p99),
    ];
    let axes = Axes {
        x: "offered load, times the capacity",
        y: "latency, ms (log)",
        legend: SeriesLabelPosition::UpperLeft,
    };
    draw(&axes, &lines, decades(&lines).log_scale())
}

fn goodput(steps: &[Step]) -> Result<String, PlotError> {
    let line = |name, color, service| Line {
        name,
        color,
        points: by_load(steps, service, |step| Some(step.goodput_per_second)),
    };
    let lines = [
        line("tollgate", TOLLGATE, ServiceName::Tollgate),
        line("bare", BARE, ServiceName::SpawnBlocking),
    ];
    let axes = Axes {
        x: "offered load, times the capacity",
        y: "requests done per second",
        legend: SeriesLabelPosition::LowerRight,
    };
    draw(&axes, &lines, from_zero(&lines))
}

fn timeline(steps: &[Step], load: f64) -> Result<String, PlotError> {
    let line = |name, color, service| {
        let step = steps.iter().find(|step| step.is(service, load));
        Line { name, color, points: step.map_or_else(Vec::new, |step| step.timeline.clone()) }
    };
    let lines = [
        line("tollgate", TOLLGATE, ServiceName::Tollgate),
        line("bare", BARE, ServiceName::SpawnBlocking),
    ];
    let axes = Axes {
        x: "seconds since the load began",
        y: "latency, ms",
        legend: SeriesLabelPosition::MiddleRight,
    };
    draw(&axes, &lines, from_zero(&lines))
}

fn by_load(
    steps: &[Step],
    service: ServiceName,
    value: fn(&Step) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let steps = steps.iter().filter(|step| step.service == service);
    steps.filter_map(|step| Some((step.load, value(step)?))).collect()
}

fn values(lines: &[Line]) -> impl Iterator<Item = f64> {
    lines.iter().flat_map(|line| line.points.iter().map(|&(_, y)| y))
}

/// A little more than the highest value.
fn from_zero(lines: &[Line]) -> Range<f64> {
    0.0..values(lines).fold(1.0, f64::max) * 1.1
}

/// Whole decades around all values.
fn decades(lines: &[Line]) -> Range<f64> {
    let (low, high) = values(lines)
        .filter(|&y| y > 0.0)
        .fold((f64::MAX, f64::MIN), |(low, high), y| (low.min(y), high.max(y)));
    // Without any value there is still a plot.
    let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
    let (low, high) = (low.log10().floor(), (high.log10() + 0.01).ceil());
    10f64.powf(low)..10f64.powf(high)
}

fn draw<Y>(axes: &Axes, lines: &[Line], y: Y) -> Result<String, PlotError>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let right = lines.iter().flat_map(|line| &line.points).map(|&(x, _)| x).fold(1.0, f64::max);
    let x: Range<f64> = 0.0..right * 1.05;

    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .light_line_style(BLACK.mix(0.05))
        .bold_line_style(BLACK.mix(0.15))
        .label_style(("sans-serif", 14))
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .draw()?;
    for line in lines {
        let color = line.color;
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(3))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    chart
        .configure_series_labels()
        .position(axes.legend.clone())
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    drop(chart);
    drop(area);
    Ok(svg)
}

/// Without the noise that adding up steps of an axis leaves.
fn label(value: &f64) -> String {
    ((value * 1e6).round() / 1e6).to_string()
}

fn figures(steps: &[Step]) -> String {
    let mut html = String::from("<table><tr><th></th>");
    for step in steps {
        // Writing to a string cannot fail, here and below.
        let _ = write!(html, "<th>{}<br>{} x</th>", step.service.text(), step.load);
    }
    html.push_str("</tr>");
    for (name, values) in table::rows(steps) {
        let _ = write!(html, "<tr><th>{name}</th>");
        for value in values {
            let _ = write!(html, "<td>{value}</td>");
        }
        html.push_str("</tr>");
    }
    html.push_str("</table>");
    html
}

fn bars(report: &Report) -> String {
    let mut html = String::new();
    for bar in &report.bars {
        let class = if bar.met { "met" } else { "missed" };
        let _ = write!(html, "<li class=\"{class}\">{}</li>", escape(&bar.to_string()));
    }
    html
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
