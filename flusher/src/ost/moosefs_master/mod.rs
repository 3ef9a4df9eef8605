//! Uses a MooseFS client mount without MooseFS' library: lists the chunkservers, pins an empty file
//! to one of them by a storage class, and finds out where its chunks are.
//!
//! # Why not its command-line tools
//!
//! They use the same few packets as this module, but a daemon must not start them. A child closes
//! its copies of the daemon's files before it becomes the tool. Closing a file on a mount whose
//! chunkserver is away waits for that chunkserver, and no signal ends the wait: one dead target
//! would hold up the placement of files on all others. The tools also want a path, and the path of
//! the backing leads into the overlay when that is mounted over it. Here a file is an open
//! descriptor, and no answer is waited for longer than the limit. (A client process that hangs
//! altogether is another matter: every call into its mount waits, including those made here.)
//!
//! # Which server answers
//!
//! Questions about classes and chunks go to the client mount's own proxy, whose address the mount
//! shows in `.masterinfo`; it passes the question on in the mount's session, with that session's
//! rights. The list of chunkservers comes from the master itself, at the address in the mount
//! table. Both are reached over the network of this process, which must be that of the client.
//!
//! A wrong packet makes the master cut the *mount's* connection, so packets are sent only to
//! master versions whose format is known.

mod mount;
pub mod wire;

#[cfg(test)]
mod tests;

pub(super) use mount::FUSE_SUPER_MAGIC;
pub use wire::{Chunk, ChunkCopy, CopyState, Target};

use mount::MasterInfo;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};
use wire::{Class, Malformed, Status};

/// Questions are small and the proxy is on this machine: if it takes longer, a server is away.
const LIMIT: Duration = Duration::from_secs(10);
/// The proxy's own limit on the length of an answer.
const LONGEST: u32 = 4_000_000;
/// In these versions classes have names and `.masterinfo` has a version; the next major
/// version may use other packets.
const VERSIONS: std::ops::Range<Version> = Version(3, 0, 75)..Version(4, 0, 0);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u8, pub u8);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {source}")]
    Io {
        what: &'static str,
        source: io::Error,
    },
    #[error(
        "the MooseFS {who} at {address} does not answer ({source}): check that the client mount \
         works and that this process is in the same network"
    )]
    Unreachable {
        who: &'static str,
        address: String,
        source: io::Error,
    },
    #[error("the MooseFS master is version {0}, and only {min} up to {max} is known: name the \
             OSTs as directories instead", min = VERSIONS.start, max = VERSIONS.end)]
    UnknownVersion(Version),
    #[error(
        "the MooseFS mount's .masterinfo is not reachable from this directory: use a \
             directory of a full client mount, not a bind mount of a part"
    )]
    NoMasterInfo,
    #[error("MooseFS labels are the letters A to Z, and '{0}' is none")]
    BadLabel(char),
    #[error(
        "MooseFS does not let this client create storage classes: add 'admin' to its line in \
         mfsexports.cfg, or create the class once: mfsscadmin MOUNT create -m s -K {label} {class}"
    )]
    NotAdmin { class: String, label: char },
    #[error(
        "the MooseFS storage class {class} exists and does not pin to label {label}: rename it \
         (mfsscadmin MOUNT rename {class} OTHER) and try again"
    )]
    ClassDiffers { class: String, label: char },
    #[error("only an empty regular file can be pinned, and this is none")]
    NotEmpty,
    #[error(
        "MooseFS does not let user {uid} give a file the storage class {class}: take \
         'disable=setsclass' and 'mingoal' out of this client's line in mfsexports.cfg, or open the \
         class to everybody: mfsscadmin MOUNT modify -a 0 {class}"
    )]
    NotPermitted { uid: u32, class: String },
    #[error("the MooseFS master refused to {what}: {status}")]
    Refused { what: &'static str, status: Status },
    #[error("the MooseFS master's answer is not understood: {0}")]
    Malformed(#[from] Malformed),
}

type Result<T> = std::result::Result<T, Error>;

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what, source }
}

/// A class that pins files to one label. Made by [`Master::ensure_class`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassName(String);

