//! Where new files go: canonical files over the targets that are fastest now, each file of the
//! shared directory on one of them.

use super::{InFlight, Targets};
use crate::ost::Ost;
use layout_index::Placement;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Stripe size of files that are on one target only.
const ONE_TARGET_STRIPE: u64 = 1 << 20;

impl Targets {
    /// Stripes a new file over `osts`, or as the file system does by default if that fails. Returns
    /// true if the file is on `osts`.
    fn stripe_over(&self, file: BorrowedFd<'_>, osts: &[Ost], unit: u64) -> bool {
        let placed = match self.provider.stripe(file, osts, unit) {
            // The file must have some striping before a byte goes through this descriptor.
            Err(error) if !osts.is_empty() => {
                tracing::debug!("{error}; a new file is striped as by default");
                self.provider.stripe(file, &[], unit).map(|_| false)
            }
            other => other,
        };
        placed.unwrap_or_else(|error| {
            tracing::debug!("{error}");
            false
        })
    }
}

impl Placement for Targets {
    fn create_flags(&self) -> i32 {
        self.provider.create_flags()
    }

    fn stripe(&self, file: BorrowedFd<'_>) {
        // Before the first probe is over, Forebay knows nothing about the targets that the file
        // system does not know.
        let chosen = match self.wait_ready(Instant::now()) {
            true => self.chosen(),
            false => Vec::new(),
        };
        self.stripe_over(file, &chosen, self.settings.stripe);
    }

    fn place_on_one(&self, file: BorrowedFd<'_>) -> Option<u32> {
        let chosen = self.chosen();
        let turn = self.placed.fetch_add(1, Ordering::Relaxed) % chosen.len().max(1);
        let one = chosen.get(turn..=turn).unwrap_or_default();
        let placed = self.stripe_over(file, one, ONE_TARGET_STRIPE);
        one.first().filter(|_| placed).map(|ost| ost.index)
    }

    fn begin_write(&self, target: u32) -> Box<dyn Send> {
        Box::new(Write(Some(self.begin(target, 0))))
    }

    fn answers(&self, target: u32) -> bool {
        self.is_usable(target)
    }

    fn deadline(&self) -> Duration {
        self.settings.deadline
    }
}

/// A write that has ended when this is dropped.
struct Write(Option<InFlight>);

impl Drop for Write {
    fn drop(&mut self) {
        if let Some(write) = self.0.take() {
            write.done();
        }
    }
}
