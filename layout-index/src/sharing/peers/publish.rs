//! Publishing: steps 2 to 7 of the protocol. The bytes are in subfiles already, or they are few.
//!
//! # An append that fails
//!
//! It may be there in part, or be done later. So its layout is given up for good, first in memory,
//! and sealed where it ended before the append: only then the same batch goes to another layout. If
//! the seal cannot be made, nothing of the file is published until it can.
//!
//! *Killed before the seal*: the next start finds the batch complete and takes it for published,
//! which is right, or finds it torn and publishes its bytes again. *Killed after the seal*: the
//! store has the bytes.

use super::shared_file::shared;
use super::{AskCanonical, End, OwnLayout, Peers, failed};
use crate::error::{Result, StoreError};
use crate::extent::Place;
use crate::sharing::layout::{Batch, BatchBuilder, BuildError, Head, LayoutId, Piece, SubfileRef};
use crate::sharing::shared_dir::{Patience, WRITE_ATTEMPTS};
use crate::store::file::{Capture, File, Source};
use crate::types::{ByteRange, Epoch};
use std::sync::Arc;

/// How many bytes a batch takes from the log into itself: fewer than would be worth a subfile.
pub const INLINE: u64 = 32 << 10;

impl Peers {
    /// Publishes the file's bytes in subfiles, cuts and growth, and the log's bytes if they are
    /// few. Returns true if that is everything, false if bytes must be moved to subfiles first.
    pub fn publish(&self, file: &File, ask: AskCanonical<'_>) -> Result<bool> {
        let _publication = file.begin_publication();
        let pending = self.pending(file);
        let mut from = 0;
        let mut all = true;
        while let Some(capture) = file.capture(from, INLINE)? {
            all &= !capture.left;
            if !(capture.left && capture.is_empty()) {
                self.publish_batch(file, &capture, ask).inspect_err(|_| {
                    let rows = capture.subfiles.values();
                    rows.filter_map(|row| reference(&row.name, &row.ost_name))
                        .for_each(|subfile| self.release_subfile(&subfile));
                })?;
            }
            match capture.next {
                Some(next) => from = next,
                None => break,
            }
        }
        if all {
            self.fulfil_pending(file, pending)?;
        }
        Ok(all)
    }

    fn publish_batch(&self, file: &File, capture: &Capture, ask: AskCanonical<'_>) -> Result<()> {
        self.state.log.sync()?;
        // From the append until the store has forgotten the bytes, no reader on this node may see a
        // batch of another node: it may be newer than this one, and the store would show its own
        // bytes over it.
        let one = shared(file).refresh_lock.lock();
        // Announcements that are found here are not waited for: neither node has seen the other's
        // unpublished bytes, so either order of the two batches is right.
        self.refresh_view(file, ask)?;
        if shared(file).known_state().needs_touch {
            // A node that sees the following batch must not miss the batches that it is newer than.
            self.shared_dir
                .touch(file.id())
                .map_err(|e| failed("publishing", file, e))?;
            shared(file).known_state().needs_touch = false;
        }
        let epoch = Epoch(shared(file).known_state().view().epoch().0 + 1);
        let batch = self.build(file, capture, epoch)?;
        let (gen_no, end) = self.append(file, &batch)?;
        // If these are the first bytes of the file in the shared directory, the next refresh must
        // know that the directory is the same, or it would read this layout, whose target may not
        // answer by then. The change token that is set below is another one.
        if shared(file).known_state().token.is_none() {
            let token = self.change_token(file)?;
            shared(file).known_state().token = token;
        }
        {
            let mut seen = shared(file).known_state();
            let mut view = (**seen.view()).clone();
            view.add(self.me(), gen_no, end, Arc::new(batch));
            seen.set_view(file, view, None);
            seen.own.entry(gen_no).or_default().len = end;
        }
        file.forget_captured(capture)?;
        drop(one);
        self.shared_dir
            .touch(file.id())
            .map_err(|e| failed("publishing", file, e))
    }

    /// Appends the batch to this node's layout or, if that cannot be written, to another one.
    /// Returns which layout it was, and where the batch ends in it.
    fn append(&self, file: &File, batch: &Batch) -> Result<(u32, u64)> {
        self.seal_abandoned(file)?;
        let mut attempt = 1;
        loop {
            let (gen_no, at) = self.own_layout(file);
            let id = LayoutId {
                file: file.id(),
                node: self.me(),
                generation: gen_no,
            };
            let mut bytes = Vec::new();
            if at == 0 {
                bytes.extend(id.header(&file.hint().handle));
            }
            bytes.extend(batch.encode(&id).map_err(|e| unusable(file, e))?);
            self.hold_subfiles(file, gen_no, batch.subfiles());
            let appended = self
                .shared_dir
                .append_layout(
                    file.id(),
                    gen_no,
                    at,
                    &bytes,
                    Patience::for_attempt(attempt),
                )
                .map_err(|e| failed("publishing", file, e));
            let Err(error) = appended else {
                return Ok((gen_no, at + bytes.len() as u64));
            };
            {
                let mut seen = shared(file).known_state();
                seen.current = None;
                seen.own.entry(gen_no).or_default().end = End::Abandoned;
            }
            self.seal_abandoned(file)?;
            if attempt == WRITE_ATTEMPTS {
                return Err(error);
            }
            tracing::warn!(file = %file.id(), %error, "what is published of it goes to another layout");
            attempt += 1;
        }
    }