impl ClassName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A MooseFS, reached through one of its client mounts.
#[derive(Debug)]
pub struct Master {
    /// The mount's root, held open so that nothing mounted over it later is in the way.
    root: OwnedFd,
    /// `HOST:PORT` of the master.
    service: String,
    limit: Duration,
}

impl Master {
    /// `None` when `dir` is not on a MooseFS client mount.
    pub fn find(dir: impl AsFd) -> Result<Option<Master>> {
        let dir = dir.as_fd();
        if !mount::is_fuse(dir)? {
            return Ok(None);
        }
        let device = mount::device(dir)?;
        let table = std::fs::read_to_string("/proc/self/mountinfo")
            .map_err(io_error("cannot read /proc/self/mountinfo"))?;
        let Some(service) = mount::service(&table, device) else {
            return Ok(None);
        };
        let root = mount::root(dir)?.ok_or(Error::NoMasterInfo)?;
        Ok(Some(Master {
            root,
            service,
            limit: LIMIT,
        }))
    }

    /// How long a question may take altogether.
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Lists the chunkservers that the master knows, by address, including those that are away:
    /// their labels are then unknown.
    pub fn targets(&self) -> Result<Vec<Target>> {
        self.proxy_info()?;
        let mut line = Line::open("master", &self.service, self.limit)?;
        let answer = line.ask(wire::CSERV_LIST, &[])?;
        let mut targets = wire::targets(&answer)?;
        targets.sort_by_key(|target| target.address);
        Ok(targets)
    }

    /// Returns the class that keeps one copy on chunkservers with `label` and nowhere else, not
    /// even when they are full. Makes it if it is missing; several nodes may do so at the same
    /// time.
    pub fn ensure_class(&self, label: char) -> Result<ClassName> {
        let wanted = Class::pinned_to(label).ok_or(Error::BadLabel(label))?;
        let name = format!("forebay-on-{label}");
        let mut line = self.proxy()?;
        if !line.has_class(&name, &wanted, label)? {
            let query = wire::class_create(&name, &wanted);
            let answer = line.ask_numbered(wire::SCLASS_CREATE, &query)?;
            match wire::status(&answer)? {
                Status::OK => {}
                Status::CLASS_EXISTS => {
                    if !line.has_class(&name, &wanted, label)? {
                        return Err(Error::ClassDiffers { class: name, label });
                    }
                }
                Status::NOT_ADMIN => return Err(Error::NotAdmin { class: name, label }),
                status => {
                    let what = "create a storage class";
                    return Err(Error::Refused { what, status });
                }
            }
        }
        Ok(ClassName(name))
    }

    /// Binds an empty file to the class, with the rights of the file's owner. Bytes that are
    /// written afterwards go where the class says.
    pub fn pin(&self, file: &File, class: &ClassName) -> Result<()> {
        let meta = file.metadata().map_err(io_error("cannot stat the file"))?;
        if !meta.is_file() || meta.len() != 0 {
            return Err(Error::NotEmpty);
        }
        let (inode, uid) = (inode(&meta)?, meta.uid());
        let query = wire::set_class(inode, uid, class.as_str());
        let answer = self.proxy()?.ask_numbered(wire::FUSE_SETSCLASS, &query)?;
        match wire::class_set(&answer)? {
            Ok(true) => Ok(()),
            Ok(false) | Err(Status::EPERM | Status::EACCES) => Err(Error::NotPermitted {
                uid,
                class: class.0.clone(),
            }),
            Err(status) => Err(Error::Refused {
                what: "set a file's storage class",
                status,
            }),
        }
    }

    /// Returns where the file's 64 MiB chunks are, without those that have no data.
    pub fn chunks(&self, file: &File) -> Result<Vec<Chunk>> {
        let meta = file.metadata().map_err(io_error("cannot stat the file"))?;
        let inode = inode(&meta)?;
        let what = "tell a file's chunks";
        let refused = |status| Error::Refused { what, status };
        let mut line = self.proxy()?;
        let answer = line.ask_numbered(wire::FUSE_CHECK, &wire::check(inode, None))?;
        let count = wire::chunk_count(&answer)?.map_err(refused)?;
        let mut chunks = Vec::new();
        for index in 0..count {
            let query = wire::check(inode, Some(index));
            let answer = line.ask_numbered(wire::FUSE_CHECK, &query)?;
            chunks.extend(wire::chunk(&answer, index)?.map_err(refused)?);
        }
        Ok(chunks)
    }

