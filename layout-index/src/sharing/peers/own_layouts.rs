//! This node's own layouts: read again after a start, removed when they are drained.

use super::shared_file::shared;
use super::{AskCanonical, End, OwnLayout, Peers, failed};
use crate::error::{Result, StoreError};
use crate::sharing::layout::{self, Base, Batch, LayoutId, SubfileRef, Tail};
use crate::sharing::shared_dir::Listing;
use crate::store::file::File;
use crate::store::file_of;
use crate::store::index::SubfileRow;
use crate::store::subfile::Subfile;
use crate::types::{ByteRange, FileId};
use std::io;
use std::sync::Arc;

/// No layout of one node gets this long. Bounds what a damaged layout can make a start read.
const LONGEST: usize = 1 << 32;

impl Peers {
    /// Must be called after a start, before the first write: makes the store forget the bytes that
    /// this node's layouts have, and restores this node's announcements. Returns the files that
    /// this node has published, announced or appended to.
    pub fn resume(&self) -> io::Result<Vec<Arc<File>>> {
        let me = self.me();
        let mut found = Vec::new();
        for id in self.shared_dir.files()? {
            let Some(listing) = self.shared_dir.list(id)? else {
                continue;
            };
            let own = listing.layouts.iter().filter(|(node, _)| *node == me);
            let own: Vec<u32> = own.map(|(_, gen_no)| *gen_no).collect();
            let mut announcements = listing.announcements.clone();
            announcements.retain(|announcement| announcement.owner.id == me);
            if own.is_empty() && announcements.is_empty() {
                continue;
            }
            let file = file_of(&self.state, id);
            let taken = own
                .iter()
                .try_for_each(|gen_no| self.resume_layout(&file, *gen_no, &listing));
            match taken {
                Ok(()) => {}
                // Opens and drains of this file report the error, too; other files are not
                // affected.
                Err(error @ StoreError::Layout { .. }) => {
                    tracing::error!(file = %id, %error, "what this node published of it cannot be taken up");
                    continue;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
            self.drop_drained(&file, listing.bases.last().copied())
                .map_err(io::Error::other)?;
            // If an earlier run appended a batch and did not set a change token, other nodes would
            // not notice it.
            self.shared_dir.touch(id)?;
            shared(&file).known_state().announcements = announcements;
            if file.is_clean() {
                let pending = self.pending(&file);
                self.fulfil_pending(&file, pending)
                    .map_err(io::Error::other)?;
            }
            found.push(file);
        }
        found.extend(self.resume_appends()?);
        Ok(found)
    }

    fn resume_layout(&self, file: &File, gen_no: u32, listing: &Listing) -> Result<()> {
        let me = self.me();
        let seal = listing.seal_of((me, gen_no));
        let longest = seal.and_then(|end| usize::try_from(end).ok());
        let longest = longest.map_or(LONGEST, |end| LONGEST.min(end));
        let bytes = self
            .shared_dir
            .read_layout(file.id(), me, gen_no, 0, longest)
            .map_err(|e| failed("reading this node's layout of", file, e))?;
        let Some(bytes) = bytes else {
            return Ok(());
        };
        let id = LayoutId {
            file: file.id(),
            node: me,
            generation: gen_no,
        };
        let parsed = layout::parse(&bytes, 0, &id);
        file.learn_handle(&parsed.handle);
        let damaged = |why: String| StoreError::Layout {
            file: file.id(),
            what: "layout",
            why: format!("this node's own{why}"),
        };
        if let Some(seal) = seal.filter(|seal| *seal > 0)
            && let Some(why) = parsed.against_seal(0, seal)
        {
            return Err(damaged(format!(" {why}")));
        }
        let mut own = OwnLayout {
            end: match seal {
                None => End::Open,
                Some(_) => End::Sealed,
            },
            ..OwnLayout::default()
        };
        for (end, batch) in &parsed.batches {
            own.len = *end;
            own.bytes += batch.strips().iter().map(|s| s.total()).sum::<u64>();
            own.subfiles.extend(batch.subfiles().iter().cloned());
        }
        self.keep_subfiles(&own);
        // A daemon that was killed within an append had not synced it, and the store forgets those
        // bytes now.
        self.shared_dir
            .sync_layout(file.id(), gen_no)
            .map_err(|e| failed("syncing this node's layout of", file, e))?;
        for (_, batch) in &parsed.batches {
            self.already_published(file, batch)?;
        }
        let mut seen = shared(file).known_state();
        match parsed.tail {
            Tail::Complete if own.end == End::Open => seen.current = Some(gen_no),
            // Nothing is appended after an incomplete batch. After a kill within an append this is
            // normal, so it is no warning; it cannot be told from a layout that was cut.
            Tail::Incomplete if own.end == End::Open => tracing::info!(
                file = %file.id(),
                "this node's layout of it {}: an append to it died, and its bytes are published anew, or it was cut, and what was published there is lost",
                layout::ends_within(bytes.len() as u64)
            ),
            Tail::Complete | Tail::Incomplete => {}
            Tail::Damaged { at, why } => return Err(damaged(format!(", byte {at}: {why}"))),
        }
        seen.own.insert(gen_no, own);
        Ok(())
    }

    /// Removes layouts that other nodes drained while this node was away. A damaged base is reported
    /// by the next refresh of the file.
    fn drop_drained(&self, file: &File, base: Option<u64>) -> Result<()> {
        let Some(term) = base else {
            return Ok(());
        };
        let bytes = self
            .shared_dir
            .read_base(file.id(), term)
            .map_err(|e| failed("reading a base of", file, e))?;
        let base = bytes.and_then(|bytes| Base::decode(&bytes, file.id()).ok());
        let Some(base) = base else {
            return Ok(());
        };
        let me = self.me();
        let covered: Vec<u32> = {
            let seen = shared(file).known_state();
            let own = seen.own.iter();
            own.filter(|(gen_no, own)| own.is_covered(base.covered.upto(me, **gen_no)))
                .map(|(gen_no, _)| *gen_no)
                .collect()
        };
        self.drop_layouts(file, &covered)
    }

    /// Keeps the layout's subfiles: dirty periods that ended before the layouts were read, or that
    /// end from here on, have given them up, but the layout still needs them.
    fn keep_subfiles(&self, own: &OwnLayout) {
        let me = self.me();
        let book = &self.state.subfiles;
        let mut held = book.published.lock();
        held.extend(own.subfiles.iter().map(|subfile| subfile.name(me)));
        let mut retired = book.retired.lock();
        retired.retain(|subfile| !held.contains(&subfile.row().name));
    }

    fn already_published(&self, file: &File, batch: &Batch) -> Result<()> {
        let head = &batch.head;
        if file.period_no() != Some(head.period) {
            return Ok(());
        }
        let mut ranges = Vec::new();
        for strip in batch.strips() {
            for (start, extent) in file.visible(strip.bounds())? {
                if extent.seq > head.upto {
                    continue;
                }
                let extent = ByteRange::new(start, extent.end);
                let mut piece = strip.piece_after(extent.start);
                while let Some(i) = piece.filter(|i| *i < strip.count) {
                    match strip.piece(i).intersect(&extent) {
                        Some(part) => ranges.push(part),
                        None => break,
                    }
                    piece = Some(i + 1);
                }
            }
            if file.period_no() != Some(head.period) {
                return Ok(());
            }
        }
        file.forget_published_before(
            head.period,
            head.upto,
            &ranges,
            head.cut,
            head.grown,
            head.mtime,
        )
    }

    /// Removes this node's layouts that the base covers, and releases their subfiles. Returns true
    /// when no layout is left.
    pub fn reclaim(&self, file: &File) -> Result<bool> {
        // No batch may be appended to a layout that is about to be removed.
        let _no_publication = file.exclude_publications();
        self.seal_abandoned(file)?;
        let me = self.me();
        let covered: Vec<u32> = {
            let seen = shared(file).known_state();
            let own = seen.own.iter();
            own.filter(|(gen_no, own)| own.is_covered(seen.view().base_upto(me, **gen_no)))
                .map(|(gen_no, _)| *gen_no)
                .collect()
        };
        self.drop_layouts(file, &covered)?;
        Ok(shared(file).known_state().own.is_empty())
    }

    /// The canonical file is gone: removes everything that this node has published and announced of
    /// it.
    pub fn discard(&self, file: &File) -> Result<()> {
        let _no_publication = file.exclude_publications();
        let all: Vec<u32> = shared(file).known_state().own.keys().copied().collect();
        self.drop_layouts(file, &all)?;
        self.fulfil_pending(file, self.pending(file))
    }

    /// Syncs the log first, so that the records by which the store forgot those bytes are durable.
    /// After a power failure only the layout could tell the store so; without both, the store would
    /// publish the bytes again, over newer bytes of other nodes.
    fn drop_layouts(&self, file: &File, gens: &[u32]) -> Result<()> {
        if gens.is_empty() {
            return Ok(());
        }
        self.state.log.sync()?;
        gens.iter()
            .try_for_each(|gen_no| self.drop_layout(file, *gen_no))
    }

    fn drop_layout(&self, file: &File, gen_no: u32) -> Result<()> {
        let sealed = {
            let seen = shared(file).known_state();
            let own = seen.own.get(&gen_no).filter(|own| own.end != End::Open);
            own.map(|own| own.len)
        };
        // The removal of a layout that is still being written to would wait for the write.
        if !self.shared_dir.writer().leave_to_writer(file.id(), gen_no) {
            self.shared_dir
                .remove_layout(file.id(), self.me(), gen_no, sealed)
                .map_err(|e| failed("removing a drained layout of", file, e))?;
        }
        let own = {
            let mut seen = shared(file).known_state();
            if seen.current == Some(gen_no) {
                seen.current = None;
            }
            seen.own.remove(&gen_no)
        };
        for subfile in own.map(|own| own.subfiles).unwrap_or_default() {
            self.release_subfile(&subfile);
        }
        Ok(())
    }

    /// Releases a subfile, unless it is in batches of another layout or in use by the dirty period
    /// that made it.
    pub(super) fn release_subfile(&self, subfile: &SubfileRef) {
        let me = self.me();
        let name = subfile.name(me);
        let book = &self.state.subfiles;
        if self.state.all_files().iter().any(|file| {
            let seen = shared(file).known_state();
            seen.own.values().any(|own| own.subfiles.contains(subfile))
        }) {
            return;
        }
        book.published.lock().remove(&name);
        let in_use = book.known.read().values().any(|s| s.row().name == name);
        if !in_use {
            book.retired.lock().push(Arc::new(Subfile::new(SubfileRow {
                no: subfile.no,
                ost: 0,
                ost_name: subfile.ost.clone(),
                name,
                uid: 0,
            })));
        }
    }

    /// Whether this node has published bytes of the file that are not drained, or has announced
    /// some.
    pub fn has_part(&self, file: &File) -> bool {
        let seen = shared(file).known_state();
        !seen.own.is_empty() || !seen.announcements.is_empty()
    }

    /// Returns the files that other nodes ask this node to publish, each once.
    pub fn take_notes(&self) -> io::Result<Vec<FileId>> {
        self.shared_dir.take_notes()
    }

    /// Refreshes the view of a file without waiting for announcements, also if the file is not open
    /// on this node.
    pub fn refresh_now(&self, file: &File, ask: AskCanonical<'_>) -> Result<()> {
        let _one = shared(file).refresh_lock.lock();
        self.refresh_view(file, ask).map(|_| ())
    }
}
