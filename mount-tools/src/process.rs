//! What the kernel says of another process. Nothing here asks the process itself.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// A process whose end can be waited for by processes other than its parent.
pub struct Watched(OwnedFd);

impl Watched {
    /// `None` for a process that is not known here: of another namespace, or gone.
    pub fn new(pid: u32) -> Option<Watched> {
        let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
        // SAFETY: numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let fd = Errno::result(fd).ok()? as i32;
        // SAFETY: the call has just made this descriptor, and nothing else owns it.
        Some(Watched(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits until all of the process has ended, its descriptors closed and its locks let go.
    pub fn wait(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, left) {
                Err(Errno::EINTR) => {}
                polled => return polled.is_ok_and(|n| n > 0),
            }
        }
    }
}

/// The process was killed and has not ended: a thread of it waits for a file system that hangs. Its
/// descriptors are still open, its socket takes connections, and nothing answers.
pub fn is_killed(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| says_killed(&text))
}

fn says_killed(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    let pending = |name| {
        let mask = field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
        mask.is_some_and(|mask| mask & SIGKILL != 0)
    };
    // Its first thread has ended, or is on its way to.
    field("State:").is_some_and(|state| state.starts_with(['Z', 'X']))
        || pending("SigPnd:")
        || pending("ShdPnd:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let watched = Watched::new(child.id()).unwrap();
        assert!(!watched.wait(Duration::ZERO));
        child.kill().unwrap();
        assert!(watched.wait(Duration::from_secs(60)));
        child.wait().unwrap();
        assert!(Watched::new(0).is_none());
    }

    #[test]
    fn a_killed_process_is_told_from_one_that_waits() {
        assert!(!is_killed(std::process::id()));
        assert!(!is_killed(0));
        let status = |state: &str, pending: &str| {
            format!(
                "Name:\tforebay\nState:\t{state}\nSigPnd:\t{pending}\nShdPnd:\t0000000000000000\n"
            )
        };
        assert!(says_killed(&status("D (disk sleep)", "0000000000000100")));
        assert!(says_killed(&status("Z (zombie)", "0000000000000000")));
        assert!(!says_killed(&status("D (disk sleep)", "0000000000004000")));
        assert!(!says_killed(""));
    }
}
