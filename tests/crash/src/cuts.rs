//! Tries the states that a crash may leave, at every moment of a recording.

use crate::image::{Loss, Simulation};
use crate::recorder::Recording;
use crate::rig::Slot;
use crate::verify::{self, Depth};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const THREADS: usize = 2;

/// A workload that was recorded.
pub struct Cuts<'a> {
    pub recording: &'a Recording,
    pub slots: &'a [Slot],
    /// The first moment that is tried, and how far it is to the next.
    pub from: usize,
    pub stride: usize,
    /// Seed of the random losses.
    pub seed: u64,
}

/// The outcome of trying cuts.
#[derive(Debug, Default)]
pub struct Tried {
    pub cuts: usize,
    pub images: usize,
    /// One sentence for each image that is wrong.
    pub failures: Vec<String>,
}

impl Tried {
    pub fn add(&mut self, mut other: Tried) {
        self.cuts += other.cuts;
        self.images += other.images;
        self.failures.append(&mut other.failures);
    }

    pub fn assert_right(&self) {
        println!("{} cut points, {} images", self.cuts, self.images);
        for failure in self.failures.iter().take(40) {
            println!("{failure}");
        }
        assert_eq!(
            self.failures.len(),
            0,
            "of {} images are wrong; the first are above",
            self.images
        );
    }
}

impl Cuts<'_> {
    /// Tries every moment, or only the one that `FOREBAY_CUT` names. Images are made below `dir`.
    pub fn try_all(&self, dir: &Path) -> Tried {
        let only = std::env::var("FOREBAY_CUT").ok();
        let only = only.map(|cut| cut.parse::<usize>().expect("FOREBAY_CUT is a number"));
        let tried = Mutex::new(Tried::default());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (tried, root) = (&tried, dir.join(format!("image-{thread}")));
                scope.spawn(move || {
                    let mut disk = Simulation::default();
                    for cut in 0..=self.recording.events.len() {
                        if cut > 0 {
                            disk.advance(&self.recording.events[cut - 1]);
                        }
                        let nth = cut.checked_sub(self.from);
                        let nth = nth.filter(|n| n.is_multiple_of(self.stride));
                        let mine = nth.is_some_and(|n| n / self.stride % THREADS == thread);
                        if mine && only.is_none_or(|o| o == cut) {
                            let one = self.try_one(&disk, cut, &root);
                            tried.lock().add(one);
                        }
                    }
                });
            }
        });
        tried.into_inner()
    }

    fn try_one(&self, disk: &Simulation, cut: usize, root: &Path) -> Tried {
        let mut tried = Tried {
            cuts: 1,
            ..Tried::default()
        };
        // The index as of the last flush is tried, and also the one before, if that flush may not have reached the
        // disk.
        let known = &self.recording.indexes;
        let newest = known.iter().rposition(|i| i.from <= cut);
        let older = newest
            .filter(|n| known[*n].from == cut)
            .map(|n| n.checked_sub(1));
        for index in [Some(newest), older].into_iter().flatten() {
            // The torn image is tried twice: its random losses differ each time.
            let losses = [Loss::Synced, Loss::Torn, Loss::Torn, Loss::Killed];
            for (n, loss) in losses.into_iter().enumerate() {
                let mut rng = StdRng::seed_from_u64(self.seed ^ (4 * cut + n) as u64);
                let path = index.map(|n| known[n].path.as_path());
                disk.build(loss, &mut rng, path, root)
                    .expect("an image is built");
                let found = catch_unwind(AssertUnwindSafe(|| self.verify(root, loss, cut)));
                if let Err(why) = found.unwrap_or_else(|_| Err("panicked".into())) {
                    tried.failures.push(format!(
                        "seed {} cut {cut}/{} {loss:?} index {index:?}: {why}",
                        self.seed,
                        self.recording.events.len()
                    ));
                }
                tried.images += 1;
                std::fs::remove_dir_all(root).expect("an image is removed");
            }
        }
        tried
    }

    fn verify(&self, root: &Path, loss: Loss, cut: usize) -> Result<(), String> {
        let depth = if cut % 4 < 2 {
            Depth::Twice
        } else {
            Depth::Once
        };
        verify::image(root, loss, depth, self.slots.iter(), |slot| match loss {
            Loss::Killed => slot.history.killed(cut),
            _ => slot.history.power_lost(cut),
        })
    }
}
