//! The FUSE interface: translates requests into `ops` and back, and decides nothing itself.
//!
//! The kernel never caches data (direct I/O), and keeps attributes and names no longer than the
//! call, so every request reaches the model and all mount points agree.

mod convert;
mod transfer;

use crate::ops::{Handle, NewAttrs, Pfs};
use crate::tree::ROOT;
use crate::virtual_files;
use convert::{
    TTL, attr, direct, errno, kind, send_empty, send_entry, send_xattr, time, virtual_attr,
};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Requests that the kernel may have under way for asynchronous I/O.
const BACKGROUND: u16 = 1024;

/// One mount point of the simulated file system.
pub struct Adapter {
    pub pfs: Arc<Pfs>,
    pub mount: usize,
    pub max_request: u32,
    /// Whether files can be mapped shared.
    pub maps: bool,
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if let Err(nearest) = config.set_max_write(self.max_request) {
            eprintln!("pfs-sim: requests are at most {nearest} bytes here");
        }
        if let Err(nearest) = config.set_max_background(BACKGROUND) {
            eprintln!("pfs-sim: at most {nearest} asynchronous requests here");
        }
        for flag in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            if flag == InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP && !self.maps {
                continue;
            }
            if config.add_capabilities(flag).is_err() {
                eprintln!("pfs-sim: the kernel has no {flag:?}");
            }
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.pfs.unmounted(self.mount);
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = if virtual_files::is_virtual(parent.0) {
            let name = name.to_str();
            name.and_then(|name| self.pfs.virtual_lookup(parent.0, name))
        } else if parent.0 == ROOT && name == virtual_files::NAME {
            Some(virtual_files::root())
        } else {
            return send_entry(reply, self.pfs.lookup(self.mount, parent.0, name));
        };
        match found.and_then(virtual_attr) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if !virtual_files::is_virtual(ino.0) {
            self.pfs.forget(self.mount, ino.0, nlookup);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let found = match virtual_attr(ino.0) {
            Some(attr) => Ok(attr),
            None => self.pfs.known_node(ino.0).map(|node| attr(&node)),
        };
        match found {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(attr) = virtual_attr(ino.0) {
            return reply.attr(&TTL, &attr);
        }
        let node = match self.pfs.node(ino.0) {
            Ok(node) => node,
            Err(e) => return reply.error(errno(e)),
        };
        let new = NewAttrs {
            mode,
            uid,
            gid,
            atime: atime.map(time),
            mtime: mtime.map(time).or(size.map(|_| SystemTime::now())),
        };
        match size {
            Some(size) => self.set_size(self.caller(req), &node, fh, size, new, reply),
            None => {
                self.pfs.set_attrs(&node, &new);
                reply.attr(&TTL, &attr(&node));
            }
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        use std::os::unix::ffi::OsStrExt;
        match self.pfs.link_target(ino.0) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let caller = self.caller(req);
        let made = self.pfs.create_node(caller, parent.0, name, mode, rdev);
        send_entry(reply, made);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let mode = libc::S_IFDIR | mode & 0o7777;
        let caller = self.caller(req);
        let made = self.pfs.create_node(caller, parent.0, name, mode, 0);
        send_entry(reply, made);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        send_empty(reply, self.pfs.unlink(parent.0, name, false));
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        send_empty(reply, self.pfs.unlink(parent.0, name, true));
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let caller = self.caller(req);
        send_entry(reply, self.pfs.symlink(caller, parent.0, name, target));
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name), (newparent.0, newname));
        send_empty(reply, self.pfs.rename(from, to, flags.bits()));
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let made = self.pfs.link(self.mount, ino.0, newparent.0, newname);
        send_entry(reply, made);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let caller = self.caller(req);
        let mode = libc::S_IFREG | mode & 0o7777;
        let made = self.pfs.create_node(caller, parent.0, name, mode, 0);
        let opened = made.and_then(|node| match self.pfs.open(caller, node.ino, flags) {
            Ok(fh) => Ok((attr(&node), FileHandle(fh))),
            Err(e) => {
                // The file stays, as on Linux' own file systems, which also find out only after
                // making it that it cannot be opened like this. But the kernel is not told of the
                // node, so its lookup is taken back.
                self.pfs.forget(self.mount, node.ino, 1);
                Err(e)
            }
        });
        match opened {
            // Another mount created the file first. ESTALE makes the kernel look the name up again
            // and open the existing file with all its checks.
            Err(crate::Errno::EEXIST) if flags & libc::O_EXCL == 0 => reply.error(Errno::ESTALE),
            Ok((attr, fh)) => reply.created(&TTL, &attr, Generation(0), fh, direct()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.pfs.open(self.caller(req), ino.0, flags.0) {
            Ok(fh) => reply.opened(FileHandle(fh), direct()),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        send_empty(reply, self.pfs.release(fh.0));
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_from(fh.0, offset, u64::from(size), reply);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Pages that are written back from a mapping have an offset even if the file is open for
        // appending.
        let mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        self.write_to(fh.0, offset, data, flags.0, mapped, reply);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        send_empty(reply, self.pfs.flush(fh.0));
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match self.pfs.open_file(fh.0) {
            Ok(open) => {
                let cluster = &self.pfs.cluster;
                cluster.sync(&open.file, |result| send_empty(reply, result));
            }
            Err(_) => reply.ok(),
        }
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match self.pfs.handle(fh.0).as_deref() {
            Ok(Handle::File { node, open }) => {
                node.attrs.lock().changed();
                let cluster = &self.pfs.cluster;
                cluster.fallocate(open, mode, offset, length, |r| send_empty(reply, r));
            }
            _ => reply.error(Errno::EBADF),
        }
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.pfs.seek(fh.0, offset, whence);
        match found {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(errno(e)),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.pfs.directory(ino.0, offset) {
            Ok(entries) => entries,
            Err(e) => return reply.error(errno(e)),
        };
        for (ino, place, mode, name) in entries {
            if reply.add(INodeNo(ino), place, kind(mode), name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let space = self.pfs.space();
        let (blocks, free) = (space.capacity / 4096, space.free / 4096);
        let (files, unit) = (1 << 32, 4096);
        reply.statfs(
            blocks,
            free,
            free,
            files,
            files - space.files,
            unit,
            255,
            unit,
        );
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        send_empty(reply, self.pfs.set_xattr(ino.0, name, value, flags));
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        send_xattr(reply, size, self.pfs.get_xattr(ino.0, name));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        send_xattr(reply, size, self.pfs.list_xattrs(ino.0));
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        send_empty(reply, self.pfs.remove_xattr(ino.0, name));
    }

    /// Refuses all ioctls, including Lustre's layout calls: FUSE passes on only the eight bytes
    /// that the call's number encodes, not the structure behind them. The attribute `lustre.lov`
    /// does the same.
    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
