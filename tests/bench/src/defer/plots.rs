//! The figure: the equation as a line, every job as a dot.

use super::{Close, Results};
use crate::osts::plots::{BAD, Done, GOOD, SIZE};
use plotters::prelude::*;
use std::path::Path;

/// Number of points of a line.
const STEPS: u32 = 200;

pub fn perceived(path: &Path, results: &Results) -> Done {
    let longest = results.computes().last().copied().unwrap_or(0.0);
    let right = longest.max(1.2 * results.costs.publish).max(0.1) * 1.05;
    let highest = |close| {
        let jobs = results.samples.iter().filter(move |s| s.close == close);
        let line = results.costs.predicted(close, results.size, right);
        jobs.map(super::Sample::perceived).fold(line, f64::max)
    };
    let top = Close::BOTH.map(highest).into_iter().fold(1e6, f64::max) / 1e6 * 1.1;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(
            "Bandwidth that a job perceives (MB/s) by computing time (s)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.1}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .draw()?;
    for (close, color) in [(Close::DeferNext, GOOD), (Close::Publish, BAD)] {
        let line = (0..=STEPS).map(|step| {
            let compute = right * f64::from(step) / f64::from(STEPS);
            let rate = results.costs.predicted(close, results.size, compute);
            (compute, rate / 1e6)
        });
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(2)))?
            .label(format!("{}, equation", close.name()))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
        let jobs = results.samples.iter().filter(|s| s.close == close);
        let dots = jobs.map(|s| Circle::new((s.compute, s.perceived() / 1e6), 4, color.filled()));
        chart
            .draw_series(dots)?
            .label(format!("{}, measured", close.name()))
            .legend(move |(x, y)| Circle::new((x + 9, y), 4, color.filled()));
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

    #[test]
    fn every_job_is_a_dot_and_every_case_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("defer.svg");
        let results = super::super::tests::results();
        perceived(&path, &results).expect("plot");
        let svg = std::fs::read_to_string(&path).expect("read");
        let lines: Vec<&str> = svg.lines().map(str::trim).collect();
        let dots = lines.iter().filter(|line| line.starts_with("<circle"));
        // The legend has two more circles.
        assert_eq!(dots.count(), results.samples.len() + 2);
        for name in ["defer-next, equation", "publish, measured"] {
            assert!(lines.contains(&name), "{name}");
        }
    }
}
