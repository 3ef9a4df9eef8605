//! One method for each FUSE request: it unpacks the arguments and names the operation. [`super::reply`] packs the
//! answers.

use super::convert::{decode_dev, lock_request, set_time};
use super::{Adapter, caller, reply};
use crate::errno::FsError;
use crate::ops::{Registrar, WriteMode};
use crate::requests::Op;
use crate::types::{SetAttr, Written};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

thread_local! {
    /// The read buffer of each event loop, so that a read does not allocate.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.configure(config);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = (caller(req), name.to_owned());
        self.call(Op::Lookup, req, parent)
            .run(reply, move |fs, _| fs.lookup(&caller, parent.0, &name));
    }

    fn forget(&self, req: &Request, ino: INodeNo, nlookup: u64) {
        let call = self.call(Op::Forget, req, ino);
        let gone = self.overlay().forget(ino.0, nlookup);
        call.answer((), Ok(()));
        if let Some(gone) = gone {
            self.requests.background(move |fs| fs.let_go(gone));
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.call(Op::Getattr, req, ino)
            .run(reply, move |fs, _| fs.getattr(ino.0));
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
        self.call(Op::Setattr, req, ino).run(reply, move |fs, _| {
            fs.setattr(&caller, ino.0, fh.map(|fh| fh.0), &set)
        });
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        let caller = caller(req);
        self.call(Op::Readlink, req, ino)
            .run(reply, move |fs, _| fs.readlink(&caller, ino.0));
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
        self.call(Op::Mknod, req, parent).run(reply, move |fs, _| {
            fs.mknod(&caller, parent.0, &name, mode, umask, decode_dev(rdev))
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
        self.call(Op::Mkdir, req, parent).run(reply, move |fs, _| {
            fs.mkdir(&caller, parent.0, &name, mode, umask)
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), name.to_owned());
        self.call(Op::Unlink, req, parent)
            .run(reply, move |fs, _| fs.unlink(&caller, parent.0, &name));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), name.to_owned());
        self.call(Op::Rmdir, req, parent)
            .run(reply, move |fs, _| fs.rmdir(&caller, parent.0, &name));
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
        self.call(Op::Symlink, req, parent)
            .run(reply, move |fs, _| {
                fs.symlink(&caller, parent.0, &name, &target)
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
        let (to, flags) = (newparent.0, flags.bits());
        self.call(Op::Rename, req, parent).run(reply, move |fs, _| {
            fs.rename(&caller, parent.0, &name, to, &newname, flags)
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
        self.call(Op::Link, req, ino).run(reply, move |fs, _| {
            fs.link(&caller, ino.0, newparent.0, &name)
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (caller, passthrough) = (caller(req), self.passthrough);
        self.call(Op::Open, req, ino).run(reply, move |fs, reply| {
            let registrar = passthrough.then_some(&*reply as &dyn Registrar);
            fs.open(&caller, ino.0, flags.0, registrar)
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
        self.call(Op::Create, req, parent)
            .run(reply, move |fs, reply| {
                let registrar = passthrough.then_some(&*reply as &dyn Registrar);
                fs.create(&caller, parent.0, &name, mode, umask, flags, registrar)
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
        let call = self.call(Op::Read, req, ino).over(offset, size.into());
        let (size, for_mapping) = (size as usize, lock_owner.is_none());
        let reply = BUFFER.with_borrow_mut(|buffer| {
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let buffer = &mut buffer[..size];
            call.at_once(reply, |fs| {
                fs.read_at_once(fh.0, offset, buffer, for_mapping)
            })
        });
        let Some(reply) = reply else { return };
        call.run(reply, move |fs, _| fs.read_to_vec(fh.0, offset, size));
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
        let call = self.call(Op::Write, req, ino);
        let call = call.over(offset, data.len() as u64);
        let mode = WriteMode {
            kill_setid: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
            durable: flags.0 & libc::O_DSYNC != 0,
            // Pages of mappings have a fixed offset, whatever the handle was opened for.
            append: flags.0 & libc::O_APPEND != 0
                && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
        };
        let left = call.at_once(reply, |fs| fs.write_at_once(fh.0, offset, data, mode));
        let Some(reply) = left else { return };
        let data = data.to_vec();
        call.run(reply, move |fs, _| {
            fs.write_in_mode(fh.0, offset, &data, mode)
        });
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let call = self.call(Op::Flush, req, ino);
        let left = call.at_once(reply, |fs| fs.flush_at_once(fh.0, lock_owner.0));
        let Some(reply) = left else { return };
        call.run(reply, move |fs, _| fs.flush(fh.0, lock_owner.0));
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
        // The kernel does not say which process closed the file last, so the release counts in the share of the user
        // who opened it. That it has arrived is noted at once, however busy the slots are.
        let opener = self.overlay().opener(fh.0);
        let call = self.requests.begin(Op::Release, ino.0, opener);
        self.overlay().release_begins(fh.0);
        call.run(reply, move |fs, _| fs.release(fh.0));
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.call(Op::Fsync, req, ino)
            .run(reply, move |fs, _| fs.fsync(fh.0, datasync));
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
        let call = self
            .call(Op::Getlk, req, ino)
            .over(start, end.saturating_sub(start));
        match lock_request(caller(req), fh, lock_owner, (start, end), typ, pid) {
            Ok(ask) => call.run_in_steps(reply, move |fs, _| fs.find_lock(ask)),
            Err(e) => call.answer(reply, Err(e)),
        }
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
        let call = self
            .call(Op::Setlk, req, ino)
            .over(start, end.saturating_sub(start));
        match lock_request(caller(req), fh, lock_owner, (start, end), typ, pid) {
            Ok(ask) => call.run_in_steps(reply, move |fs, _| fs.lock(ask, sleep)),
            Err(e) => call.answer(reply, Err(e)),
        }
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(req);
        self.call(Op::Opendir, req, ino)
            .run(reply, move |fs, _| fs.opendir(&caller, ino.0));
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
        self.call(Op::Readdir, req, ino)
            .run(reply, move |fs, reply| {
                fs.readdir(&caller, fh.0, offset, &mut |entry| {
                    reply::add_name(reply, entry)
                })
            });
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
        self.call(Op::Readdirplus, req, ino)
            .run(reply, move |fs, reply| {
                fs.readdirplus(&caller, fh.0, offset, &mut |entry, found| {
                    reply::add_entry(reply, fs, entry, found)
                })
            });
    }

    fn releasedir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        // The kernel does not say who closed it.
        let call = self.requests.begin(Op::Releasedir, ino.0, None);
        call.run(reply, move |fs, _| fs.releasedir(fh.0));
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.call(Op::Fsyncdir, req, ino)
            .run(reply, move |fs, _| fs.fsyncdir(fh.0, datasync));
    }

    fn statfs(&self, req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.call(Op::Statfs, req, ino)
            .run(reply, |fs, _| fs.statfs());
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
        self.call(Op::Setxattr, req, ino).run(reply, move |fs, _| {
            fs.setxattr(&caller, ino.0, &name, &value, flags)
        });
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (caller, name) = (caller(req), name.to_owned());
        self.call(Op::Getxattr, req, ino).run(reply, move |fs, _| {
            fs.getxattr(&caller, ino.0, &name, size as usize)
        });
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(req);
        self.call(Op::Listxattr, req, ino).run(reply, move |fs, _| {
            fs.listxattr(&caller, ino.0, size as usize)
        });
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(req), name.to_owned());
        self.call(Op::Removexattr, req, ino)
            .run(reply, move |fs, _| fs.removexattr(&caller, ino.0, &name));
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let caller = caller(req);
        self.call(Op::Access, req, ino)
            .run(reply, move |fs, _| fs.access(&caller, ino.0, mask.bits()));
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let none = io::Error::from_raw_os_error(libc::ENOTTY);
        self.call(Op::Ioctl, req, ino)
            .answer(reply, Err(FsError::Io(none)));
    }

    fn poll(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        // The kernel then assumes that regular files are always ready, and does not ask again.
        let none = io::Error::from_raw_os_error(libc::ENOSYS);
        self.call(Op::Poll, req, ino)
            .answer(reply, Err(FsError::Io(none)));
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
        let call = self.call(Op::Fallocate, req, ino).over(offset, length);
        call.run(reply, move |fs, _| {
            fs.fallocate(fh.0, offset, length, mode, kill)
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
        let call = self.call(Op::Lseek, req, ino).over(offset as u64, 0);
        call.run(reply, move |fs, _| fs.lseek(fh.0, offset, whence));
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
        let call = self.call(Op::CopyFileRange, req, ino_out);
        call.over(offset_out, len).run(reply, move |fs, _| {
            let copied = fs.copy_file_range(fh_in.0, offset_in, fh_out.0, offset_out, len, kill);
            copied.map(Written)
        });
    }
}
