//! Why a mount is not unmounted: what the drain before that has left, and what its user can do.

use crate::control::protocol::{Reason, Refusal};
use crate::units;
use flusher::{Progress, Verdict};

pub fn asker_left() -> Refusal {
    Refusal::new(
        Reason::StillDirty,
        "the program that asked for the umount has gone",
    )
}

/// `now` says what has become of the mount.
pub fn refusal(verdict: Verdict, progress: &Progress, now: &str) -> Refusal {
    let files = units::files(progress.files);
    if verdict == Verdict::Failed {
        let first = progress.errors.first();
        let why = first.map_or("the drain does not get on", |e| e.error.message.as_str());
        return Refusal::new(
            Reason::Failed,
            format!(
                "{files} cannot be drained ({why}); {now}. Mend that and try again, or leave the data in the store with --keep"
            ),
        );
    }
    let left = units::bytes(progress.total - progress.done);
    Refusal::new(
        Reason::StillDirty,
        format!(
            "{left} in {files} are not drained yet; {now}. Give it more time, or leave the data in the store with --keep"
        ),
    )
}