    /// Seals layouts with a failed append where they ended before it, for all nodes. A layout that
    /// has nothing else is removed, now or when the append that is still under way comes back.
    pub(super) fn seal_abandoned(&self, file: &File) -> Result<()> {
        let abandoned: Vec<(u32, u64)> = {
            let seen = shared(file).known_state();
            let own = seen.own.iter();
            let own = own.filter(|(_, own)| own.end == End::Abandoned);
            own.map(|(gen_no, own)| (*gen_no, own.len)).collect()
        };
        let (shared_dir, id) = (&self.shared_dir, file.id());
        for (gen_no, at) in abandoned {
            match at == 0 && !shared_dir.writer().is_being_written(id, gen_no) {
                true => shared_dir.remove_layout(id, self.me(), gen_no, Some(at)),
                false => shared_dir.seal_layout(id, gen_no, at),
            }
            .map_err(|e| failed("sealing a layout of", file, e))?;
            let mut seen = shared(file).known_state();
            if at == 0 {
                seen.own.remove(&gen_no);
            } else if let Some(own) = seen.own.get_mut(&gen_no) {
                own.end = End::Sealed;
            }
        }
        Ok(())
    }

    fn build(&self, file: &File, capture: &Capture, epoch: Epoch) -> Result<Batch> {
        let mut builder = BatchBuilder::new();
        let unusable = |e| unusable(file, e);
        let mut in_log = capture.pieces.iter();
        for (start, extent) in &capture.extents {
            let range = ByteRange::new(*start, extent.end);
            match extent.place {
                Place::Zero => builder.push(range, Piece::Zero).map_err(unusable)?,
                Place::Subfile { unit, skip } => {
                    let row = capture.subfiles.get(&unit.subfile);
                    let subfile = row.and_then(|row| reference(&row.name, &row.ost_name));
                    let subfile = subfile.ok_or_else(|| {
                        StoreError::Unusable(format!(
                            "file {} bytes {range}: its subfile has no name of this store's",
                            file.id()
                        ))
                    })?;
                    let piece = Piece::Subfile {
                        subfile: &subfile,
                        unit,
                        skip,
                    };
                    builder.push(range, piece).map_err(unusable)?;
                }
                Place::Log { .. } => {
                    let mut bytes = vec![0; range.len() as usize];
                    if let Some(piece) = in_log.next()
                        && let Source::Log(log) = &piece.source
                    {
                        file.read_log(range, log, &mut bytes)?;
                    }
                    builder
                        .push(range, Piece::Inline(&bytes))
                        .map_err(unusable)?;
                }
                Place::Canonical => {}
            }
        }
        Ok(builder.finish(Head {
            epoch,
            period: capture.period,
            upto: capture.upto,
            cut: capture.cut,
            grown: capture.grown,
            mtime: capture.mtime,
        }))
    }

    /// Returns the layout that the next batch goes to, and the offset in it.
    fn own_layout(&self, file: &File) -> (u32, u64) {
        let mut seen = shared(file).known_state();
        if let Some(current) = seen.current
            && let Some(own) = seen.own.get(&current)
            && self.shared_dir.writer().accepts_appends(file.id(), current)
        {
            return (current, own.len);
        }
        let gen_no = loop {
            let number = crate::store::random() as u32;
            if !seen.own.contains_key(&number) && seen.view().base_upto(self.me(), number) == 0 {
                break number;
            }
        };
        seen.own.insert(gen_no, OwnLayout::default());
        seen.current = Some(gen_no);
        (gen_no, 0)
    }

    /// From here on the layout needs these subfiles, whatever becomes of the dirty period that made
    /// them.
    fn hold_subfiles(&self, file: &File, gen_no: u32, subfiles: &[SubfileRef]) {
        let me = self.me();
        let mut seen = shared(file).known_state();
        let own = seen.own.entry(gen_no).or_default();
        let mut held = self.state.subfiles.published.lock();
        for subfile in subfiles {
            if own.subfiles.insert(subfile.clone()) {
                held.insert(subfile.name(me));
            }
        }
    }
}

fn unusable(file: &File, error: BuildError) -> StoreError {
    StoreError::Unusable(format!("publishing file {}: {error}", file.id()))
}

/// Parses `<id>-<run>-<no>`, the form of this store's subfile names.
fn reference(name: &str, ost: &str) -> Option<SubfileRef> {
    let mut parts = name.split('-').skip(1);
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    Some(SubfileRef {
        run: number()?,
        no: number()?,
        ost: ost.to_owned(),
    })
}
