//! Facts that the kernel tells about another process. Nothing here asks the process itself.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// A process whose end can be waited for by processes other than its parent.
pub struct Watched(OwnedFd);

impl Watched {
    /// Returns `None` for a process that is not known here: it is in another namespace, or gone.
    pub fn new(pid: u32) -> Option<Watched> {
        let pid = Pid::from_raw(pid.try_into().ok()?)?;
        let opened = pidfd_open(pid, PidfdFlags::empty());
        opened.ok().map(Watched)
    }

    /// Waits until the process has ended completely, with its descriptors closed and its locks released.
    /// Returns false if that takes longer than `patience`.
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

/// Whether the process was killed and has not ended, because one of its threads waits for a file system that
/// hangs. Its descriptors are still open, its socket accepts connections, and nothing answers.
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
    // The first thread of the process has ended, or is about to.
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
