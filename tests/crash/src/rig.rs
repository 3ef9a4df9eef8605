//! A store with a few files on some disk, used as the overlay uses it, with a history of each file beside it.

use crate::drain;
use crate::history::{Effect, History};
use crate::osts::Osts;
use layout_index::{
    ByteRange, Disk, DiskFile, File, FileId, Intro, RecoveryReport, Result, SpaceOptions, Store,
    StoreError, StoreOptions, Timestamp,
};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod subfile;

pub use subfile::Late;

/// Returns the moment, for histories. Any number that never goes back will do.
pub type Clock = Arc<dyn Fn() -> usize + Send + Sync>;

pub struct Slot {
    pub id: FileId,
    pub canonical: Arc<dyn DiskFile>,
    pub history: History,
    file: Option<Arc<File>>,
    /// This daemon has synced the canonical file at least once, as the overlay does.
    synced: bool,
    /// The canonical file holds bytes or a size that no sync covered and the log does not have.
    canonical_dirty: bool,
    /// The canonical file was cut while the store knew nothing of it.
    cut: bool,
    /// The file is unlinked, but open.
    unlinked: bool,
}

pub struct Rig {
    root: PathBuf,
    disk: Arc<dyn Disk>,
    clock: Clock,
    osts: Osts,
    store: Option<Arc<Store>>,
    pub slots: Vec<Slot>,
    /// Files whose last name and last handle are gone.
    pub gone: Vec<Slot>,
    /// The moment from which on the canonical files were there.
    pub started: usize,
    /// Number of writes that found no room in the log.
    pub full: usize,
    /// Number of bytes that went to subfiles.
    pub moved: u64,
    capacity: u64,
    next_ino: u64,
    next_data: u64,
}

/// A capacity with room for everything.
pub const CAPACITY: u64 = 14 << 20;
/// A capacity with fewer segments than lanes: the last lanes find none.
pub const TIGHT: u64 = 5 << 20;

pub fn options(root: &Path, capacity: u64) -> StoreOptions {
    StoreOptions {
        dir: root.join("store"),
        node: "n0".into(),
        backing: "/backing".into(),
        index_memory: 4 << 20,
        space: SpaceOptions {
            capacity: Some(capacity),
            segment: Some(1 << 20),
            user_share: 1.0,
            ..SpaceOptions::default()
        },
    }
}

pub fn canonical_path(root: &Path, id: FileId) -> PathBuf {
    root.join("canon").join(id.ino.to_string())
}

impl Rig {
    /// Makes `files` canonical files, every second one with something in it. The store is not opened yet.
    pub fn new(
        root: &Path,
        disk: Arc<dyn Disk>,
        clock: Clock,
        files: usize,
        capacity: u64,
    ) -> Result<Rig> {
        let mut rig = Rig {
            root: root.into(),
            osts: Osts::new(disk.clone(), root),
            disk,
            clock,
            store: None,
            slots: Vec::new(),
            gone: Vec::new(),
            started: 0,
            full: 0,
            moved: 0,
            capacity,
            next_ino: 1,
            next_data: 1,
        };
        let dir = root.join("canon");
        rig.disk
            .create_dir(&dir)
            .and_then(|()| rig.osts.create_dirs())
            .map_err(|e| StoreError::io("create", &dir, e))?;
        for n in 0..files {
            let slot = rig.new_file(if n % 2 == 0 { 200_000 } else { 0 })?;
            rig.slots.push(slot);
        }
        rig.started = rig.now();
        Ok(rig)
    }

    fn now(&self) -> usize {
        (self.clock)()
    }

