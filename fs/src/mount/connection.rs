//! Ends a FUSE connection from outside: from then on the kernel answers every request with an error, and the
//! daemon's event loops end.
//!
//! # Why
//! A mount that is gone from the daemon's mount namespace lives on while another namespace has a copy of it,
//! which any user can arrange. The kernel ends the session only with the last copy. After the connection has
//! been aborted nothing more is acknowledged, so the store can be closed.
//!
//! # Permissions
//! The kernel lets the mount's user and root write to `abort` in fusectl. Where fusectl is not mounted, root
//! makes an instance of it that no namespace sees; other users must end the process that serves the
//! connection, which has the same effect.

use nix::errno::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const FUSECTL: &str = "/sys/fs/fuse/connections";

/// Aborts the connection of the FUSE file system with this device number.
pub fn abort_connection(device: u64) -> io::Result<()> {
    let name = format!("{}/abort", libc::minor(device));
    let file = match File::options()
        .write(true)
        .open(format!("{FUSECTL}/{name}"))
    {
        Err(e) if e.kind() == io::ErrorKind::NotFound => open_unmounted(&name)?,
        other => other?,
    };
    (&file).write_all(b"1")
}

/// Opens a file of a fusectl instance that is mounted nowhere.
fn open_unmounted(name: &str) -> io::Result<File> {
    let name = CString::new(name)?;
    let context = open_context(c"fusectl")?;
    create(context.as_fd())?;
    let root = mount_context(context.as_fd())?;
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: the name ends in zero and outlives the call; the descriptor is open.
    let fd = unsafe { libc::openat(root.as_raw_fd(), name.as_ptr(), flags) };
    let fd = Errno::result(fd)?;
    // SAFETY: the call has just made this descriptor, and nothing else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// `fsopen(2)`.
fn open_context(kind: &CStr) -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_uint = 1;
    // SAFETY: the name ends in zero and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })
}

/// `fsconfig(2)` with `FSCONFIG_CMD_CREATE`.
fn create(context: BorrowedFd<'_>) -> io::Result<()> {
    const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes no key and no value; the descriptor is open.
    let rc = unsafe {
        let fd = context.as_raw_fd();
        libc::syscall(libc::SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, none, none, 0)
    };
    Errno::result(rc)?;
    Ok(())
}

/// `fsmount(2)`: a mount that is attached to no tree and ends when its descriptor is closed.
fn mount_context(context: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const FSMOUNT_CLOEXEC: libc::c_uint = 1;
    // SAFETY: numbers and an open descriptor only.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) })
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = Errno::result(fd)? as i32;
    // SAFETY: the caller's call has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_not_there_is_an_error() {
        // Device numbers of anonymous file systems start at 1 and have 20 bits.
        assert!(abort_connection(libc::makedev(0, (1 << 20) - 1)).is_err());
    }
}
