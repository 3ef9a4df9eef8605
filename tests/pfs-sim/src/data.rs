//! Effect of reads, writes and the other data calls on the objects of a file, and the requests that
//! they make to the OSTs.
//!
//! Every call takes effect at once and then queues one request for each object that it touched; its
//! `reply` is called when the last request has been served. If an OST refuses or is full after
//! other OSTs have taken their part, the call ends short there, as POSIX allows. If the first OST
//! does so, the call fails, but only after that OST has taken its time to answer.

use crate::Errno;
use crate::batch::Batch;
use crate::cluster::Cluster;
use crate::layout::{Layout, Piece};
use crate::locks::{Client, Mode};
use crate::node::FileBody;
use crate::object::Object;
use crate::ost::{Job, OstState};
use crate::pipe::Cost;
use crate::tally::Tally;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The largest file size, that of ext4 with large blocks. It keeps all sums below 2^63.
pub const LARGEST: u64 = 1 << 62;

/// A file as used by one client.
#[derive(Clone)]
pub struct Open {
    pub file: Arc<FileBody>,
    pub client: Client,
}

/// A request before it is queued.
pub struct Part {
    ost: usize,
    cost: Cost,
    changes: bool,
    refused: Option<Errno>,
    tally: Tally,
}

impl Part {
    fn refused(ost: usize, changes: bool, error: Errno) -> Self {
        Self {
            ost,
            cost: Cost::default(),
            changes,
            refused: Some(error),
            tally: one(),
        }
    }

    pub(crate) fn other(ost: usize, changes: bool, cost: Cost, lock_moves: u64) -> Self {
        Self {
            ost,
            cost,
            changes,
            refused: None,
            tally: Tally {
                others: 1,
                lock_moves,
                ..one()
            },
        }
    }
}

fn one() -> Tally {
    Tally {
        requests: 1,
        ..Tally::default()
    }
}

impl Cluster {
    /// Queues `parts`; `finish` is called with the first error, if any.
    pub(crate) fn queue(
        &self,
        file: &Arc<FileBody>,
        parts: Vec<Part>,
        finish: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        if parts.is_empty() {
            return finish(Ok(()));
        }
        let batch = Batch::new(parts.len(), finish);
        for part in parts {
            let job = Job {
                cost: part.cost,
                changes: part.changes,
                refused: part.refused,
                tally: part.tally,
                file: file.clone(),
                batch: batch.clone(),
            };
            self.submit(part.ost, job);
        }
    }

    pub fn layout(&self, file: &FileBody) -> Result<Arc<Layout>, Errno> {
        file.layout_or(|wish| self.place(wish))
    }

    /// Takes the lock on `start..end` of an object and returns how many locks of other clients had
    /// to move.
    pub(crate) fn lock(
        &self,
        object: &mut Object,
        client: Client,
        mode: Mode,
        start: u64,
        end: u64,
    ) -> u64 {
        let unit = self.common.lock_unit;
        let end = end.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
        object.locks.acquire(client, mode, start / unit * unit, end)
    }

    /// Writes `data` at `offset`, or at the end of the file if `offset` is `None`. With `behind`
    /// the write may be acknowledged before it is served.
    pub fn write(
        &self,
        open: &Open,
        offset: Option<u64>,
        data: &[u8],
        behind: bool,
        reply: impl FnOnce(Result<usize, Errno>) + Send + 'static,
    ) {
        match self.write_now(open, offset, data) {
            Err(e) => reply(Err(e)),
            Ok((parts, written)) if behind && self.behind.is_on() => {
                self.write_behind(open, parts, move |result| reply(result.map(|()| written)));
            }
            Ok((parts, written)) => {
                self.queue(&open.file, parts, move |result| {
                    reply(result.map(|()| written));
                });
            }
        }
    }

    fn write_behind(
        &self,
        open: &Open,
        parts: Vec<Part>,
        reply: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let refused = parts.iter().any(|part| part.refused.is_some());
        let bytes = parts
            .iter()
            .map(|part| (part.ost, part.tally.bytes_written));
        let charge: Vec<(usize, u64)> = bytes.collect();
        if refused || !self.behind.take(open.client, &charge) {
            return self.queue(&open.file, parts, reply);
        }
        let (behind, file, client) = (self.behind.clone(), open.file.clone(), open.client);
        self.queue(&open.file, parts, move |result| {
            behind.give_back(client, &charge);
            if let Err(error) = result {
                *file.late_error.lock() = Some(error);
            }
        });
        reply(Ok(()));
    }

