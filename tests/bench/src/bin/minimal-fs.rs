//! The least that a FUSE file system can do with a write and still read it back: it appends the
//! data to one log file and remembers where. This is the baseline for Forebay's cost of a write.
//!
//! It has what makes FUSE fast (direct I/O, parallel direct writes, one channel per thread, 1 MiB
//! requests) and lacks what a real file system needs: it has one directory, nothing survives a
//! restart, and there are no checksums, no durability and no limits.
//!
//! Files of another directory (`--through`) are handed to the kernel at open and are not seen here
//! again. This measures the cost of passthrough itself, with which Forebay's drained files are
//! compared.

use clap::Parser;
use fuser::{
    BackingId, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL,
    TimeOrNow, WriteFlags,
};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const TTL: Duration = Duration::from_secs(1);
const MAX_WRITE: u32 = 1 << 20;

/// Mount a file system that appends every write to one log file.
///
/// Example: minimal-fs /mnt/minimal --log /var/tmp/minimal.log
#[derive(Parser)]
struct Cli {
    /// Where to mount it
    mountpoint: PathBuf,
    /// The log file; created, or emptied
    #[arg(long)]
    log: PathBuf,
    /// Show the files of this directory too, by kernel passthrough (needs root)
    #[arg(long)]
    through: Option<PathBuf>,
    /// Event loops
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// The places of a file's bytes in the log. Writes only append to `pending`; the next read sorts it
/// into `map`.
#[derive(Default)]
struct Extents {
    /// (file offset, length, log offset), in order of arrival.
    pending: Vec<(u64, u64, u64)>,
    /// Maps a file offset to (length, log offset), without overlaps.
    map: BTreeMap<u64, (u64, u64)>,
}

impl Extents {
    fn settle(&mut self) {
        for (start, len, log) in std::mem::take(&mut self.pending) {
            self.cut(start, start + len);
            self.map.insert(start, (len, log));
        }
    }

    /// Forgets `start..end` and keeps the parts of extents that reach beyond it on either side.
    fn cut(&mut self, start: u64, end: u64) {
        let hit: Vec<(u64, u64, u64)> = self
            .map
            .range(..end)
            .rev()
            .take_while(|(at, (len, _))| **at + len > start)
            .map(|(at, (len, log))| (*at, *len, *log))
            .collect();
        for (at, len, log) in hit {
            self.map.remove(&at);
            if at < start {
                self.map.insert(at, (start - at, log));
            }
            if at + len > end {
                self.map.insert(end, (at + len - end, log + (end - at)));
            }
        }
    }

    /// Returns the pieces of `start..end` that were written, as (file offset, length, log offset).
    fn find(&mut self, start: u64, end: u64) -> Vec<(u64, u64, u64)> {
        self.settle();
        let mut found: Vec<_> = self
            .map
            .range(..end)
            .rev()
            .take_while(|(at, (len, _))| **at + len > start)
            .map(|(at, (len, log))| {
                let (from, to) = ((*at).max(start), (at + len).min(end));
                (from, to - from, log + (from - at))
            })
            .collect();
        found.reverse();
        found
    }
}

struct Node {
    ino: u64,
    size: AtomicU64,
    extents: Mutex<Extents>,
    through: Option<Through>,
}

/// A file of the directory given by `--through`. The kernel takes one registration for each inode.
struct Through {
    file: File,
    registered: Mutex<Option<BackingId>>,
}

#[derive(Default)]
struct Names {
    by_name: HashMap<OsString, Arc<Node>>,
    by_ino: HashMap<u64, Arc<Node>>,
}

struct MinimalFs {
    log: File,
    end: AtomicU64,
    next_ino: AtomicU64,
    names: RwLock<Names>,
    through: Option<PathBuf>,
    owner: (u32, u32),
}

impl MinimalFs {
    fn attr(&self, ino: u64, size: u64) -> FileAttr {
        let directory = ino == INodeNo::ROOT.0;
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if directory {
                FileType::Directory
            } else {
                FileType::RegularFile
            },
            perm: if directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: MAX_WRITE,
            flags: 0,
        }
    }

    fn node(&self, ino: INodeNo) -> Option<Arc<Node>> {
        self.names.read().by_ino.get(&ino.0).cloned()
    }

    fn add(&self, name: &OsStr, size: u64, through: Option<Through>) -> Arc<Node> {
        let node = Arc::new(Node {
            ino: self.next_ino.fetch_add(1, Ordering::Relaxed),
            size: AtomicU64::new(size),
            extents: Mutex::default(),
            through,
        });
        let mut names = self.names.write();
        names.by_name.insert(name.to_owned(), node.clone());
        names.by_ino.insert(node.ino, node.clone());
        node
    }

    fn look_through(&self, name: &OsStr) -> io::Result<Arc<Node>> {
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        let dir = self.through.as_ref().ok_or_else(missing)?;
        let file = File::open(dir.join(name))?;
        let size = file.metadata()?.len();
        let registered = Mutex::default();
        Ok(self.add(name, size, Some(Through { file, registered })))
    }

