//! Making a node's namespaces, and going into them.
//!
//! A node has a mount and a host name of its own, and a network if the cluster has one. Process
//! numbers, users, shared memory and all other files are the machine's. Whoever enters does so
//! between fork and exec: a thread of a program with others may not change its mount namespace.

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

/// All that a command on a node is in.
pub fn of_node(own_network: bool) -> CloneFlags {
    let flags = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS;
    match own_network {
        true => flags | CloneFlags::CLONE_NEWNET,
        false => flags,
    }
}

/// The command will run in these namespaces of the process, in this directory as it is there.
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
    // SAFETY: between fork and exec it makes two system calls with what was prepared before, and
    // turns their numbers into errors; no memory is allocated and no lock is taken.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

/// Becomes a node of this name. What others mount later is seen here, what is mounted here is not
/// seen by others. For a process with one thread.
pub fn become_node(name: &str, own_network: bool) -> io::Result<()> {
    unshare(of_node(own_network))?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)?;
    let_go_of_other_mounts()?;
    nix::unistd::sethostname(name)?;
    Ok(())
}

/// A namespace begins with a copy of every mount there is. Forebay mounts that are nobody's business
/// here would live on in it after they were unmounted where they belong, and their daemons with
/// them.
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
                // Gone by itself meanwhile.
                Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(())
}

/// Spaces and the like are three octal digits there.
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

/// A network namespace and nothing else.
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