    fn write_now(
        &self,
        open: &Open,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<(Vec<Part>, usize), Errno> {
        let file = &open.file;
        let layout = self.layout(file)?;
        let (_shared, _alone) = match offset {
            Some(_) => (Some(file.gate.read()), None),
            None => (None, Some(file.gate.write())),
        };
        let offset = offset.unwrap_or_else(|| file.size());
        let end = offset.checked_add(data.len() as u64);
        let end = end.filter(|end| *end <= LARGEST).ok_or(Errno::EFBIG)?;
        let last = end.max(file.size());
        let (mut parts, mut written) = (Vec::new(), 0);
        for piece in layout.pieces(offset, data.len() as u64) {
            let bytes = &data[written..written + piece.len as usize];
            let mut state = self.osts[piece.ost].lock();
            match self.write_piece(&mut state, open, &piece, bytes) {
                Ok((cost, mut tally)) => {
                    tally.unaligned_writes = u64::from(unaligned(&layout, &piece, last));
                    parts.push(Part {
                        ost: piece.ost,
                        cost,
                        changes: true,
                        refused: None,
                        tally,
                    });
                }
                Err(error) => {
                    if parts.is_empty() {
                        parts.push(Part::refused(piece.ost, true, error));
                    }
                    break;
                }
            }
            written += bytes.len();
        }
        if written > 0 {
            file.grow(offset + written as u64);
        }
        Ok((parts, written))
    }

    fn write_piece(
        &self,
        state: &mut OstState,
        open: &Open,
        piece: &Piece,
        data: &[u8],
    ) -> Result<(Cost, Tally), Errno> {
        if let Some(error) = state.refusal(true) {
            return Err(error);
        }
        let (at, end, unit) = (piece.at, piece.at + piece.len, self.common.rmw_unit);
        let object = state.object_mut(open.file.ino);
        let missing = object.missing(at, end);
        let partial = object.partial_blocks(at, end, unit);
        state.room(missing)?;
        let object = state.object_mut(open.file.ino);
        let new = object.write(at, data).map_err(|e| failed("write", &e))?;
        let lock_moves = self.lock(object, open.client, Mode::Exclusive, at, end);
        state.took(new);
        open.file.pages.fetch_add(new, Ordering::AcqRel);
        let tally = Tally {
            writes: 1,
            bytes_written: piece.len,
            lock_moves,
            read_modify_writes: partial,
            ..one()
        };
        Ok((self.cost(piece.len + partial * unit, lock_moves), tally))
    }

    /// Reads up to `len` bytes at `offset`; fewer at the end of the file.
    pub fn read(
        &self,
        open: &Open,
        offset: u64,
        len: u64,
        reply: impl FnOnce(Result<&[u8], Errno>) + Send + 'static,
    ) {
        let file = &open.file;
        let gate = file.gate.read();
        let end = offset.saturating_add(len).min(file.size());
        let len = end.saturating_sub(offset);
        let Some(layout) = file.layout().filter(|_| len > 0) else {
            let hole = vec![0; len as usize];
            return reply(Ok(&hole));
        };
        let (mut parts, mut buf, mut done) = (Vec::new(), vec![0; len as usize], 0);
        for piece in layout.pieces(offset, len) {
            let bytes = &mut buf[done..done + piece.len as usize];
            let mut state = self.osts[piece.ost].lock();
            match self.read_piece(&mut state, open, &piece, bytes) {
                Ok(part) => parts.push(part),
                Err(error) => {
                    if parts.is_empty() {
                        parts.push(Part::refused(piece.ost, false, error));
                    }
                    break;
                }
            }
            done += piece.len as usize;
        }
        drop(gate);
        buf.truncate(done);
        self.queue(file, parts, move |result| {
            reply(result.map(|()| buf.as_slice()));
        });
    }

    fn read_piece(
        &self,
        state: &mut OstState,
        open: &Open,
        piece: &Piece,
        buf: &mut [u8],
    ) -> Result<Part, Errno> {
        if let Some(error) = state.refusal(false) {
            return Err(error);
        }
        let object = state.object_mut(open.file.ino);
        let (at, end) = (piece.at, piece.at + piece.len);
        object.read(at, buf).map_err(|e| failed("read", &e))?;
        let lock_moves = self.lock(object, open.client, Mode::Shared, at, end);
        Ok(Part {
            ost: piece.ost,
            cost: self.cost(piece.len, lock_moves),
            changes: false,
            refused: None,
            tally: Tally {
                reads: 1,
                bytes_read: piece.len,
                lock_moves,
                ..one()
            },
        })
    }

    /// Waits until the OSTs of the file have served everything that came before, and returns the
    /// errors of those requests.
    pub fn sync(
        &self,
        file: &Arc<FileBody>,
        reply: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let layout = file.layout();
        let osts = layout.iter().flat_map(|layout| layout.osts.iter().copied());
        let parts = osts
            .map(|ost| match self.osts[ost].lock().refusal(false) {
                Some(error) => Part::refused(ost, false, error),
                None => Part::other(ost, false, Cost::default(), 0),
            })
            .collect();
        let late = file.clone();
        self.queue(file, parts, move |result| {
            reply(result.and(late.late_error.lock().take().map_or(Ok(()), Err)));
        });
    }
}

/// Returns whether a write of `piece` begins or ends inside a stripe. `last` is the end of the
/// file.
fn unaligned(layout: &Layout, piece: &Piece, last: u64) -> bool {
    let end = piece.offset + piece.len;
    let inside = |offset: u64| !offset.is_multiple_of(layout.stripe_size);
    inside(piece.offset) || (inside(end) && end != last)
}

/// Reports an error of the simulator itself: its data directory does not work.
pub(crate) fn failed(what: &str, error: &std::io::Error) -> Errno {
    eprintln!("pfs-sim: cannot {what} an object file: {error}");
    Errno::EIO
}
