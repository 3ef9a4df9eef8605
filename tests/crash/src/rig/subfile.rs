//! The way of data through subfiles, and other operations meanwhile.

use super::Rig;
use crate::osts::Osts;
use layout_index::{ByteRange, Result, StoreError};

/// An operation that happens while bytes are on their way to a subfile. If it concerns bytes, it concerns the first
/// of them.
#[derive(Clone, Copy, Debug)]
pub enum Late {
    Write { shift: u64, len: u64 },
    Truncate { shift: u64 },
    Zero { len: u64 },
    Through { len: u64 },
    Checkpoint,
    Tidy,
    Drain,
    DrainAll,
}

impl Rig {
    pub fn osts(&self) -> &Osts {
        &self.osts
    }

    /// Moves up to `max` stripes to subfiles.
    pub fn subfile(&mut self, n: usize, max: usize, late: Option<Late>) -> Result<()> {
        let file = self.file(n);
        if file.is_unlinked() {
            return Ok(());
        }
        let copied = match self.osts.copy(self.store(), &file, max) {
            Err(StoreError::Clean | StoreError::Full) => return Ok(()),
            other => other?,
        };
        if let (Some(late), Some(range)) = (late, copied.range()) {
            self.meanwhile(n, late, range)?;
        }
        self.moved += copied.record(&file)?;
        Ok(())
    }

    fn meanwhile(&mut self, n: usize, late: Late, range: ByteRange) -> Result<()> {
        match late {
            Late::Write { shift, len } => {
                self.write(n, shift, range.start + shift % range.len(), len)
            }
            Late::Truncate { shift } => self.truncate(n, range.start + shift % range.len()),
            Late::Zero { len } => {
                let hole = ByteRange::new(range.start, range.start + len.min(range.len()));
                self.zero(n, hole, false)
            }
            Late::Through { len } => self.through(n, range.start, len.min(range.len())),
            Late::Checkpoint => self.checkpoint(),
            Late::Tidy => self.tidy(),
            Late::Drain => self.drain(n, usize::MAX, None),
            Late::DrainAll => self.drain_all(n),
        }
    }

    /// Kills the daemon while subfiles have bytes that it did not record.
    pub fn subfile_and_kill(&mut self, n: usize, max: usize) -> Result<()> {
        let file = self.file(n);
        if !file.is_unlinked() {
            match self.osts.copy(self.store(), &file, max) {
                Ok(_) | Err(StoreError::Clean | StoreError::Full) => {}
                Err(error) => return Err(error),
            }
        }
        drop(file);
        self.kill_and_open().map(|_| ())
    }

    /// Gives up the subfiles of file `n` that nothing refers to, however small they are.
    pub fn retire(&mut self, n: usize) -> Result<()> {
        self.file(n).retire_empty_subfiles(0)
    }

    /// Removes the subfiles that may be removed.
    pub fn remove(&mut self) -> Result<()> {
        self.osts.remove_retired(self.store())
    }
}
