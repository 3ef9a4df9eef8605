//! Kept copies: bytes of canonical files on the node's own disk, to be read there again.
//!
//! A copy is only a cache. It is never written to the backing, losing it loses nothing, and
//! whatever is doubtful about it ends it. The extent index and the log know nothing of it. Why it
//! is as it is: `docs/decisions/0011-kept-copies.md`; the files: `docs/FORMAT.md`.
//!
//! # Consistency
//! A copy is of one version of the canonical file ([`Version`]: size and times). It is read only
//! while the file has neither a life nor anything published, and only after a sync point (open,
//! lock, fsync) has found the canonical file to be of that version. Writing through, cutting, and
//! seeing something published all end it; the beginning of a life takes it out of use. So it never
//! shows older bytes than the canonical file would have shown at the last sync point.
//!
//! # Who fills it
//! - The drain (`keep = true`): what it writes to the canonical file it writes to the copy, while
//!   nobody else may write the canonical file. When the file settles, the version is noted.
//! - `forebay prefetch`: reads the canonical file, whose version is noted before.
//!
//! # Crash behaviour
//! Sidecars are written after their bytes are synced, under a name of their own, and renamed
//! (`Copy::save`). A start removes data without a sidecar, and sidecars that do not add up.
//!
//! # Room
//! Copies take what the log leaves ([`crate::space::SpaceBook`]), less a segment for each lane. When
//! the log needs it, those that were not opened for the longest time go first.

mod copy;
mod cover;
mod sidecar;
mod version;

pub use copy::Copy;
pub use cover::Cover;
pub use version::{Moment, TICK, Version};

use crate::disk::{Disk, DiskFile};
use crate::error::{Result, StoreError};
use crate::space::SpaceBook;
use crate::types::{ByteRange, FileId, Timestamp};
use copy::Phase;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sidecar::Sidecar;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SIDECAR: &str = "ranges";
const TEMPORARY: &str = "new";

/// What is kept now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptTotals {
    pub files: usize,
    pub bytes: u64,
}

/// The log and newer copies have all the room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Which copies may go to make room for another one.
#[derive(Clone, Copy, Debug)]
pub enum Evict {
    /// Any.
    Oldest,
    /// Those that nobody has opened since.
    UnusedSince(Instant),
}

/// Where copies are.
#[derive(Debug)]
pub(crate) struct Home {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    key: u32,
    space: Arc<SpaceBook>,
    closed: AtomicBool,
    /// Data files that are open.
    open: AtomicUsize,
}

impl Home {
    fn data(&self, id: FileId, tag: u64) -> PathBuf {
        self.dir.join(format!("{id}-{tag:016x}"))
    }

    fn sidecar(&self, id: FileId, tag: u64) -> PathBuf {
        self.dir.join(format!("{id}-{tag:016x}.{SIDECAR}"))
    }

