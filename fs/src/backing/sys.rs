//! The system calls on the backing, wrapped as safe functions in one place.
//!
//! Everything is relative to a held descriptor, mostly an `O_PATH` one. Operations that such a descriptor
//! does not support itself (open, attributes, links) go through its magic link in `/proc/self/fd`, which
//! leads to exactly that file whatever happens to its names meanwhile. No other link is ever followed.

use crate::types::{StatFs, Time};
use std::ffi::CStr;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const BENEATH: u64 = libc::RESOLVE_BENEATH
    | libc::RESOLVE_NO_SYMLINKS
    | libc::RESOLVE_NO_MAGICLINKS
    | libc::RESOLVE_NO_XDEV;

fn done(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn length(rc: isize) -> io::Result<usize> {
    usize::try_from(rc).map_err(|_| io::Error::last_os_error())
}

fn owned(rc: libc::c_long) -> io::Result<OwnedFd> {
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(rc as RawFd) })
}

/// `/proc/self/fd/N` without allocating.
struct ProcPath([u8; 32]);

impl ProcPath {
    fn new(fd: BorrowedFd<'_>) -> Self {
        let mut buf = [0u8; 32];
        write!(&mut buf[..31], "/proc/self/fd/{}", fd.as_raw_fd())
            .expect("a descriptor number has at most ten digits");
        Self(buf)
    }

    fn as_ptr(&self) -> *const libc::c_char {
        self.0.as_ptr().cast()
    }
}

/// Opens one component of a directory, never through a link and never on another mount.
pub fn open_beneath(
    dir: BorrowedFd<'_>,
    name: &CStr,
    flags: libc::c_int,
    mode: u32,
) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; zero is valid for all of them.
    let mut how: libc::open_how = unsafe { MaybeUninit::zeroed().assume_init() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = u64::from(mode);
    how.resolve = BENEATH;
    // SAFETY: the name ends in zero, `how` outlives the call and its size is given.
    owned(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            dir.as_raw_fd(),
            name.as_ptr(),
            &how,
            size_of::<libc::open_how>(),
        )
    })
}

/// Returns a descriptor that stands for an entry, without opening the entry itself.
pub fn open_path(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    open_beneath(dir, name, libc::O_PATH | libc::O_NOFOLLOW, 0)
}

/// Opens the parent of a directory. The caller must know where to stop.
pub fn open_parent(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name ends in zero.
    owned(unsafe { libc::openat(dir.as_raw_fd(), c"..".as_ptr(), flags) }.into())
}

/// Opens the very file that `fd` stands for. The caller must have checked that it is no FIFO or device.
pub fn reopen(fd: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = ProcPath::new(fd);
    // SAFETY: the path ends in zero.
    owned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }.into())
}

/// The result of statx; `btime` where the backing has a birth time.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    pub dev: u64,
    pub ino: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blocks: u64,
    pub blksize: u32,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Option<Time>,
}

impl Stat {
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }
}

pub fn stat(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    stat_as(fd, libc::AT_STATX_SYNC_AS_STAT)
}

/// The attributes as the server has them now, whatever this client has cached.
pub fn stat_now(fd: BorrowedFd<'_>) -> io::Result<Stat> {
    stat_as(fd, libc::AT_STATX_FORCE_SYNC)
}

/// Attributes that a client already has when it has just opened a file.
#[derive(Clone, Copy, Debug)]
pub struct Glance {
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub ctime: Time,
}

/// Does not ask for size and mtime: on a parallel file system the storage targets would have to answer.
pub fn glance(fd: BorrowedFd<'_>) -> io::Result<Glance> {
    let wanted = libc::STATX_NLINK | libc::STATX_UID | libc::STATX_GID | libc::STATX_CTIME;
    let st = statx(fd, libc::AT_STATX_SYNC_AS_STAT, wanted)?;
    Ok(Glance {
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        ctime: time(st.stx_ctime),
    })
}

/// The number of names of the file as far as this machine knows, without asking the file system.
pub fn known_links(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let st = statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_NLINK)?;
    Ok(st.stx_nlink)
}

fn time(t: libc::statx_timestamp) -> Time {
    Time {
        sec: t.tv_sec,
        nsec: t.tv_nsec,
    }
}

