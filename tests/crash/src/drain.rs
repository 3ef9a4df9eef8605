//! The drain of one file in the order that the flusher keeps, on the caller's thread, so that a
//! script decides what happens between two steps.

use layout_index::{ByteRange, DiskFile, Drained, File, Piece, Plan, Result, Source, StoreError};
use std::io::{self, IoSlice};

pub const STRIPE: u64 = 64 * 1024;

fn canonical(file: &File, op: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let name = file.id().to_string();
    move |source| StoreError::io(op, name, source)
}

/// Moves up to `max` stripes. `meanwhile` is called after they were written and before they are recorded as drained.
pub fn pass(
    file: &File,
    target: &dyn DiskFile,
    max: usize,
    meanwhile: impl FnOnce(&[Drained]) -> Result<()>,
) -> Result<()> {
    file.apply_trim(target)?;
    let mut done = Vec::new();
    for stripe in file.dirty_stripes(STRIPE, 0, max)? {
        let guard = file.lock_canonical(stripe.range);
        let snapshot = file.snapshot(&guard)?;
        for piece in &snapshot.pieces {
            put(file, target, piece)?;
        }
        done.push(Drained {
            range: snapshot.range,
            upto: snapshot.upto,
        });
    }
    meanwhile(&done)?;
    target.sync().map_err(canonical(file, "sync"))?;
    file.drained(&done)
}

fn put(file: &File, target: &dyn DiskFile, piece: &Piece) -> Result<()> {
    if matches!(piece.source, Source::Zero) {
        let len = target.size().map_err(canonical(file, "stat"))?;
        let Some(hole) = piece.range.intersect(&ByteRange::new(0, len)) else {
            return Ok(());
        };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        return target
            .allocate(mode, hole.start, hole.len())
            .map_err(canonical(file, "punch a hole into"));
    }
    let mut buf = vec![0; piece.range.len() as usize];
    let plan = Plan {
        range: piece.range,
        size: piece.range.end,
        pieces: vec![piece.clone()],
    };
    file.read(&plan, &mut buf, None)?;
    target
        .write_at(&[IoSlice::new(&buf)], piece.range.start)
        .map_err(canonical(file, "write"))
}

/// Drains until the file is clean.
pub fn all(file: &File, target: &dyn DiskFile) -> Result<()> {
    for _ in 0..100 {
        if file.finish(target, true)? {
            return Ok(());
        }
        match pass(file, target, usize::MAX, |_| Ok(())) {
            Ok(()) | Err(StoreError::Clean) => {}
            Err(error) => return Err(error),
        }
    }
    Err(StoreError::Unusable(format!(
        "file {} is not clean after a hundred drains",
        file.id()
    )))
}

/// Returns the whole file as a reader sees it now.
pub fn content(file: &File, target: &dyn DiskFile) -> Result<Vec<u8>> {
    match file.plan(ByteRange::ALL) {
        Err(StoreError::Clean) => canonical_content(file, target),
        plan => {
            let plan = plan?;
            let mut buf = vec![0xee; plan.range.len() as usize];
            file.read(&plan, &mut buf, Some(target))?;
            Ok(buf)
        }
    }
}

pub fn canonical_content(file: &File, target: &dyn DiskFile) -> Result<Vec<u8>> {
    let len = target.size().map_err(canonical(file, "stat"))?;
    let mut buf = vec![0; len as usize];
    let n = target
        .read_at(&mut buf, 0)
        .map_err(canonical(file, "read"))?;
    buf.truncate(n);
    Ok(buf)
}
