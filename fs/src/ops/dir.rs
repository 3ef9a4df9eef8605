//! Directory listings: they use the backing's own stream and offsets, so that seekdir and telldir mean the
//! same as there, and only a few entries are held in memory.

use super::Overlay;
use crate::backing::dirent::{self, Dirent};
use crate::backing::{Creds, sys};
use crate::errno::{FsError, Result};
use crate::handle::{DirHandle, DirStream};
use crate::types::{Caller, DirEntry, Entry, RESERVED_NAME};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const AHEAD: usize = 32 << 10;
/// Number of entries that are looked up together. Entries that do not fit into the reply are looked up again.
const AT_ONCE: usize = 16;

impl Overlay {
    /// Passes entries from `offset` on to `emit` until `emit` returns that it is full.
    pub fn readdir(
        &self,
        caller: &Caller,
        fh: u64,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> Result<()> {
        let handle = self.dir_handle(fh)?;
        let creds = Creds::of(caller);
        let _as_caller = creds.enter()?;
        walk(&handle, offset, &mut |raw| {
            let mut entry = plain(raw);
            if entry.kind == 0 {
                // The backing does not report the type, so it is looked up.
                match sys::open_path(handle.inode.fd(), &raw.name)
                    .and_then(|fd| sys::stat(fd.as_fd()))
                {
                    Ok(stat) => entry.kind = stat.kind(),
                    Err(_) => return false,
                }
            }
            emit(&entry)
        })
    }

    /// Like `readdir`, with a lookup of each entry. `.` and `..` are passed without one, as the kernel does
    /// not count them. So are entries that cannot be looked up (another file system is mounted there), which
    /// the C library then leaves out.
    ///
    /// A user who may list a directory but not search it gets the names all the same: the lookups are then
    /// made as the daemon, and the kernel does not let users without the right to search use them.
    pub fn readdirplus(
        &self,
        caller: &Caller,
        fh: u64,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry, Option<&Entry>) -> bool,
    ) -> Result<()> {
        let handle = self.dir_handle(fh)?;
        let creds = Creds::of(caller);
        let may_search = {
            let _as_caller = creds.enter()?;
            let may = sys::access(handle.inode.fd(), libc::X_OK);
            !may.is_err_and(|e| e.raw_os_error() == Some(libc::EACCES))
        };
        let mut stream = handle.stream.lock();
        stream.seek(offset);
        let mut emitted = false;
        let mut emit = |entry: &DirEntry, found: Option<&Entry>| {
            let full = emit(entry, found);
            emitted |= !full;
            full
        };
        while !stream.ahead.is_empty() || refill(&handle, &mut stream)? {
            // The caller's identity is taken once for several entries, and given up again before the
            // tables and the store are used.
            let opened: Vec<_> = {
                let _as_caller = may_search.then(|| creds.enter()).transpose()?;
                let next = stream.ahead.iter().take(AT_ONCE);
                next.map(|raw| open_entry(&handle, raw)).collect()
            };
            for found in opened {
                let Some(raw) = stream.ahead.front() else {
                    break;
                };
                match self.emit_found(&handle, raw, found, &mut emit) {
                    Ok(false) => {}
                    Ok(true) => return Ok(()),
                    // The listing must not leave out this entry, so it ends here and the next call begins with it.
                    Err(e) => return if emitted { Ok(()) } else { Err(e) },
                }
                stream.step();
            }
        }
        Ok(())
    }

    /// True when the entry did not fit any more.
    fn emit_found(
        &self,
        handle: &DirHandle,
        raw: &Dirent,
        found: Option<io::Result<OwnedFd>>,
        emit: &mut dyn FnMut(&DirEntry, Option<&Entry>) -> bool,
    ) -> Result<bool> {
        if raw.name.to_bytes() == RESERVED_NAME {
            return Ok(false);
        }
        let entry = plain(raw);
        let found = match found {
            None => return Ok(emit(&entry, None)),
            Some(Err(e)) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
            Some(found) => found.map_err(FsError::from),
        };
        match found.and_then(|fd| self.admit(fd, &handle.inode, &raw.name, handle.opener)) {
            Ok((_, found)) => {
                let full = emit(&entry, Some(&found));
                if full {
                    self.undo_lookup(found.attr.ino);
                }
                Ok(full)
            }
            // Descriptors may be short, too: a name can be listed without one.
            Err(_) => Ok(emit(&entry, None)),
        }
    }
}

/// Opens a descriptor for an entry; `None` for entries that are not looked up.
fn open_entry(handle: &DirHandle, raw: &Dirent) -> Option<io::Result<OwnedFd>> {
    let unlisted =
        matches!(raw.name.to_bytes(), b"." | b"..") || raw.name.to_bytes() == RESERVED_NAME;
    (!unlisted).then(|| sys::open_path(handle.inode.fd(), &raw.name))
}

fn plain(raw: &Dirent) -> DirEntry {
    DirEntry {
        ino: raw.ino,
        next: raw.next,
        kind: u32::from(raw.kind) << 12,
        name: raw.name.clone(),
    }
}

/// Calls `each` for the visible entries from `offset` on. An entry for which it returns true is
/// listed again by the next call.
fn walk(handle: &DirHandle, offset: u64, each: &mut dyn FnMut(&Dirent) -> bool) -> Result<()> {
    let mut stream = handle.stream.lock();
    stream.seek(offset);
    loop {
        if stream.ahead.is_empty() && !refill(handle, &mut stream)? {
            return Ok(());
        }
        while let Some(entry) = stream.ahead.front() {
            if entry.name.to_bytes() != RESERVED_NAME && each(entry) {
                return Ok(());
            }
            stream.step();
        }
    }
}

/// Reads more entries from the stream's position; false at the end.
fn refill(handle: &DirHandle, stream: &mut DirStream) -> Result<bool> {
    if stream.position != stream.at {
        sys::lseek(handle.fd.as_fd(), stream.at as i64, libc::SEEK_SET)?;
        stream.position = stream.at;
    }
    let mut buf = [0u8; AHEAD];
    let len = sys::getdents(handle.fd.as_fd(), &mut buf)?;
    let mut rest = &buf[..len];
    while let Some((entry, len)) = dirent::parse_dirent(rest) {
        rest = &rest[len..];
        stream.position = entry.next;
        stream.ahead.push_back(entry);
    }
    Ok(len != 0)
}
