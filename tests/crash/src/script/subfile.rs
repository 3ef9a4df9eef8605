//! Steps of the way through subfiles.

use super::SPACE;
use crate::rig::{Late, Rig};
use layout_index::{ByteRange, Result};
use rand::Rng;
use rand::rngs::StdRng;

/// The steps at which scenes are played that would hardly ever come up by chance. These belong to every second
/// workload.
const REPLACE_AT: usize = 1;
const RESTART_AT: usize = 3;
const WHOLE_AT: usize = 5;
const END_AT: usize = 7;
/// This one belongs to the other workloads, which leave more to chance.
const COMPACT_AT: usize = 2;

#[derive(Clone, Debug)]
pub enum SubStep {
    Move {
        n: usize,
        max: usize,
        late: Option<Late>,
    },
    Retire {
        n: usize,
    },
    Remove,
    /// Kills the daemon while bytes are on their way.
    Killed {
        n: usize,
        max: usize,
    },
    /// Replaces everything that a subfile has by data that is not synced, and gives the subfile up.
    Replace {
        n: usize,
        cut: bool,
    },
    /// Kills the daemon half way, goes on with the same subfiles, and does that again.
    Restart {
        n: usize,
        lane: u64,
    },
    /// Takes data all the way, with the extents in the index, and removes everything.
    Whole {
        n: usize,
        lane: u64,
    },
    /// Leaves a segment mostly dead because its bytes went to subfiles, and has it compacted.
    Compact {
        n: usize,
        lane: u64,
    },
    /// The file becomes clean, the record of that is not synced, and then its subfiles are removed or the daemon is
    /// killed.
    End {
        n: usize,
    },
}

/// Returns the scene at step `drawn`, if there is one.
pub(super) fn scene(odd: bool, drawn: usize, n: usize, lane: u64) -> Option<SubStep> {
    Some(match (odd, drawn) {
        (true, REPLACE_AT) => SubStep::Replace { n, cut: true },
        (true, RESTART_AT) => SubStep::Restart { n, lane },
        (true, WHOLE_AT) => SubStep::Whole { n, lane },
        (true, END_AT) => SubStep::End { n },
        (false, COMPACT_AT) => SubStep::Compact { n, lane },
        _ => return None,
    })
}

/// Draws a step by chance, or `None` for none of these.
pub(super) fn draw(rng: &mut StdRng, n: usize) -> Option<SubStep> {
    let max = rng.random_range(1..9);
    Some(match rng.random_range(0..100) {
        0..22 => SubStep::Move {
            n,
            max,
            late: late(rng),
        },
        22..26 => SubStep::Retire { n },
        26..32 => SubStep::Remove,
        32..34 => SubStep::Killed { n, max },
        34..36 => SubStep::Replace {
            n,
            cut: rng.random_bool(0.5),
        },
        _ => return None,
    })
}

fn late(rng: &mut StdRng) -> Option<Late> {
    let (shift, len) = (rng.random_range(0..SPACE), rng.random_range(1..30_000));
    match rng.random_range(0..14) {
        0..3 => Some(Late::Write { shift, len }),
        3 => Some(Late::Truncate { shift }),
        4 => Some(Late::Zero { len }),
        5 => Some(Late::Through { len }),
        6 => Some(Late::Checkpoint),
        7 => Some(Late::Tidy),
        8 => Some(Late::Drain),
        9 => Some(Late::DrainAll),
        _ => None,
    }
}

impl SubStep {
    pub(super) fn run(&self, rig: &mut Rig) -> Result<()> {
        match *self {
            SubStep::Move { n, max, late } => rig.subfile(rig.dirty_or(n), max, late),
            SubStep::Retire { n } => rig.retire(rig.dirty_or(n)),
            SubStep::Remove => rig.remove(),
            SubStep::Killed { n, max } => rig.subfile_and_kill(rig.dirty_or(n), max),
            SubStep::Replace { n, cut } => replace(rig, n, cut),
            SubStep::Restart { n, lane } => restart(rig, n, lane),
            SubStep::Whole { n, lane } => whole(rig, n, lane),
            SubStep::Compact { n, lane } => compact(rig, n, lane),
            SubStep::End { n } => end(rig, n),
        }
    }
}

fn replace(rig: &mut Rig, n: usize, cut: bool) -> Result<()> {
    rig.write(n, 0, 1000, 100_000)?;
    rig.subfile(n, usize::MAX, None)?;
    rig.fsync(n)?;
    if cut {
        rig.truncate(n, 0)?;
    } else {
        rig.write(n, 1, 0, 110_000)?;
    }
    rig.retire(n)?;
    rig.write(n, 2, 50_000, 3000)?;
    rig.remove()?;
    rig.subfile(n, usize::MAX, None)
}

fn restart(rig: &mut Rig, n: usize, lane: u64) -> Result<()> {
    rig.write(n, lane, 5000, 90_000)?;
    rig.fsync(n)?;
    rig.subfile(n, 1, None)?;
    rig.subfile_and_kill(n, usize::MAX)?;
    rig.write(n, lane, 40_000, 10_000)?;
    rig.subfile(n, usize::MAX, None)?;
    rig.fsync(n)?;
    rig.kill_and_open()?;
    rig.write(n, lane, 80_000, 30_000)?;
    rig.subfile(n, usize::MAX, Some(Late::Write { shift: 5, len: 500 }))?;
    rig.sync()
}

fn whole(rig: &mut Rig, n: usize, lane: u64) -> Result<()> {
    rig.write(n, lane, 0, 120_000)?;
    rig.subfile(n, usize::MAX, None)?;
    rig.checkpoint()?;
    rig.write(n, lane, 60_000, 10_000)?;
    rig.subfile(n, usize::MAX, Some(Late::Checkpoint))?;
    rig.tidy()?;
    rig.zero(n, ByteRange::new(30_000, 45_000), false)?;
    rig.drain(n, 1, Some((70_000, 100)))?;
    rig.fsync(n)?;
    rig.subfile(n, usize::MAX, None)?;
    rig.drain_all(n)?;
    rig.remove()?;
    rig.write(n, lane, 1000, 1000)
}

fn compact(rig: &mut Rig, n: usize, lane: u64) -> Result<()> {
    for (offset, len) in [(0, 450_000), (0, 450_000), (400_000, 200_000)] {
        rig.write(n, lane, offset, len)?;
    }
    rig.subfile(n, 6, None)?;
    rig.tidy()?;
    rig.subfile(n, 1, Some(Late::Tidy))?;
    rig.tidy()
}

fn end(rig: &mut Rig, n: usize) -> Result<()> {
    // The index has nothing of the next dirty period: nothing syncs the log when it ends.
    rig.drain_all(n)?;
    for kill in [false, true] {
        rig.write(n, 3, 10_000, 40_000)?;
        rig.subfile(n, usize::MAX, None)?;
        rig.fsync(n)?;
        rig.drain_all(n)?;
        if kill {
            rig.kill_and_open()?;
        } else {
            rig.remove()?;
        }
        // Making the next subfile makes removals durable, too.
        rig.write(n, 3, 20_000, 1000)?;
        rig.subfile(n, usize::MAX, None)?;
        rig.fsync(n)?;
        rig.drain_all(n)?;
    }
    rig.remove()
}
