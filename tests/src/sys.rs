//! System calls that the standard library lacks, as plain functions that return `io::Result`.

use crate::wait::{LONG, wait_until};
use nix::errno::Errno;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path has no NUL")
}

fn check(rc: libc::c_int) -> io::Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Like `umount -l`: takes a mount out of the tree even if it is dead or busy. It is no error if nothing is
/// mounted there.
pub fn detach(mount: &Path) -> io::Result<()> {
    match nix::mount::umount2(mount, nix::mount::MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL) | Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Unmounts like `umount(8)`, without telling the daemon. While another test starts a program, its child
/// holds copies of all descriptors of this process until it runs the program, so "busy" may pass.
pub fn plain_umount(mount: &Path) {
    wait_until("umount works", LONG, || nix::mount::umount(mount).ok());
}

/// Aborts the connection to a FUSE daemon that neither answers nor dies, then detaches.
pub fn force_detach(mount: &Path) -> io::Result<()> {
    match nix::mount::umount2(mount, nix::mount::MntFlags::MNT_FORCE) {
        Ok(()) | Err(Errno::EBUSY) | Err(Errno::EINVAL) | Err(Errno::ENOENT) => detach(mount),
        Err(e) => Err(e.into()),
    }
}

/// Makes the kernel kill the command when the thread that starts it ends, so that a test program that is
/// itself killed leaves no daemon behind.
pub fn die_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec only prctl is called, which is a plain system call.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)));
    }
}

/// Limits the program to `most` open files, and takes away the capability by which root could raise the limit
/// again.
pub fn limit_descriptors(command: &mut std::process::Command, most: u64) {
    use std::os::unix::process::CommandExt;
    const CAP_SYS_RESOURCE: libc::c_ulong = 24;
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: between fork and exec only plain system calls are made, on memory that was copied.
    unsafe {
        command.pre_exec(move || {
            check(libc::setrlimit(libc::RLIMIT_NOFILE, &limit))?;
            check(libc::prctl(
                libc::PR_CAPBSET_DROP,
                CAP_SYS_RESOURCE,
                0,
                0,
                0,
            ))
        });
    }
}

/// Copies a program that is to be executed. Another process does the copy: this process never has the copy
/// open for writing, so no child of another test inherits such a descriptor, and running the copy never fails
/// with ETXTBSY.
pub fn copy_program(from: &Path, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let copied = std::process::Command::new("cp").args([from, to]).status()?;
    if !copied.success() {
        return Err(io::Error::other(format!("cp: {copied}")));
    }
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))
}

/// Gives this thread, and those that it starts from here on, a descriptor table of their own: a process that
/// other threads start then closes no copies of its descriptors. (Each such close is a call to a file
/// system.)
pub fn own_descriptors() -> io::Result<()> {
    // SAFETY: takes flags only; descriptors of other threads stay as they are.
    check(unsafe { libc::unshare(libc::CLONE_FILES) })
}

/// Whether something is mounted exactly at `path`, without asking what is mounted.
pub fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("read mountinfo");
    let want = path.to_str().expect("test paths are plain text");
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(want))
}

pub fn write_all_at(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    let n = file.write_at(data, offset)?;
    if n == data.len() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "short write: {n} of {} bytes",
        data.len()
    )))
}

/// Closes the file and returns the result: the last moment at which a file system can report an error.
pub fn close(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor was the file's own, and nothing uses it after this.
    check(unsafe { libc::close(file.into_raw_fd()) })
}

/// Reads up to `len` bytes at `offset`; fewer only at the end of the file.
pub fn read_at(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut buf[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    buf.truncate(done);
    Ok(buf)
}

/// Appends with `pwritev2` and `RWF_APPEND`, for a file that need not be open with `O_APPEND`.
pub fn append_once(file: &File, bytes: &[u8]) -> io::Result<()> {
    let iov = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the vector points at `bytes`, which the call only reads.
    let written = unsafe { libc::pwritev2(file.as_raw_fd(), &iov, 1, -1, libc::RWF_APPEND) };
    match written {
        -1 => Err(io::Error::last_os_error()),
        n if n as usize == bytes.len() => Ok(()),
        n => Err(io::Error::other(format!("{n} of {} bytes", bytes.len()))),
    }
}

/// Sets or clears `O_APPEND` of an open file.
pub fn set_append(file: &File, append: bool) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let mut flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL)?);
    flags.set(OFlag::O_APPEND, append);
    fcntl(file, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

pub fn fallocate(file: &File, mode: i32, offset: u64, len: u64) -> io::Result<()> {
    // SAFETY: takes a descriptor that lives as long as `file`, and numbers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) })
}

pub const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Finds the next data (or hole) at or after `offset`; `None` for ENXIO.
pub fn seek(file: &File, offset: u64, whence: i32) -> io::Result<Option<u64>> {
    // SAFETY: takes a descriptor that lives as long as `file`, and numbers.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    if at >= 0 {
        return Ok(Some(at as u64));
    }
    let e = io::Error::last_os_error();
    if e.raw_os_error() == Some(libc::ENXIO) {
        return Ok(None);
    }
    Err(e)
}

