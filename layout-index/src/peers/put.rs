//! Publishing: steps 2 to 7 of it. The bytes are in subfiles already, or few.
//!
//! # An append that fails
//!
//! It may be there in part, or come true later. So its layout is given up for good, in memory first, and
//! sealed where it ended before that: only then the same batch goes to another layout. If the seal
//! cannot be made, nothing is published of the file until it can.
//!
//! *Killed before the seal*: the next start finds the batch whole and takes it for published, which is
//! right, or torn, and publishes its bytes again. *After the seal*: the store has the bytes.

use super::{AskCanonical, End, OwnLayout, Peers, failed};
use crate::commons::{PLACES, Patience};
use crate::error::{Result, StoreError};
use crate::extent::Place;
use crate::file::{Capture, File, Source};
use crate::layout::{Batch, BatchBuilder, BuildError, Head, LayoutId, Piece, SubfileRef};
use crate::types::{ByteRange, Epoch};
use std::sync::Arc;

/// Bytes that a batch takes from the log into itself: less than what is worth a subfile.
pub const INLINE: u64 = 32 << 10;

impl Peers {
    /// Publishes what subfiles have of the file, cuts and growth, and the log's bytes if they are
    /// few. True if that is everything: false if bytes must be moved to subfiles first.
    pub fn publish(&self, file: &File, ask: AskCanonical<'_>) -> Result<bool> {
        let _moving = file.moving.write();
        let _publishing = Publishing::begin(file);
        let promises = self.promises(file);
        let mut from = 0;
        let mut all = true;
        while let Some(capture) = file.capture(from, INLINE)? {
            all &= !capture.left;
            if !(capture.left && capture.is_empty()) {
                self.put(file, &capture, ask).inspect_err(|_| {
                    let rows = capture.subfiles.values();
                    rows.filter_map(|row| reference(&row.name, &row.ost_name))
                        .for_each(|subfile| self.let_go(&subfile));
                })?;
            }
            match capture.next {
                Some(next) => from = next,
                None => break,
            }
        }
        if all {
            self.kept(file, promises)?;
        }
        Ok(all)
    }

    fn put(&self, file: &File, capture: &Capture, ask: AskCanonical<'_>) -> Result<()> {
        self.shared.log.sync()?;
        // From the append until the store has forgotten, nobody here may see a batch of another
        // node: it may be newer than this one, and the store would show its own bytes over it.
        let one = file.looking.lock();
        // Whoever has announced something is not newer than this, whatever comes of it.
        self.look(file, ask)?;
        if file.seen().unstamped {
            // Whoever sees the batch that follows must not miss those it is newer than.
            self.commons
                .touch(file.id())
                .map_err(|e| failed("publishing", file, e))?;
            file.seen().unstamped = false;
        }
        let epoch = Epoch(file.seen().view.epoch().0 + 1);
        let batch = self.build(file, capture, epoch)?;
        let (gen_no, end) = self.append(file, &batch)?;
        // If this was the first word on the file, the next look must know that its directory is the same,
        // or it would read this layout, whose target may not answer by then. The stamp below is another.
        if file.seen().stamp.is_none() {
            let stamp = self.stamp(file)?;
            file.seen().stamp = stamp;
        }
        {
            let mut seen = file.seen();
            let mut view = (*seen.view).clone();
            view.add(self.me(), gen_no, end, Arc::new(batch));
            seen.view = Arc::new(view);
            seen.own.entry(gen_no).or_default().len = end;
        }
        file.published(capture)?;
        drop(one);
        self.commons
            .touch(file.id())
            .map_err(|e| failed("publishing", file, e))
    }

    /// Appends the batch to this node's layout, or where that cannot be written, to another one.
    /// Says to which, and where it ends in it.
    fn append(&self, file: &File, batch: &Batch) -> Result<(u32, u64)> {
        self.seal_abandoned(file)?;
        let mut place = 1;
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
                .commons
                .append_layout(file.id(), gen_no, at, &bytes, Patience::at(place))
                .map_err(|e| failed("publishing", file, e));
            let Err(error) = appended else {
                return Ok((gen_no, at + bytes.len() as u64));
            };
            {
                let mut seen = file.seen();
                seen.current = None;
                seen.own.entry(gen_no).or_default().end = End::Abandoned;
            }
            self.seal_abandoned(file)?;
            if place == PLACES {
                return Err(error);
            }
            tracing::warn!(file = %file.id(), %error, "what is published of it goes to another layout");
            place += 1;
        }
    }

    /// Layouts with an append that failed end before it, for everybody. One that has nothing else
    /// goes, now or with the append that is still under way.
    pub(super) fn seal_abandoned(&self, file: &File) -> Result<()> {
        let abandoned: Vec<(u32, u64)> = {
            let seen = file.seen();
            let own = seen.own.iter();
            let own = own.filter(|(_, own)| own.end == End::Abandoned);
            own.map(|(gen_no, own)| (*gen_no, own.len)).collect()
        };
        let (commons, id) = (&self.commons, file.id());
        for (gen_no, at) in abandoned {
            match at == 0 && !commons.is_written(id, gen_no) {
                true => commons.remove_layout(id, self.me(), gen_no, Some(at)),
                false => commons.seal_layout(id, gen_no, at),
            }
            .map_err(|e| failed("sealing a layout of", file, e))?;
            let mut seen = file.seen();
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
            life: capture.life,
            upto: capture.upto,
            cut: capture.cut,
            grown: capture.grown,
            mtime: capture.mtime,
        }))
    }

    /// The layout that the next batch goes to, and where in it.
    fn own_layout(&self, file: &File) -> (u32, u64) {
        let mut seen = file.seen();
        if let Some(current) = seen.current
            && let Some(own) = seen.own.get(&current)
            && self.commons.takes_more(file.id(), current)
        {
            return (current, own.len);
        }
        let gen_no = loop {
            let number = crate::store::random() as u32;
            if !seen.own.contains_key(&number) && seen.view.base_upto(self.me(), number) == 0 {
                break number;
            }
        };
        seen.own.insert(gen_no, OwnLayout::default());
        seen.current = Some(gen_no);
        (gen_no, 0)
    }

    /// From here on the layout needs them, whatever becomes of the life that made them.
    fn hold_subfiles(&self, file: &File, gen_no: u32, subfiles: &[SubfileRef]) {
        let me = self.me();
        let mut seen = file.seen();
        let own = seen.own.entry(gen_no).or_default();
        let mut held = self.shared.subfiles.published.lock();
        for subfile in subfiles {
            if own.subfiles.insert(subfile.clone()) {
                held.insert(subfile.name(me));
            }
        }
    }
}

/// Nothing of the file is drained past the log meanwhile: bytes that are newer than the batch that
/// is on its way would end up below it.
struct Publishing<'a>(&'a File);

impl Publishing<'_> {
    fn begin(file: &File) -> Publishing<'_> {
        file.seen().publishing = true;
        Publishing(file)
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.seen().publishing = false;
    }
}

fn unusable(file: &File, error: BuildError) -> StoreError {
    StoreError::Unusable(format!("publishing file {}: {error}", file.id()))
}

/// `<id>-<run>-<no>`, as this store names its subfiles.
fn reference(name: &str, ost: &str) -> Option<SubfileRef> {
    let mut parts = name.split('-').skip(1);
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    Some(SubfileRef {
        run: number()?,
        no: number()?,
        ost: ost.to_owned(),
    })
}
