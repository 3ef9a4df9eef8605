//! Draws the two figures of a probe as SVG: the bandwidth of each OST, sorted, and the aggregate of the first
//! *i* of them, with the cut.

use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

const SIZE: (u32, u32) = (960, 420);
const CHOSEN: RGBColor = RGBColor(0x2f, 0x6f, 0xa8);
const LEFT_OUT: RGBColor = RGBColor(0xd9, 0x8c, 0x2b);

/// `bandwidths` and `aggregate` are in bytes per second, the fastest OST first; the first `chosen` OSTs are
/// used.
pub fn probe(
    path: &Path,
    bandwidths: &[f64],
    aggregate: &[f64],
    chosen: usize,
) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(SIZE.0 / 2);
    panel(
        &left,
        "Bandwidth of each OST (MB/s)",
        bandwidths,
        chosen,
        false,
    )?;
    panel(&right, "Together, i OSTs (MB/s)", aggregate, chosen, true)?;
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(
    area: &Area<'_>,
    title: &str,
    values: &[f64],
    chosen: usize,
    line: bool,
) -> Result<(), Box<dyn Error>> {
    let top = values.iter().copied().fold(1.0, f64::max) / 1e6 * 1.05;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(0f64..values.len().max(1) as f64, 0f64..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_desc("OSTs, the fastest first")
        .draw()?;
    let color = |n: usize| if n < chosen { CHOSEN } else { LEFT_OUT };
    let points = values.iter().enumerate().map(|(n, v)| (n, v / 1e6));
    if line {
        let line = points.clone().map(|(n, v)| (n as f64 + 0.5, v));
        chart.draw_series(LineSeries::new(line, &BLACK))?;
        chart.draw_series(
            points.map(|(n, v)| Circle::new((n as f64 + 0.5, v), 2, color(n).filled())),
        )?;
    } else {
        chart.draw_series(points.map(|(n, v)| {
            let (from, to) = (n as f64 + 0.1, n as f64 + 0.9);
            Rectangle::new([(from, 0.0), (to, v)], color(n).filled())
        }))?;
    }
    if chosen < values.len() {
        let cut = [(chosen as f64, 0.0), (chosen as f64, top)];
        chart.draw_series(LineSeries::new(cut, &RED))?;
    }
    Ok(())
}
