//! Answers the requests on the daemon's control socket. Rights are checked here, request by request: see
//! `control/peer.rs` for the table.
//!
//! A file is found by its inode number among the files that have undrained data. A file that is not among
//! them is clean: there is nothing to drain, and all its bytes are in the canonical file.

mod status;

use super::lifecycle::{Closing, Lifecycle, Stop};
use super::{layout, probe};
use crate::control::peer::Peer;
use crate::control::protocol::{
    DrainResult, DrainState, PrefetchResult, PrefetchState, Reason, Refusal, Reply, Request, Target,
};
use crate::control::server::Handler;
use crate::report::{Asked, ExplainReport};
use crate::settings::MountSettings;
use flusher::ost::Targets;
use flusher::{Flusher, Progress, Selection, Verdict};
use forebay_fs::{Overlay, Prefetched, Requests};
use layout_index::{File, RecoveryReport, Store};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of files that one status report names, because the length of a message is limited.
const MOST_FILES: usize = 1000;
/// How often a client is told about the progress.
const TELL: Duration = Duration::from_millis(100);
/// Time limit for exact counting: one user's many extents must not delay the answers to other users.
const COUNTING: Duration = Duration::from_millis(250);
/// Maximum number of errors that one report names.
const MOST_ERRORS: usize = 200;

pub struct Node {
    mount: PathBuf,
    backing: PathBuf,
    started: Instant,
    store: Arc<Store>,
    flusher: Arc<Flusher>,
    targets: Option<Arc<Targets>>,
    requests: Arc<Requests>,
    lifecycle: Arc<Lifecycle>,
    recovery: RecoveryReport,
    config: Option<PathBuf>,
}

impl Node {
    pub fn new(
        settings: &MountSettings,
        store: Arc<Store>,
        flusher: Arc<Flusher>,
        targets: Option<Arc<Targets>>,
        requests: Arc<Requests>,
        lifecycle: Arc<Lifecycle>,
        recovery: RecoveryReport,
    ) -> Node {
        Node {
            mount: settings.mount.clone(),
            backing: settings.backing.clone(),
            started: Instant::now(),
            store,
            flusher,
            targets,
            requests,
            lifecycle,
            recovery,
            config: settings.policies.config_file.clone(),
        }
    }

    fn overlay(&self) -> &Overlay {
        self.requests.overlay()
    }

    fn dirty(&self) -> Vec<Arc<File>> {
        let mut files = self.flusher.files();
        // A clean file without a name was removed on some node, and the drain has yet to find that out.
        files.retain(|f| !f.is_clean() || self.overlay().path_of(f.id()).is_some());
        files
    }

    fn name(&self, file: &File) -> String {
        match self.overlay().path_of(file.id()) {
            Some(path) => path.display().to_string(),
            None => format!("(file {})", file.id()),
        }
    }

    /// Returns the files of `target` that the peer may drain, and the number of those that it may not.
    fn select(&self, target: &Target, peer: Peer) -> Result<(Selection, usize), Refusal> {
        if *target == Target::Mount && peer.is_privileged() {
            return Ok((Selection::All, 0));
        }
        if let Target::File(ino) = target
            && let Some(id) = self.overlay().id_of(*ino)
            && let Err(error) = self.flusher.concern(id)
        {
            return Err(Refusal::new(Reason::Failed, error.to_string()));
        }
        let mut files = self.dirty();
        match target {
            Target::Mount => {}
            Target::File(ino) => {
                files.retain(|f| f.id().ino == *ino);
                if files.iter().any(|f| !peer.may_touch(self.owner(f))) {
                    return Err(denied("only its owner or root may drain this file"));
                }
            }
            Target::Directory(path) => {
                let dir = path.to_path();
                files.retain(|f| {
                    // The path of a file that has not been looked up since the start is not always known.
                    // Such a file is taken in.
                    let place = self.overlay().place_of(f.id()).unwrap_or_else(|error| {
                        tracing::info!(file = %f.id(), %error, "the backing does not say where it is");
                        None
                    });
                    place.is_none_or(|place| is_below(&place, &dir))
                });
            }
        }
        let meant = files.len();
        files.retain(|f| peer.may_touch(self.owner(f)));
        let others = meant - files.len();
        let ids = files.iter().map(|f| f.id()).collect();
        Ok((Selection::Files(ids), others))
    }

