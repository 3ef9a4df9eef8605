//! Answers `status`: root and the daemon's user see the whole store, other users their own files.

use super::{COUNTING, MOST_ERRORS, MOST_FILES, Node};
use crate::control::peer::Peer;
use crate::report::{
    DrainStatus, ErrorStatus, FileStatus, OperationStatus, OverlapStatus, Source, StatusReport,
    StoreStatus,
};
use flusher::ost::{Targets, TargetsStatus};
use forebay_fs::OpStats;
use layout_index::{File, Overlap, Totals};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

impl Node {
    pub(super) fn status(&self, peer: Peer) -> StatusReport {
        let enough = Instant::now() + COUNTING;
        let mut files: Vec<(Arc<File>, u64)> = self
            .dirty()
            .into_iter()
            .map(|f| {
                let books = || f.stat().map_or(0, |s| s.undrained);
                let undrained = f.count_undrained(Some(enough)).unwrap_or_else(|_| books());
                let resumed = self.flusher.peers().map_or(0, |p| p.resumed_bytes(&f));
                (f, undrained + resumed)
            })
            .collect();
        // The sum is counted file by file: the store's own sum lags behind the drain until its next merge.
        let undrained = files.iter().map(|(_, undrained)| undrained).sum();
        files.sort_by_key(|(f, undrained)| (std::cmp::Reverse(*undrained), f.id()));
        let (mut mine, hidden): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|(f, _)| peer.may_touch(self.owner(f)));
        let errors = mine
            .iter()
            .filter_map(|(f, _)| Some((f, self.flusher.drain_error_of(f)?)))
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
            // The messages name other users' files.
            recovery.damaged = vec![format!("{} damaged records", recovery.damaged.len())];
        }
        recovery.damaged.truncate(MOST_ERRORS);
        let (overlaps, overlapped) = self.overlaps(peer);
        StatusReport {
            source: Source::Daemon,
            version: env!("CARGO_PKG_VERSION").into(),
            node: self.store.node().into(),
            pid: Some(std::process::id()),
            uptime: Some(self.started.elapsed().as_secs_f64()),
            mount: Some(self.mount.clone()),
            mounted: Some(self.lifecycle.is_serving()),
            backing: self.backing.clone(),
            targets: self.targets.as_ref().map(target_status),
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
            kept: Some(self.store.local_copies().totals()),
            unknown: None,
            more_files: unlisted().count(),
            more_undrained: unlisted().map(|(_, undrained)| undrained).sum(),
            files: mine.iter().map(|(f, n)| self.file_status(f, *n)).collect(),
            open_handles: Some(self.overlay().open_handles()),
            operations: self.operations(),
            drain: Some(self.drain_status()),
            errors,
            overlaps,
            overlapped,
            recovery: Some(recovery),
        }
    }

    /// The user whose data it is: the owner of the file when its first byte was absorbed, or at the last
    /// refresh. A file whose dirty period has just ended belongs to root alone.
    pub(super) fn owner(&self, file: &File) -> u32 {
        let refreshed = || self.flusher.peers().map_or(0, |peers| peers.owner(file));
        file.intro().map_or_else(refreshed, |intro| intro.uid)
    }

    /// Returns the number of overlaps in all files, and the overlaps in the peer's own files.
    fn overlaps(&self, peer: Peer) -> (u64, Vec<OverlapStatus>) {
        let Some(peers) = self.flusher.peers() else {
            return (0, Vec::new());
        };
        let (total, found) = peers.overlaps();
        let of_peer = |overlap: Overlap| {
            let file = self.store.file(overlap.file);
            peer.may_touch(self.owner(&file)).then(|| OverlapStatus {
                path: self.name(&file),
                nodes: overlap.nodes.into_iter().collect(),
                start: overlap.range.start,
                end: overlap.range.end,
                count: overlap.count,
            })
        };
        let found = found.into_iter().filter_map(of_peer);
        (total, found.take(MOST_ERRORS).collect())
    }

    fn file_status(&self, file: &File, undrained: u64) -> FileStatus {
        FileStatus {
            path: self.name(file),
            id: file.id().to_string(),
            size: file.shown().map_or(0, |s| s.size),
            undrained,
            uid: self.owner(file),
            writers: Some(file.writers()),
            error: self.flusher.drain_error_of(file).map(|e| e.message),
        }
    }

    fn operations(&self) -> BTreeMap<String, OperationStatus> {
        let named = |stats: OpStats| (stats.op.name().to_owned(), stats.into());
        self.requests.stats().into_iter().map(named).collect()
    }

    fn drain_status(&self) -> DrainStatus {
        let settings = self.flusher.settings();
        let progress = self.flusher.progress();
        DrainStatus {
            policy: self.store.file_settings().drain,
            rate: progress.rate,
            rate_limit: settings.rate_limit,
            eta: progress.eta,
            concurrency: settings.concurrency,
            active_files: progress.active.len(),
        }
    }
}

/// Returns the current state of the targets: a target that has stalled since the drain last checked is dropped first.
fn target_status(targets: &Arc<Targets>) -> TargetsStatus {
    targets.tick(Instant::now());
    targets.status()
}