    fn new_file(&mut self, len: usize) -> Result<Slot> {
        let id = FileId {
            ino: self.next_ino,
            birth: 1,
        };
        self.next_ino += 1;
        let base = self.data(len);
        let path = canonical_path(&self.root, id);
        let make = || {
            let file = self.disk.create(&path)?;
            file.write_at(&[IoSlice::new(&base)], 0)?;
            file.sync()?;
            self.disk.sync_dir(&self.root.join("canon"))?;
            Ok(file)
        };
        let canonical = make().map_err(|e| StoreError::io("make", &path, e))?;
        Ok(Slot {
            id,
            canonical,
            history: History::new(base.to_vec()),
            file: self.store.as_ref().map(|store| store.file(id)),
            synced: false,
            canonical_dirty: false,
            cut: false,
            unlinked: false,
        })
    }

    /// Returns bytes that were never written before; none is zero.
    fn data(&mut self, len: usize) -> Arc<[u8]> {
        self.next_data += 1;
        let mut state = self.next_data.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend((state | 0x0101_0101_0101_0101).to_le_bytes());
        }
        bytes.truncate(len);
        bytes.into()
    }

    /// Opens the store. It drops the files that were unlinked when the last daemon ended.
    pub fn open(&mut self) -> Result<RecoveryReport> {
        let now = self.now();
        let slots = self.slots.iter_mut().enumerate();
        let unlinked: Vec<_> = slots
            .filter(|(_, slot)| slot.unlinked)
            .map(|(n, slot)| (n, slot.history.begin(now, Effect::Discard)))
            .collect();
        let (store, report) = Store::open(options(&self.root, self.capacity), self.disk.clone())?;
        let now = self.now();
        for (n, begun) in unlinked {
            self.slots[n].history.done(begun, now);
            self.replace(n)?;
        }
        for slot in &mut self.slots {
            slot.file = Some(store.file(slot.id));
            slot.synced = false;
        }
        store.set_subfiles(Arc::new(self.osts.clone()));
        match self.osts.remove_orphans(&store) {
            // Orphans that stay are found at the next start.
            Ok(()) | Err(_) => {}
        }
        self.store = Some(store);
        Ok(report)
    }

    pub fn store(&self) -> &Arc<Store> {
        self.store.as_ref().expect("the store is open")
    }

    pub fn is_open(&self) -> bool {
        self.store.is_some()
    }

    pub fn file(&self, n: usize) -> Arc<File> {
        self.slots[n].file.clone().expect("the store is open")
    }

    /// Returns file `n`, or the next one that has something in the log.
    pub fn dirty_or(&self, n: usize) -> usize {
        let count = self.slots.len();
        let mut all = (0..count).map(|i| (n + i) % count);
        all.find(|n| !self.file(*n).is_clean()).unwrap_or(n)
    }

    /// Notes an operation's beginning and, if it succeeds, its end.
    fn note(
        &mut self,
        n: usize,
        effect: Effect,
        act: impl FnOnce(&mut Rig) -> Result<()>,
    ) -> Result<()> {
        let begun = self.now();
        let begun = self.slots[n].history.begin(begun, effect);
        let result = act(self);
        let now = self.now();
        // A broken log records no times.
        let broken = self.store().failure().is_some();
        let mtime = self.file(n).stat().map(|s| s.mtime.0).filter(|_| !broken);
        let history = &mut self.slots[n].history;
        if result.is_ok() {
            history.done(begun, now);
        }
        history.note_mtime(now, mtime);
        result
    }

    fn begin(&mut self, n: usize) -> Result<()> {
        let file = self.file(n);
        let exclusive = file.exclusive();
        if !exclusive.is_clean() {
            return Ok(());
        }
        let len = self.slots[n].canonical.size();
        exclusive.begin(Intro {
            size: len.map_err(|e| StoreError::io("stat", "canonical", e))?,
            mtime: Timestamp(1),
            uid: 1,
            gid: 1,
            handle: vec![],
            path: self.slots[n].id.to_string().into_bytes(),
        })?;
        drop(exclusive);
        if self.slots[n].unlinked {
            self.mark_unlinked(n)?;
        }
        Ok(())
    }

    fn mark_unlinked(&mut self, n: usize) -> Result<()> {
        self.note(n, Effect::Unlink, |rig| rig.file(n).mark_unlinked())
    }

    /// Writes as the overlay does: into the log, or through to the canonical file when the log cannot take the data.
    pub fn write(&mut self, n: usize, lane: u64, offset: u64, len: u64) -> Result<()> {
        let data = self.data(len as usize);
        let effect = Effect::Write {
            offset,
            data: data.clone(),
        };
        self.note(n, effect, |rig| {
            let file = rig.file(n);
            let full = |e: &StoreError| matches!(e, StoreError::Full | StoreError::Failed { .. });
            let absorbed = match file.try_write(lane, offset, &data) {
                Err(StoreError::Clean) => rig
                    .begin(n)
                    .and_then(|()| file.try_write(lane, offset, &data)),
                other => other,
            };
            match absorbed {
                Err(e) if full(&e) => {
                    rig.full += 1;
                    rig.write_through(n, offset, &data)
                }
                other => other,
            }
        })
    }

    pub fn through(&mut self, n: usize, offset: u64, len: u64) -> Result<()> {
        let data = self.data(len as usize);
        let effect = Effect::Write {
            offset,
            data: data.clone(),
        };
        self.note(n, effect, |rig| rig.write_through(n, offset, &data))
    }

    fn write_through(&mut self, n: usize, offset: u64, data: &[u8]) -> Result<()> {
        let slot = &mut self.slots[n];
        slot.canonical_dirty = true;
        let file = slot.file.as_ref().expect("the store is open");
        file.write_through(&*slot.canonical, offset, data)
    }

    pub fn truncate(&mut self, n: usize, size: u64) -> Result<()> {
        let whole = !self.file(n).is_clean();
        self.note(n, Effect::Truncate { size, whole }, |rig| {
            let file = rig.file(n);
            let slot = &mut rig.slots[n];
            let exclusive = file.exclusive();
            match exclusive.truncate(size, Timestamp(size + 1)) {
                Err(StoreError::Clean) => {
                    slot.canonical_dirty = true;
                    slot.cut = true;
                    let cut = slot.canonical.set_len(size);
                    cut.map_err(|e| StoreError::io("truncate", "canonical", e))
                }
                other => other,
            }
        })
    }

    pub fn zero(&mut self, n: usize, range: ByteRange, grow: bool) -> Result<()> {
        match self.begin(n) {
            // The overlay would use the canonical file then, which does not concern the store.
            Err(StoreError::Full) => return Ok(()),
            other => other?,
        }
        let effect = Effect::Zero {
            start: range.start,
            end: range.end,
            grow,
        };
        self.note(n, effect, |rig| {
            let file = rig.file(n);
            let exclusive = file.exclusive();
            exclusive.zero(range, grow, Timestamp(range.start + 2))
        })
    }

    pub fn set_mtime(&mut self, n: usize, mtime: u64) -> Result<()> {
        let file = self.file(n);
        let set = file.exclusive().set_mtime(Timestamp(mtime));
        match set {
            Err(StoreError::Clean) => return Ok(()),
            other => other?,
        }
        let now = self.now();
        self.slots[n].history.note_mtime(now, Some(mtime));
        Ok(())
    }

    /// Does what the overlay does for fdatasync.
    pub fn fsync(&mut self, n: usize) -> Result<()> {
        let file = self.file(n);
        file.sync()?;
        let changes = file.canonical_unsynced();
        let slot = &mut self.slots[n];
        if changes.is_some() || !slot.synced || file.is_clean() {
            let synced = slot.canonical.sync();
            synced.map_err(|e| StoreError::io("sync", "canonical", e))?;
            slot.synced = true;
            if let Some(changes) = changes {
                file.canonical_synced(changes);
            }
        }
        slot.canonical_dirty = false;
        slot.cut = false;
        let now = self.now();
        self.slots[n].history.synced(now);
        if self.store().failure().is_none() {
            self.log_synced();
        }
        Ok(())
    }

    /// Notes that the log is durable, and so is every file that has nothing unsynced in its canonical file.
    fn log_synced(&mut self) {
        let now = self.now();
        for slot in self.slots.iter_mut().filter(|slot| !slot.canonical_dirty) {
            slot.history.synced(now);
        }
    }

    pub fn sync(&mut self) -> Result<()> {
        self.store().sync()?;
        self.log_synced();
        Ok(())
    }

    pub fn checkpoint(&mut self) -> Result<()> {
        self.store().checkpoint()?;
        self.log_synced();
        Ok(())
    }

    pub fn tidy(&mut self) -> Result<()> {
        self.store().tidy()
    }

    /// Drains up to `max` stripes. With `late`, a write hits one of them after it was copied and before it is
    /// recorded as drained.
    pub fn drain(&mut self, n: usize, max: usize, late: Option<(u64, u64)>) -> Result<()> {
        let (file, canonical) = (self.file(n), self.slots[n].canonical.clone());
        if file.is_unlinked() {
            return Ok(());
        }
        let drained = drain::pass(&file, &*canonical, max, |done| {
            let Some((shift, len)) = late else {
                return Ok(());
            };
            let Some(first) = done.first() else {
                return Ok(());
            };
            let offset = first.range.start + shift % first.range.len();
            self.write(n, shift, offset, len)
        });
        match drained {
            Err(StoreError::Clean) => Ok(()),
            other => other,
        }
    }

    pub fn drain_all(&mut self, n: usize) -> Result<()> {
        let file = self.file(n);
        if file.is_unlinked() {
            return Ok(());
        }
        drain::all(&file, &*self.slots[n].canonical)
    }

    pub fn unlink(&mut self, n: usize) -> Result<()> {
        self.slots[n].unlinked = true;
        if self.file(n).is_clean() {
            // The store need not know. If it hears of the file again, it is told then.
            return Ok(());
        }
        self.mark_unlinked(n)
    }

    /// Closes the last handle of an unlinked file; a new file takes its place.
    pub fn discard(&mut self, n: usize) -> Result<()> {
        self.note(n, Effect::Discard, |rig| rig.file(n).discard())?;
        self.replace(n)
    }

    fn replace(&mut self, n: usize) -> Result<()> {
        let new = self.new_file(0)?;
        let mut old = std::mem::replace(&mut self.slots[n], new);
        old.file = None;
        self.gone.push(old);
        Ok(())
    }

    pub fn is_unlinked(&self, n: usize) -> bool {
        self.slots[n].unlinked
    }

    /// Ends the daemon from one moment to the next.
    pub fn kill(&mut self) {
        for slot in &mut self.slots {
            slot.file = None;
        }
        self.store = None;
    }

    pub fn kill_and_open(&mut self) -> Result<RecoveryReport> {
        self.kill();
        // Changes of a clean file are the backing's own affair, and a killed daemon's memory of them is gone. The
        // case that the backing still has such a change only in memory when the next daemon begins a dirty period
        // there is not covered, and not tried.
        for slot in self.slots.iter_mut().filter(|slot| slot.cut) {
            let synced = slot.canonical.sync();
            synced.map_err(|e| StoreError::io("sync", "canonical", e))?;
            slot.cut = false;
        }
        self.open()
    }

    pub fn close_and_open(&mut self) -> Result<RecoveryReport> {
        let closed = self.store().close();
        self.kill();
        closed?;
        self.open()
    }

    /// Compares every file with its history.
    pub fn check(&self) -> std::result::Result<(), String> {
        for slot in &self.slots {
            let file = slot.file.as_ref().expect("the store is open");
            let seen = drain::content(file, &*slot.canonical)
                .map_err(|e| format!("file {}: reading failed: {e}", slot.id))?;
            slot.history
                .killed(usize::MAX)
                .check(&seen)
                .map_err(|why| format!("file {}: {why}", slot.id))?;
        }
        Ok(())
    }
}
