//! Recognises a MooseFS client mount by FUSE's file system type, the mount table's source, and the
//! special file that shows where the client's proxy listens.

use super::{Result, Version, io_error};
use std::fs::File;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// The file system type that `statfs` returns for any FUSE file system.
pub const FUSE_SUPER_MAGIC: libc::__fsword_t = 0x6573_5546;
const MASTERINFO: &std::ffi::CStr = c".masterinfo";
/// The inode number of the client's special file, which its own tools check too.
const MASTERINFO_INODE: u64 = 0x7fff_ffff;
const MASTERINFO_SIZE: usize = 14;
/// More levels than any path can name.
const DEEPEST: usize = 4096;

pub fn is_fuse(dir: BorrowedFd<'_>) -> Result<bool> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open and the buffer is a statfs.
    if unsafe { libc::fstatfs(dir.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(io_error("cannot statfs the directory")(
            io::Error::last_os_error(),
        ));
    }
    // SAFETY: the call succeeded, so the kernel filled it.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_type == FUSE_SUPER_MAGIC)
}

pub fn device(dir: BorrowedFd<'_>) -> Result<u64> {
    Ok(metadata(dir)?.dev())
}

fn metadata(fd: BorrowedFd<'_>) -> Result<std::fs::Metadata> {
    let file = File::from(
        fd.try_clone_to_owned()
            .map_err(io_error("cannot duplicate a descriptor"))?,
    );
    file.metadata()
        .map_err(io_error("cannot stat the directory"))
}

/// Returns `HOST:PORT` of the master, if the file system with this device number is a MooseFS. It
/// is found by device and not by path, so that anything mounted over a path does not matter.
pub fn service(mountinfo: &str, device: u64) -> Option<String> {
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    mountinfo.lines().find_map(|line| {
        let (mount, fs) = line.split_once(" - ")?;
        if mount.split(' ').nth(2)? != wanted {
            return None;
        }
        let mut fs = fs.split(' ');
        let (kind, source) = (fs.next()?, unescape(fs.next()?));
        let service = match kind {
            "fuse.mfs" => source.as_str(),
            "fuse" => source.strip_prefix("mfs#")?,
            _ => return None,
        };
        // If only a part of the tree is mounted, its name follows the port.
        let service = service.split('/').next()?;
        let (host, port) = service.rsplit_once(':')?;
        let valid = !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0);
        valid.then(|| service.to_owned())
    })
}

/// Decodes a field of the mount table, which has blanks, `#` and the like as a backslash and three
/// octal digits.
fn unescape(field: &str) -> String {
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code = (*byte == b'\\')
            .then(|| field.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                at += 4;
            }
            None => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterInfo {
    pub address: SocketAddrV4,
    pub session: u32,
    pub version: Version,
}

/// The fields are big-endian: address, port, session, version.
pub fn parse_master_info(bytes: &[u8; MASTERINFO_SIZE]) -> MasterInfo {
    let [a, b, c, d, p, q, s0, s1, s2, s3, v0, v1, v2, v3] = *bytes;
    MasterInfo {
        address: SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([p, q])),
        session: u32::from_be_bytes([s0, s1, s2, s3]),
        // Released versions have the last number doubled, plus one for a second edition.
        version: Version(u16::from_be_bytes([v0, v1]), v2, v3 / 2),
    }
}

fn open_at(dir: BorrowedFd<'_>, name: &std::ffi::CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open and the name ends with NUL.
    let fd = unsafe { libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `None` if `dir` is not a client mount's root.
pub fn master_info(dir: BorrowedFd<'_>) -> Result<Option<MasterInfo>> {
    let fd = match open_at(
        dir,
        MASTERINFO,
        libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK,
    ) {
        Ok(fd) => fd,
        Err(e) => match e.raw_os_error() {
            Some(libc::ENOENT | libc::EACCES | libc::ELOOP) => return Ok(None),
            _ => return Err(io_error("cannot open .masterinfo")(e)),
        },
    };
    let mut file = File::from(fd);
    let meta = file
        .metadata()
        .map_err(io_error("cannot stat .masterinfo"))?;
    // A user may create a file of that name in any other directory.
    if meta.ino() != MASTERINFO_INODE || meta.uid() != 0 || meta.len() != MASTERINFO_SIZE as u64 {
        return Ok(None);
    }
    let mut bytes = [0; MASTERINFO_SIZE];
    file.read_exact(&mut bytes)
        .map_err(io_error("cannot read .masterinfo"))?;
    Ok(Some(parse_master_info(&bytes)))
}

/// Opens the highest directory at or above `dir` that has the special file: the client mount's
/// root, if the way up to it is open. (Clients show the file in other directories too, but those
/// can be removed.) `None` if the way up leads out of the mount first.
pub fn root(dir: BorrowedFd<'_>) -> Result<Option<OwnedFd>> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let device = device(dir)?;
    let mut here = open_at(dir, c".", flags).map_err(io_error("cannot open the directory"))?;
    let mut found = None;
    for _ in 0..DEEPEST {
        let above = open_at(here.as_fd(), c"..", flags);
        let seen = metadata(here.as_fd())?;
        if master_info(here.as_fd())?.is_some() {
            found = Some(here);
        }
        let above = match above {
            Ok(above) => above,
            Err(_) if found.is_some() => break,
            Err(e) => return Err(io_error("cannot open a directory of the mount")(e)),
        };
        let next = metadata(above.as_fd())?;
        if next.dev() != device || next.ino() == seen.ino() {
            break;
        }
        here = above;
    }
    Ok(found)
}
