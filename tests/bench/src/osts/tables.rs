//! Evaluates the samples: spread by case, ratios, and whether the targets are met.

use super::probing::{Case, Results};
use super::{domains, probing};
use crate::grid::Grid;
use crate::stats::Spread;

/// The least that probing must gain over the direct case: the low end of what Son et al. report.
const GAIN: f64 = 1.36;
/// The most that the bandwidth may vary with probing, relative to its variation without probing.
const STEADIER: f64 = 1.0 / 3.0;
/// The largest share of the I/O time that probing may cost.
const PROBE_SHARE: f64 = 0.01;

/// The state of a checkpoint at which a bandwidth stops counting time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Perceived,
    Safe,
    Complete,
}

impl Until {
    pub fn name(self) -> &'static str {
        match self {
            Until::Perceived => "closed",
            Until::Safe => "safe",
            Until::Complete => "complete",
        }
    }
}

/// Rows of the table: a case, and the state up to which its time counts.
pub const ROWS: [(Case, Until); 7] = [
    (Case::Direct, Until::Complete),
    (Case::AllOsts, Until::Perceived),
    (Case::AllOsts, Until::Safe),
    (Case::AllOsts, Until::Complete),
    (Case::Probing, Until::Perceived),
    (Case::Probing, Until::Safe),
    (Case::Probing, Until::Complete),
];

/// Returns the MB/s of each run.
pub fn rates(results: &Results, case: Case, until: Until) -> Vec<f64> {
    let of = results.samples.iter().filter(|sample| sample.case == case);
    of.filter_map(|sample| match until {
        Until::Perceived => Some(sample.perceived_rate()),
        Until::Safe => Some(sample.safe_rate()),
        Until::Complete => sample.complete_rate(),
    })
    .collect()
}

fn spread(results: &Results, case: Case, until: Until) -> Option<Spread> {
    Spread::of(&rates(results, case, until))
}

fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p < 1.0 => format!("{p:.2} %"),
        p => format!("{p:.1} %"),
    }
}

/// Returns the share of a case's written bytes that went to slow OSTs.
fn on_slow(results: &Results, case: Case) -> Option<f64> {
    let of = || results.samples.iter().filter(|sample| sample.case == case);
    let slow: u64 = of().map(|sample| sample.slow_bytes).sum();
    let all: u64 = of().map(|sample| sample.written_bytes).sum();
    (all > 0).then(|| slow as f64 / all as f64)
}

