//! What the daemon answers on its control socket. Rights are checked here, verb by verb: see
//! `control/peer.rs` for the table.
//!
//! A file is found by its inode number among the files that have undrained data. One that is not
//! among them is clean: there is nothing to drain, and its bytes are where `stat` says they are.

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
use flusher::ost::Fleet;
use flusher::{Flusher, Progress, Selection, Verdict};
use forebay_fs::{Explained, FsError, Prefetched};
use layout_index::{File, FileId, RecoveryReport, Store};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What only the file system knows of a file.
pub trait Names: Send + Sync {
    /// Below the mount, as far as is known without asking the backing; `None` when it has no name.
    fn path_of(&self, id: FileId) -> Option<PathBuf>;
    /// Where it is now, below the mount; `None` when that is not known. May wait for the backing.
    fn place_of(&self, id: FileId) -> Option<PathBuf>;
    /// The file with this node number, if the kernel knows it.
    fn id_of(&self, ino: u64) -> Option<FileId>;
    fn open_handles(&self) -> usize;
    /// How the file with this node number is treated; `None` if the kernel knows none.
    fn explain(&self, ino: u64) -> Result<Option<Explained>, FsError>;
    /// Reads a file into the store that `by` (user and process; `None` may read everything) has
    /// open for reading; `None` if nobody has. `progress` hears how much of it is there.
    fn prefetch(
        &self,
        ino: u64,
        by: Option<(u32, u32)>,
        began: Instant,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Option<io::Result<Prefetched>>;
}

/// Files named in one status report; a message has a longest size.
const MOST_FILES: usize = 1000;
/// How often a client hears how far it is.
const TELL: Duration = Duration::from_millis(100);
/// Exact counting ends then: one user's many extents must not keep others from their answer.
const COUNTING: Duration = Duration::from_millis(250);
/// Errors named in one report.
const MOST_ERRORS: usize = 200;

pub struct Node {
    mount: PathBuf,
    backing: PathBuf,
    started: Instant,
    store: Arc<Store>,
    flusher: Arc<Flusher>,
    fleet: Option<Arc<Fleet>>,
    names: Arc<dyn Names>,
    lifecycle: Arc<Lifecycle>,
    recovery: RecoveryReport,
    config: Option<PathBuf>,
}

impl Node {
    pub fn new(
        settings: &MountSettings,
        store: Arc<Store>,
        flusher: Arc<Flusher>,
        fleet: Option<Arc<Fleet>>,
        names: Arc<dyn Names>,
        lifecycle: Arc<Lifecycle>,
        recovery: RecoveryReport,
    ) -> Node {
        Node {
            mount: settings.mount.clone(),
            backing: settings.backing.clone(),
            started: Instant::now(),
            store,
            flusher,
            fleet,
            names,
            lifecycle,
            recovery,
            config: settings.policies.config_file.clone(),
        }
    }

    fn dirty(&self) -> Vec<Arc<File>> {
        let mut files = self.flusher.files();
        // Removed on some node, and the drain has yet to find that out.
        files.retain(|f| !f.is_clean() || self.names.path_of(f.id()).is_some());
        files
    }

    fn name(&self, file: &File) -> String {
        match self.names.path_of(file.id()) {
            Some(path) => path.display().to_string(),
            None => format!("(file {})", file.id()),
        }
    }

    /// The files a peer means and may drain, and how many it means and may not.
    fn select(&self, target: &Target, peer: Peer) -> Result<(Selection, usize), Refusal> {
        if *target == Target::Mount && peer.is_privileged() {
            return Ok((Selection::All, 0));
        }
        if let Target::File(ino) = target
            && let Some(id) = self.names.id_of(*ino)
            && let Err(error) = self.flusher.concern(id)
        {
            return Err(Refusal::new(Reason::Failed, error.to_string()));
        }
        let mut files = self.dirty();
        match target {
            Target::Mount => {}
            Target::File(ino) => {
                files.retain(|f| f.id().ino == *ino);
                if files.iter().any(|f| !peer.may_touch(owner(f))) {
                    return Err(denied("only its owner or root may drain this file"));
                }
            }
            Target::Directory(path) => {
                let dir = path.to_path();
                files.retain(|f| {
                    // Where nothing has looked a file up since the start, that is not always known.
                    let place = self.names.place_of(f.id());
                    place.is_none_or(|place| is_below(&place, &dir))
                });
            }
        }
        let meant = files.len();
        files.retain(|f| peer.may_touch(owner(f)));
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
        // Draining for an hour only to find a shell sitting in the mount helps nobody.
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

    /// The backing has let the client open the file: that is the right to read it.
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
        let Some(ended) = self.names.prefetch(ino, by, since, &mut watch) else {
            return Err(denied(
                "only who has opened the file for reading may have it read into the store",
            ));
        };
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
        if file.as_ref().is_some_and(|f| !peer.may_touch(owner(f))) {
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
        layout::of(file.as_deref(), &mut is_wanted)
            .map(Reply::Layout)
            .map_err(|e| Refusal::new(Reason::Failed, e.to_string()))
    }
}

impl Node {
    fn explain(&self, ino: u64, peer: Peer) -> Result<Reply, Refusal> {
        let explained = self.names.explain(ino);
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
            Request::Probe { fresh } => probe::answer(self.fleet.as_ref(), fresh, peer, progress),
            Request::Umount { keep, timeout_ms } => self.umount(keep, timeout_ms, peer, progress),
            Request::HandOver => self.hand_over(peer),
        };
        reply.unwrap_or_else(Reply::Refused)
    }
}

/// The user whose data it is: who owned the file when its first byte was absorbed. A file whose
/// life has just ended belongs to nobody but root.
fn owner(file: &File) -> u32 {
    file.owner()
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

/// As it is now: what stalled since the drain last looked is dropped before it is shown.
/// Errors for a message that must not grow without bound.
fn messages(progress: &Progress) -> Vec<String> {
    let errors = progress.errors.iter().take(MOST_ERRORS);
    errors.map(|e| e.error.message.clone()).collect()
}

/// Sends progress on, without the lists; false when the peer is gone.
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
