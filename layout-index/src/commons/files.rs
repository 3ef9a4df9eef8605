//! What nodes tell each other of one file: stamps, intents, layouts, plans and bases.
//!
//! # Killed in between
//!
//! - *Layout*: a new one has a name before it has bytes, and the name may be lost with the power
//!   until the call returns; an append can be torn. Nothing goes behind a torn one: its node goes on
//!   in another layout.
//! - *Seal*: it is there, and what was to be appended is in no other layout yet: the store has it.
//! - *Plan, base*: a temporary name is left, which whoever tidies the file removes when its node
//!   is dead; under its own name it is whole.
//! - *Intent*: it is there, and the stamp may be old. Its close had not returned.

use super::data::{PLACES, Patience, remove_late};
use super::names::{Intent, Listing, Name, Owner, names_of};
use super::nodes::temporary;
use super::writing::Writing;
use super::{Commons, dirs, not_ours, sys};
use crate::beneath::{
    DIRECTORY, beneath, component, entries_of, open_seen, remove_from, step_down, sync_open,
};
use crate::types::{FileId, NodeId};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// No plan or base is longer.
const MOST_BYTES: u64 = 64 << 20;

/// Whether anything of a file has changed. One that was removed and made again has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    sec: i64,
    nsec: u32,
    ino: u64,
}

impl Stamp {
    /// Whatever was in the directory then may still be there.
    pub fn same_directory(&self, other: &Stamp) -> bool {
        self.ino == other.ino
    }
}

