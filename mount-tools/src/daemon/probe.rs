//! Answers `forebay probe` on a mount: the daemon has the targets, the rights and the measurements. The
//! directory below the mount point is hidden from the command, and a second measurement beside the daemon's
//! would only disturb it.

use super::verbs::denied;
use crate::control::peer::Peer;
use crate::control::protocol::{ProbeResult, Reason, Refusal, Reply};
use flusher::Progress;
use flusher::ost::Targets;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a waiting client gets a message.
const TELL: Duration = Duration::from_millis(500);

pub fn answer(
    targets: Option<&Arc<Targets>>,
    fresh: bool,
    peer: Peer,
    progress: &mut dyn FnMut(Reply) -> io::Result<()>,
) -> Result<Reply, Refusal> {
    let Some(targets) = targets else {
        return Err(Refusal::new(
            Reason::Failed,
            "this mount has no storage targets to choose from (ost-provider, ost); \
             give directories on targets with --ost to measure those",
        ));
    };
    if fresh && !peer.is_privileged() {
        return Err(denied(
            "only root or the user who mounted it may measure its targets anew; \
             without --fresh everybody sees the last measurement",
        ));
    }
    if fresh {
        targets.measure();
    }
    let settings = targets.settings();
    // Time for the list of targets, then for each target within its deadline. A list that hangs is not waited
    // for any longer.
    let patience = settings.deadline.max(settings.probe.deadline) * 3;
    let end = Instant::now() + patience;
    while !targets.wait_measured((Instant::now() + TELL).min(end)) {
        if Instant::now() >= end {
            return Err(Refusal::new(
                Reason::Failed,
                format!(
                    "the targets have not been measured within {patience:?}; see forebay status"
                ),
            ));
        }
        if progress(Reply::Progress(Progress::default())).is_err() {
            break;
        }
    }
    Ok(Reply::Probed(ProbeResult {
        targets: targets.status(),
        size: settings.probe.size,
    }))
}
