//! `forebay probe` on a mount: the daemon has the targets, the rights and the measurements. What lies below
//! the mount point is hidden from the command, and a second measurement beside the daemon's would only
//! disturb it.

use super::verbs::denied;
use crate::control::peer::Peer;
use crate::control::protocol::{ProbeResult, Reason, Refusal, Reply};
use flusher::Progress;
use flusher::ost::Fleet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a client that waits hears something.
const TELL: Duration = Duration::from_millis(500);

pub fn answer(
    fleet: Option<&Arc<Fleet>>,
    fresh: bool,
    peer: Peer,
    progress: &mut dyn FnMut(Reply) -> io::Result<()>,
) -> Result<Reply, Refusal> {
    let Some(fleet) = fleet else {
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
        fleet.measure();
    }
    let settings = fleet.settings();
    // The list, then each target within its deadline; a list that hangs is waited for no longer.
    let patience = settings.deadline.max(settings.probe.deadline) * 3;
    let end = Instant::now() + patience;
    while !fleet.wait_measured((Instant::now() + TELL).min(end)) {
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
        targets: fleet.status(),
        size: settings.probe.size,
    }))
}
