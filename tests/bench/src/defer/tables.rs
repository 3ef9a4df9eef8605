//! Tables that show the measurements next to the equation.

use super::{Close, Results};
use crate::grid::Grid;
use crate::stats::Spread;

pub fn grid(results: &Results) -> Grid {
    let mut grid = Grid::new(&[
        "close",
        ">C s",
        ">C / Ts",
        ">mean MB/s",
        ">deviation",
        ">equation",
        ">measured / equation",
        ">/publish",
    ]);
    let costs = &results.costs;
    for close in Close::BOTH {
        for compute in results.computes() {
            let Some(spread) = Spread::of(&results.perceived(close, compute)) else {
                continue;
            };
            let predicted = costs.predicted(close, results.size, compute);
            let publish = Spread::of(&results.perceived(Close::Publish, compute));
            let ratio = |to: f64| format!("{:.2}", spread.mean / to);
            grid.row([
                close.name().to_owned(),
                format!("{compute:.2}"),
                format!("{:.2}", compute / costs.publish),
                format!("{:.1}", spread.mean / 1e6),
                format!("{:.1}", spread.deviation / 1e6),
                format!("{:.1}", predicted / 1e6),
                ratio(predicted),
                publish.map_or("-".to_owned(), |publish| ratio(publish.mean)),
            ]);
        }
    }
    grid
}

/// Describes the costs that the curve was drawn from.
pub fn costs(results: &Results) -> String {
    let costs = &results.costs;
    format!(
        "One checkpoint alone, S = {:.0} MB: Tc = {:.3} s, Ts = {:.3} s; with a close that publishes {:.3} s.",
        results.size as f64 / 1e6,
        costs.store,
        costs.publish,
        costs.both
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_has_a_row_beside_the_equation() {
        let results = super::super::tests::results();
        let text = grid(&results).text();
        assert_eq!(text.lines().count(), 4, "{text}");
        let row = |n: usize| -> Vec<&str> {
            let line = text.lines().nth(n).expect("a row");
            line.split_whitespace().collect()
        };
        assert_eq!(row(1)[3..], ["20.0", "0.0", "22.2", "0.90", "-"]);
        assert_eq!(row(2)[3..], ["150.0", "70.7", "200.0", "0.75", "6.00"]);
        assert_eq!(row(3)[3..], ["25.0", "0.0", "22.2", "1.12", "1.00"]);
        assert!(costs(&results).contains("Ts = 4.000 s"));
    }
}
