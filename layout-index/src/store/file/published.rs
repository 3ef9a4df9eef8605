//! What nodes have published of a file and the canonical file does not have yet: a layer between the
//! store's own bytes and the canonical file. The code that shares files with other nodes makes it
//! and replaces it; the store only reads it.
//!
//! # Order that readers rely on
//!
//! Bytes enter the layer before the store forgets them, and leave it only when the canonical file
//! has them. So a reader that looks at the store first, then at the layer, then at the canonical
//! file never misses a byte.

use super::plan::{Piece, SubfilePiece};
use super::{File, Intro};
use crate::types::{ByteRange, Timestamp};
use parking_lot::RwLockWriteGuard;
use std::sync::Arc;

/// Where published bytes are.
#[derive(Clone, Debug)]
pub enum PublishedSource {
    /// In a layout, from byte `at` of what it has inline.
    Inline {
        bytes: Arc<[u8]>,
        at: usize,
    },
    Subfile(SubfilePiece),
}

/// What is published, at one moment. Never empty: where the canonical file has everything, there is
/// no layer.
pub trait PublishedLayer: std::fmt::Debug + Send + Sync {
    /// Size of the file if the store has nothing of it.
    fn size(&self) -> u64;

    /// `None` means that the canonical file's time applies.
    fn mtime(&self) -> Option<Timestamp>;

    /// Bytes of the blocks in which something is published.
    fn allocated(&self) -> u64;

    /// Canonical bytes at or beyond this offset are not part of the file.
    fn limit(&self) -> u64;

    /// The published pieces at the beginning of `range`, about `most`, in file order and disjoint,
    /// and where that beginning ends.
    fn pieces_upto(&self, range: ByteRange, most: usize) -> (Vec<Piece>, u64);
}

#[derive(Debug, Default)]
pub(super) struct Published {
    layer: Option<Arc<dyn PublishedLayer>>,
    /// A publication of this node is under way. Under one lock with the layer: a publication that
    /// ends has put its bytes there.
    under_way: bool,
}

/// A publication of a file; there is one at a time. While it exists, no bytes of the file move
/// within the store, and none are drained past the log: bytes that are newer than the batch under
/// way would end up below it.
pub(crate) struct Publication<'a> {
    file: &'a File,
    _alone: RwLockWriteGuard<'a, ()>,
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        self.file.published.lock().under_way = false;
    }
}

impl File {
    pub(crate) fn begin_publication(&self) -> Publication<'_> {
        let alone = self.exclude_publications();
        self.published.lock().under_way = true;
        Publication {
            file: self,
            _alone: alone,
        }
    }

    /// Waits for a publication that is under way, and keeps others from beginning.
    pub(crate) fn exclude_publications(&self) -> RwLockWriteGuard<'_, ()> {
        self.publication_lock.write()
    }

    /// Replaces the layer. `None` means that the canonical file has everything that is published.
    pub(crate) fn set_published(&self, layer: Option<Arc<dyn PublishedLayer>>) {
        let before = std::mem::replace(&mut self.published.lock().layer, layer);
        // This may close subfiles, which must not happen under the lock that reads take.
        drop(before);
    }

    pub(super) fn published_layer(&self) -> Option<Arc<dyn PublishedLayer>> {
        self.published.lock().layer.clone()
    }

    /// Whether something is published that the canonical file does not have, as far as this node
    /// knows from its last refresh.
    pub fn has_published(&self) -> bool {
        self.published.lock().layer.is_some()
    }

    /// Whether a publication is under way.
    pub fn is_publishing(&self) -> bool {
        self.published.lock().under_way
    }

    /// Nothing is published that the canonical file does not have, and this node is not publishing.
    pub(super) fn is_alone(&self) -> bool {
        let published = self.published.lock();
        published.layer.is_none() && !published.under_way
    }

    /// Whether the canonical file has everything, as far as this node knows from its last refresh.
    pub fn is_settled(&self) -> bool {
        self.is_clean() && !self.has_published()
    }

    /// Waits for a publication that is under way. The store forgets published bytes before other
    /// nodes are told to refresh (the change token comes last). So a caller that finds nothing left
    /// to publish must wait here before it says so: another thread's publication may have its
    /// bytes.
    pub fn wait_published(&self) {
        drop(self.publication_lock.read());
    }

    /// Where the canonical file may be found, as known from the current dirty period, or else from
    /// an earlier one or from a layout.
    pub fn hint(&self) -> Intro {
        self.intro()
            .or_else(|| self.hint.lock().clone())
            .unwrap_or_default()
    }

    /// Notes where the canonical file is, for a node that never had it open.
    pub(crate) fn learn_handle(&self, handle: &[u8]) {
        if handle.is_empty() {
            return;
        }
        self.hint.lock().get_or_insert_with(|| Intro {
            handle: handle.to_vec(),
            ..Intro::default()
        });
    }
}
