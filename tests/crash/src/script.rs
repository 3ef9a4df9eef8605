//! The workload: operations drawn from a seed, the same on every run.

use crate::rig::Rig;
use layout_index::{ByteRange, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
pub use subfile::SubStep;

mod subfile;

/// Files stay below this size.
const SPACE: u64 = 640 * 1024;

/// The steps at which scenes are played that would hardly ever come up by chance.
const ORPHAN_AT: usize = 2;
const COMPACT_AT: usize = 4;
const OVER_AT: usize = 6;
const TRIM_AT: usize = 9;
const FORGET_AT: usize = 11;

/// One step of the script, for messages and for running it.
#[derive(Clone, Debug)]
pub enum Step {
    /// Small writes one after the other, which share units.
    Chain {
        n: usize,
        lane: u64,
        offset: u64,
        len: u64,
        count: u64,
    },
    /// Pieces with gaps between them, as one rank of an interleaved job writes.
    Strided {
        n: usize,
        lane: u64,
        offset: u64,
        len: u64,
        count: u64,
    },
    Write {
        n: usize,
        lane: u64,
        offset: u64,
        len: u64,
    },
    Through {
        n: usize,
        offset: u64,
        len: u64,
    },
    Truncate {
        n: usize,
        size: u64,
    },
    Zero {
        n: usize,
        range: ByteRange,
        grow: bool,
    },
    Mtime {
        n: usize,
        mtime: u64,
    },
    Fsync {
        n: usize,
    },
    Sync,
    Checkpoint,
    Tidy,
    Drain {
        n: usize,
        max: usize,
        late: Option<(u64, u64)>,
    },
    DrainAll {
        n: usize,
    },
    Unlink {
        n: usize,
    },
    Kill,
    Reopen,
    /// Writes and kills the daemon; the next daemon syncs what the first one wrote.
    Orphan {
        n: usize,
        lane: u64,
    },
    /// Writes through over data that the log has, and syncs only the log.
    Over {
        n: usize,
        offset: u64,
    },
    /// Unlinks a file of which the index has everything, and moves the checkpoint past the unlink.
    Forget {
        n: usize,
    },
    /// Leaves a segment mostly dead, and has it compacted and freed.
    Compact {
        n: usize,
        lane: u64,
    },
    /// Truncates a file that is half in the log and half drained, twice, and drains over it.
    Trim {
        n: usize,
        size: u64,
    },
    /// A step on the way through subfiles.
    Sub(SubStep),
}

#[derive(Debug)]
pub struct Script {
    rng: StdRng,
    files: usize,
    drawn: usize,
    subfiles: bool,
    odd: bool,
}

impl Script {
    pub fn new(seed: u64, files: usize) -> Script {
        Script {
            rng: StdRng::seed_from_u64(seed),
            files,
            drawn: 0,
            subfiles: false,
            odd: seed % 2 == 1,
        }
    }

    /// Makes a workload of which a good part goes through subfiles.
    pub fn with_subfiles(seed: u64, files: usize) -> Script {
        Script {
            subfiles: true,
            ..Script::new(seed, files)
        }
    }

    pub fn draw(&mut self) -> Step {
        let rng = &mut self.rng;
        let n = rng.random_range(0..self.files);
        let lane = rng.random_range(0..4);
        let offset = rng.random_range(0..SPACE - 1);
        self.drawn += 1;
        if self.subfiles {
            let scene = subfile::scene(self.odd, self.drawn, n, lane);
            if let Some(step) = scene.or_else(|| subfile::draw(rng, n)) {
                return Step::Sub(step);
            }
        } else if let Some(step) = scene(self.drawn, n, lane, offset) {
            return step;
        }
        let upto = |rng: &mut StdRng, max: u64| rng.random_range(1..=max.min(SPACE - offset));
        match rng.random_range(0..100) {
            0..10 => {
                let (len, count) = (upto(rng, 2000), rng.random_range(2..6));
                Step::Chain {
                    n,
                    lane,
                    offset,
                    len,
                    count,
                }
            }
            10..20 => {
                let (len, count) = (upto(rng, 9000), rng.random_range(2..5));
                Step::Strided {
                    n,
                    lane,
                    offset,
                    len,
                    count,
                }
            }
            20..26 => Step::Write {
                n,
                lane,
                offset,
                len: upto(rng, 60_000),
            },
            26..36 => Step::Write {
                n,
                lane,
                offset,
                len: upto(rng, 400_000),
            },
            36..41 => Step::Through {
                n,
                offset,
                len: upto(rng, 20_000),
            },
            41..50 => Step::Truncate { n, size: offset },
            50..56 => {
                let range = ByteRange::new(offset, offset + upto(rng, 100_000));
                Step::Zero {
                    n,
                    range,
                    grow: rng.random_bool(0.5),
                }
            }
            56..58 => Step::Mtime { n, mtime: offset },
            58..66 => Step::Fsync { n },
            66..68 => Step::Sync,
            68..73 => Step::Checkpoint,
            73..78 => Step::Tidy,
            78..89 => {
                let late = rng
                    .random_bool(0.5)
                    .then(|| (rng.random_range(0..SPACE), rng.random_range(1..3000)));
                Step::Drain {
                    n,
                    max: rng.random_range(1..9),
                    late,
                }
            }
            89..93 => Step::DrainAll { n },
            93..95 => Step::Unlink { n },
            95..98 => Step::Kill,
            _ => Step::Reopen,
        }
    }
}

/// Returns the scene at step `drawn`, if there is one.
fn scene(drawn: usize, n: usize, lane: u64, offset: u64) -> Option<Step> {
    Some(match drawn {
        ORPHAN_AT => Step::Orphan { n, lane },
        OVER_AT => Step::Over { n, offset },
        FORGET_AT => Step::Forget { n },
        COMPACT_AT => Step::Compact { n, lane },
        TRIM_AT => Step::Trim {
            n,
            size: offset / 2 + 1000,
        },
        _ => return None,
    })
}

impl Step {
    pub fn run(&self, rig: &mut Rig) -> Result<()> {
        match *self {
            Step::Chain {
                n,
                lane,
                offset,
                len,
                count,
            } => {
                for i in 0..count {
                    rig.write(n, lane, offset + i * len, len)?;
                }
                Ok(())
            }
            Step::Strided {
                n,
                lane,
                offset,
                len,
                count,
            } => {
                for i in 0..count {
                    rig.write(n, lane, offset + i * 3 * len, len)?;
                }
                Ok(())
            }
            Step::Write {
                n,
                lane,
                offset,
                len,
            } => rig.write(n, lane, offset, len),
            // These mostly hit files of which the log has something: on clean files they do not concern the log.
            Step::Through { n, offset, len } if offset % 4 > 0 => {
                rig.through(rig.dirty_or(n), offset, len)
            }
            Step::Through { n, offset, len } => rig.through(n, offset, len),
            Step::Truncate { n, size } if size % 4 > 0 => rig.truncate(rig.dirty_or(n), size),
            Step::Truncate { n, size } => rig.truncate(n, size),
            Step::Zero { n, range, grow } => rig.zero(rig.dirty_or(n), range, grow),
            Step::Mtime { n, mtime } => rig.set_mtime(rig.dirty_or(n), mtime),
            Step::Fsync { n } => rig.fsync(n),
            Step::Sync => rig.sync(),
            Step::Checkpoint => rig.checkpoint(),
            Step::Tidy => rig.tidy(),
            Step::Drain { n, max, late } => rig.drain(n, max, late),
            Step::DrainAll { n } => rig.drain_all(n),
            Step::Unlink { n } if rig.is_unlinked(n) => rig.discard(n),
            Step::Unlink { n } => rig.unlink(n),
            Step::Kill => rig.kill_and_open().map(|_| ()),
            Step::Reopen => rig.close_and_open().map(|_| ()),
            Step::Orphan { n, lane } => orphan(rig, n, lane),
            Step::Over { n, offset } => over(rig, n, offset),
            Step::Forget { n } => forget(rig, n),
            Step::Compact { n, lane } => compact(rig, n, lane),
            Step::Trim { n, size } => trim(rig, n, size),
            Step::Sub(ref step) => step.run(rig),
        }
    }
}

/// After the first truncate the canonical file loses bytes that only the truncate makes void; after the second,
/// synced bytes are drained to it beyond the place where it is cut. The last truncate makes the file grow: the
/// canonical file learns that only at the end of the drain.
fn trim(rig: &mut Rig, n: usize, size: u64) -> Result<()> {
    rig.write(n, 0, 0, SPACE / 2 + 100_000)?;
    rig.fsync(n)?;
    rig.drain(n, usize::MAX, None)?;
    rig.fsync(n)?;
    rig.truncate(n, size)?;
    rig.drain(n, usize::MAX, None)?;
    rig.truncate(n, size / 2)?;
    rig.write(n, 1, size, 70_000)?;
    rig.fsync(n)?;
    rig.drain(n, usize::MAX, None)?;
    rig.truncate(n, SPACE + 5000)?;
    rig.fsync(n)?;
    rig.drain_all(n)?;
    rig.sync()
}

fn compact(rig: &mut Rig, n: usize, lane: u64) -> Result<()> {
    for (offset, len) in [(0, 450_000), (0, 450_000), (100_000, 300_000)] {
        rig.write(n, lane, offset, len)?;
    }
    rig.tidy()?;
    rig.write(n, lane, 20_000, 10_000)?;
    rig.tidy()
}

fn orphan(rig: &mut Rig, n: usize, lane: u64) -> Result<()> {
    rig.write(n, lane, 3000, 50_000)?;
    rig.kill_and_open()?;
    rig.fsync(n)?;
    rig.write(n, lane, 60_000, 100)
}

fn over(rig: &mut Rig, n: usize, offset: u64) -> Result<()> {
    rig.write(n, 3, offset, 40_000)?;
    rig.fsync(n)?;
    rig.through(n, offset + 5000, 20_000)?;
    rig.set_mtime(n, offset)?;
    rig.sync()
}

fn forget(rig: &mut Rig, n: usize) -> Result<()> {
    rig.write(n, 0, 7000, 7000)?;
    rig.checkpoint()?;
    rig.unlink(n)?;
    rig.checkpoint()
}
