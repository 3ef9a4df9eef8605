//! The figures as SVG: for each kernel a bar for each way and a dot for each run. The vertical axis
//! is logarithmic, because the ways differ by orders of magnitude; a value of zero has no bar, only
//! its number.

use super::{Results, Sample, Way};
use crate::osts::plots::{BAD, Done, GOOD, SIZE};
use crate::stats::Spread;
use plotters::prelude::*;
use std::path::Path;

const MIDDLE: RGBColor = RGBColor(0x6b, 0x9c, 0x5e);
/// Width of a group with all its bars.
const WIDTH: f64 = 0.8;

/// The bars of one way, one in each group.
struct Series {
    name: &'static str,
    color: RGBColor,
    /// The values of each group.
    values: Vec<Vec<f64>>,
}

struct Figure<'a> {
    title: &'a str,
    groups: Vec<&'static str>,
    series: Vec<Series>,
    /// Lowest and highest value of the mark of each group; `None` for groups without a mark.
    marks: Vec<Option<(f64, f64)>>,
    marks_name: &'a str,
}

fn color(way: Way) -> RGBColor {
    match way {
        Way::Direct => BAD,
        Way::Publish => MIDDLE,
        Way::Defer => GOOD,
    }
}

fn by_way(results: &Results, ways: &[Way], value: impl Fn(&Sample) -> f64) -> Vec<Series> {
    let series = |way: &Way| Series {
        name: way.name(),
        color: color(*way),
        values: results
            .kernels()
            .map(|kernel| results.of(kernel, *way, &value))
            .collect(),
    };
    ways.iter().map(series).collect()
}

fn names(results: &Results) -> Vec<&'static str> {
    results.kernels().map(|kernel| kernel.name).collect()
}

/// Plots the perceived bandwidth.
pub fn perceived(path: &Path, results: &Results) -> Done {
    draw(
        path,
        &Figure {
            title: "Perceived bandwidth, open to close (MB/s)",
            groups: names(results),
            series: by_way(results, &Way::ALL, Sample::rate),
            marks: Vec::new(),
            marks_name: "",
        },
    )
}

/// Plots the lock moves, which are the cost on the side of the file system.
pub fn lock_moves(path: &Path, results: &Results) -> Done {
    draw(
        path,
        &Figure {
            title: "Lock moves on the file system until the file is complete",
            groups: names(results),
            series: by_way(results, &Way::ALL, |sample| sample.lock_moves as f64),
            marks: Vec::new(),
            marks_name: "",
        },
    )
}

/// Plots the bandwidth of each run divided by the mean of direct writes, with the papers' factors
/// beside it.
pub fn factors(path: &Path, results: &Results) -> Done {
    let mut series = by_way(results, &[Way::Publish, Way::Defer], Sample::rate);
    for (n, kernel) in results.kernels().enumerate() {
        let direct = results.mean(kernel, Way::Direct, Sample::rate);
        for one in &mut series {
            one.values[n] = match direct {
                Some(direct) => one.values[n].iter().map(|rate| rate / direct).collect(),
                None => Vec::new(),
            };
        }
    }
    draw(
        path,
        &Figure {
            title: "Perceived bandwidth as a multiple of direct, and the papers' factors",
            groups: names(results),
            series,
            marks: results
                .kernels()
                .map(|kernel| kernel.paper.factor)
                .collect(),
            marks_name: "paper (another comparison)",
        },
    )
}

