//! Tables of what the jobs perceived, what the file system below had to do for it, and what the
//! papers compare.

use super::{Results, Sample, Way};
use crate::grid::Grid;
use crate::stats::Spread;

fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// Mean and deviation of the perceived bandwidth of each way, and the factors over direct writes.
pub fn perceived(results: &Results) -> Grid {
    let mut grid = Grid::new(&[
        "kernel",
        ">MB",
        ">direct MB/s",
        ">deviation",
        ">publish MB/s",
        ">deviation",
        ">/direct",
        ">defer MB/s",
        ">deviation",
        ">/direct",
        ">paper's factor",
    ]);
    for kernel in results.kernels() {
        let rates = |way| Spread::of(&results.of(kernel, way, Sample::rate));
        let mean = |way| cell(rates(way).map(|spread| spread.mean), 1);
        let deviation = |way| cell(rates(way).map(|spread| spread.deviation), 1);
        let factor = |way| cell(results.factor(kernel, way), 1);
        let bytes = results.mean(kernel, Way::Direct, |s| s.bytes as f64 / 1e6);
        grid.row([
            kernel.name.to_owned(),
            cell(bytes, 1),
            mean(Way::Direct),
            deviation(Way::Direct),
            mean(Way::Publish),
            deviation(Way::Publish),
            factor(Way::Publish),
            mean(Way::Defer),
            deviation(Way::Defer),
            factor(Way::Defer),
            kernel.paper.text(),
        ]);
    }
    grid
}

/// Means of the load and the time until the canonical file was complete.
pub fn below(results: &Results) -> Grid {
    let mut grid = Grid::new(&[
        "kernel",
        ">lock moves, direct",
        ">publish",
        ">defer",
        ">written / file, direct",
        ">publish",
        ">defer",
        ">complete s, direct",
        ">publish",
        ">defer",
    ]);
    for kernel in results.kernels() {
        let mean =
            |way, value: fn(&Sample) -> f64, digits| cell(results.mean(kernel, way, value), digits);
        let moves = |way| mean(way, |s| s.lock_moves as f64, 0);
        let written = |way| mean(way, |s| s.written as f64 / s.bytes as f64, 2);
        let complete = |way| mean(way, |s| s.complete, 2);
        grid.row([
            kernel.name.to_owned(),
            moves(Way::Direct),
            moves(Way::Publish),
            moves(Way::Defer),
            written(Way::Direct),
            written(Way::Publish),
            written(Way::Defer),
            complete(Way::Direct),
            complete(Way::Publish),
            complete(Way::Defer),
        ]);
    }
    grid
}

/// States for each factor which comparison of which paper it comes from.
pub fn papers(results: &Results) -> Grid {
    let mut grid = Grid::new(&["kernel", ">paper's factor", "of which comparison"]);
    for kernel in results.kernels() {
        grid.row([
            kernel.name.to_owned(),
            kernel.paper.text(),
            kernel.paper.comparison.to_owned(),
        ]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::results;

    fn cells(text: &str, row: usize) -> Vec<String> {
        let line = text.lines().nth(row).expect("a row");
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let text = perceived(&results()).text();
        assert_eq!(text.lines().count(), 3, "{text}");
        let coll_perf = [
            "coll_perf",
            "32.0",
            "32.0",
            "0.0",
            "-",
            "-",
            "-",
            "320.0",
            "0.0",
            "10.0",
            "10",
        ];
        assert_eq!(cells(&text, 1), coll_perf);
        let ior_hard = [
            "ior_hard",
            "32.0",
            "8.0",
            "0.0",
            "16.0",
            "0.0",
            "2.0",
            "128.0",
            "0.0",
            "16.0",
            "none given",
        ];
        assert_eq!(cells(&text, 2), ior_hard);
    }

    #[test]
    fn locks_and_bytes_below() {
        let text = below(&results()).text();
        let ior_hard = [
            "ior_hard", "550", "9", "0", "2.00", "2.00", "2.00", "5.00", "3.00", "1.25",
        ];
        assert_eq!(cells(&text, 2), ior_hard);
        let text = papers(&results()).text();
        assert!(cells(&text, 1)[2].starts_with("Congiu et al."), "{text}");
    }
}