    fn temporary(&self, id: FileId, tag: u64) -> PathBuf {
        self.dir.join(format!("{id}-{tag:016x}.{TEMPORARY}"))
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// All kept copies of a store.
#[derive(Debug)]
pub struct Kept {
    home: Arc<Home>,
    copies: Mutex<HashMap<FileId, Arc<Copy>>>,
    /// How many there are, without the lock.
    count: AtomicUsize,
}

/// What a start has found.
pub(crate) struct Found {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    key: u32,
    copies: Vec<Sidecar>,
}

impl Found {
    /// For those who only look: there may be copies, and they are none of their business.
    pub fn nothing(disk: Arc<dyn Disk>, dir: PathBuf) -> Found {
        Found {
            disk,
            dir,
            key: 0,
            copies: Vec::new(),
        }
    }

    /// Bytes that those copies have.
    pub fn bytes(&self) -> u64 {
        self.copies.iter().map(|s| s.cover.bytes()).sum()
    }
}

/// Looks at what an earlier daemon left, and removes what is not whole.
pub(crate) fn find(disk: &Arc<dyn Disk>, dir: PathBuf, key: u32) -> Result<Found> {
    let names = match disk.list(&dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other.map_err(|e| StoreError::io("list", &dir, e))?,
    };
    let mut found = Found {
        disk: disk.clone(),
        dir,
        key,
        copies: Vec::new(),
    };
    let mut whole: HashMap<FileId, &str> = HashMap::new();
    let ours: Vec<&str> = names.iter().filter_map(|n| n.to_str()).collect();
    for name in &ours {
        let Some((id, tag, None)) = parse(name) else {
            continue;
        };
        match load(&found, id, tag) {
            // Two of one file: a removal that a power failure undid. Neither is needed.
            Some(_) if whole.contains_key(&id) => {
                whole.remove(&id);
                found.copies.retain(|sidecar| sidecar.id != id);
            }
            Some(copy) => {
                whole.insert(id, name);
                found.copies.push(copy);
            }
            None => {}
        }
    }
    for name in ours {
        let Some((id, _, kind)) = parse(name) else {
            continue;
        };
        let stays =
            kind != Some(TEMPORARY) && whole.get(&id).is_some_and(|whole| *whole == stem_of(name));
        if !stays {
            let path = found.dir.join(name);
            disk.remove(&path)
                .map_err(|e| StoreError::io("remove leftover", path, e))?;
        }
    }
    Ok(found)
}

/// The name without what says which of a copy's files it is.
fn stem_of(name: &str) -> &str {
    name.strip_suffix(SIDECAR)
        .or_else(|| name.strip_suffix(TEMPORARY))
        .and_then(|stem| stem.strip_suffix('.'))
        .unwrap_or(name)
}

/// Identity, tag and kind of a file that a copy consists of; `None` for other names.
fn parse(name: &str) -> Option<(FileId, u64, Option<&str>)> {
    let stem = stem_of(name);
    let kind = (stem != name).then(|| &name[stem.len() + 1..]);
    let (id, tag) = stem.rsplit_once('-')?;
    let id: FileId = id.parse().ok()?;
    let tag = (tag.len() == 16).then(|| u64::from_str_radix(tag, 16).ok())??;
    Some((id, tag, kind))
}

/// A copy whose sidecar adds up and whose data is there.
fn load(found: &Found, id: FileId, tag: u64) -> Option<Sidecar> {
    let name = format!("{id}-{tag:016x}");
    let sidecar = found
        .disk
        .open(&found.dir.join(format!("{name}.{SIDECAR}")))
        .ok()?;
    let size = usize::try_from(sidecar.size().ok()?).ok()?;
    if size > sidecar::LONGEST {
        return None;
    }
    let mut bytes = vec![0; size];
    let n = sidecar.read_at(&mut bytes, 0).ok()?;
    let sidecar = Sidecar::decode(&bytes[..n], found.key)?;
    (sidecar.id == id && sidecar.tag == tag).then_some(sidecar)
}

impl Kept {
    pub(crate) fn new(found: Found, space: Arc<SpaceBook>) -> Arc<Kept> {
        let home = Arc::new(Home {
            disk: found.disk,
            dir: found.dir,
            key: found.key,
            space,
            closed: AtomicBool::new(false),
            open: AtomicUsize::new(0),
        });
        let copies: HashMap<_, _> = found
            .copies
            .into_iter()
            .map(|s| {
                home.space.add_kept(s.cover.bytes());
                let phase = Phase::Valid(s.version);
                let copy = Copy::new(&home, s.id, s.tag, None, phase, s.cover);
                (s.id, Arc::new(copy))
            })
            .collect();
        let kept = Arc::new(Kept {
            count: AtomicUsize::new(copies.len()),
            home,
            copies: Mutex::new(copies),
        });
        let weak = Arc::downgrade(&kept);
        kept.home.space.on_shortage(Box::new(move || {
            if let Some(kept) = weak.upgrade() {
                kept.give_way();
            }
        }));
        kept.give_way();
        kept
    }

    /// The live copy of a file, in whatever phase.
    fn get(&self, id: FileId) -> Option<Arc<Copy>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.copies
            .lock()
            .get(&id)
            .filter(|c| !c.is_dead())
            .cloned()
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// There may be a copy of this file.
    pub fn has(&self, id: FileId) -> bool {
        self.get(id).is_some()
    }

    /// All of the file is kept, and the last sync point found it so.
    pub fn is_full(&self, id: FileId) -> bool {
        self.get(id).is_some_and(|c| c.is_full())
    }

    /// A new, empty copy in place of whatever there was.
    fn create(&self, id: FileId, phase: Phase) -> Option<Arc<Copy>> {
        self.forget(id);
        if self.home.is_closed() {
            return None;
        }
        let tag = crate::store::random();
        let disk = &self.home.disk;
        let path = self.home.data(id, tag);
        let made = match disk.create(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match disk.create_dir(&self.home.dir) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
                    _ => disk.create(&path),
                }
            }
            other => other,
        };
        let data = match made {
            Ok(data) => data,
            Err(error) => {
                tracing::warn!(file = %id, %error, "no copy of it can be kept");
                return None;
            }
        };
        let copy = Arc::new(Copy::new(
            &self.home,
            id,
            tag,
            Some(data),
            phase,
            Cover::default(),
        ));
        let mut copies = self.copies.lock();
        if let Some(other) = copies.insert(id, copy.clone()) {
            other.kill();
        }
        self.count.store(copies.len(), Ordering::Release);
        Some(copy)
    }

