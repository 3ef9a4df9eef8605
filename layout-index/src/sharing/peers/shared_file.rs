//! What this node knows of one file as other nodes share it.
//!
//! A [`SharedFile`] exists as long as the [`File`] that it belongs to, and is found through it. The
//! store knows only what [`KnownState::show`] hands to it: a layer of published bytes.

use super::append::Append;
use super::{Canonical, OwnLayout};
use crate::extent::SubUnit;
use crate::sharing::layout::{SubfileRef, View, ViewPiece, ViewSource};
use crate::sharing::shared_dir::{Announcement, ChangeToken};
use crate::store::file::{File, Piece, PublishedLayer, PublishedSource, Source, SubfilePiece};
use crate::store::index::SubfileRow;
use crate::store::subfile::Subfile;
use crate::types::{ByteRange, NodeId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct SharedFile {
    known_state: Mutex<KnownState>,
    /// Held during a refresh from the shared directory.
    pub refresh_lock: Mutex<()>,
    /// Held during an append to a file that other nodes may append to as well. Taken before all
    /// other locks of the file.
    pub append: Mutex<Append>,
}

impl SharedFile {
    /// State known from the shared directory. Must not be held during I/O, and of the file's locks
    /// only that of the published layer may be taken while it is held.
    pub fn known_state(&self) -> MutexGuard<'_, KnownState> {
        self.known_state.lock()
    }
}

pub(super) fn shared(file: &File) -> &SharedFile {
    file.companion()
}

/// State of a file as known from the shared directory.
#[derive(Debug, Default)]
pub(super) struct KnownState {
    view: Arc<View>,
    canonical: Canonical,
    /// Change token at the last complete refresh; `None` if the file had no directory.
    pub token: Option<ChangeToken>,
    pub refreshed: bool,
    /// Number of the last refresh that found something new of other nodes, or that the canonical
    /// file has something of theirs; 0 if there was none.
    pub news: u64,
    /// Whether that refresh found announcements of other nodes.
    pub others_pending: bool,
    pub own: HashMap<u32, OwnLayout>,
    /// A batch of another node came to the view since this node last set a change token for that
    /// reason: the other node may not have set one yet.
    pub needs_touch: bool,
    /// The layout that the next batch goes to.
    pub current: Option<u32>,
    pub announcements: Vec<Announcement>,
    subfiles: Arc<ForeignSubfiles>,
}

impl KnownState {
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    pub fn canonical(&self) -> Canonical {
        self.canonical
    }

    /// Replaces the view, also for reads of this node.
    pub fn set_view(&mut self, file: &File, view: View, canonical: Option<Canonical>) {
        if view.is_empty() {
            self.subfiles = Arc::default();
        }
        self.view = Arc::new(view);
        self.canonical = canonical.unwrap_or(self.canonical);
        self.show(file);
    }

    pub fn set_canonical(&mut self, file: &File, canonical: Canonical) {
        if self.canonical != canonical {
            self.canonical = canonical;
            self.show(file);
        }
    }

    fn show(&self, file: &File) {
        let layer = || self.layer(self.view.clone());
        file.set_published((!self.view.is_empty()).then(layer));
    }

    /// `view`, which is the file's view or a part of it, as the store reads it.
    pub fn layer(&self, view: Arc<View>) -> Arc<dyn PublishedLayer> {
        Arc::new(Layer {
            view,
            canonical: self.canonical,
            subfiles: self.subfiles.clone(),
        })
    }
}

/// The view of a file over its canonical file.
#[derive(Debug)]
struct Layer {
    view: Arc<View>,
    canonical: Canonical,
    subfiles: Arc<ForeignSubfiles>,
}

impl PublishedLayer for Layer {
    fn size(&self) -> u64 {
        self.view.size(self.canonical.size)
    }

    fn mtime(&self) -> Option<Timestamp> {
        self.view.mtime()
    }

    fn allocated(&self) -> u64 {
        self.view.allocated()
    }

    fn limit(&self) -> u64 {
        self.view.limit()
    }

    fn pieces_upto(&self, range: ByteRange, most: usize) -> (Vec<Piece>, u64) {
        let (pieces, upto) = self.view.pieces_upto(range, most);
        // Neighbouring pieces are most likely in the same subfile.
        let mut last = None;
        let pieces = pieces.into_iter().map(|piece| self.piece(piece, &mut last));
        (pieces.collect(), upto)
    }
}

type Known = (NodeId, SubfileRef, Arc<Subfile>);

impl Layer {
    fn piece(&self, piece: ViewPiece, last: &mut Option<Known>) -> Piece {
        let source = match piece.source {
            ViewSource::Zero => Source::Zero,
            ViewSource::Inline { batch, at } => Source::Published(PublishedSource::Inline {
                bytes: batch.inline().clone(),
                at: at as usize,
            }),
            ViewSource::Subfile {
                node,
                batch,
                unit,
                skip,
            } => {
                let (of, unit) = batch.unit(unit);
                let known = last.take().filter(|(n, s, _)| *n == node && s == of);
                let known = known.unwrap_or_else(|| {
                    let uid = self.canonical.uid;
                    (node, of.clone(), self.subfiles.get(node, of, uid))
                });
                let (_, _, subfile) = last.insert(known);
                Source::Published(PublishedSource::Subfile(SubfilePiece {
                    unit: SubUnit {
                        subfile: of.no,
                        block: unit.block,
                        len: unit.len,
                        crc: unit.crc,
                    },
                    skip,
                    subfile: subfile.clone(),
                }))
            }
        };
        Piece {
            range: piece.range,
            source,
        }
    }
}

/// Subfiles that bytes of a view are in, by name: opened once for all reads.
#[derive(Debug, Default)]
struct ForeignSubfiles(Mutex<HashMap<String, Arc<Subfile>>>);

impl ForeignSubfiles {
    /// `uid` is the user that the subfile must belong to.
    fn get(&self, node: NodeId, subfile: &SubfileRef, uid: u32) -> Arc<Subfile> {
        let name = subfile.name(node);
        let new = |name: &String| {
            Arc::new(Subfile::new(SubfileRow {
                no: subfile.no,
                ost: 0,
                ost_name: subfile.ost.clone(),
                name: name.clone(),
                uid,
            }))
        };
        let mut known = self.0.lock();
        known.entry(name).or_insert_with_key(new).clone()
    }
}