impl Commons {
    /// One system call. `None`: no node has anything to say of that file.
    pub fn stamp(&self, file: FileId) -> io::Result<Option<Stamp>> {
        let Some(group) = self.dirs.group(file, false)? else {
            return Ok(None);
        };
        let [ab, fid] = names_of(file);
        let Some(looked) = sys::look(group.as_fd(), &fid)? else {
            return Ok(None);
        };
        if looked.mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!(
                    "a file or a link stands where its directory files/{ab}/{fid} must be: remove it"
                ),
            ));
        }
        if looked.uid != self.uid || looked.mode & 0o022 != 0 {
            let name = format!("files/{ab}/{fid}");
            return Err(not_ours(&name, looked.uid, looked.mode & 0o7777, self.uid));
        }
        Ok(Some(Stamp {
            sec: looked.sec,
            nsec: looked.nsec,
            ino: looked.ino,
        }))
    }

    /// Gives the file a new stamp. Nothing to do where it has no directory.
    pub fn touch(&self, file: FileId) -> io::Result<()> {
        let Some(group) = self.dirs.group(file, false)? else {
            return Ok(());
        };
        let [_, fid] = names_of(file);
        match sys::set_time(group.as_fd(), &fid, sys::random_time()) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// `None` where the file has no directory.
    pub fn list(&self, file: FileId) -> io::Result<Option<Listing>> {
        let Some(dir) = self.dirs.open(file, false)? else {
            return Ok(None);
        };
        match self.list_in(dir) {
            Err(e) if dirs::is_gone(&e) => Ok(None),
            listed => listed.map(Some),
        }
    }

    pub(super) fn list_at(&self, dir: BorrowedFd<'_>) -> io::Result<Listing> {
        self.list_in(beneath(dir, ".", DIRECTORY, Mode::empty())?)
    }

    fn list_in(&self, dir: OwnedFd) -> io::Result<Listing> {
        let mut listing = Listing::default();
        let mut signed = Vec::new();
        for entry in entries_of(dir.try_clone()?)? {
            match entry.name.parse() {
                Ok(name @ (Name::Term(_) | Name::Seal(..))) => signed.push((name, entry.name)),
                Ok(name) => listing.take(name),
                Err(_) => listing.strange.push(entry.name),
            }
        }
        for (name, text) in signed {
            let owner = match sys::text_of(dir.as_fd(), &text) {
                Ok(Some(owner)) => owner.parse::<Owner>().ok(),
                Ok(None) => continue,
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => None,
                Err(e) => return Err(e),
            };
            match (name, owner) {
                (Name::Term(term), Some(owner)) => drop(listing.terms.insert(term, owner)),
                // Nobody but who writes a layout says where it ends.
                (Name::Seal(id, ..), Some(owner)) if owner.id == id => listing.take(name),
                _ => listing.strange.push(text),
            }
        }
        Ok(listing)
    }

    /// Appends to a layout of this node what begins at byte `at` of it. Durable when it returns.
    /// Begins one where `at` is zero. After an error some or all of it may be there, or be written
    /// later: [`Commons::seal_layout`].
    pub fn append_layout(
        &self,
        file: FileId,
        number: u32,
        at: u64,
        bytes: &[u8],
        patience: Patience,
    ) -> io::Result<()> {
        let name = Name::Layout(self.me.id, number).to_string();
        let bytes: Arc<[u8]> = bytes.into();
        let appended = self.dirs.within(file, at == 0, |dir| {
            let (open, len, made) = match open_seen(dir, &name, OFlag::O_WRONLY, Some(self.uid)) {
                Ok((open, meta)) => (open, meta.len(), false),
                Err(e) if at == 0 && e.raw_os_error() == Some(libc::ENOENT) => {
                    let (open, place) = self.create(dir, &name)?;
                    if let Some(place) = place {
                        self.places.lock().insert((file, number), place);
                    }
                    (open, 0, true)
                }
                Err(e) => return Err(e),
            };
            let place = self.places.lock().get(&(file, number)).copied();
            if len != at {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("it has {len} bytes, and {at} were written to it: it was damaged"),
                ));
            }
            crate::calls::note("write");
            crate::calls::note("sync");
            let bytes = bytes.clone();
            let writing = self.write_begins(file, number);
            let late = self.after_late_append(dir, number, at, &writing)?;
            let append = move || {
                let written = open.write_all_at(&bytes, at);
                let synced = written.and_then(|()| open.sync_data());
                drop(writing);
                synced
            };
            let appended = self.in_time(place, patience, append, late)?;
            appended.ok_or_else(|| self.not_in_time())?;
            if made { sync_open(dir) } else { Ok(()) }
        });
        match appended.map_err(|e| in_file(file, &name, e))? {
            Some(()) => Ok(()),
            None => Err(in_file(file, &name, Errno::ENOENT.into())),
        }
    }

    /// What is in a layout of this node's stays there, whatever happens.
    pub fn sync_layout(&self, file: FileId, number: u32) -> io::Result<()> {
        let name = Name::Layout(self.me.id, number).to_string();
        let synced = self.dirs.within(file, false, |dir| {
            let (open, _) = open_seen(dir, &name, OFlag::O_WRONLY, Some(self.uid))?;
            crate::calls::note("sync");
            open.sync_data()?;
            sync_open(dir)
        });
        synced.map(drop).map_err(|e| in_file(file, &name, e))
    }

    /// What is left to do when an append comes back that nobody waits for any more.
    pub(super) fn after_late_append(
        &self,
        dir: BorrowedFd<'_>,
        number: u32,
        at: u64,
        writing: &Writing,
    ) -> io::Result<impl FnOnce() + Send + 'static> {
        let dir = dir.try_clone_to_owned()?;
        let unwanted = writing.unwanted.clone();
        let names = [
            Name::Layout(self.me.id, number).to_string(),
            Name::Seal(self.me.id, number, at).to_string(),
        ];
        Ok(move || {
            // One that has more goes when that is drained: here, if it was meanwhile.
            if at == 0 || unwanted.load(Ordering::Acquire) {
                remove_late(dir, &names);
            }
        })
    }

    /// An append at `end` failed, and nobody knows what comes of it: from here on the layout ends
    /// there for everybody. Goes to the metadata server only.
    pub fn seal_layout(&self, file: FileId, number: u32, end: u64) -> io::Result<()> {
        let name = Name::Seal(self.me.id, number, end).to_string();
        let text = self.me.to_string();
        let sealed = self.dirs.within(file, false, |dir| {
            match sys::link(dir, &name, &text) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(e) => return Err(e.into()),
            }
            sync_open(dir)
        });
        sealed.map_err(|e| in_file(file, &name, e))?;
        self.touch(file)
    }

    /// At most `most` bytes of a layout, from byte `from` on. `None` where it is gone.
    pub fn read_layout(
        &self,
        file: FileId,
        node: NodeId,
        number: u32,
        from: u64,
        most: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        self.read(file, Name::Layout(node, number), |open, len| {
            let there = usize::try_from(len.saturating_sub(from)).unwrap_or(usize::MAX);
            read_at(open, from, there.min(most))
        })
    }

    /// One that is not there is no error. `sealed` is where it was sealed, if it was: its seal goes
    /// when it is gone.
    pub fn remove_layout(
        &self,
        file: FileId,
        node: NodeId,
        number: u32,
        sealed: Option<u64>,
    ) -> io::Result<()> {
        let seal = sealed.map(|end| Name::Seal(node, number, end));
        if node == self.me.id {
            self.places.lock().remove(&(file, number));
        }
        self.remove(file, [Name::Layout(node, number)].into_iter().chain(seal))
    }

    /// Says that what was closed of the file is yet to be published: two system calls where the
    /// file has a directory.
    pub fn intend(&self, file: FileId) -> io::Result<Intent> {
        let intent = Intent {
            owner: self.me,
            k: self.intents.fetch_add(1, Ordering::Relaxed),
        };
        let (name, text) = (Name::Intent(intent).to_string(), self.me.to_string());
        let made = self
            .dirs
            .within(file, true, |dir| Ok(sys::link(dir, &name, &text)?));
        made.map_err(|e| in_file(file, &name, e))?;
        self.touch(file)?;
        Ok(intent)
    }

    /// What was intended is published.
    pub fn fulfil(&self, file: FileId, intents: &[Intent]) -> io::Result<()> {
        self.remove(file, intents.iter().map(|intent| Name::Intent(*intent)))
    }

    /// Durable when it returns, and stamped: it changes which batches are the older ones.
    pub fn put_plan(&self, file: FileId, term: u64, bytes: &[u8]) -> io::Result<()> {
        self.put(file, Name::Plan(term), bytes)
    }

    pub fn read_plan(&self, file: FileId, term: u64) -> io::Result<Option<Vec<u8>>> {
        self.read_whole(file, Name::Plan(term))
    }

    /// Durable when it returns, and stamped.
    pub fn put_base(&self, file: FileId, term: u64, bytes: &[u8]) -> io::Result<()> {
        self.put(file, Name::Base(term), bytes)
    }

    pub fn read_base(&self, file: FileId, term: u64) -> io::Result<Option<Vec<u8>>> {
        self.read_whole(file, Name::Base(term))
    }

    fn put(&self, file: FileId, name: Name, bytes: &[u8]) -> io::Result<()> {
        let name = name.to_string();
        if bytes.len() as u64 > MOST_BYTES {
            return Err(in_file(file, &name, too_long(bytes.len() as u64)));
        }
        let tenure = self.need_lease()?;
        let bytes: Arc<[u8]> = bytes.into();
        let put = self.dirs.within(file, true, |dir| {
            let (temporary, _) = self.put_temporary(dir, &bytes, Patience::Forever)?;
            let put = match self.holds_since(tenure) {
                true => sys::rename(dir, &temporary, &name).map_err(Into::into),
                false => Err(super::nodes::lapsed()),
            };
            if let Err(e) = put {
                remove_from(dir, &temporary)?;
                return Err(e);
            }
            sync_open(dir)
        });
        put.map_err(|e| in_file(file, &name, e))?;
        self.touch(file)
    }

    /// A file with these bytes, on some target that takes them; synced. `last` is for the last place.
    pub(super) fn put_temporary(
        &self,
        dir: BorrowedFd<'_>,
        bytes: &Arc<[u8]>,
        last: Patience,
    ) -> io::Result<(String, File)> {
        let mut place = 1;
        loop {
            let name = temporary(self.me);
            let (file, at) = self.create(dir, &name)?;
            let (mut open, bytes) = (file.try_clone()?, bytes.clone());
            let (there, late) = (dir.try_clone_to_owned()?, [name.clone()]);
            let patience = match Patience::at(place) {
                Patience::Forever => last,
                patience => patience,
            };
            let put = self.in_time(
                at,
                patience,
                move || {
                    open.write_all(&bytes)?;
                    open.sync_all()
                },
                move || remove_late(there, &late),
            );
            let e = match put {
                Ok(Some(())) => return Ok((name, file)),
                Ok(None) => self.not_in_time(),
                Err(e) => {
                    remove_from(dir, &name)?;
                    e
                }
            };
            if place == PLACES {
                return Err(e);
            }
            tracing::debug!("{e}; it is written elsewhere");
            place += 1;
        }
    }

    fn read_whole(&self, file: FileId, name: Name) -> io::Result<Option<Vec<u8>>> {
        self.read(file, name, |open, len| match len {
            0..=MOST_BYTES => read_at(open, 0, len as usize),
            _ => Err(too_long(len)),
        })
    }

    fn read(
        &self,
        file: FileId,
        name: Name,
        read: impl Fn(&File, u64) -> io::Result<Vec<u8>>,
    ) -> io::Result<Option<Vec<u8>>> {
        let name = name.to_string();
        let found = self.dirs.within(file, false, |dir| {
            let (open, meta) = open_seen(dir, &name, OFlag::O_RDONLY, Some(self.uid))?;
            read(&open, meta.len())
        });
        match found {
            Err(e) if dirs::is_gone(&e) => Ok(None),
            found => found.map_err(|e| in_file(file, &name, e)),
        }
    }

    pub(super) fn remove(
        &self,
        file: FileId,
        names: impl IntoIterator<Item = Name>,
    ) -> io::Result<()> {
        let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
        if names.is_empty() {
            return Ok(());
        }
        // Not through a directory that is held: in one that was removed everything is missing.
        let Some(group) = self.dirs.group(file, false)? else {
            return Ok(());
        };
        let [_, fid] = names_of(file);
        let Some(dir) = step_down(group.as_fd(), &fid, DIRECTORY)? else {
            return Ok(());
        };
        for name in names {
            remove_from(dir.as_fd(), component(&name)?).map_err(|e| in_file(file, &name, e))?;
        }
        Ok(())
    }
}

fn read_at(open: &File, from: u64, most: usize) -> io::Result<Vec<u8>> {
    crate::calls::note("read");
    let mut bytes = vec![0; most];
    let mut filled = 0;
    while filled < most {
        match open.read_at(&mut bytes[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn too_long(len: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("it has {len} bytes, and at most {MOST_BYTES} are read"),
    )
}

/// Errors that say that something stands where it should not get a name. Those of the file system
/// itself keep their number, for those who tell them apart by it.
pub(super) fn in_file(file: FileId, name: &str, e: io::Error) -> io::Error {
    let in_the_way = matches!(
        e.raw_os_error(),
        None | Some(libc::EISDIR | libc::ENOTDIR | libc::ELOOP)
    );
    if !in_the_way || e.kind() == io::ErrorKind::TimedOut {
        return e;
    }
    let [ab, fid] = names_of(file);
    let advice = match e.raw_os_error() {
        Some(_) => ": remove it",
        None => "",
    };
    io::Error::new(
        e.kind(),
        format!("files/{ab}/{fid}/{name} in the shared directory: {e}{advice}"),
    )
}