    fn remove(&self, copy: &Arc<Copy>) {
        copy.kill();
        let mut copies = self.copies.lock();
        if copies.get(&copy.id).is_some_and(|c| Arc::ptr_eq(c, copy)) {
            copies.remove(&copy.id);
        }
        self.count.store(copies.len(), Ordering::Release);
    }

    /// Ends the copy of a file, whatever it is doing.
    pub fn forget(&self, id: FileId) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let copy = self.copies.lock().get(&id).cloned();
        if let Some(copy) = copy {
            self.remove(&copy);
        }
    }

    /// Something is published over the canonical file. What the drain is filling is its own
    /// business: nobody reads that.
    pub(crate) fn forget_valid(&self, id: FileId) {
        if let Some(copy) = self.get(id).filter(|c| c.version().is_some()) {
            self.remove(&copy);
        }
    }

    /// The canonical file was cut to at most `size`.
    pub(crate) fn cut(&self, id: FileId, size: u64) {
        if let Some(copy) = self.get(id) {
            copy.cut(size);
        }
    }

    pub(crate) fn filling(&self, id: FileId) -> Option<Arc<Copy>> {
        let filling = |c: &Arc<Copy>| matches!(c.state.lock().phase, Phase::Filling { .. });
        self.get(id).filter(filling)
    }

    /// The drain goes on without a copy.
    pub fn forget_filling(&self, id: FileId) {
        if let Some(copy) = self.filling(id) {
            self.remove(&copy);
        }
    }

    /// A life begins: the copy is not read any more. What it has is still right where the life does
    /// not touch it, so the drain may go on with it if the canonical file is of its version by then.
    pub(crate) fn life_begins(&self, id: FileId) {
        let Some(copy) = self.get(id) else {
            return;
        };
        let mut state = copy.state.lock();
        if let Phase::Valid(version) = state.phase {
            state.phase = Phase::Filling { at: Some(version) };
            state.renewed = false;
        }
    }

    /// A copy for the drain to fill. Goes on with the one there is if nothing has happened to the
    /// canonical file since: it is `now` as it was then; or the copy was paused and nobody else
    /// writes the file (`alone`). Waits for the store's disk.
    pub fn fill(&self, id: FileId, now: Option<Version>, alone: bool) -> Option<Arc<Copy>> {
        if let Some(copy) = self.get(id) {
            let phase = copy.state.lock().phase;
            let same = match phase {
                Phase::Filling { at: None } => alone,
                Phase::Filling { at } => at == now,
                Phase::Valid(_) | Phase::Dead => false,
            };
            if same {
                match copy.unsave() {
                    Ok(()) => return Some(copy),
                    Err(error) => copy.fail("going on with", &error),
                }
            }
        }
        self.create(id, Phase::Filling { at: None })
    }

    /// As [`Kept::fill`], from nothing.
    pub fn fill_anew(&self, id: FileId) -> Option<Arc<Copy>> {
        self.create(id, Phase::Filling { at: None })
    }

    /// The drain stops for now, with the canonical file as `at` says.
    pub fn pause(&self, copy: &Arc<Copy>, at: Option<Version>) {
        let mut state = copy.state.lock();
        if let Phase::Filling { at: last } = &mut state.phase {
            *last = at;
        }
    }

    /// What was filled is of this version. Not read before a sync point has said so, too.
    pub fn complete(&self, copy: &Arc<Copy>, version: Option<Version>) {
        let Some(version) = version else {
            return self.remove(copy);
        };
        copy.cut(version.size);
        let empty = {
            let mut state = copy.state.lock();
            if let Phase::Filling { .. } = state.phase {
                state.phase = Phase::Valid(version);
                state.used = Instant::now();
                state.checked = false;
            }
            state.cover.bytes() == 0
        };
        if empty {
            self.remove(copy);
        }
    }

    /// A copy of this version to read into: the one there is, or a new one.
    pub fn stage(&self, id: FileId, version: Version) -> Option<Arc<Copy>> {
        match self.get(id) {
            Some(copy) if copy.version() == Some(version) => Some(copy),
            _ => self.create(id, Phase::Valid(version)),
        }
    }

    /// At a sync point, of a file that is settled: may its copy be read? The canonical file is
    /// asked for its version only if there is a copy.
    pub(crate) fn check(&self, id: FileId, ask: impl FnOnce() -> io::Result<Version>) -> bool {
        let Some(copy) = self.get(id).filter(|c| c.version().is_some()) else {
            return false;
        };
        // Whoever cannot be asked will say so when it is read.
        if !ask().is_ok_and(|now| copy.version() == Some(now)) {
            self.remove(&copy);
            return false;
        }
        let mut state = copy.state.lock();
        state.checked = true;
        state.used = Instant::now();
        true
    }

    pub(crate) fn readable_size(&self, id: FileId) -> Option<u64> {
        let nothing = ByteRange::new(0, 0);
        Some(self.get(id)?.readable(nothing)?.0)
    }

    /// Something was done to the canonical file that changes its times and not its bytes: from
    /// `before` to `after`. Nobody else wrote it in between if its modification time says so, and
    /// that can be told only if it is older than a tick.
    pub fn renew(&self, id: FileId, before: Version, after: Version) {
        let same = (before.size, before.mtime) == (after.size, after.mtime);
        if !same || !after.is_final(Duration::ZERO, Timestamp::now()) {
            return;
        }
        let Some(copy) = self.get(id) else {
            return;
        };
        let mut state = copy.state.lock();
        if state.phase == Phase::Valid(before) {
            state.phase = Phase::Valid(after);
            state.saved = None;
            state.renewed = true;
        }
    }

    /// Writes the sidecars of copies that were renewed.
    pub(crate) fn save_renewed(&self) {
        if self.is_empty() {
            return;
        }
        let renewed = |c: &&Arc<Copy>| c.state.lock().renewed;
        let copies: Vec<_> = self
            .copies
            .lock()
            .values()
            .filter(renewed)
            .cloned()
            .collect();
        copies.iter().for_each(|copy| self.save(copy));
    }

    /// Reads what the copy has of a settled file, and the rest from the canonical file. `None`: read
    /// all of it there. Without `canonical` nothing is read unless the copy has all of it.
    pub(crate) fn read(
        &self,
        id: FileId,
        buf: &mut [u8],
        offset: u64,
        canonical: Option<&dyn DiskFile>,
    ) -> io::Result<Option<usize>> {
        let Some(copy) = self.get(id) else {
            return Ok(None);
        };
        let Some(range) = ByteRange::at(offset, buf.len() as u64) else {
            return Ok(None);
        };
        let Some((size, pieces)) = copy.readable(range) else {
            return Ok(None);
        };
        let Some(range) = range.intersect(&ByteRange::new(0, size)) else {
            return Ok(None);
        };
        let has: u64 = pieces.iter().map(ByteRange::len).sum();
        if has == 0 || canonical.is_none() && has < range.len() {
            return Ok(None);
        }
        let mut at = range.start;
        for piece in pieces
            .into_iter()
            .chain([ByteRange::new(range.end, range.end)])
        {
            let place = |r: ByteRange| (r.start - offset) as usize..(r.end - offset) as usize;
            if at < piece.start
                && let Some(canonical) = canonical
            {
                let gap = place(ByteRange::new(at, piece.start));
                let n = canonical.read_at(&mut buf[gap.clone()], at)?;
                if n < gap.len() {
                    return Ok(Some(gap.start + n));
                }
            }
            at = piece.end;
            if piece.is_empty() {
                continue;
            }
            if let Err(error) = copy.read(&mut buf[place(piece)], piece.start) {
                copy.fail("reading", &error);
                return Ok(None);
            }
        }
        Ok(Some(range.len() as usize))
    }

    /// Takes bytes that the canonical file has. False when the copy has died.
    pub fn put(
        &self,
        copy: &Arc<Copy>,
        bufs: &[IoSlice<'_>],
        offset: u64,
        evict: Evict,
    ) -> std::result::Result<bool, NoRoom> {
        copy.put(bufs, offset, |bytes| self.make_room(copy, bytes, evict))
    }

    /// The canonical file has zeros there.
    pub fn put_zeros(&self, copy: &Arc<Copy>, range: ByteRange) {
        copy.zero(range);
    }

    /// Somebody else may write the canonical file there.
    pub fn put_unknown(&self, copy: &Arc<Copy>, range: ByteRange) {
        copy.lose(range);
    }

    /// The canonical file was cut there, or made longer.
    pub fn put_size(&self, copy: &Arc<Copy>, size: u64) {
        copy.cut(size);
    }

    /// Makes a copy outlive the daemon. Waits for the store's disk.
    pub fn save(&self, copy: &Arc<Copy>) {
        if let Err(error) = copy.save() {
            copy.fail("saving", &error);
        }
    }

    /// As [`Kept::save`], if there is one.
    pub fn save_of(&self, id: FileId) {
        if let Some(copy) = self.get(id) {
            self.save(&copy);
        }
    }

    pub fn drop_copy(&self, copy: &Arc<Copy>) {
        self.remove(copy);
    }

    fn make_room(
        &self,
        copy: &Arc<Copy>,
        bytes: u64,
        evict: Evict,
    ) -> std::result::Result<(), NoRoom> {
        while !self.home.space.reserve_kept(bytes) {
            let before = match evict {
                Evict::Oldest => None,
                Evict::UnusedSince(time) => Some(time),
            };
            let oldest = self.oldest(Some(copy), before).ok_or(NoRoom)?;
            self.remove(&oldest);
        }
        Ok(())
    }

    fn oldest(&self, but: Option<&Arc<Copy>>, before: Option<Instant>) -> Option<Arc<Copy>> {
        let copies = self.copies.lock();
        let used = |c: &Arc<Copy>| c.state.lock().used;
        copies
            .values()
            .filter(|c| !but.is_some_and(|but| Arc::ptr_eq(c, but)))
            .filter(|c| before.is_none_or(|time| used(c) < time))
            .min_by_key(|c| used(c))
            .cloned()
    }

    /// The log needs room.
    fn give_way(&self) {
        while self.home.space.is_short() {
            let Some(oldest) = self.oldest(None, None) else {
                return;
            };
            tracing::debug!(file = %oldest.id, "the log needs its room: a kept copy is dropped");
            self.remove(&oldest);
        }
    }

    pub fn totals(&self) -> KeptTotals {
        let copies = self.copies.lock();
        let live = copies.values().filter(|c| !c.is_dead());
        live.fold(KeptTotals::default(), |sum, c| KeptTotals {
            files: sum.files + 1,
            bytes: sum.bytes + c.bytes(),
        })
    }

    /// The next daemon may have the store from here on.
    pub(crate) fn close(&self) {
        let copies: Vec<_> = self.copies.lock().values().cloned().collect();
        copies.iter().for_each(|copy| self.save(copy));
        self.home.closed.store(true, Ordering::Release);
    }
}

/// The version of a canonical file that nobody may change at this moment, if every later change
/// will show. Waits for a tick of the clock.
pub fn version_after_change(canonical: &dyn DiskFile) -> Option<Version> {
    std::thread::sleep(TICK);
    let version = canonical.version().ok()?;
    version.is_final(TICK, Timestamp::now()).then_some(version)
}

#[cfg(test)]
mod tests;