/// Formats a number so that it fits above a bar.
fn short(value: f64) -> String {
    match value {
        v if v >= 10_000.0 => format!("{:.0}k", v / 1000.0),
        v if v >= 9.95 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

fn draw(path: &Path, figure: &Figure<'_>) -> Done {
    let values = figure.series.iter().flat_map(|s| s.values.iter().flatten());
    let marks = figure.marks.iter().flatten().flat_map(|(a, b)| [a, b]);
    let positive = || values.clone().chain(marks.clone()).filter(|v| **v > 0.0);
    let low = positive().copied().fold(1.0, f64::min) / 2.0;
    let high = positive().copied().fold(1.0, f64::max) * 3.0;
    let right = figure.groups.len().max(1) as f64 - 0.5;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(figure.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.5..right, (low..high).log_scale())?;
    let name = |x: &f64| {
        let group = figure.groups.get(x.round() as usize);
        let named = group.filter(|_| *x >= 0.0 && x.fract() == 0.0);
        named.map_or_else(String::new, |group| (*group).to_owned())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(2 * figure.groups.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    let width = WIDTH / figure.series.len().max(1) as f64;
    for (n, series) in figure.series.iter().enumerate() {
        let color = series.color;
        let left = |group: usize| group as f64 - WIDTH / 2.0 + width * n as f64;
        let spreads = || {
            let all = series.values.iter().enumerate();
            all.filter_map(|(group, values)| Some((group, Spread::of(values)?)))
        };
        chart
            .draw_series(spreads().map(|(group, spread)| {
                let (from, to) = (left(group) + 0.02, left(group) + width - 0.02);
                let top = spread.mean.max(low);
                Rectangle::new([(from, low), (to, top)], color.mix(0.45).filled())
            }))?
            .label(series.name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], color.filled()));
        chart.draw_series(spreads().map(|(group, spread)| {
            let at = (left(group) + 0.02, spread.max.max(low) * 1.35);
            Text::new(short(spread.mean), at, ("sans-serif", 12))
        }))?;
        let dots = series
            .values
            .iter()
            .enumerate()
            .flat_map(|(group, values)| {
                let step = (width - 0.08) / values.len().max(1) as f64;
                let at = move |run: usize| left(group) + 0.04 + step * (run as f64 + 0.5);
                let shown = values.iter().enumerate().filter(|(_, value)| **value > 0.0);
                shown.map(move |(run, value)| Circle::new((at(run), *value), 3, color.filled()))
            });
        chart.draw_series(dots)?;
    }
    let marked = figure.marks.iter().enumerate();
    let marked = marked.filter_map(|(group, mark)| Some((group as f64, (*mark)?)));
    if !figure.marks.is_empty() {
        let style = BLACK.stroke_width(2);
        chart
            .draw_series(marked.flat_map(|(x, (from, to))| {
                let (left, right) = (x - WIDTH / 2.0, x + WIDTH / 2.0);
                [from, to].map(|y| PathElement::new([(left, y), (right, y)], style))
            }))?
            .label(figure.marks_name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::results;

    type Plot = fn(&Path, &Results) -> Done;

    #[test]
    fn every_job_is_a_dot_and_every_kernel_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("figure.svg");
        // Direct runs have no factor, and one job moved no lock.
        let all: [(Plot, usize); 3] = [(perceived, 7), (lock_moves, 6), (factors, 4)];
        for (plot, jobs) in all {
            plot(&path, &results()).expect("plot");
            let svg = std::fs::read_to_string(&path).expect("read");
            let lines: Vec<&str> = svg.lines().map(str::trim).collect();
            let dots = lines.iter().filter(|line| line.starts_with("<circle"));
            assert_eq!(dots.count(), jobs);
            for name in ["coll_perf", "ior_hard", "publish", "defer"] {
                assert!(lines.contains(&name), "{name}");
            }
        }
    }

    #[test]
    fn nothing_measured_is_no_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("figure.svg");
        for plot in [perceived as Plot, lock_moves, factors] {
            plot(&path, &Results::default()).expect("plot");
        }
    }

    #[test]
    fn numbers_above_bars() {
        let texts = [0.0, 0.46, 9.94, 9.96, 1234.4, 23_456.0].map(short);
        assert_eq!(texts, ["0", "0.5", "9.9", "10", "1234", "23k"]);
    }
}
