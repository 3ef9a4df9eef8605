//! The figures as SVG: every run as a dot, mean and deviation as a bar, and lock moves by the number
//! of delegates.

use super::domains;
use super::probing::{Case, Results};
use super::tables::{self, Until};
use crate::stats::Spread;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

const SIZE: (u32, u32) = (960, 420);
const GOOD: RGBColor = RGBColor(0x2f, 0x6f, 0xa8);
const BAD: RGBColor = RGBColor(0xd9, 0x8c, 0x2b);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Done = Result<(), Box<dyn Error>>;

/// One place on the horizontal axis.
struct Column {
    name: String,
    values: Vec<f64>,
    color: RGBColor,
}

/// Perceived bandwidths are in the table only: they would press all others to the ground.
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

fn panel(area: &Area<'_>, title: &str, columns: &[Column]) -> Done {
    let highest = columns.iter().flat_map(|column| &column.values);
    let top = highest.copied().fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d((0..columns.len().max(1)).into_segmented(), 0f64..top)?;
    let name = |value: &SegmentValue<usize>| match value {
        SegmentValue::CenterOf(n) => columns.get(*n).map_or("", |column| &column.name).to_owned(),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(columns.len().max(1))
        .x_label_formatter(&name)
        .draw()?;

    // Finer than whole columns: the same plot once more in plain numbers.
    let plane = chart.plotting_area();
    let width = f64::from(plane.dim_in_pixel().0) / columns.len().max(1) as f64;
    for (n, column) in columns.iter().enumerate() {
        let Some(spread) = Spread::of(&column.values) else {
            continue;
        };
        let at = |share: f64, value: f64| {
            let (_, y) = plane.map_coordinate(&(SegmentValue::CenterOf(n), value));
            let (left, _) = plane.get_pixel_range();
            (left.start + ((n as f64 + share) * width) as i32, y)
        };
        let bar = [at(0.25, 0.0), at(0.75, spread.mean)];
        area.draw(&Rectangle::new(bar, column.color.mix(0.45).filled()))?;
        let low = (spread.mean - spread.deviation).max(0.0);
        let high = (spread.mean + spread.deviation).min(top);
        for line in [
            [at(0.5, low), at(0.5, high)],
            [at(0.46, low), at(0.54, low)],
            [at(0.46, high), at(0.54, high)],
        ] {
            area.draw(&PathElement::new(line, BLACK.stroke_width(2)))?;
        }
        let runs = column.values.len() as f64;
        for (run, value) in column.values.iter().enumerate() {
            let dot = at(0.28 + 0.44 * (run as f64 + 0.5) / runs, *value);
            area.draw(&Circle::new(dot, 3, column.color.filled()))?;
        }
        let label = format!("{:.0}", spread.mean);
        let text = Text::new(label, at(0.76, spread.mean), ("sans-serif", 14));
        area.draw(&text)?;
    }
    Ok(())
}