pub fn probing_grid(results: &Results) -> Grid {
    let mut grid = Grid::new(&[
        "case",
        "until",
        ">mean MB/s",
        ">deviation",
        ">variation",
        ">min",
        ">max",
        ">/direct",
        ">on slow OSTs",
    ]);
    let direct = spread(results, Case::Direct, Until::Complete);
    for (case, until) in ROWS {
        let Some(spread) = spread(results, case, until) else {
            continue;
        };
        grid.row([
            case.name().to_owned(),
            match case {
                Case::Direct => "synced and closed".to_owned(),
                _ => until.name().to_owned(),
            },
            format!("{:.1}", spread.mean),
            format!("{:.1}", spread.deviation),
            percent(spread.variation()),
            format!("{:.1}", spread.min),
            format!("{:.1}", spread.max),
            direct.map_or("-".into(), |d| format!("{:.2}", spread.mean / d.mean)),
            on_slow(results, case).map_or("-".into(), percent),
        ]);
    }
    grid
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn bandwidth_verdicts(results: &Results, until: Until) -> Vec<String> {
    let mut lines = Vec::new();
    let name = until.name();
    let of = |case| spread(results, case, until);
    if let (Some(probing), Some(direct)) = (of(Case::Probing), of(Case::Direct)) {
        let gain = probing.mean / direct.mean;
        lines.push(format!(
            "{}: probing, until {name}, is at least {GAIN} times direct: {gain:.2}",
            verdict(gain >= GAIN)
        ));
    }
    if let (Some(probing), Some(all)) = (of(Case::Probing), of(Case::AllOsts)) {
        let ratio = probing.deviation / all.deviation;
        lines.push(format!(
            "{}: standard deviation of probing, until {name}, is at most a third of that of all OSTs: {:.1} \
             against {:.1} MB/s, {ratio:.2}",
            verdict(ratio <= STEADIER),
            probing.deviation,
            all.deviation,
        ));
        let ratio = probing.variation() / all.variation();
        lines.push(format!(
            "{}: the same as shares of the means (coefficients of variation): {} against {}, {ratio:.2}",
            verdict(ratio <= STEADIER),
            percent(probing.variation()),
            percent(all.variation()),
        ));
    }
    lines
}

/// Returns one line for each target that the samples allow to check.
pub fn probing_verdicts(results: &Results) -> Vec<String> {
    let mut lines = Vec::new();
    for until in [Until::Safe, Until::Complete] {
        lines.extend(bandwidth_verdicts(results, until));
    }
    let shares: Vec<f64> = results
        .samples
        .iter()
        .filter_map(probing::Sample::probe_share)
        .collect();
    if let Some(shares) = Spread::of(&shares) {
        lines.push(format!(
            "{}: probing takes less than {} of the I/O time of a run, which writes one checkpoint: {} on average, {} at \
             most",
            verdict(shares.max < PROBE_SHARE),
            percent(PROBE_SHARE),
            percent(shares.mean),
            percent(shares.max)
        ));
    }
    if let Some((sample, share)) = results
        .long
        .as_ref()
        .and_then(|sample| Some((sample, sample.probe_share()?)))
    {
        let wrote = match sample.probe.and_then(|probe| probe.bytes) {
            Some(bytes) => format!(", and wrote {:.0} MB of them", bytes as f64 / 1e6),
            None => String::new(),
        };
        lines.push(format!(
            "{}: probing takes less than {} of the I/O time of one job that writes {:.1} GB: {}{wrote}",
            verdict(share < PROBE_SHARE),
            percent(PROBE_SHARE),
            sample.bytes as f64 / 1e9,
            percent(share)
        ));
    }
    lines
}

/// Groups the samples by number of delegates, in the order in which they were measured.
pub fn by_delegates(samples: &[domains::Sample]) -> Vec<(u32, Vec<&domains::Sample>)> {
    let mut groups: Vec<(u32, Vec<&domains::Sample>)> = Vec::new();
    for sample in samples {
        match groups.iter_mut().find(|(d, _)| *d == sample.delegates) {
            Some((_, group)) => group.push(sample),
            None => groups.push((sample.delegates, vec![sample])),
        }
    }
    groups
}

/// Returns the spread of the lock moves and of the MB/s of a group.
pub fn domain_spreads(group: &[&domains::Sample]) -> Option<(Spread, Spread)> {
    let moves: Vec<f64> = group.iter().map(|s| s.lock_moves as f64).collect();
    let rates: Vec<f64> = group.iter().map(|s| s.rate()).collect();
    Some((Spread::of(&moves)?, Spread::of(&rates)?))
}

pub fn domains_grid(samples: &[domains::Sample]) -> Grid {
    let mut grid = Grid::new(&[
        ">delegates",
        "",
        ">clients per object",
        ">units",
        ">lock moves",
        ">min",
        ">max",
        ">mean s",
        ">mean MB/s",
        ">deviation",
    ]);
    for (delegates, group) in by_delegates(samples) {
        let Some((moves, rates)) = domain_spreads(&group) else {
            continue;
        };
        let seconds: f64 = group.iter().map(|s| s.seconds).sum();
        let kind = match (domains::is_mapped(delegates), group[0].sharing) {
            (true, 1) => "mapped",
            (true, _) => "mapped, shared",
            (false, _) => "unmapped",
        };
        grid.row([
            delegates.to_string(),
            kind.to_owned(),
            group[0].sharing.to_string(),
            group[0].units.to_string(),
            format!("{:.1}", moves.mean),
            format!("{:.0}", moves.min),
            format!("{:.0}", moves.max),
            format!("{:.2}", seconds / group.len() as f64),
            format!("{:.1}", rates.mean),
            format!("{:.1}", rates.deviation),
        ]);
    }
    grid
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