fn statx(fd: BorrowedFd<'_>, sync: i32, wanted: u32) -> io::Result<libc::statx> {
    let mut st = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the empty path ends in zero and `st` has room for the answer.
    done(unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT | sync,
            wanted,
            st.as_mut_ptr(),
        )
    })?;
    // SAFETY: the call filled it, and all of it was zeroed before.
    Ok(unsafe { st.assume_init() })
}

fn stat_as(fd: BorrowedFd<'_>, sync: i32) -> io::Result<Stat> {
    let st = statx(fd, sync, libc::STATX_BASIC_STATS | libc::STATX_BTIME)?;
    Ok(Stat {
        dev: libc::makedev(st.stx_dev_major, st.stx_dev_minor),
        ino: st.stx_ino,
        mode: st.stx_mode.into(),
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        rdev: libc::makedev(st.stx_rdev_major, st.stx_rdev_minor),
        size: st.stx_size,
        blocks: st.stx_blocks,
        blksize: st.stx_blksize,
        atime: time(st.stx_atime),
        mtime: time(st.stx_mtime),
        ctime: time(st.stx_ctime),
        btime: (st.stx_mask & libc::STATX_BTIME != 0).then(|| time(st.stx_btime)),
    })
}

fn fstatfs(fd: BorrowedFd<'_>) -> io::Result<libc::statfs> {
    let mut st = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `st` has room for the answer.
    done(unsafe { libc::fstatfs(fd.as_raw_fd(), st.as_mut_ptr()) })?;
    // SAFETY: the call filled it.
    Ok(unsafe { st.assume_init() })
}

/// The magic number of the file system that `fd` is on.
pub fn fs_kind(fd: BorrowedFd<'_>) -> io::Result<i64> {
    Ok(fstatfs(fd)?.f_type)
}

pub fn statfs(fd: BorrowedFd<'_>) -> io::Result<StatFs> {
    let st = fstatfs(fd)?;
    Ok(StatFs {
        blocks: st.f_blocks,
        bfree: st.f_bfree,
        bavail: st.f_bavail,
        files: st.f_files,
        ffree: st.f_ffree,
        bsize: st.f_bsize as u32,
        namelen: st.f_namelen as u32,
        frsize: st.f_frsize as u32,
    })
}

pub fn mkdir(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: the name ends in zero.
    done(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) })
}

pub fn mknod(dir: BorrowedFd<'_>, name: &CStr, mode: u32, rdev: u64) -> io::Result<()> {
    // SAFETY: the name ends in zero.
    done(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, rdev) })
}

pub fn symlink(target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: both strings end in zero.
    done(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) })
}

/// Gives the file that `fd` stands for another name.
pub fn link(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let path = ProcPath::new(fd);
    // SAFETY: both strings end in zero.
    done(unsafe {
        libc::linkat(
            libc::AT_FDCWD,
            path.as_ptr(),
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::AT_SYMLINK_FOLLOW,
        )
    })
}

/// `flags` is 0 or `AT_REMOVEDIR`.
pub fn unlink(dir: BorrowedFd<'_>, name: &CStr, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the name ends in zero.
    done(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) })
}

pub fn rename(
    from: BorrowedFd<'_>,
    name: &CStr,
    to: BorrowedFd<'_>,
    newname: &CStr,
    flags: u32,
) -> io::Result<()> {
    // SAFETY: both names end in zero.
    done(unsafe {
        libc::renameat2(
            from.as_raw_fd(),
            name.as_ptr(),
            to.as_raw_fd(),
            newname.as_ptr(),
            flags,
        )
    })
}

/// The target of the symbolic link that `fd` stands for.
pub fn readlink(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut buf = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the empty path ends in zero; the pointer and length describe `buf`.
    let n = length(unsafe {
        libc::readlinkat(
            fd.as_raw_fd(),
            c"".as_ptr(),
            buf.as_mut_ptr().cast(),
            buf.len(),
        )
    })?;
    buf.truncate(n);
    Ok(buf)
}

/// The path that the kernel shows for `fd`. It may be out of date as soon as it is read.
pub fn path_of(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let path = ProcPath::new(fd);
    let mut buf = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the path ends in zero; the pointer and length describe `buf`.
    let n = length(unsafe { libc::readlink(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) })?;
    buf.truncate(n);
    Ok(buf)
}

pub fn chmod(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let path = ProcPath::new(fd);
    // SAFETY: the path ends in zero.
    done(unsafe { libc::chmod(path.as_ptr(), mode & 0o7777) })
}