pub fn copy_range(from: &File, at: u64, to: &File, to_at: u64, len: u64) -> io::Result<u64> {
    let (mut src, mut dst) = (at as i64, to_at as i64);
    let mut left = len;
    while left > 0 {
        // SAFETY: both descriptors and both offsets outlive the call.
        let n = unsafe {
            libc::copy_file_range(
                from.as_raw_fd(),
                &mut src,
                to.as_raw_fd(),
                &mut dst,
                left as usize,
                0,
            )
        };
        match n {
            0 => break,
            n if n > 0 => left -= n as u64,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(len - left)
}

/// Sets both times, in nanoseconds since 1970.
pub fn set_times(path: &Path, atime: i64, mtime: i64) -> io::Result<()> {
    let spec = |t: i64| libc::timespec {
        tv_sec: t.div_euclid(1_000_000_000),
        tv_nsec: t.rem_euclid(1_000_000_000),
    };
    let times = [spec(atime), spec(mtime)];
    let c = c_path(path);
    // SAFETY: the path is NUL-terminated and `times` has the two elements utimensat wants.
    check(unsafe { libc::utimensat(libc::AT_FDCWD, c.as_ptr(), times.as_ptr(), 0) })
}

pub fn mtime(meta: &std::fs::Metadata) -> i64 {
    meta.mtime() * 1_000_000_000 + meta.mtime_nsec()
}

pub fn truncate(path: &Path, size: u64) -> io::Result<()> {
    nix::unistd::truncate(path, size as i64).map_err(Into::into)
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> io::Result<()> {
    let (path, name) = (c_path(path), CString::new(name)?);
    // SAFETY: both strings are NUL-terminated; the value's length is its own.
    check(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            flags,
        )
    })
}

pub fn get_xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c_path(path), CString::new(name)?);
    let mut buf = vec![0u8; 65536];
    // SAFETY: both strings are NUL-terminated; the buffer's length is its own.
    let n = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            buf.as_mut_ptr().cast(),
            buf.len(),
        )
    };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    buf.truncate(n as usize);
    Ok(buf)
}

pub fn list_xattr(path: &Path) -> io::Result<Vec<String>> {
    let path = c_path(path);
    let mut buf = vec![0u8; 65536];
    // SAFETY: the path is NUL-terminated; the buffer's length is its own.
    let n = unsafe { libc::listxattr(path.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(buf[..n as usize]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect())
}

pub fn remove_xattr(path: &Path, name: &str) -> io::Result<()> {
    let (path, name) = (c_path(path), CString::new(name)?);
    // SAFETY: both strings are NUL-terminated.
    check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) })
}

pub fn rename_flags(from: &Path, to: &Path, flags: u32) -> io::Result<()> {
    let (from, to) = (c_path(from), c_path(to));
    // SAFETY: both paths are NUL-terminated.
    check(unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            flags,
        )
    })
}

pub fn mknod(path: &Path, mode: u32, dev: u64) -> io::Result<()> {
    let path = c_path(path);
    // SAFETY: the path is NUL-terminated.
    check(unsafe { libc::mknod(path.as_ptr(), mode, dev) })
}

/// A shared, writable mapping of part of a file.
pub struct Mapping {
    at: std::ptr::NonNull<libc::c_void>,
    len: usize,
}

impl Mapping {
    /// `offset` is a multiple of the page size; the range lies within the file.
    pub fn new(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap};
        let size = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nothing aliases it.
        let at = unsafe { mmap(None, size, prot, MapFlags::MAP_SHARED, file, offset as i64)? };
        Ok(Self { at, len })
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `len` bytes long and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` keeps other users of this mapping out.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), self.len) }
    }

    /// Makes the kernel read the pages. A failure is an error here, and not a signal as for a thread that
    /// accesses them.
    pub fn populate(&self) -> io::Result<()> {
        let (at, advice) = (self.at.as_ptr(), libc::MADV_POPULATE_READ);
        // SAFETY: the range is exactly the mapping.
        check(unsafe { libc::madvise(at, self.len, advice) })
    }

    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is exactly the mapping.
        unsafe { nix::sys::mman::msync(self.at, self.len, nix::sys::mman::MsFlags::MS_SYNC) }
            .map_err(Into::into)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping and no reference to it is left.
        if let Err(e) = unsafe { nix::sys::mman::munmap(self.at, self.len) } {
            eprintln!("munmap: {e}");
        }
    }
}

/// Returns the errno of a failed call; panics if the call succeeded.
pub fn errno<T>(result: io::Result<T>, what: &str) -> i32 {
    match result {
        Ok(_) => panic!("{what} succeeded and should not have"),
        Err(e) => e
            .raw_os_error()
            .unwrap_or_else(|| panic!("{what}: {e} has no errno")),
    }
}
