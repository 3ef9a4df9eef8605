//! Overlapping writes of two nodes without a sync point in between.
//!
//! Which of the bytes win is decided by the order of publication, and not by that of writing (S2). The node
//! that hears of another node's batch while it has unpublished bytes in the same place knows that
//! neither has seen the other's. It counts that, and says so once for each file.
//!
//! Called with `looking` held and before this node's own bytes are forgotten, so each overlap of
//! two publications is found by the later of the two nodes. What was drained before this node looked is not
//! found, nor what lies behind the first [`LOOKED_AT`] pieces of this node's bytes.

use super::Peers;
use crate::error::{Result, StoreError};
use crate::file::File;
use crate::layout::View;
use crate::types::{ByteRange, FileId, NodeId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

const LOOKED_AT: usize = 4096;

/// More files than this are counted and not named.
const NAMED: usize = 1000;

/// What is known of the overlaps of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    pub file: FileId,
    /// The other nodes, by name.
    pub nodes: BTreeSet<String>,
    /// The first that was found.
    pub range: ByteRange,
    pub count: u64,
}

/// All overlaps that this node has found since it started.
#[derive(Debug, Default)]
pub(crate) struct Overlaps(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    total: u64,
    files: BTreeMap<FileId, Overlap>,
}

impl Overlaps {
    /// True if it is the first of its file.
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

    /// How many there were, and the files.
    pub fn all(&self) -> (u64, Vec<Overlap>) {
        let found = self.0.lock();
        (found.total, found.files.values().cloned().collect())
    }
}

impl Peers {
    /// `view` is about to take the place of `before`.
    pub(super) fn note_overlaps(&self, file: &File, view: &View, before: &View) -> Result<()> {
        let news = view.bounds_of_news(before, self.me());
        if news.is_empty() || file.is_clean() {
            return Ok(());
        }
        for (node, range) in self.overlaps_with(file, view, before, news)? {
            let name = self.commons.name_of(node);
            if self.shared.overlaps.note(file.id(), &name, range) {
                tracing::warn!(
                    file = %file.id(), node = %name, %range,
                    "another node has written the same bytes without a sync point in between: what is published last counts"
                );
            }
        }
        Ok(())
    }

    /// The first overlap with each node.
    fn overlaps_with(
        &self,
        file: &File,
        view: &View,
        before: &View,
        news: ByteRange,
    ) -> Result<BTreeMap<NodeId, ByteRange>> {
        let mut found = BTreeMap::new();
        let mut at = news.start;
        for _ in 0..LOOKED_AT {
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
