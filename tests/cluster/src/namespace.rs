//! Makes a node's namespaces, and enters them.
//!
//! A node has its own mounts and host name, and its own network if the cluster has one. Process
//! numbers, users, shared memory and all other files are the machine's. A namespace is entered
//! between fork and exec, because a process with several threads may not change its mount
//! namespace.

use crate::failure::{Failure, Result};
use crate::process::Process;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The namespaces that a command on a node runs in.
pub fn of_node(own_network: bool) -> CloneFlags {
    let flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS;
    match own_network {
        true => flags | CloneFlags::CLONE_NEWNET,
        false => flags,
    }
}

/// Makes the command run in these namespaces of `process`, in `directory` as it is there.
pub fn enter(
    command: &mut Command,
    process: Process,
    flags: CloneFlags,
    directory: &Path,
) -> Result<()> {
    let gone = || Failure::failed(format!("process {} is gone", process.pid));
    let handle = process
        .open()
        .map_err(|e| Failure::failed(format!("process {}: {e}", process.pid)))?
        .ok_or_else(gone)?;
    let directory = CString::new(directory.as_os_str().as_bytes())
        .map_err(|_| Failure::usage("a directory with a zero byte in its name"))?;
    let enter = move || -> io::Result<()> {
        setns(&handle, flags)?;
        nix::unistd::chdir(directory.as_c_str())?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls with data that was prepared before,
    // and turns their error numbers into errors; it allocates no memory and takes no lock.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

/// Turns this process into a node of this name. Later mounts of the machine are seen here; mounts
/// made here are not seen outside. The process must have one thread.
pub fn become_node(name: &str, own_network: bool) -> io::Result<()> {
    unshare(of_node(own_network))?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    let_go_of_other_mounts()?;
    nix::unistd::sethostname(name)?;
    Ok(())
}

/// Detaches the Forebay mounts that the new namespace inherited. A namespace begins with a copy of
/// every mount; the copies would outlive the unmount of the originals and keep their daemons
/// running.
fn let_go_of_other_mounts() -> io::Result<()> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    for line in mounts.split(|b| *b == b'\n') {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let kind = fields.iter().position(|f| *f == b"-").map(|dash| dash + 1);
        let (Some(at), Some(kind)) = (fields.get(4), kind.and_then(|k| fields.get(k))) else {
            continue;
        };
        if *kind == b"fuse.forebay" {
            match umount2(unescape(at).as_slice(), MntFlags::MNT_DETACH) {
                // It was unmounted meanwhile.
                Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(())
}

/// Decodes the octal escapes (three digits) that mountinfo uses for spaces and the like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *byte == b'\\');
        let code = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                out.push(code);
                rest = &after[3..];
            }
            None => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    out
}

/// Turns this process into the keeper of the bridge's network namespace.
pub fn become_switch() -> io::Result<()> {
    Ok(unshare(CloneFlags::CLONE_NEWNET)?)
}

/// Shows `source` at `target`, in this namespace only.
pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let none = None::<&str>;
    mount(Some(source), target, none, MsFlags::MS_BIND, none).map_err(|e| {
        io::Error::other(format!(
            "{} over {}: {e}",
            source.display(),
            target.display()
        ))
    })
}
