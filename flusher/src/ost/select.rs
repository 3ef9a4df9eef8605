//! Which OSTs to use: Algorithm 1 of Son et al. (dynamic I/O path characterisation).
//!
//! A file striped over *i* OSTs is as fast as *i* times the slowest of them. So with bandwidths
//! sorted from fast to slow, the aggregate of the first *i* is `B_i * i`. It rises as OSTs are
//! added, may level off, and falls if an OST is so slow that waiting for it costs more than it
//! brings. The list is cut at the first fall that is steeper than the threshold. Gentle falls
//! before it are accepted, because more OSTs also mean less contention on each.

/// How much the aggregate may fall, as a part of its former value, when one more OST is added. The
/// paper's worked example must be cut at a fall of 2.8 %. The gentle slope after the peak of its
/// 156 OSTs, some tenths of a percent a step, must not be cut.
pub const DELTA: f64 = 0.02;

/// The curve of the aggregate bandwidth, and where it is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// All usable OSTs (as positions in the input), the fastest first.
    pub order: Vec<usize>,
    /// `aggregate[i]` is the bandwidth of a file over the first `i + 1` of them.
    pub aggregate: Vec<f64>,
    /// How many of them are chosen.
    pub chosen: usize,
}

impl Choice {
    pub fn chosen(&self) -> &[usize] {
        &self.order[..self.chosen]
    }
}

/// Chooses among OSTs with these bandwidths. OSTs without one (none, zero, not a number) are never
/// chosen. OSTs of equal bandwidth keep their order.
pub fn select(bandwidths: &[Option<f64>], delta: f64) -> Choice {
    let mut usable: Vec<(usize, f64)> = bandwidths
        .iter()
        .enumerate()
        .filter_map(|(n, b)| Some((n, b.filter(|b| b.is_finite() && *b > 0.0)?)))
        .collect();
    usable.sort_by(|a, b| b.1.total_cmp(&a.1));
    let aggregate: Vec<f64> = usable
        .iter()
        .enumerate()
        .map(|(i, (_, bandwidth))| bandwidth * (i + 1) as f64)
        .collect();
    let falls = |pair: &[f64]| pair[1] < pair[0] * (1.0 - delta);
    let cut = aggregate.windows(2).position(falls);
    Choice {
        chosen: cut.map_or(usable.len(), |at| at + 1),
        order: usable.into_iter().map(|(n, _)| n).collect(),
        aggregate,
    }
}

#[cfg(test)]
mod tests;
