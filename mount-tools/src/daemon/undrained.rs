//! Refusals that say why a mount is not unmounted, and what its user can do.

use super::lifecycle::Closing;
use crate::control::protocol::{Reason, Refusal};
use crate::units;
use flusher::{Progress, Verdict};
use std::path::Path;

pub fn asker_left() -> Refusal {
    Refusal::new(
        Reason::StillDirty,
        "the program that asked for the umount has gone",
    )
}

/// `now` says what has become of the mount meanwhile.
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

/// The refusal for a dead mount that stays in the tree. The daemon ends all the same, and its store is
/// closed.
pub fn dead_mount_stays(mount: &Path, closing: &Closing) -> Refusal {
    let mount = mount.display();
    let left = match closing.files {
        0 => "everything is drained".to_owned(),
        files => format!(
            "{} in {} stay in the store for the next mount",
            units::bytes(closing.undrained),
            units::files(files)
        ),
    };
    let error = closing.error.as_ref();
    let error = error.map_or_else(String::new, |error| format!("; {error}"));
    Refusal::new(
        Reason::Failed,
        format!(
            "{mount} lies below a file system that hangs: the daemon has ended and {left}{error}, but the dead mount stays. Take it away with `forebay umount {mount}` when that file system answers"
        ),
    )
}
