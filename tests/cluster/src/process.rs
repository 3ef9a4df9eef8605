//! Identifies processes reliably.
//!
//! A process number alone is not reliable: when a command uses it minutes later and in another
//! program, it may belong to another process. So the state file also records the start time, and
//! signals are sent through a pidfd that is opened first and checked afterwards. Nothing here ever
//! signals a process by its number.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl Process {
    pub fn of(pid: i32) -> io::Result<Process> {
        let (_, started) = stat(pid)?;
        Ok(Process { pid, started })
    }

    /// A zombie counts as not alive: it no longer holds a namespace or a file.
    pub fn is_alive(&self) -> bool {
        matches!(stat(self.pid), Ok((state, started))
            if started == self.started && !matches!(state, 'Z' | 'X'))
    }

    /// Opens a handle of the process; `None` if it has ended.
    pub fn open(&self) -> io::Result<Option<Handle>> {
        // SAFETY: the call takes two numbers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) } as i32;
        if fd < 0 {
            return match Errno::last() {
                Errno::ESRCH => Ok(None),
                errno => Err(errno.into()),
            };
        }
        // SAFETY: the descriptor is new, so this is its only owner.
        let handle = Handle(unsafe { OwnedFd::from_raw_fd(fd) });
        // Checked after opening: before that, the number could still have gone to another process.
        Ok(self.is_alive().then_some(handle))
    }

    /// Sends the signal and waits until the process is gone. Succeeds if it is gone already.
    pub fn end(&self, signal: Signal, limit: Duration) -> io::Result<()> {
        let Some(handle) = self.open()? else {
            return Ok(());
        };
        handle.signal(signal)?;
        if handle.wait(limit)? {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("process {} does not end after {signal}", self.pid),
        ))
    }
}

/// An open descriptor (pidfd) of a process. It means that process even after its number is reused.
pub struct Handle(OwnedFd);

impl Handle {
    /// Sends a signal. Succeeds if the process has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        // SAFETY: the arguments are an open descriptor, a signal number, no details and no flags.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal as i32,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match (rc, Errno::last()) {
            (0, _) | (_, Errno::ESRCH) => Ok(()),
            (_, errno) => Err(errno.into()),
        }
    }

    /// Waits for the process to end; returns false if it has not ended after `limit`.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        loop {
            match poll(&mut polled, timeout) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the state letter and the start time.
fn stat(pid: i32) -> io::Result<(char, u64)> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat"))?)
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is not as expected")))
}

fn parse_stat(text: &str) -> Option<(char, u64)> {
    // The name is in brackets and may itself contain brackets.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Returns the identity of a process's mount namespace, e.g. `mnt:[4026532200]`.
pub fn namespace_of(pid: i32) -> io::Result<String> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/mnt"))?;
    Ok(link.to_string_lossy().into_owned())
}

/// Returns every process in that mount namespace except the caller.
pub fn inside(namespace: &str) -> io::Result<Vec<Process>> {
    let me = std::process::id() as i32;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<i32>().ok()) else {
            continue;
        };
        // Processes that cannot be read have ended meanwhile or belong to the kernel.
        if pid != me
            && namespace_of(pid).is_ok_and(|ns| ns == namespace)
            && let Ok(process) = Process::of(pid)
            && process.is_alive()
        {
            found.push(process);
        }
    }
    Ok(found)
}

/// Returns whether the process was started with this variable; false if that cannot be read.
pub fn has_variable(pid: i32, name: &str, value: &str) -> bool {
    let want = format!("{name}={value}");
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|env| env.split(|b| *b == 0).any(|var| var == want.as_bytes()))
}

/// Returns an identifier that changes with every boot: process numbers of an earlier boot mean
/// nothing.
pub fn boot() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}