/// `None` leaves the user or group as it is.
pub fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    // SAFETY: the empty path ends in zero.
    done(unsafe {
        libc::fchownat(
            fd.as_raw_fd(),
            c"".as_ptr(),
            uid.unwrap_or(u32::MAX),
            gid.unwrap_or(u32::MAX),
            libc::AT_EMPTY_PATH,
        )
    })
}

/// Sets the times. `times` is the access time, then the modification time.
pub fn utimens(fd: BorrowedFd<'_>, times: [libc::timespec; 2]) -> io::Result<()> {
    let path = ProcPath::new(fd);
    // SAFETY: the path ends in zero and `times` is the pair the call reads.
    done(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0) })
}

/// Asks the backing whether the thread's file system identity has the rights in `mask`.
pub fn access(fd: BorrowedFd<'_>, mask: i32) -> io::Result<()> {
    // SAFETY: the empty path ends in zero. This is the bare call: the library's own uses the real ids.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_raw_fd(),
            c"".as_ptr(),
            mask,
            libc::AT_EMPTY_PATH | libc::AT_EACCESS,
        )
    };
    done(rc as libc::c_int)
}

pub fn getxattr(fd: BorrowedFd<'_>, name: &CStr, buf: &mut [u8]) -> io::Result<usize> {
    let path = ProcPath::new(fd);
    // SAFETY: both strings end in zero; the pointer and length describe `buf`.
    length(unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            buf.as_mut_ptr().cast(),
            buf.len(),
        )
    })
}

pub fn listxattr(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    #[cfg(test)]
    LISTED.set(LISTED.get() + 1);
    let path = ProcPath::new(fd);
    // SAFETY: the path ends in zero; the pointer and length describe `buf`.
    length(unsafe { libc::listxattr(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) })
}

#[cfg(test)]
thread_local! {
    /// How often this thread has listed attributes: the tests check what an open costs.
    pub static LISTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

pub fn setxattr(
    fd: BorrowedFd<'_>,
    name: &CStr,
    value: &[u8],
    flags: libc::c_int,
) -> io::Result<()> {
    let path = ProcPath::new(fd);
    // SAFETY: both strings end in zero; the pointer and length describe `value`.
    done(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    })
}

pub fn removexattr(fd: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    let path = ProcPath::new(fd);
    // SAFETY: both strings end in zero.
    done(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })
}

/// Fills `buf` with raw directory entries and returns their length; 0 at the end.
pub fn getdents(fd: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length describe `buf`.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            fd.as_raw_fd(),
            buf.as_mut_ptr(),
            buf.len(),
        )
    };
    length(rc as isize)
}

pub fn lseek(fd: BorrowedFd<'_>, offset: i64, whence: libc::c_int) -> io::Result<u64> {
    // SAFETY: plain numbers.
    let rc = unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) };
    u64::try_from(rc).map_err(|_| io::Error::last_os_error())
}

const HANDLE_MAX: usize = 128;

#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    data: [u8; HANDLE_MAX],
}

/// The handle's type and bytes, or an error where the backing has no handles.
pub fn name_to_handle(fd: BorrowedFd<'_>) -> io::Result<(i32, Vec<u8>)> {
    let mut handle = FileHandle {
        bytes: HANDLE_MAX as u32,
        kind: 0,
        data: [0; HANDLE_MAX],
    };
    let mut mount = 0i32;
    // SAFETY: the empty path ends in zero; `handle` says how much room it has.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            c"".as_ptr(),
            &mut handle,
            &mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    done(rc as libc::c_int)?;
    let len = (handle.bytes as usize).min(HANDLE_MAX);
    Ok((handle.kind, handle.data[..len].to_vec()))
}

/// Opens a file by its handle. `mount` is any open file of the file system. Needs CAP_DAC_READ_SEARCH.
pub fn open_handle(
    mount: BorrowedFd<'_>,
    kind: i32,
    bytes: &[u8],
    flags: libc::c_int,
) -> io::Result<OwnedFd> {
    if bytes.len() > HANDLE_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut handle = FileHandle {
        bytes: bytes.len() as u32,
        kind,
        data: [0; HANDLE_MAX],
    };
    handle.data[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: `handle` says how many of its bytes count, and holds that many.
    owned(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &handle,
            flags | libc::O_CLOEXEC,
        )
    })
}

#[cfg(test)]
mod tests;