    fn read_back(&self, node: &Node, start: u64, len: u64) -> io::Result<Vec<u8>> {
        let end = (start + len)
            .min(node.size.load(Ordering::Acquire))
            .max(start);
        let mut buf = vec![0; (end - start) as usize];
        let found = node.extents.lock().find(start, end);
        for (at, len, log) in found {
            let from = (at - start) as usize;
            self.log
                .read_exact_at(&mut buf[from..from + len as usize], log)?;
        }
        Ok(buf)
    }
}

fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl Filesystem for MinimalFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // On failure both calls return what they would accept. A kernel with smaller limits still
        // serves as a baseline.
        if let Err(nearest) = config.set_max_write(MAX_WRITE) {
            eprintln!("minimal-fs: requests are at most {nearest} bytes here");
        }
        if config
            .add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS)
            .is_err()
        {
            eprintln!("minimal-fs: the kernel has no parallel directory operations");
        }
        if self.through.is_some()
            && (config
                .add_capabilities(InitFlags::FUSE_PASSTHROUGH)
                .is_err()
                || config.set_max_stack_depth(1).is_err())
        {
            return Err(io::Error::other("the kernel has no passthrough"));
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let known = self.names.read().by_name.get(name).cloned();
        match known.map_or_else(|| self.look_through(name), Ok) {
            Ok(node) => {
                let attr = self.attr(node.ino, node.size.load(Ordering::Acquire));
                reply.entry(&TTL, &attr, Generation(0));
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if ino == INodeNo::ROOT {
            reply.attr(&TTL, &self.attr(ino.0, 0));
        } else if let Some(node) = self.node(ino) {
            reply.attr(&TTL, &self.attr(ino.0, node.size.load(Ordering::Acquire)));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(node) = self.node(ino) else {
            return reply.error(Errno::ENOENT);
        };
        if let Some(size) = size {
            let mut extents = node.extents.lock();
            extents.settle();
            extents.cut(size, u64::MAX);
            node.size.store(size, Ordering::Release);
        }
        reply.attr(&TTL, &self.attr(ino.0, node.size.load(Ordering::Acquire)));
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let node = self.add(name, 0, None);
        reply.created(
            &TTL,
            &self.attr(node.ino, 0),
            Generation(0),
            FileHandle(0),
            open_flags(),
        );
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let Some(node) = self.node(ino) else {
            return reply.error(Errno::ESTALE);
        };
        let Some(through) = &node.through else {
            return reply.opened(FileHandle(0), open_flags());
        };
        let mut registered = through.registered.lock();
        if registered.is_none() {
            match reply.open_backing(&through.file) {
                Ok(id) => *registered = Some(id),
                Err(error) => return reply.error(error.into()),
            }
        }
        match &*registered {
            Some(id) => reply.opened_passthrough(FileHandle(0), FopenFlags::empty(), id),
            None => reply.error(Errno::EIO),
        }
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let mut names = self.names.write();
        let Some(node) = names.by_name.remove(name) else {
            return reply.error(Errno::ENOENT);
        };
        names.by_ino.remove(&node.ino);
        if names.by_name.is_empty() {
            self.end.store(0, Ordering::Release);
            if let Err(error) = self.log.set_len(0) {
                return reply.error(error.into());
            }
        }
        reply.ok();
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(node) = self.node(ino) else {
            return reply.error(Errno::ESTALE);
        };
        let len = data.len() as u64;
        let at = self.end.fetch_add(len, Ordering::AcqRel);
        if let Err(error) = self.log.write_all_at(data, at) {
            return reply.error(error.into());
        }
        node.extents.lock().pending.push((offset, len, at));
        node.size.fetch_max(offset + len, Ordering::AcqRel);
        reply.written(len as u32);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(node) = self.node(ino) else {
            return reply.error(Errno::ESTALE);
        };
        match self.read_back(&node, offset, u64::from(size)) {
            Ok(buf) => reply.data(&buf),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match self.log.sync_data() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = self.names.read();
        let own = [(INodeNo::ROOT.0, FileType::Directory, OsStr::new("."))];
        let files = names
            .by_name
            .iter()
            .map(|(name, node)| (node.ino, FileType::RegularFile, name.as_os_str()));
        for (i, (ino, kind, name)) in own
            .into_iter()
            .chain(files)
            .enumerate()
            .skip(offset as usize)
        {
            if reply.add(INodeNo(ino), i as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

fn run(cli: &Cli) -> io::Result<()> {
    let log = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&cli.log)?;
    let fs = MinimalFs {
        log,
        end: AtomicU64::new(0),
        next_ino: AtomicU64::new(INodeNo::ROOT.0 + 1),
        names: RwLock::default(),
        through: cli.through.clone(),
        owner: (
            nix::unistd::geteuid().as_raw(),
            nix::unistd::getegid().as_raw(),
        ),
    };
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("minimal-fs".into()),
        MountOption::DefaultPermissions,
        MountOption::NoSuid,
        MountOption::NoDev,
    ];
    config.acl = SessionACL::Owner;
    config.n_threads = Some(cli.threads);
    config.clone_fd = true;
    fuser::mount(fs, &cli.mountpoint, &config)
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("minimal-fs: {}: {error}", cli.mountpoint.display());
            ExitCode::FAILURE
        }
    }
}
