//! Waits for a mount to answer, and removes a mount however the program that made it ended.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Returns whether a file system is mounted exactly at `dir`. Reads the kernel's mount table,
/// because a dead mount cannot answer itself.
pub fn is_mounted(dir: &Path) -> io::Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mounts")?;
    Ok(table
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .any(|at| Path::new(at) == dir))
}

/// Waits until `dir` is a mount point; fails after `limit`.
pub fn wait_mounted(dir: &Path, limit: Duration) -> io::Result<()> {
    let start = Instant::now();
    while !is_mounted(dir)? {
        if start.elapsed() > limit {
            let text = format!("{} was not mounted after {limit:?}", dir.display());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Unmounts `dir` with the means that the caller is allowed to use: `umount` as root, otherwise
/// fusermount3.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let mut command = if nix::unistd::geteuid().is_root() {
        let mut umount = Command::new("umount");
        if lazy {
            umount.arg("--lazy");
        }
        umount
    } else {
        let mut fusermount = Command::new("fusermount3");
        fusermount.arg(if lazy { "-uz" } else { "-u" });
        fusermount
    };
    let output = command.arg(dir).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_string();
    Err(io::Error::other(format!(
        "cannot unmount {}: {reason}",
        dir.display()
    )))
}
