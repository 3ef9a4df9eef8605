//! The figures as SVG: every run as a dot, mean and deviation as a bar; and lock moves by the
//! number of delegates.

use super::domains;
use super::probing::{Case, Results};
use super::tables::{self, Until};
use crate::stats::Spread;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

pub(crate) const SIZE: (u32, u32) = (960, 420);
pub(crate) const GOOD: RGBColor = RGBColor(0x2f, 0x6f, 0xa8);
pub(crate) const BAD: RGBColor = RGBColor(0xd9, 0x8c, 0x2b);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Done = Result<(), Box<dyn Error>>;

/// One position on the horizontal axis.
struct Column {
    name: String,
    values: Vec<f64>,
    color: RGBColor,
}

/// Columns of the figure. The perceived bandwidths are only in the table: beside them all other
/// columns would be too short to read.
const COLUMNS: [(Case, Until, &str); 5] = [
    (Case::Direct, Until::Complete, "direct"),
    (Case::AllOsts, Until::Safe, "all OSTs, safe"),
    (Case::AllOsts, Until::Complete, "all OSTs, complete"),
    (Case::Probing, Until::Safe, "probing, safe"),
    (Case::Probing, Until::Complete, "probing, complete"),
];

pub fn bandwidth(path: &Path, results: &Results) -> Done {
    let columns: Vec<Column> = COLUMNS
        .iter()
        .map(|(case, until, name)| Column {
            name: (*name).to_owned(),
            values: tables::rates(results, *case, *until),
            color: if *case == Case::Probing { GOOD } else { BAD },
        })
        .filter(|column| !column.values.is_empty())
        .collect();
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let title = "Checkpoint bandwidth of each run, mean and standard deviation (MB/s)";
    panel(&area, title, &columns)?;
    area.present()?;
    Ok(())
}

pub fn lock_moves(path: &Path, samples: &[domains::Sample]) -> Done {
    let columns = |value: fn(&domains::Sample) -> f64| -> Vec<Column> {
        let groups = tables::by_delegates(samples).into_iter();
        groups
            .map(|(delegates, group)| Column {
                name: delegates.to_string(),
                values: group.into_iter().map(value).collect(),
                color: match domains::is_mapped(delegates) {
                    true => GOOD,
                    false => BAD,
                },
            })
            .collect()
    };
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    let osts = domains::OSTS;
    panel(
        &left,
        &format!("Lock moves by delegates, {osts} OSTs"),
        &columns(|sample| sample.lock_moves as f64),
    )?;
    panel(
        &right,
        "Bandwidth by delegates (MB/s)",
        &columns(domains::Sample::rate),
    )?;
    area.present()?;
    Ok(())
}

/// Draws column `n` around `n` on the horizontal axis.
fn panel(area: &Area<'_>, title: &str, columns: &[Column]) -> Done {
    let highest = columns.iter().flat_map(|column| &column.values);
    let top = highest.copied().fold(1.0, f64::max) * 1.1;
    let right = columns.len().max(1) as f64 - 0.5;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.5..right, 0.0..top)?;
    let name = |x: &f64| {
        let column = columns.get(x.round() as usize);
        let named = column.filter(|_| *x >= 0.0 && x.fract() == 0.0);
        named.map_or_else(String::new, |column| column.name.clone())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(2 * columns.len() + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    for (n, column) in columns.iter().enumerate() {
        let Some(spread) = Spread::of(&column.values) else {
            continue;
        };
        let (x, color) = (n as f64, column.color);
        let bar = [(x - 0.25, 0.0), (x + 0.25, spread.mean)];
        chart.draw_series([Rectangle::new(bar, color.mix(0.45).filled())])?;
        let low = (spread.mean - spread.deviation).max(0.0);
        let high = (spread.mean + spread.deviation).min(top);
        let lines = [
            [(x, low), (x, high)],
            [(x - 0.04, low), (x + 0.04, low)],
            [(x - 0.04, high), (x + 0.04, high)],
        ];
        chart.draw_series(lines.map(|line| PathElement::new(line, BLACK.stroke_width(2))))?;
        let step = 0.44 / column.values.len() as f64;
        let dots = column.values.iter().enumerate();
        chart.draw_series(dots.map(|(run, value)| {
            let at = x - 0.22 + step * (run as f64 + 0.5);
            Circle::new((at, *value), 3, color.filled())
        }))?;
        let mean = format!("{:.0}", spread.mean);
        let beside = (x + 0.27, spread.mean);
        chart.draw_series([Text::new(mean, beside, ("sans-serif", 14))])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(run: u32, delegates: u32, lock_moves: u64) -> domains::Sample {
        domains::Sample {
            run,
            delegates,
            sharing: 1,
            units: 64,
            bytes: 64_000_000,
            seconds: 0.5,
            lock_moves,
        }
    }

    #[test]
    fn every_column_is_named_and_inside() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("moves.svg");
        let samples = [sample(0, 8, 0), sample(0, 9, 240), sample(1, 9, 250)];
        lock_moves(&path, &samples).expect("plot");
        let svg = std::fs::read_to_string(&path).expect("read");
        let lines: Vec<&str> = svg.lines().map(str::trim).collect();
        for (name, panels) in [("8", 2), ("9", 2), ("245", 1), ("128", 2)] {
            let found = lines.iter().filter(|line| **line == name).count();
            assert_eq!(found, panels, "{name}");
        }
        let bars: Vec<&&str> = lines
            .iter()
            .filter(|line| line.starts_with("<rect") && line.contains("opacity=\"0.45\""))
            .collect();
        assert_eq!(bars.len(), 4);
        let dots = lines.iter().filter(|line| line.starts_with("<circle"));
        assert_eq!(dots.count(), 6);
        assert!(
            !bars.iter().any(|bar| bar.contains("width=\"0\"")),
            "{bars:?}"
        );
    }

    #[test]
    fn nothing_measured_is_no_error() {
        let dir = tempfile::tempdir().expect("a directory");
        bandwidth(&dir.path().join("a.svg"), &Results::default()).expect("plot");
        lock_moves(&dir.path().join("b.svg"), &[]).expect("plot");
    }
}
