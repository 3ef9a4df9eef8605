//! Data calls that move the end of a file, or allocate and free pages without writing bytes.

use crate::Errno;
use crate::cluster::Cluster;
use crate::data::{LARGEST, Open, Part, failed};
use crate::layout::Layout;
use crate::locks::Mode;
use crate::node::FileBody;
use crate::object::Object;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An operation of `fallocate` on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Allocate,
    Punch,
    /// Punch, then allocate.
    Zero,
}

impl Cluster {
    /// Sets the size of a file. A cut is a request to every OST of the file; growth is a request to
    /// the OST of the new last byte.
    pub fn truncate(
        &self,
        open: &Open,
        size: u64,
        reply: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        match self.truncate_now(open, size) {
            Ok(parts) => self.queue(&open.file, parts, reply),
            Err(e) => reply(Err(e)),
        }
    }

    fn truncate_now(&self, open: &Open, size: u64) -> Result<Vec<Part>, Errno> {
        if size > LARGEST {
            return Err(Errno::EFBIG);
        }
        let file = &open.file;
        if size == file.size() {
            return Ok(vec![]);
        }
        let layout = self.layout(file)?;
        let _alone = file.gate.write();
        let old = file.size();
        let objects: Vec<usize> = if size < old {
            (0..layout.osts.len()).collect()
        } else {
            let last = layout.pieces(size - 1, 1);
            last.iter().map(|piece| piece.object).collect()
        };
        self.must_accept(&layout, &objects)?;
        let mut parts = Vec::new();
        for object in objects {
            let start = layout.object_len(object, size);
            let cut = |object: &mut Object| object.truncate(start).map(|freed| (0, freed));
            parts.push(self.edit(open, &layout, object, (start, u64::MAX), cut)?);
        }
        file.set_size(size);
        Ok(parts)
    }

    fn must_accept(&self, layout: &Layout, objects: &[usize]) -> Result<(), Errno> {
        for object in objects {
            if let Some(error) = self.osts[layout.osts[*object]].lock().refusal(true) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Changes `range` of one object with `edit`, which returns how many pages it allocated and
    /// freed.
    fn edit(
        &self,
        open: &Open,
        layout: &Layout,
        object: usize,
        range: (u64, u64),
        edit: impl FnOnce(&mut Object) -> io::Result<(u64, u64)>,
    ) -> Result<Part, Errno> {
        let ost = layout.osts[object];
        let mut state = self.osts[ost].lock();
        let target = state.object_mut(open.file.ino);
        let (made, freed) = edit(target).map_err(|e| failed("change", &e))?;
        let moves = self.lock(target, open.client, Mode::Exclusive, range.0, range.1);
        state.took(made);
        state.gave_back(freed);
        open.file.pages.fetch_add(made, Ordering::AcqRel);
        open.file.pages.fetch_sub(freed, Ordering::AcqRel);
        Ok(Part::other(ost, true, self.cost(0, moves), moves))
    }

    /// Implements `fallocate(2)`.
    pub fn fallocate(
        &self,
        open: &Open,
        mode: i32,
        offset: u64,
        len: u64,
        reply: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        match self.fallocate_now(open, mode, offset, len) {
            Ok(parts) => self.queue(&open.file, parts, reply),
            Err(e) => reply(Err(e)),
        }
    }

    fn fallocate_now(
        &self,
        open: &Open,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<Vec<Part>, Errno> {
        let keep = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let change = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Change::Allocate,
            libc::FALLOC_FL_PUNCH_HOLE if keep => Change::Punch,
            libc::FALLOC_FL_ZERO_RANGE => Change::Zero,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let end = offset.checked_add(len).filter(|end| *end <= LARGEST);
        let end = end.ok_or(Errno::EFBIG)?;
        let file = &open.file;
        let layout = self.layout(file)?;
        let _alone = file.gate.write();
        let ranges: Vec<(usize, u64, u64)> = (0..layout.osts.len())
            .map(|object| {
                let place = |offset| layout.object_len(object, offset);
                (object, place(offset), place(end))
            })
            .filter(|(_, start, end)| start < end)
            .collect();
        let objects: Vec<usize> = ranges.iter().map(|range| range.0).collect();
        self.must_accept(&layout, &objects)?;
        if change != Change::Punch {
            for (object, start, end) in &ranges {
                self.must_fit(file, layout.osts[*object], *start, *end)?;
            }
        }
        let mut parts = Vec::new();
        for (object, start, end) in ranges {
            let edit = |target: &mut Object| -> io::Result<(u64, u64)> {
                let freed = match change {
                    Change::Allocate => 0,
                    Change::Punch | Change::Zero => target.punch(start, end)?,
                };
                let made = match change {
                    Change::Punch => 0,
                    Change::Allocate | Change::Zero => target.allocate(start, end),
                };
                Ok((made, freed))
            };
            parts.push(self.edit(open, &layout, object, (start, end), edit)?);
        }
        if !keep {
            file.grow(end);
        }
        Ok(parts)
    }

    fn must_fit(&self, file: &FileBody, ost: usize, start: u64, end: u64) -> Result<(), Errno> {
        let mut state = self.osts[ost].lock();
        if end - start > state.settings.capacity {
            return Err(Errno::ENOSPC);
        }
        let missing = state.object_mut(file.ino).missing(start, end);
        state.room(missing)
    }

    /// Returns the next existing byte at or after `offset`; with `hole`, the next byte that does
    /// not exist.
    pub fn seek(&self, file: &FileBody, offset: u64, hole: bool) -> Result<u64, Errno> {
        let _gate = file.gate.read();
        let size = file.size();
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let Some(layout) = file.layout() else {
            return if hole { Ok(offset) } else { Err(Errno::ENXIO) };
        };
        if hole {
            return Ok(self.next_hole(file, &layout, offset).min(size));
        }
        let next = self.next_data(file, &layout, offset);
        next.filter(|next| *next < size).ok_or(Errno::ENXIO)
    }

    fn next_data(&self, file: &FileBody, layout: &Layout, offset: u64) -> Option<u64> {
        let objects = layout.osts.iter().enumerate();
        let places = objects.filter_map(|(object, ost)| {
            let from = layout.object_len(object, offset);
            let state = self.osts[*ost].lock();
            let at = state.object(file.ino)?.next_data(from)?;
            Some(layout.offset_of(object, at))
        });
        places.min()
    }

    fn next_hole(&self, file: &FileBody, layout: &Layout, offset: u64) -> u64 {
        let mut at = offset;
        while at < file.size() {
            let rest = layout.stripe_size - at % layout.stripe_size;
            let Some(piece) = layout.pieces(at, rest).first().copied() else {
                break;
            };
            let state = self.osts[piece.ost].lock();
            let object = state.object(file.ino);
            let end = object.map_or(piece.at, |object| object.data_end(piece.at));
            if end < piece.at + piece.len {
                return at + (end - piece.at);
            }
            at += piece.len;
        }
        at
    }

    /// Frees the objects of a file that cannot be reached any more.
    pub fn discard(&self, file: &Arc<FileBody>) {
        let Some(layout) = file.layout() else {
            return;
        };
        for ost in &layout.osts {
            if let Err(e) = self.osts[*ost].lock().remove_object(file.ino) {
                failed("remove", &e);
            }
        }
    }

    /// Drops the locks of a client that goes away.
    pub fn forget_client(&self, open: &Open) {
        let layout = open.file.layout();
        for ost in layout.iter().flat_map(|layout| &layout.osts) {
            let mut state = self.osts[*ost].lock();
            state.drop_client(open.file.ino, open.client);
        }
    }
}
