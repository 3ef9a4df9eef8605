//! One method for each FUSE request: unpack, call, reply.

use super::convert::{decode_dev, set_time};
use super::reply::{
    reply_attr, reply_copied, reply_create, reply_empty, reply_entries, reply_entry, reply_link,
    reply_lseek, reply_names, reply_open, reply_opendir, reply_statfs, reply_xattr,
};
use super::{Adapter, caller};
use crate::ops::{Overlay, Registrar};
use crate::types::SetAttr;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.configure(config);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = (caller(req), name.to_owned());
        self.pool(req, move |fs| {
            let found = fs.lookup(&caller, parent.0, &name);
            reply_entry(fs, reply, "lookup", found);
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        if let Some(gone) = self.overlay.forget(ino.0, nlookup) {
            self.housekeeping(move |fs| fs.let_go(gone));
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let serve = move |fs: &Overlay| reply_attr(fs, reply, "getattr", fs.getattr(ino.0));
        self.pool(req, serve);
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
        let caller = caller(req);
        let set = SetAttr {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        self.pool(req, move |fs| {
            let attr = fs.setattr(&caller, ino.0, fh.map(|fh| fh.0), &set);
            reply_attr(fs, reply, "setattr", attr);
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let caller = caller(req);
        let serve = move |fs: &Overlay| reply_link(reply, ino, fs.readlink(&caller, ino.0));
        self.pool(req, serve);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(req), name.to_owned());
        self.pool(req, move |fs| {
            let made = fs.mknod(&caller, parent.0, &name, mode, umask, decode_dev(rdev));
            reply_entry(fs, reply, "mknod", made);
        });
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(req), name.to_owned());
        self.pool(req, move |fs| {
            let made = fs.mkdir(&caller, parent.0, &name, mode, umask);
            reply_entry(fs, reply, "mkdir", made);
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), name.to_owned());
        self.pool(req, move |fs| {
            reply_empty(reply, "unlink", parent, fs.unlink(&caller, parent.0, &name));
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), name.to_owned());
        self.pool(req, move |fs| {
            reply_empty(reply, "rmdir", parent, fs.rmdir(&caller, parent.0, &name));
        });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(req), link_name.to_owned());
        let target = target.as_os_str().as_bytes().to_vec();
        self.pool(req, move |fs| {
            let made = fs.symlink(&caller, parent.0, &name, &target);
            reply_entry(fs, reply, "symlink", made);
        });
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (caller, name, newname) = (caller(req), name.to_owned(), newname.to_owned());
        self.pool(req, move |fs| {
            let done = fs.rename(
                &caller,
                parent.0,
                &name,
                newparent.0,
                &newname,
                flags.bits(),
            );
            reply_empty(reply, "rename", parent, done);
        });
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(req), newname.to_owned());
        self.pool(req, move |fs| {
            let made = fs.link(&caller, ino.0, newparent.0, &name);
            reply_entry(fs, reply, "link", made);
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, passthrough) = (caller(req), self.passthrough);
        self.pool(req, move |fs| {
            let registrar = passthrough.then_some(&reply as &dyn Registrar);
            let opened = fs.open(&caller, ino.0, flags.0, registrar);
            reply_open(reply, ino, opened);
        });
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (caller, name, passthrough) = (caller(req), name.to_owned(), self.passthrough);
        self.pool(req, move |fs| {
            let registrar = passthrough.then_some(&reply as &dyn Registrar);
            let created = fs.create(&caller, parent.0, &name, mode, umask, flags, registrar);
            reply_create(fs, reply, parent, created);
        });
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve_read(req, ino, fh, offset, size as usize, lock_owner, reply);
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.serve_write(req, ino, fh, offset, data, write_flags, flags, reply);
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.serve_flush(req, ino, fh, lock_owner, reply);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.serve_release(ino, fh, reply);
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let serve = move |fs: &Overlay| reply_empty(reply, "fsync", ino, fs.fsync(fh.0, datasync));
        self.pool(req, serve);
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let asked = (fh, lock_owner, (start, end), typ, pid);
        self.serve_getlk(req, ino, asked, reply);
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let asked = (fh, lock_owner, (start, end), typ, pid);
        self.serve_setlk(req, ino, asked, sleep, reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(req);
        let serve = move |fs: &Overlay| reply_opendir(reply, ino, fs.opendir(&caller, ino.0));
        self.pool(req, serve);
    }

    fn readdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let caller = caller(req);
        let serve = move |fs: &Overlay| reply_names(fs, reply, &caller, ino, fh, offset);
        self.pool(req, serve);
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let caller = caller(req);
        let serve = move |fs: &Overlay| reply_entries(fs, reply, &caller, ino, fh, offset);
        self.pool(req, serve);
    }

    fn releasedir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.housekeeping(move |fs| reply_empty(reply, "releasedir", ino, fs.releasedir(fh.0)));
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        let serve =
            move |fs: &Overlay| reply_empty(reply, "fsyncdir", ino, fs.fsyncdir(fh.0, datasync));
        self.pool(req, serve);
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.pool(req, move |fs| reply_statfs(reply, ino, fs.statfs()));
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (caller, name, value) = (caller(req), name.to_owned(), value.to_vec());
        self.pool(req, move |fs| {
            let done = fs.setxattr(&caller, ino.0, &name, &value, flags);
            reply_empty(reply, "setxattr", ino, done);
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (caller, name) = (caller(req), name.to_owned());
        self.pool(req, move |fs| {
            let value = fs.getxattr(&caller, ino.0, &name, size as usize);
            reply_xattr(reply, "getxattr", ino, value);
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(req);
        self.pool(req, move |fs| {
            let names = fs.listxattr(&caller, ino.0, size as usize);
            reply_xattr(reply, "listxattr", ino, names);
        });
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), name.to_owned());
        self.pool(req, move |fs| {
            let done = fs.removexattr(&caller, ino.0, &name);
            reply_empty(reply, "removexattr", ino, done);
        });
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let caller = caller(req);
        self.pool(req, move |fs| {
            reply_empty(reply, "access", ino, fs.access(&caller, ino.0, mask.bits()));
        });
    }

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

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // The kernel takes it that regular files are always ready, and does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let kill = req.uid() != 0;
        self.pool(req, move |fs| {
            let done = fs.fallocate(fh.0, offset, length, mode, kill);
            reply_empty(reply, "fallocate", ino, done);
        });
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let serve = move |fs: &Overlay| reply_lseek(reply, ino, fs.lseek(fh.0, offset, whence));
        self.pool(req, serve);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let kill = req.uid() != 0;
        self.pool(req, move |fs| {
            let copied = fs.copy_file_range(fh_in.0, offset_in, fh_out.0, offset_out, len, kill);
            reply_copied(reply, ino_out, copied);
        });
    }
}
