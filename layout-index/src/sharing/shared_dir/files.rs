//! What nodes tell each other about one file: change tokens, announcements, layouts, plans and
//! bases.
//!
//! # Killed in between
//!
//! - *Layout*: a new layout has a name before it has bytes, and the name may be lost in a power
//!   failure until the call returns. An append can be torn. Nothing is appended after a torn
//!   append: its node goes on in another layout.
//! - *Seal*: the seal is there, and the bytes that were to be appended are in no other layout yet:
//!   they are in the store.
//! - *Plan, base*: a temporary name is left, which the node that tidies the file removes once the
//!   owner of the name is dead. Under its final name the file is complete.
//! - *Announcement*: the announcement is there, but the change token may be old. The close that
//!   made it had not returned.

use super::dirs::error_in_file;
use super::names::{Announcement, Listing, Name, names_of};
use super::roots::not_ours;
use super::writer::Patience;
use super::{SharedDir, sys};
use crate::beneath::{open_seen, remove_from, sync_open};
use crate::types::{FileId, NodeId};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum length of a plan or base.
const MOST_BYTES: u64 = 64 << 20;

/// Change token of a file's directory: differs if anything in the directory has changed. A
/// directory that was removed and made again has another token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChangeToken {
    sec: i64,
    nsec: u32,
    ino: u64,
}

impl ChangeToken {
    /// Whether both tokens are of the same directory, so that entries seen then may still be there.
    pub fn same_directory(&self, other: &ChangeToken) -> bool {
        self.ino == other.ino
    }
}