    /// Reads the information anew each time: a client that was mounted again has another proxy.
    fn proxy_info(&self) -> Result<MasterInfo> {
        let info = mount::master_info(self.root.as_fd())?.ok_or(Error::NoMasterInfo)?;
        if VERSIONS.contains(&info.version) {
            Ok(info)
        } else {
            Err(Error::UnknownVersion(info.version))
        }
    }

    fn proxy(&self) -> Result<Line> {
        let info = self.proxy_info()?;
        let mut line = Line::open("client's proxy", &info.address.to_string(), self.limit)?;
        let answer = line.ask(wire::FUSE_REGISTER, &wire::register(info.session))?;
        match wire::status(&answer)? {
            Status::OK => Ok(line),
            status => Err(Error::Refused {
                what: "know this mount's session",
                status,
            }),
        }
    }
}

fn inode(meta: &std::fs::Metadata) -> Result<u32> {
    let inode = u32::try_from(meta.ino());
    inode.map_err(|_| Malformed("an inode number beyond 32 bits").into())
}

/// A connection for one question or a few, all within one limit.
struct Line {
    who: &'static str,
    address: String,
    stream: TcpStream,
    until: Instant,
}

impl Line {
    fn open(who: &'static str, address: &str, limit: Duration) -> Result<Line> {
        let until = Instant::now() + limit;
        let unreachable = |source| Error::Unreachable {
            who,
            address: address.to_owned(),
            source,
        };
        let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(unreachable)?.collect();
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for candidate in addresses {
            match TcpStream::connect_timeout(&candidate, left(until).map_err(unreachable)?) {
                Ok(stream) => {
                    return Ok(Line {
                        who,
                        address: address.to_owned(),
                        stream,
                        until,
                    });
                }
                Err(e) => last = e,
            }
        }
        Err(unreachable(last))
    }

    fn ask(&mut self, kind: wire::Kind, body: &[u8]) -> Result<Vec<u8>> {
        let answered = self.exchange(kind, body);
        answered.map_err(|source| Error::Unreachable {
            who: self.who,
            address: self.address.clone(),
            source,
        })?
    }

    /// Questions that the proxy passes on carry a number, which the answer repeats.
    fn ask_numbered(&mut self, kind: wire::Kind, body: &[u8]) -> Result<Vec<u8>> {
        const NUMBER: [u8; 4] = [0; 4];
        let mut answer = self.ask(kind, &[&NUMBER, body].concat())?;
        if answer.get(..4) != Some(&NUMBER[..]) {
            return Err(Malformed("the answer to another question").into());
        }
        Ok(answer.split_off(4))
    }

    /// The outer error is that of the connection.
    fn exchange(&mut self, kind: wire::Kind, body: &[u8]) -> io::Result<Result<Vec<u8>>> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        self.stream.write_all(&wire::packet(kind, body))?;
        let mut header = [0; 8];
        self.read(&mut header)?;
        let (got, len) = wire::header(&header);
        if got != kind.answer() || len > LONGEST {
            return Ok(Err(Malformed("an answer of another kind").into()));
        }
        let mut answer = vec![0; len as usize];
        self.read(&mut answer)?;
        Ok(Ok(answer))
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            self.stream.set_read_timeout(Some(left(self.until)?))?;
            match self.stream.read(&mut buf[done..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Returns whether the class exists; an error if it differs from `wanted`.
    fn has_class(&mut self, name: &str, wanted: &Class, label: char) -> Result<bool> {
        let answer = self.ask_numbered(wire::SCLASS_LIST, &wire::class_list())?;
        match wire::classes(&answer)?.remove(name) {
            None => Ok(false),
            Some(found) if found.places_like(wanted) => Ok(true),
            Some(_) => Err(Error::ClassDiffers {
                class: name.to_owned(),
                label,
            }),
        }
    }
}

/// Returns the time that is left. It is never zero: zero would mean "for ever" to a socket.
fn left(until: Instant) -> io::Result<Duration> {
    match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}
