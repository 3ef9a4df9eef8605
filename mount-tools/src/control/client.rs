//! The client side of the control socket.

use super::codec;
use super::location::{self, Found};
use super::protocol::{Reason, Refusal, Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::mountinfo;
use crate::process::{self, Watched};
use flusher::Progress;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, socket, sockopt};
use nix::sys::stat::Mode;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A daemon that sends nothing for this long has died or hangs. A live daemon reports progress more often.
const SILENCE: Duration = Duration::from_secs(60);

/// A daemon that accepts no connection for this long hangs.
const ACCEPT: Duration = Duration::from_secs(5);
/// How often a silent daemon is checked, in milliseconds.
const GLANCE: u16 = 1000;

/// A daemon that has answered ends at once, unless the file system below hangs.
const END: Duration = Duration::from_secs(5);

const KILLED: &str = "its daemon was killed and cannot end while the file system below hangs";

pub struct Client {
    stream: UnixStream,
    /// Process id of the daemon; 0 if it is not known here.
    daemon: u32,
    pub found: Found,
}

impl Client {
    /// Connects to the daemon of the mount at `mount` (a real path).
    pub fn connect(mount: &Path) -> Result<Client> {
        let found = location::find(mount).ok_or_else(|| no_daemon(mount, "no daemon is known"))?;
        Client::of(found)
    }

    pub fn of(found: Found) -> Result<Client> {
        let stream = connect(&found.place.socket).map_err(|e| {
            no_daemon(
                &found.info.mount,
                &format!("its daemon does not answer ({e})"),
            )
        })?;
        let answering =
            getsockopt(&stream, sockopt::PeerCredentials).map_err(|e| lost(io::Error::from(e)))?;
        if answering.uid() != found.owner {
            return Err(no_daemon(&found.info.mount, "another process answers"));
        }
        let daemon = u32::try_from(answering.pid()).unwrap_or(0);
        if process::is_killed(daemon) {
            return Err(no_daemon(&found.info.mount, KILLED));
        }
        stream.set_read_timeout(Some(SILENCE)).map_err(lost)?;
        stream.set_write_timeout(Some(SILENCE)).map_err(lost)?;
        Ok(Client {
            stream,
            daemon,
            found,
        })
    }

    /// Like `ask`, for a request that ends the daemon. The daemon answers when the store is closed, but
    /// releases the index only when its process has ended. So this waits for that too, at most [`END`]; then
    /// the store is free.
    pub fn ask_to_end(self, request: &Request, show: impl FnMut(&Progress)) -> Result<Reply> {
        let daemon = Watched::new(self.daemon);
        let reply = self.ask(request, show)?;
        if daemon.is_some_and(|daemon| !daemon.wait(END)) {
            eprintln!(
                "forebay: the daemon has closed its store and ends when the file system below answers"
            );
        }
        Ok(reply)
    }

    /// Sends `request` and returns the last reply; shows every progress message on the way.
    pub fn ask(mut self, request: &Request, mut show: impl FnMut(&Progress)) -> Result<Reply> {
        codec::send(&mut self.stream, request).map_err(lost)?;
        loop {
            self.await_message()?;
            match codec::receive::<Reply>(&mut self.stream).map_err(lost)? {
                Some(Reply::Progress(progress)) => show(&progress),
                Some(Reply::Refused(refusal)) => return Err(refused(refusal)),
                Some(reply) => return Ok(reply),
                None => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }
}

/// Connects to the socket at `path`. Gives up after [`ACCEPT`] if the daemon accepts no connection, and does
/// not follow a link in the socket's place.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let place = nix::fcntl::open(path, flags, Mode::empty())?;
    let (family, kind) = (AddressFamily::Unix, SockType::Stream);
    let stream = UnixStream::from(socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?);
    stream.set_write_timeout(Some(ACCEPT))?;
    let address = UnixAddr::new(format!("/proc/self/fd/{}", place.as_raw_fd()).as_str())?;
    nix::sys::socket::connect(stream.as_raw_fd(), &address)?;
    Ok(stream)
}

impl Client {
    /// Returns when there is something to read. A daemon that was killed while it waits for a file system
    /// below sends nothing more, though its end of the connection stays open: that is an error.
    fn await_message(&self) -> Result<()> {
        let silent = Instant::now() + SILENCE;
        while Instant::now() < silent {
            let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, GLANCE) {
                Ok(0) if process::is_killed(self.daemon) => {
                    return Err(no_daemon(&self.found.info.mount, KILLED));
                }
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(e) => return Err(lost(e.into())),
            }
        }
        Err(lost(io::ErrorKind::TimedOut.into()))
    }
}

/// Whether the daemon's process has ended, or was killed and cannot end. A daemon that merely does not answer
/// is not gone.
pub fn is_gone(found: &Found) -> bool {
    let pid = match connect(&found.place.socket) {
        // The kernel accepts connections as long as there is a listener.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return true,
        // A program that removes old files may have removed the socket.
        Err(e) if e.kind() == io::ErrorKind::NotFound => found.info.pid,
        Err(_) => return false,
        Ok(stream) => match getsockopt(&stream, sockopt::PeerCredentials) {
            Ok(answering) => u32::try_from(answering.pid()).unwrap_or(0),
            Err(_) => return false,
        },
    };
    process::is_killed(pid) || Watched::new(pid).is_none() && !found.place.socket.exists()
}

fn no_daemon(mount: &Path, what: &str) -> Failure {
    Failure::new(
        Code::NoDaemon,
        format!("{}: {what}; see forebay status", mount.display()),
    )
}

fn lost(error: io::Error) -> Failure {
    Failure::failed(format!("the daemon broke off the conversation: {error}"))
}

/// The error for a reply that does not belong to the request.
pub fn unexpected(reply: &Reply) -> Failure {
    Failure::failed(format!(
        "the daemon answered something else ({reply:?}); is it another version of forebay?"
    ))
}

fn refused(refusal: Refusal) -> Failure {
    let code = match refusal.reason {
        Reason::Denied => Code::Denied,
        Reason::Busy => Code::Busy,
        Reason::StillDirty => Code::StillDirty,
        Reason::Failed => Code::Failed,
    };
    let mut message = crate::output::plain(&refusal.message);
    for line in crate::commands::umount::held_by(&refusal.holders) {
        message.push('\n');
        message.push_str(&line);
    }
    Failure::new(code, message)
}

/// Returns the Forebay mount that `path` is on, and the path relative to it.
pub fn mount_of(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let cannot = |e: io::Error| Failure::failed(format!("cannot look at {}: {e}", path.display()));
    let real = mountinfo::real_point(path).map_err(cannot)?;
    match mountinfo::mount_of(&real).map_err(cannot)? {
        Some(mount) if mount.is_forebay() => {
            let below = real.strip_prefix(&mount.point).unwrap_or(Path::new(""));
            let below = below.to_path_buf();
            Ok((mount.point, below))
        }
        _ => Err(Failure::new(
            Code::NoDaemon,
            format!(
                "{} is not on a Forebay mount; see forebay status",
                path.display()
            ),
        )),
    }
}