impl SharedDir {
    /// Reads the file's change token, with one system call. `None` if no node has published or
    /// announced anything of the file.
    pub fn change_token(&self, file: FileId) -> io::Result<Option<ChangeToken>> {
        let Some(group) = self.dirs.group(file, false)? else {
            return Ok(None);
        };
        let [ab, fid] = names_of(file);
        let Some(stat) = sys::stat_name(group.as_fd(), &fid)? else {
            return Ok(None);
        };
        if stat.mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!(
                    "a file or a link stands where its directory files/{ab}/{fid} must be: remove it"
                ),
            ));
        }
        let uid = self.roots.uid;
        if stat.uid != uid || stat.mode & 0o022 != 0 {
            let name = format!("files/{ab}/{fid}");
            return Err(not_ours(&name, stat.uid, stat.mode & 0o7777, uid));
        }
        Ok(Some(ChangeToken {
            sec: stat.sec,
            nsec: stat.nsec,
            ino: stat.ino,
        }))
    }

    /// Gives the file a new change token. Does nothing if the file has no directory.
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

    /// Everything in the file's directory. `None` if it has none.
    pub fn list(&self, file: FileId) -> io::Result<Option<Listing>> {
        self.dirs.list(file)
    }

    /// All files that have a directory. For start, adoption and status only: it lists everything.
    pub fn files(&self) -> io::Result<Vec<FileId>> {
        self.dirs.list_files()
    }

    /// Appends `bytes` to a layout of this node, at byte `offset`, which must be its end. Durable
    /// when it returns. Creates the layout if `offset` is zero. After an error some or all of the
    /// bytes may be there, or be written later: [`SharedDir::seal_layout`].
    pub fn append_layout(
        &self,
        file: FileId,
        number: u32,
        offset: u64,
        bytes: &[u8],
        patience: Patience,
    ) -> io::Result<()> {
        let name = Name::Layout(self.me().id, number).to_string();
        let bytes: Arc<[u8]> = bytes.into();
        let (layout, uid) = ((file, number), Some(self.roots.uid));
        let appended = self.dirs.in_dir(file, offset == 0, |dir| {
            let (open, len, made) = match open_seen(dir, &name, OFlag::O_WRONLY, uid) {
                Ok((open, meta)) => (open, meta.len(), false),
                Err(e) if offset == 0 && e.raw_os_error() == Some(libc::ENOENT) => {
                    (self.writer.create_layout(dir, &name, layout)?, 0, true)
                }
                Err(e) => return Err(e),
            };
            if len != offset {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("it has {len} bytes, and {offset} were written to it: it was damaged"),
                ));
            }
            let writer = &self.writer;
            writer.append(dir, open, layout, offset, &bytes, patience)?;
            if made { sync_open(dir) } else { Ok(()) }
        });
        match appended.map_err(|e| error_in_file(file, &name, e))? {
            Some(()) => Ok(()),
            None => Err(error_in_file(file, &name, Errno::ENOENT.into())),
        }
    }

    /// Makes everything in a layout of this node durable.
    pub fn sync_layout(&self, file: FileId, number: u32) -> io::Result<()> {
        let name = Name::Layout(self.me().id, number).to_string();
        let synced = self.dirs.in_dir(file, false, |dir| {
            let (open, _) = open_seen(dir, &name, OFlag::O_WRONLY, Some(self.roots.uid))?;
            crate::calls::note("sync");
            open.sync_data()?;
            sync_open(dir)
        });
        synced.map(drop).map_err(|e| error_in_file(file, &name, e))
    }

    /// Ends a layout at `end` for all nodes, after an append there failed: it is not known whether
    /// the append will still be done. Uses the metadata server only.
    pub fn seal_layout(&self, file: FileId, number: u32, end: u64) -> io::Result<()> {
        let name = Name::Seal(self.me().id, number, end).to_string();
        let text = self.me().to_string();
        let sealed = self.dirs.in_dir(file, false, |dir| {
            sys::ensure_link(dir, &name, &text)?;
            sync_open(dir)
        });
        sealed.map_err(|e| error_in_file(file, &name, e))?;
        self.touch(file)
    }

    /// Reads at most `most` bytes of a layout, starting at byte `from`. `None` if the layout is
    /// gone.
    pub fn read_layout(
        &self,
        file: FileId,
        node: NodeId,
        number: u32,
        from: u64,
        most: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        self.read_file(file, Name::Layout(node, number), |open, len| {
            let there = usize::try_from(len.saturating_sub(from)).unwrap_or(usize::MAX);
            read_at(open, from, there.min(most))
        })
    }

    /// Removes a layout; it is no error if it is missing. `sealed` is where it was sealed, if it
    /// was: the seal is removed after the layout.
    pub fn remove_layout(
        &self,
        file: FileId,
        node: NodeId,
        number: u32,
        sealed: Option<u64>,
    ) -> io::Result<()> {
        let seal = sealed.map(|end| Name::Seal(node, number, end));
        if node == self.me().id {
            self.writer.forget_place(file, number);
        }
        self.dirs
            .remove_names(file, [Name::Layout(node, number)].into_iter().chain(seal))
    }

    /// Announces that the file has data that is yet to be published: two system calls if the file
    /// has a directory.
    pub fn announce(&self, file: FileId) -> io::Result<Announcement> {
        let announcement = Announcement {
            owner: self.me(),
            number: self.announcements.fetch_add(1, Ordering::Relaxed),
        };
        let (name, text) = (
            Name::Announcement(announcement).to_string(),
            self.me().to_string(),
        );
        let made = self
            .dirs
            .in_dir(file, true, |dir| Ok(sys::link(dir, &name, &text)?));
        made.map_err(|e| error_in_file(file, &name, e))?;
        self.touch(file)?;
        Ok(announcement)
    }

    /// Removes announcements whose data is published.
    pub fn fulfil(&self, file: FileId, announcements: &[Announcement]) -> io::Result<()> {
        self.dirs.remove_names(
            file,
            announcements
                .iter()
                .map(|announcement| Name::Announcement(*announcement)),
        )
    }

    /// Writes a plan. It is durable when this returns, and the file has a new change token, because
    /// a plan changes which batches are the older ones.
    pub fn put_plan(&self, file: FileId, term: u64, bytes: &[u8]) -> io::Result<()> {
        self.put_file(file, Name::Plan(term), bytes)
    }

    pub fn read_plan(&self, file: FileId, term: u64) -> io::Result<Option<Vec<u8>>> {
        self.read_whole(file, Name::Plan(term))
    }

    /// Writes a base. It is durable when this returns, and the file has a new change token.
    pub fn put_base(&self, file: FileId, term: u64, bytes: &[u8]) -> io::Result<()> {
        self.put_file(file, Name::Base(term), bytes)
    }

    pub fn read_base(&self, file: FileId, term: u64) -> io::Result<Option<Vec<u8>>> {
        self.read_whole(file, Name::Base(term))
    }

    fn put_file(&self, file: FileId, name: Name, bytes: &[u8]) -> io::Result<()> {
        let name = name.to_string();
        if bytes.len() as u64 > MOST_BYTES {
            return Err(error_in_file(file, &name, too_long(bytes.len() as u64)));
        }
        let tenure = self.membership.lease.require()?;
        let bytes: Arc<[u8]> = bytes.into();
        let put = self.dirs.in_dir(file, true, |dir| {
            let (temporary, _) = self
                .writer
                .write_temporary(dir, &bytes, Patience::Forever)?;
            let put = match self.membership.lease.is_held_since(tenure) {
                true => sys::rename(dir, &temporary, &name).map_err(Into::into),
                false => Err(super::lease::lease_lapsed()),
            };
            if let Err(e) = put {
                remove_from(dir, &temporary)?;
                return Err(e);
            }
            sync_open(dir)
        });
        put.map_err(|e| error_in_file(file, &name, e))?;
        self.touch(file)
    }

    fn read_whole(&self, file: FileId, name: Name) -> io::Result<Option<Vec<u8>>> {
        self.read_file(file, name, |open, len| match len {
            0..=MOST_BYTES => read_at(open, 0, len as usize),
            _ => Err(too_long(len)),
        })
    }

    fn read_file(
        &self,
        file: FileId,
        name: Name,
        read: impl Fn(&File, u64) -> io::Result<Vec<u8>>,
    ) -> io::Result<Option<Vec<u8>>> {
        let name = name.to_string();
        let found = self.dirs.in_present_dir(file, |dir| {
            let (open, meta) = open_seen(dir, &name, OFlag::O_RDONLY, Some(self.roots.uid))?;
            read(&open, meta.len())
        });
        found.map_err(|e| error_in_file(file, &name, e))
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
