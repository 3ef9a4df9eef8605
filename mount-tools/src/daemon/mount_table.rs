//! Notices in the mount table that another program has unmounted the daemon's mount.
//!
//! The end of the session shows that too, but not while another mount namespace has a copy of the mount. The
//! kernel wakes the thread that polls the table when the table changes; nothing here accesses a mount itself.

use super::lifecycle::Lifecycle;
use crate::exit_codes::{Failure, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

pub fn watch(lifecycle: Arc<Lifecycle>) -> Result<()> {
    let failed = |e| Failure::failed(format!("the mount table cannot be watched: {e}"));
    // The table is opened before the first check: a change after the check wakes the first poll.
    let table = File::open("/proc/self/mountinfo").map_err(failed)?;
    std::thread::Builder::new()
        .name("forebay-mounts".into())
        .spawn(move || {
            while lifecycle.notice_unmount() {
                let mut fds = [PollFd::new(table.as_fd(), PollFlags::POLLPRI)];
                match poll(&mut fds, PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the mount table is not watched any more");
                        return;
                    }
                }
            }
        })
        .map(drop)
        .map_err(failed)
}
