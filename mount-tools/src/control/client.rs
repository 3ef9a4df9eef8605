//! The asking side.

use super::codec;
use super::location::{self, Found};
use super::protocol::{Reason, Refusal, Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::mountinfo;
use flusher::Progress;
use nix::sys::socket::{getsockopt, sockopt};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A daemon that says nothing for this long has died or hangs. It reports progress more often.
const SILENCE: Duration = Duration::from_secs(60);

pub struct Client {
    stream: UnixStream,
    pub found: Found,
}

impl Client {
    /// The daemon of the mount at `mount` (a real path).
    pub fn connect(mount: &Path) -> Result<Client> {
        let found = location::find(mount).ok_or_else(|| no_daemon(mount, "no daemon is known"))?;
        Client::of(found)
    }

    pub fn of(found: Found) -> Result<Client> {
        let stream = UnixStream::connect(&found.place.socket).map_err(|e| {
            no_daemon(
                &found.info.mount,
                &format!("its daemon does not answer ({e})"),
            )
        })?;
        let answering =
            getsockopt(&stream, sockopt::PeerCredentials).map_err(|e| lost(io::Error::from(e)))?;
        if answering.uid() != found.owner {
            return Err(no_daemon(&found.info.mount, "somebody else answers"));
        }
        stream.set_read_timeout(Some(SILENCE)).map_err(lost)?;
        stream.set_write_timeout(Some(SILENCE)).map_err(lost)?;
        Ok(Client { stream, found })
    }

    /// Sends `request` and returns the last reply; shows every progress message on the way.
    pub fn ask(mut self, request: &Request, mut show: impl FnMut(&Progress)) -> Result<Reply> {
        codec::send(&mut self.stream, request).map_err(lost)?;
        loop {
            match codec::receive::<Reply>(&mut self.stream).map_err(lost)? {
                Some(Reply::Progress(progress)) => show(&progress),
                Some(Reply::Refused(refusal)) => return Err(refused(refusal)),
                Some(reply) => return Ok(reply),
                None => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }
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

/// A reply that belongs to another question.
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

/// The Forebay mount that `path` is on, and the path's place below it.
pub fn mount_of(path: &Path) -> Result<(PathBuf, PathBuf)> {
    let cannot = |e: io::Error| Failure::failed(format!("cannot look at {}: {e}", path.display()));
    let real = mountinfo::real_point(path).map_err(cannot)?;
    match mountinfo::of(&real).map_err(cannot)? {
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
