//! One local copy: a sparse file and what is known of it.
//!
//! A range is covered after its bytes are written, and uncovered before they become invalid, so a
//! reader of a covered byte gets that of the canonical file. A copy that is dead stays readable for
//! reads that are in progress; no new read begins.

use super::cover::Cover;
use super::sidecar::{MOST_RANGES, Sidecar};
use super::version::Version;
use super::{Home, NoRoom};
use crate::disk::DiskFile;
use crate::types::{ByteRange, FileId};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Maximum number of data files that are held open at the same time.
const MOST_OPEN: usize = 512;

#[derive(Debug)]
pub struct Copy {
    pub(super) id: FileId,
    /// Tells this copy's files from those of other copies of the same canonical file.
    pub(super) tag: u64,
    pub(super) home: Arc<Home>,
    /// The data file: open while it is used, and opened again when it is read.
    data: Mutex<Option<Arc<dyn DiskFile>>>,
    pub(super) state: Mutex<State>,
    /// Held while the sidecar is written.
    saving: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct State {
    pub phase: Phase,
    pub cover: Cover,
    /// Bytes that the space accounting has for this copy.
    pub charged: u64,
    /// When the copy was made, completed by the drain, or last checked at a sync point, such as an
    /// open.
    pub used: Instant,
    /// A sync point has found its version to be that of the canonical file.
    pub checked: bool,
    /// Number of bytes that the sidecar says are there.
    pub saved: Option<u64>,
    /// The version was renewed, and the sidecar still has the old one.
    pub renewed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The drain writes to it what it writes to the canonical file. `at` is the version of the
    /// canonical file when the drain last stopped doing so.
    Filling {
        at: Option<Version>,
    },
    /// What is covered is as in this version of the canonical file.
    Valid(Version),
    Dead,
}

impl Copy {
    pub(super) fn new(
        home: &Arc<Home>,
        id: FileId,
        tag: u64,
        data: Option<Arc<dyn DiskFile>>,
        phase: Phase,
        cover: Cover,
    ) -> Copy {
        let saved = matches!(phase, Phase::Valid(_)).then(|| cover.bytes());
        if data.is_some() {
            home.open.fetch_add(1, Ordering::Relaxed);
        }
        Copy {
            id,
            tag,
            home: home.clone(),
            data: Mutex::new(data),
            state: Mutex::new(State {
                phase,
                charged: cover.bytes(),
                cover,
                used: Instant::now(),
                checked: false,
                saved: saved.filter(|bytes| *bytes > 0),
                renewed: false,
            }),
            saving: Mutex::default(),
        }
    }

    fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        let mut data = self.data.lock();
        if let Some(file) = &*data {
            return Ok(file.clone());
        }
        let file = self.home.disk.open(&self.data_path())?;
        // Descriptors are finite: beyond this number each read opens its own.
        if self.home.open.load(Ordering::Relaxed) < MOST_OPEN {
            self.home.open.fetch_add(1, Ordering::Relaxed);
            *data = Some(file.clone());
        }
        Ok(file)
    }

