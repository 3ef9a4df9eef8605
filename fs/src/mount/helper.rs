//! `fusermount3`, the setuid helper that mounts for ordinary users.

use super::MountOptions;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const HELPER: &str = "fusermount3";

/// Mounts through the helper, and receives the device from it.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs_fd = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    command
        .args(["-o", &option_string(options), "--"])
        .arg(mountpoint)
        .env("_FUSE_COMMFD", theirs_fd.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: between fork and exec only fcntl is called, on a descriptor that is open there.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(theirs_fd, libc::F_SETFD, 0) == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = command.spawn().map_err(missing)?;
    drop(theirs);
    let device = receive(&ours);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(failed(&output));
    }
    device
}

/// Runs the helper to unmount, and returns its exit status and output.
pub fn unmount(mountpoint: &Path, lazy: bool) -> io::Result<Output> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    command
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output()
        .map_err(missing)
}

pub fn failed(output: &Output) -> io::Error {
    let said = String::from_utf8_lossy(&output.stderr);
    io::Error::other(format!("{HELPER}: {}", said.trim()))
}

fn missing(e: io::Error) -> io::Error {
    let hint = "ordinary users need it to mount; install the package fuse3";
    io::Error::new(e.kind(), format!("{HELPER}: {e}; {hint}"))
}

fn option_string(options: &MountOptions) -> String {
    let mut list = vec![
        // A comma would start another option.
        format!("fsname={}", options.fsname.replace([',', '\\'], "_")),
        "subtype=forebay".into(),
        "default_permissions".into(),
        if options.read_only { "ro" } else { "rw" }.into(),
        "nosuid".into(),
        "nodev".into(),
    ];
    if options.allow_other {
        list.push("allow_other".into());
    }
    list.join(",")
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
            Err(nix::errno::Errno::EINTR) => {}
            other => break other?,
        }
    };
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = control
            && let Some(fd) = fds.first()
        {
            // SAFETY: the kernel has just installed this descriptor for us, and nothing else owns it.
            return Ok(unsafe { OwnedFd::from_raw_fd(*fd) });
        }
    }
    Err(io::Error::other(format!(
        "{HELPER} sent no descriptor of the FUSE device"
    )))
}