    fn drain(
        &self,
        (selection, others): (Selection, usize),
        wait: bool,
        timeout_ms: Option<u64>,
        progress: &mut dyn FnMut(Reply) -> io::Result<()>,
    ) -> DrainResult {
        let handle = self.flusher.drain(selection);
        let deadline = match (wait, timeout_ms) {
            (false, _) => Some(Instant::now()),
            (true, ms) => deadline(ms),
        };
        let mut watch = watcher(progress);
        let verdict = handle.wait_with(deadline, |p| !wait || watch(p));
        let end = handle.progress();
        DrainResult {
            state: match verdict {
                Verdict::Drained => DrainState::Drained,
                Verdict::StillDirty => DrainState::StillDirty,
                Verdict::Failed => DrainState::Failed,
            },
            files: end.files,
            undrained: end.total - end.done,
            drained: end.done,
            others,
            errors: messages(&end),
        }
    }

    fn umount(
        &self,
        keep: bool,
        timeout_ms: Option<u64>,
        peer: Peer,
        progress: &mut dyn FnMut(Reply) -> io::Result<()>,
    ) -> Result<Reply, Refusal> {
        if !peer.is_privileged() {
            return Err(denied(
                "only root or the user who mounted it may unmount this",
            ));
        }
        // Refuse before the drain: it may take an hour, and would be in vain if a shell sits in the mount.
        let holders = self.lifecycle.holders();
        if !holders.is_empty() {
            return Err(Refusal {
                holders,
                ..Refusal::new(Reason::Busy, format!("{} is in use", self.mount.display()))
            });
        }
        let stop = if keep { Stop::Keep } else { Stop::Drain };
        let closing = self
            .lifecycle
            .stop(stop, deadline(timeout_ms), &mut watcher(progress))?;
        unmounted(closing)
    }

    fn hand_over(&self, peer: Peer) -> Result<Reply, Refusal> {
        if !peer.is_privileged() {
            return Err(denied(
                "only root or the user who mounted it may take over the store",
            ));
        }
        self.lifecycle.hand_over().and_then(unmounted)
    }

    /// Reads a file into the store. A client may ask for that if it has the file open: the backing has let it
    /// open the file.
    fn prefetch(
        &self,
        ino: u64,
        since_ms: u64,
        peer: Peer,
        progress: &mut dyn FnMut(Reply) -> io::Result<()>,
    ) -> Result<Reply, Refusal> {
        let now = Instant::now();
        let since = now
            .checked_sub(Duration::from_millis(since_ms))
            .unwrap_or(now);
        let by = u32::try_from(peer.pid).map(|pid| (peer.uid, pid));
        let by = match by {
            _ if peer.is_privileged() => None,
            Ok(by) => Some(by),
            Err(_) => return Err(denied("the kernel does not say which process asks")),
        };
        let mut told = Instant::now();
        let mut watch = |done: u64| {
            if told.elapsed() < TELL {
                return true;
            }
            told = Instant::now();
            let short = Progress {
                done,
                ..Progress::default()
            };
            progress(Reply::Progress(short)).is_ok()
        };
        let Some(handle) = self.overlay().reading_handle(ino, by) else {
            return Err(denied(
                "only who has opened the file for reading may have it read into the store",
            ));
        };
        let ended = self.overlay().prefetch(&handle, since, &mut watch);
        let failed = |e: io::Error| Refusal::new(Reason::Failed, format!("reading it: {e}"));
        let (state, read) = match ended.map_err(failed)? {
            Prefetched::Kept { read } => (PrefetchState::Kept, read),
            Prefetched::Already => (PrefetchState::Already, 0),
            Prefetched::Dirty => (PrefetchState::Dirty, 0),
            Prefetched::Changed | Prefetched::Stopped => (PrefetchState::Changed, 0),
            Prefetched::NoRoom { read } => (PrefetchState::NoRoom, read),
            Prefetched::Unusable => (PrefetchState::Unusable, 0),
        };
        Ok(Reply::Prefetch(PrefetchResult { state, read }))
    }