    fn close_file(&self) {
        if self.data.lock().take().is_some() {
            self.home.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The version that its bytes are of, if the copy is valid.
    pub fn version(&self) -> Option<Version> {
        match self.state.lock().phase {
            Phase::Valid(version) => Some(version),
            _ => None,
        }
    }

    /// Number of bytes that the copy has.
    pub fn bytes(&self) -> u64 {
        self.state.lock().cover.bytes()
    }

    pub fn is_full(&self) -> bool {
        let state = self.state.lock();
        matches!(state.phase, Phase::Valid(v) if state.cover.bytes() == v.size)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state.lock().phase == Phase::Dead
    }

    /// The first range of the canonical file, from `from` on, that the copy lacks.
    pub fn next_gap(&self, from: u64) -> Option<ByteRange> {
        let state = self.state.lock();
        match state.phase {
            Phase::Valid(version) => state.cover.next_gap(from, version.size),
            _ => None,
        }
    }

    /// The size of the file, and what the copy has of `range`, in order. `None` if the copy may not
    /// be read.
    pub(super) fn readable(&self, range: ByteRange) -> Option<(u64, Vec<ByteRange>)> {
        let state = self.state.lock();
        match state.phase {
            Phase::Valid(version) if state.checked => {
                Some((version.size, state.cover.within(range)))
            }
            _ => None,
        }
    }

    /// Reads bytes that the copy has. Those past the end of its data file are zeros that were never
    /// written.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let n = self.file()?.read_at(buf, offset)?;
        buf[n..].fill(0);
        Ok(())
    }

    /// Adds bytes that the canonical file has at `offset`. `room` makes room for the given number
    /// of bytes. Returns false if the copy is dead.
    pub(super) fn put(
        &self,
        bufs: &[IoSlice<'_>],
        offset: u64,
        room: impl FnOnce(u64) -> Result<(), NoRoom>,
    ) -> Result<bool, NoRoom> {
        let len = bufs.iter().map(|b| b.len() as u64).sum();
        let Some(range) = ByteRange::at(offset, len) else {
            return Ok(false);
        };
        let wanted = {
            let state = self.state.lock();
            if state.phase == Phase::Dead {
                return Ok(false);
            }
            range.len() - state.cover.has(range)
        };
        room(wanted)?;
        let written = self.file().and_then(|file| file.write_at(bufs, offset));
        let mut state = self.state.lock();
        if state.phase == Phase::Dead || written.is_err() {
            drop(state);
            self.home.space.release_copied(wanted);
            if let Err(error) = written {
                self.fail("writing", &error);
            }
            return Ok(false);
        }
        let new = state.cover.insert(range);
        state.charged += new;
        // Other threads may have covered or uncovered parts of the range meanwhile.
        self.home.space.add_copied(new.saturating_sub(wanted));
        self.home.space.release_copied(wanted.saturating_sub(new));
        let many = state.cover.count() > MOST_RANGES;
        drop(state);
        if many {
            tracing::info!(file = %self.id, "its bytes come in too many pieces to keep a copy");
            self.kill();
        }
        Ok(!many)
    }

    /// Covers a range in which the canonical file has zeros.
    pub(super) fn zero(&self, range: ByteRange) {
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let zeros = self.file().and_then(|file| match file.size()? {
            size if size <= range.start => Ok(()),
            // Punched even where nothing is covered: bytes that were cut off may still be there.
            _ => file.allocate(punch, range.start, range.len()),
        });
        let mut state = self.state.lock();
        if zeros.is_ok() {
            state.cover.insert(range);
        } else {
            self.uncover(&mut state, range);
        }
    }

    /// Uncovers everything from `size` on, because the canonical file was cut there or may have
    /// been.
    pub(super) fn cut(&self, size: u64) {
        let mut state = self.state.lock();
        let beyond = ByteRange::new(size, u64::MAX);
        self.uncover(&mut state, beyond);
    }

    /// Uncovers a range.
    pub(super) fn lose(&self, range: ByteRange) {
        self.uncover(&mut self.state.lock(), range);
    }

    fn uncover(&self, state: &mut State, range: ByteRange) {
        let gone = state.cover.remove(range).min(state.charged);
        state.charged -= gone;
        self.home.space.release_copied(gone);
    }

    /// Ends the copy after an error, which is logged and concerns nothing else.
    pub(super) fn fail(&self, op: &str, error: &dyn std::fmt::Display) {
        if self.kill() {
            tracing::warn!(file = %self.id, %error, "{op} a local copy failed; the copy is dropped and reads go to the file below");
        }
    }

    /// Ends the copy and removes its files. Returns false if it was dead.
    pub(super) fn kill(&self) -> bool {
        {
            let mut state = self.state.lock();
            if state.phase == Phase::Dead {
                return false;
            }
            state.phase = Phase::Dead;
            self.home.space.release_copied(state.charged);
            state.charged = 0;
        }
        // A thread that is writing the sidecar checks again when it is done, and then removes the
        // files.
        if let Some(_saving) = self.saving.try_lock() {
            self.remove_files();
        }
        self.close_file();
        true
    }

    fn remove_files(&self) {
        if self.home.is_closed() {
            return;
        }
        // The sidecar goes first: data without one is removed at the next start.
        for path in [self.home.sidecar(self.id, self.tag), self.data_path()] {
            match self.home.disk.remove(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a dropped copy stays until the next start");
                }
            }
        }
    }

    fn data_path(&self) -> PathBuf {
        self.home.data(self.id, self.tag)
    }

    /// Makes the copy survive the daemon. The order matters: sync the bytes, sync their file's
    /// name, write the sidecar under another name, sync it, rename it. A kill anywhere before the
    /// rename leaves data without a sidecar, which the next start removes.
    pub(super) fn save(&self) -> io::Result<()> {
        let saving = self.saving.lock();
        let sidecar = {
            let state = self.state.lock();
            let Phase::Valid(version) = state.phase else {
                return Ok(());
            };
            if self.home.is_closed() || state.saved == Some(state.cover.bytes()) {
                return Ok(());
            }
            Sidecar {
                id: self.id,
                tag: self.tag,
                version,
                cover: state.cover.clone(),
            }
        };
        let written = self.write_sidecar(&sidecar);
        let phase = {
            let mut state = self.state.lock();
            if state.phase == Phase::Valid(sidecar.version) {
                state.saved = written.is_ok().then(|| sidecar.cover.bytes());
                state.renewed = false;
            }
            state.phase
        };
        let cleared = match phase {
            Phase::Dead => {
                self.remove_files();
                Ok(())
            }
            Phase::Filling { .. } => self.remove_sidecar(),
            Phase::Valid(_) => Ok(()),
        };
        drop(saving);
        self.close_file();
        written.and(cleared)
    }

    /// Removes the sidecar durably, because the bytes are about to become those of another version:
    /// nothing may say, even after a power failure, that they are of the old one.
    pub(super) fn unsave(&self) -> io::Result<()> {
        let _saving = self.saving.lock();
        if self.state.lock().saved.take().is_none() {
            return Ok(());
        }
        self.remove_sidecar()
    }

    fn remove_sidecar(&self) -> io::Result<()> {
        let Home { disk, dir, .. } = &*self.home;
        match disk.remove(&self.home.sidecar(self.id, self.tag)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => disk.sync_dir(dir),
        }
    }

    fn write_sidecar(&self, sidecar: &Sidecar) -> io::Result<()> {
        let Home { disk, dir, key, .. } = &*self.home;
        self.file()?.sync()?;
        disk.sync_dir(dir)?;
        let path = self.home.sidecar(self.id, self.tag);
        let temporary = self.home.temporary(self.id, self.tag);
        match disk.remove(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = disk.create(&temporary)?;
        file.write_at(&[IoSlice::new(&sidecar.encode(*key))], 0)?;
        file.sync()?;
        disk.rename(&temporary, &path)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.close_file();
    }
}
