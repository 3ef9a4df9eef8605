//! Overlapping writes of two nodes without a sync point in between.
//!
//! The order of publication decides which bytes win, not the order of writing (S2). If a node finds
//! another node's batch while it has unpublished bytes in the same place, neither node has seen the
//! other's bytes. The node counts that, and logs it once for each file.
//!
//! The check runs with `refresh_lock` held and before this node's own bytes are forgotten, so each
//! overlap of two publications is found by the node that publishes later. It does not find bytes
//! that were drained before this node's refresh, nor anything past the first [`MOST_PIECES`] pieces
//! of this node's bytes.

use super::Peers;
use crate::error::{Result, StoreError};
use crate::sharing::layout::View;
use crate::store::file::File;
use crate::types::{ByteRange, FileId, NodeId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

const MOST_PIECES: usize = 4096;

/// At most this many files are named; overlaps of others are only counted.
const NAMED: usize = 1000;

/// Overlaps that were found in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    pub file: FileId,
    /// The other nodes, by name.
    pub nodes: BTreeSet<String>,
    /// The first overlap that was found.
    pub range: ByteRange,
    pub count: u64,
}

/// All overlaps that this node has found since it started.
#[derive(Debug, Default)]
pub(super) struct Overlaps(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    total: u64,
    files: BTreeMap<FileId, Overlap>,
}

impl Overlaps {
    /// Returns true if this is the first overlap of its file.
    fn note(&self, file: FileId, node: &str, range: ByteRange) -> bool {
        let mut found = self.0.lock();
        found.total += 1;
        let room = found.files.len() < NAMED;
        if let Some(known) = found.files.get_mut(&file) {
            known.count += 1;
            known.nodes.insert(node.to_owned());
            return false;
        }
        if room {
            let overlap = Overlap {
                file,
                nodes: [node.to_owned()].into(),
                range,
                count: 1,
            };
            found.files.insert(file, overlap);
        }
        room
    }

    fn all(&self) -> (u64, Vec<Overlap>) {
        let found = self.0.lock();
        (found.total, found.files.values().cloned().collect())
    }
}

impl Peers {
    /// Writes of other nodes that overlapped with this node's, without a sync point in between: how many
    /// were found since the start, and in which files.
    pub fn overlaps(&self) -> (u64, Vec<Overlap>) {
        self.overlaps.all()
    }

    /// Notes overlaps when `view` is about to replace `before`.
    pub(super) fn note_overlaps(&self, file: &File, view: &View, before: &View) -> Result<()> {
        let news = view.bounds_of_news(before, self.me());
        if news.is_empty() || file.is_clean() {
            return Ok(());
        }
        for (node, range) in self.overlaps_with(file, view, before, news)? {
            let name = self.shared_dir.membership().name_of(node);
            if self.overlaps.note(file.id(), &name, range) {
                tracing::warn!(
                    file = %file.id(), node = %name, %range,
                    "another node has written the same bytes without a sync point in between: what is published last counts"
                );
            }
        }
        Ok(())
    }

    /// Returns the first overlap with each node.
    fn overlaps_with(
        &self,
        file: &File,
        view: &View,
        before: &View,
        news: ByteRange,
    ) -> Result<BTreeMap<NodeId, ByteRange>> {
        let mut found = BTreeMap::new();
        let mut at = news.start;
        for _ in 0..MOST_PIECES {
            let own = match file.next_unpublished(at) {
                Ok(Some(own)) if own.start < news.end => own,
                Ok(_) | Err(StoreError::Clean) => break,
                Err(error) => return Err(error),
            };
            for (node, range) in view.news_within(before, self.me(), own) {
                found.entry(node).or_insert(range);
            }
            at = own.end;
        }
        Ok(found)
    }
}