    fn layout(
        &self,
        ino: u64,
        peer: Peer,
        progress: &mut dyn FnMut(Reply) -> io::Result<()>,
    ) -> Result<Reply, Refusal> {
        let file = self.dirty().into_iter().find(|f| f.id().ino == ino);
        if file
            .as_ref()
            .is_some_and(|f| !peer.may_touch(self.owner(f)))
        {
            return Err(denied(
                "only its owner or root may look at this file's layout",
            ));
        }
        let mut told = Instant::now();
        let mut is_wanted = || {
            let tell = told.elapsed() >= TELL;
            if tell {
                told = Instant::now();
            }
            !tell || progress(Reply::Progress(Progress::default())).is_ok()
        };
        layout::report_layout(file.as_deref(), &mut is_wanted)
            .map(Reply::Layout)
            .map_err(|e| Refusal::new(Reason::Failed, e.to_string()))
    }
}

impl Node {
    fn explain(&self, ino: u64, peer: Peer) -> Result<Reply, Refusal> {
        let explained = self.overlay().explain(ino);
        let explained = explained.map_err(|e| Refusal::new(Reason::Failed, e.to_string()))?;
        let Some(explained) = explained else {
            return Err(Refusal::new(
                Reason::Failed,
                "the file is gone, or another one has its number by now; try again",
            ));
        };
        if !peer.may_touch(explained.uid) {
            return Err(denied(
                "only its owner or root may ask how this file is treated",
            ));
        }
        let report = ExplainReport::new(Asked::Daemon, self.config.as_deref(), &explained);
        Ok(Reply::Explained(report))
    }
}

impl Handler for Node {
    fn handle(
        &self,
        request: Request,
        peer: Peer,
        progress: &mut dyn FnMut(Reply) -> io::Result<()>,
    ) -> Reply {
        let reply = match request {
            Request::Ping => Ok(Reply::Pong {
                pid: std::process::id(),
            }),
            Request::Status => Ok(Reply::Status(Box::new(self.status(peer)))),
            Request::Drain {
                target,
                wait,
                timeout_ms,
            } => self
                .select(&target, peer)
                .map(|selection| Reply::Drain(self.drain(selection, wait, timeout_ms, progress))),
            Request::Layout { ino } => self.layout(ino, peer, progress),
            Request::Explain { ino } => self.explain(ino, peer),
            Request::Prefetch { ino, since_ms } => self.prefetch(ino, since_ms, peer, progress),
            Request::Probe { fresh } => probe::answer(self.targets.as_ref(), fresh, peer, progress),
            Request::Umount { keep, timeout_ms } => self.umount(keep, timeout_ms, peer, progress),
            Request::HandOver => self.hand_over(peer),
        };
        reply.unwrap_or_else(Reply::Refused)
    }
}

fn unmounted(closing: Closing) -> Result<Reply, Refusal> {
    match closing.error {
        Some(error) => Err(Refusal::new(Reason::Failed, error)),
        None => Ok(Reply::Unmounted {
            undrained: closing.undrained,
            files: closing.files,
        }),
    }
}

pub(super) fn denied(message: &str) -> Refusal {
    Refusal::new(Reason::Denied, message)
}

fn deadline(timeout_ms: Option<u64>) -> Option<Instant> {
    timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)))
}

fn is_below(path: &Path, dir: &Path) -> bool {
    dir.as_os_str().is_empty() || path.starts_with(dir)
}

/// Errors for a message, whose length is limited.
fn messages(progress: &Progress) -> Vec<String> {
    let errors = progress.errors.iter().take(MOST_ERRORS);
    errors.map(|e| e.error.message.clone()).collect()
}

/// Sends progress on, with its lists cut short. Returns false when the peer is gone.
fn watcher<'a>(
    progress: &'a mut dyn FnMut(Reply) -> io::Result<()>,
) -> impl FnMut(&Progress) -> bool + 'a {
    move |p| {
        let short = Progress {
            active: p.active.iter().take(100).copied().collect(),
            errors: p.errors.iter().take(20).cloned().collect(),
            ..p.clone()
        };
        progress(Reply::Progress(short)).is_ok()
    }
}

#[cfg(test)]
mod tests;
