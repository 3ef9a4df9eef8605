//! What `status` answers: the whole store to root and the daemon's user, their own files to others.

use super::{COUNTING, MOST_ERRORS, MOST_FILES, Node, owner};
use crate::control::peer::Peer;
use crate::report::{
    DrainStatus, ErrorStatus, FileStatus, OverlapStatus, Source, StatusReport, StoreStatus,
};
use flusher::ost::{Fleet, FleetStatus};
use layout_index::{File, Overlap, Totals};
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
            unknown: None,
            more_files: unlisted().count(),
            more_undrained: unlisted().map(|(_, undrained)| undrained).sum(),
            files: mine.iter().map(|(f, n)| self.file_status(f, *n)).collect(),
            open_handles: Some(self.names.open_handles()),
            drain: Some(self.drain_status()),
            errors,
            overlaps,
            overlapped,
            recovery: Some(recovery),
        }
    }

    /// Those of the peer's own files; the number is that of all.
    fn overlaps(&self, peer: Peer) -> (u64, Vec<OverlapStatus>) {
        let (total, found) = self.store.overlaps();
        let of_peer = |overlap: Overlap| {
            let file = self.store.file(overlap.file);
            peer.may_touch(owner(&file)).then(|| OverlapStatus {
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
}

fn target_status(fleet: &Arc<Fleet>) -> FleetStatus {
    fleet.tick(Instant::now());
    fleet.status()
}
