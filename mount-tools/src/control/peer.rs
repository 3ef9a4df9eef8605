//! The process on the other end of the socket, and what it may do.
//!
//! | peer | may |
//! |---|---|
//! | any user | ping; status, with other users' files counted and not named |
//! | a process that has opened a file for reading | have it read into the store |
//! | a file's owner | drain and explain that file, and see its layout |
//! | any user | see what is known of the storage targets |
//! | root, the daemon's user | everything: all files by name, whole-mount drains, unmounting, measuring targets anew, taking over the store |

use nix::sys::socket::{getsockopt, sockopt};
use std::io;
use std::os::unix::net::UnixStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub pid: i32,
    /// The user the daemon runs as.
    daemon: u32,
}

impl Peer {
    pub fn of(stream: &UnixStream) -> io::Result<Peer> {
        let credentials = getsockopt(stream, sockopt::PeerCredentials)?;
        let daemon = nix::unistd::geteuid().as_raw();
        Ok(Peer::new(credentials.uid(), credentials.pid(), daemon))
    }

    pub fn new(uid: u32, pid: i32, daemon: u32) -> Peer {
        Peer { uid, pid, daemon }
    }

    pub fn is_privileged(&self) -> bool {
        self.uid == 0 || self.uid == self.daemon
    }

    /// Whether the peer may see and drain a file of `owner`.
    pub fn may_touch(&self, owner: u32) -> bool {
        self.is_privileged() || self.uid == owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_daemons_user_and_the_owner() {
        let peer = |uid, daemon| Peer::new(uid, 1, daemon);
        assert!(peer(0, 5).is_privileged());
        assert!(peer(5, 5).is_privileged());
        assert!(!peer(6, 5).is_privileged());
        assert!(peer(6, 0).may_touch(6));
        assert!(!peer(6, 0).may_touch(7));
        assert!(!peer(6, 0).may_touch(0));
    }

    #[test]
    fn the_kernel_says_who_it_is() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = Peer::of(&a).unwrap();
        assert_eq!(peer.uid, nix::unistd::geteuid().as_raw());
        assert_eq!(peer.pid, std::process::id() as i32);
        assert!(peer.is_privileged());
    }
}
