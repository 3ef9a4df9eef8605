//! What the daemon answers on its control socket. Rights are checked here, verb by verb: see
//! `control/peer.rs` for the table.
//!
//! A file is found by its inode number among the files that have undrained data. One that is not
//! among them is clean: there is nothing to drain, and its bytes are where `stat` says they are.

use super::layout;
use super::lifecycle::{Lifecycle, Stop};
use crate::control::peer::Peer;
use crate::control::protocol::{
    DrainResult, DrainState, PrefetchResult, PrefetchState, Reason, Refusal, Reply, Request, Target,
};
use crate::control::server::Handler;
use crate::report::{
    Asked, DrainStatus, ErrorStatus, ExplainReport, FileStatus, Source, StatusReport, StoreStatus,
};
use crate::settings::MountSettings;
use flusher::ost::{Fleet, FleetStatus};
use flusher::{Flusher, Progress, Selection, Verdict};
use forebay_fs::{Explained, FsError, Prefetched};
use layout_index::{File, FileId, RecoveryReport, Store, Totals};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What only the file system knows of a file.
pub trait Names: Send + Sync {
    /// Below the mount; `None` when it has no name.
    fn path_of(&self, id: FileId) -> Option<PathBuf>;
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

    fn status(&self, peer: Peer) -> StatusReport {
        let mut files: Vec<(Arc<File>, u64)> = self
            .dirty()
            .into_iter()
            .map(|f| {
                let books = || f.stat().map_or(0, |s| s.undrained);
                let undrained = f.count_undrained().unwrap_or_else(|_| books());
                (f, undrained)
            })
            .collect();
        // Counted file by file: the store's own sum lags behind the drain until its next merge.
        let undrained = files.iter().map(|(_, undrained)| undrained).sum();
        files.sort_by_key(|(f, undrained)| (std::cmp::Reverse(*undrained), f.id()));
        let (mut mine, hidden): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|(f, _)| peer.may_touch(owner(f)));
        let errors = mine
            .iter()
            .filter_map(|(f, _)| Some((f, self.flusher.trouble_of(f)?)))
            .take(MOST_ERRORS)
            .map(|(f, e)| ErrorStatus {
                path: self.name(f),
                message: e.message,
            })
            .collect();
        let cut = mine.split_off(mine.len().min(MOST_FILES));
        let unlisted = || hidden.iter().chain(&cut);
        let mut recovery = self.recovery.clone();
        if !peer.is_privileged() && !recovery.damaged.is_empty() {
            // The sentences name other users' files.
            recovery.damaged = vec![format!("{} damaged records", recovery.damaged.len())];
        }
        recovery.damaged.truncate(MOST_ERRORS);
        StatusReport {
            source: Source::Daemon,
            version: env!("CARGO_PKG_VERSION").into(),
            node: self.store.node().into(),
            pid: Some(std::process::id()),
            uptime: Some(self.started.elapsed().as_secs_f64()),
            mount: Some(self.mount.clone()),
            backing: self.backing.clone(),
            targets: self.fleet.as_ref().map(target_status),
            store: StoreStatus::new(
                self.store.dir().into(),
                &self.store.space(),
                self.store.failure(),
            ),
            bytes: Totals {
                undrained,
                ..self.store.totals()
            }
            .into(),
            kept: Some(self.store.kept().totals()),
            more_files: unlisted().count(),
            more_undrained: unlisted().map(|(_, undrained)| undrained).sum(),
            files: mine.iter().map(|(f, n)| self.file_status(f, *n)).collect(),
            open_handles: Some(self.names.open_handles()),
            drain: Some(self.drain_status()),
            errors,
            recovery: Some(recovery),
        }
    }

    fn file_status(&self, file: &File, undrained: u64) -> FileStatus {
        FileStatus {
            path: self.name(file),
            id: file.id().to_string(),
            size: file.shown().map_or(0, |s| s.size),
            undrained,
            uid: owner(file),
            writers: Some(file.writers()),
            error: self.flusher.trouble_of(file).map(|e| e.message),
        }
    }

    fn drain_status(&self) -> DrainStatus {
        let settings = self.flusher.settings();
        let progress = self.flusher.progress();
        DrainStatus {
            policy: settings.policy,
            rate: progress.rate,
            rate_limit: settings.rate_limit,
            eta: progress.eta,
            concurrency: settings.concurrency,
            active_files: progress.active.len(),
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
                    // Where a file is that was published before this start is not always known.
                    let path = self.names.path_of(f.id());
                    path.is_none_or(|path| is_below(&path, &dir))
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
        match closing.error {
            Some(error) => Err(Refusal::new(Reason::Failed, error)),
            None => Ok(Reply::Unmounted {
                undrained: closing.undrained,
                files: closing.files,
            }),
        }
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

    fn layout(&self, ino: u64, peer: Peer) -> Result<Reply, Refusal> {
        let file = self.dirty().into_iter().find(|f| f.id().ino == ino);
        if file.as_ref().is_some_and(|f| !peer.may_touch(owner(f))) {
            return Err(denied(
                "only its owner or root may look at this file's layout",
            ));
        }
        layout::of(file.as_deref())
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
            Request::Layout { ino } => self.layout(ino, peer),
            Request::Explain { ino } => self.explain(ino, peer),
            Request::Prefetch { ino, since_ms } => self.prefetch(ino, since_ms, peer, progress),
            Request::Umount { keep, timeout_ms } => self.umount(keep, timeout_ms, peer, progress),
        };
        reply.unwrap_or_else(Reply::Refused)
    }
}

/// The user whose data it is: who owned the file when its first byte was absorbed. A file whose
/// life has just ended belongs to nobody but root.
fn owner(file: &File) -> u32 {
    file.owner()
}

fn denied(message: &str) -> Refusal {
    Refusal::new(Reason::Denied, message)
}

fn deadline(timeout_ms: Option<u64>) -> Option<Instant> {
    timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)))
}

fn is_below(path: &Path, dir: &Path) -> bool {
    dir.as_os_str().is_empty() || path.starts_with(dir)
}

/// As it is now: what stalled since the drain last looked is dropped before it is shown.
fn target_status(fleet: &Arc<Fleet>) -> FleetStatus {
    fleet.tick(Instant::now());
    fleet.status()
}

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
mod tests {
    use super::*;

    #[test]
    fn directories_match_by_whole_names() {
        let below = |p: &str, d: &str| is_below(Path::new(p), Path::new(d));
        assert!(below("a/b/c", "a/b"));
        assert!(below("a/b", "a/b"));
        assert!(below("anything", ""));
        assert!(!below("a/bc", "a/b"));
        assert!(!below("b/a", "a"));
    }

    #[test]
    fn no_timeout_is_no_deadline_and_a_huge_one_neither() {
        assert!(deadline(None).is_none());
        assert!(deadline(Some(0)).is_some_and(|d| d <= Instant::now()));
        // Half a billion years may or may not fit the clock; it must not panic.
        assert!(deadline(Some(u64::MAX)).is_none_or(|d| d > Instant::now()));
    }
}
