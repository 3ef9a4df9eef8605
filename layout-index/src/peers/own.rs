//! This node's own layouts: taken up again after a start, removed when they are drained.

use super::{AskCanonical, End, OwnLayout, Peers, failed};
use crate::commons::Listing;
use crate::error::{Result, StoreError};
use crate::file::File;
use crate::index::SubfileRow;
use crate::layout::{self, Base, Batch, LayoutId, SubfileRef, Tail};
use crate::store::file_of;
use crate::subfile::Subfile;
use crate::types::{ByteRange, FileId};
use std::io;
use std::sync::Arc;

/// No layout of one node gets this long; bounds what a damaged one can make a start read.
const LONGEST: usize = 1 << 32;

impl Peers {
    /// After a start and before anybody writes: the store forgets what its layouts have, and this
    /// node's promises are known again. Gives the files that this node has something to do with.
    pub fn resume(&self) -> io::Result<Vec<Arc<File>>> {
        let me = self.me();
        let mut found = Vec::new();
        for id in self.commons.files()? {
            let Some(listing) = self.commons.list(id)? else {
                continue;
            };
            let own = listing.layouts.iter().filter(|(node, _)| *node == me);
            let own: Vec<u32> = own.map(|(_, gen_no)| *gen_no).collect();
            let mut intents = listing.intents.clone();
            intents.retain(|intent| intent.owner.id == me);
            if own.is_empty() && intents.is_empty() {
                continue;
            }
            let file = file_of(&self.shared, id);
            let taken = own
                .iter()
                .try_for_each(|gen_no| self.resume_layout(&file, *gen_no, &listing));
            match taken {
                Ok(()) => {}
                // Its opens and its drain say so too; other files are not concerned.
                Err(error @ StoreError::Layout { .. }) => {
                    tracing::error!(file = %id, %error, "what this node published of it cannot be taken up");
                    continue;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
            self.drop_drained(&file, listing.bases.last().copied())
                .map_err(io::Error::other)?;
            // A batch that was appended and not stamped is news that nobody would hear of.
            self.commons.touch(id)?;
            file.seen().intents = intents;
            if file.is_clean() {
                let promises = self.promises(&file);
                self.kept(&file, promises).map_err(io::Error::other)?;
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
            .commons
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
        self.remember(file, &parsed.handle);
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
        // A daemon that was killed within an append had not synced it, and the store forgets it now.
        self.commons
            .sync_layout(file.id(), gen_no)
            .map_err(|e| failed("syncing this node's layout of", file, e))?;
        for (_, batch) in &parsed.batches {
            self.already_published(file, batch)?;
        }
        let mut seen = file.seen();
        match parsed.tail {
            Tail::Complete if own.end == End::Open => seen.current = Some(gen_no),
            // Nothing goes behind it. After a kill within an append that is as it should be, so no
            // warning; nobody can tell it from one that was cut.
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

    /// What others drained while this node was away. A base that cannot be read is told of by
    /// whoever looks at the file.
    fn drop_drained(&self, file: &File, base: Option<u64>) -> Result<()> {
        let Some(term) = base else {
            return Ok(());
        };
        let bytes = self
            .commons
            .read_base(file.id(), term)
            .map_err(|e| failed("reading a base of", file, e))?;
        let base = bytes.and_then(|bytes| Base::decode(&bytes, file.id()).ok());
        let Some(base) = base else {
            return Ok(());
        };
        let me = self.me();
        let covered: Vec<u32> = {
            let seen = file.seen();
            let own = seen.own.iter();
            own.filter(|(gen_no, own)| own.is_covered(base.covered.upto(me, **gen_no)))
                .map(|(gen_no, _)| *gen_no)
                .collect()
        };
        self.drop_layouts(file, &covered)
    }

    /// Lives that ended before the layouts were read, and those that end from here on, have given
    /// their subfiles up: the layout still needs them.
    fn keep_subfiles(&self, own: &OwnLayout) {
        let me = self.me();
        let book = &self.shared.subfiles;
        let mut held = book.published.lock();
        held.extend(own.subfiles.iter().map(|subfile| subfile.name(me)));
        let mut retired = book.retired.lock();
        retired.retain(|subfile| !held.contains(&subfile.row().name));
    }

    fn already_published(&self, file: &File, batch: &Batch) -> Result<()> {
        let head = &batch.head;
        if file.life_no() != Some(head.life) {
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
            if file.life_no() != Some(head.life) {
                return Ok(());
            }
        }
        file.was_published(
            head.life, head.upto, &ranges, head.cut, head.grown, head.mtime,
        )
    }

    /// Removes this node's layouts that the base covers, and lets go of their subfiles. True when
    /// none is left.
    pub fn reclaim(&self, file: &File) -> Result<bool> {
        // Nobody appends to a layout that is about to go.
        let _moving = file.moving.write();
        self.seal_abandoned(file)?;
        let me = self.me();
        let covered: Vec<u32> = {
            let seen = file.seen();
            let own = seen.own.iter();
            own.filter(|(gen_no, own)| own.is_covered(seen.view.base_upto(me, **gen_no)))
                .map(|(gen_no, _)| *gen_no)
                .collect()
        };
        self.drop_layouts(file, &covered)?;
        Ok(file.seen().own.is_empty())
    }

    /// The canonical file is gone: what this node has published of it is nobody's any more.
    pub fn discard(&self, file: &File) -> Result<()> {
        let _moving = file.moving.write();
        let all: Vec<u32> = file.seen().own.keys().copied().collect();
        self.drop_layouts(file, &all)?;
        self.kept(file, self.promises(file))
    }

    /// The store's word that it forgot those bytes is durable first: after a power failure only
    /// the layout could tell it so, and it would publish them again over newer ones of others.
    fn drop_layouts(&self, file: &File, gens: &[u32]) -> Result<()> {
        if gens.is_empty() {
            return Ok(());
        }
        self.shared.log.sync()?;
        gens.iter()
            .try_for_each(|gen_no| self.drop_layout(file, *gen_no))
    }

    fn drop_layout(&self, file: &File, gen_no: u32) -> Result<()> {
        let sealed = {
            let seen = file.seen();
            let own = seen.own.get(&gen_no).filter(|own| own.end != End::Open);
            own.map(|own| own.len)
        };
        // Removing one that somebody still writes to would wait for that.
        if !self.commons.leave_to_writer(file.id(), gen_no) {
            self.commons
                .remove_layout(file.id(), self.me(), gen_no, sealed)
                .map_err(|e| failed("removing a drained layout of", file, e))?;
        }
        let own = {
            let mut seen = file.seen();
            if seen.current == Some(gen_no) {
                seen.current = None;
            }
            seen.own.remove(&gen_no)
        };
        for subfile in own.map(|own| own.subfiles).unwrap_or_default() {
            self.let_go(&subfile);
        }
        Ok(())
    }

    /// A subfile may be in several layouts' batches, and in the life that made it.
    pub(super) fn let_go(&self, subfile: &SubfileRef) {
        let me = self.me();
        let name = subfile.name(me);
        let book = &self.shared.subfiles;
        if self.shared.all_files().iter().any(|file| {
            let seen = file.seen();
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

    /// This node has published bytes of the file that are not drained, or owes some.
    pub fn has_part(&self, file: &File) -> bool {
        let seen = file.seen();
        !seen.own.is_empty() || !seen.intents.is_empty()
    }

    /// What others ask this node to publish, once.
    pub fn asked(&self) -> io::Result<Vec<FileId>> {
        self.commons.take_notes()
    }

    /// Reads the view of a file that nobody here has open.
    pub fn look_at(&self, file: &File, ask: AskCanonical<'_>) -> Result<()> {
        let _one = file.looking.lock();
        self.look(file, ask).map(|_| ())
    }
}
