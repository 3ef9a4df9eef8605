//! Takes the identity of another user for calls on the backing, one thread at a time.
//!
//! The daemon usually is root. Every operation that the backing may refuse runs with the file system identity
//! of the caller (or, for the drain, of the file's owner), so that permissions, quotas, reserved blocks and
//! root squash hold without being reimplemented here. Four things make up that identity. All four are per
//! thread in the kernel, whatever the C library says about processes:
//!
//! - fsuid and fsgid (`setfsuid`, `setfsgid`);
//! - the supplementary groups (the bare system call: the library's `setgroups` changes all threads);
//! - the effective capabilities. Changing fsuid drops only those about files; CAP_SYS_RESOURCE (quotas,
//!   reserved blocks) and CAP_SYS_ADMIN (trusted attributes) would stay, so all are dropped that the guard
//!   was not asked to keep;
//! - the umask, by giving the thread its own `fs_struct` once.
//!
//! A new thread inherits the identity of the thread that starts it, so none is started while a guard is held.
//!
//! A thread that cannot get back to its own identity must not serve another caller: the process is aborted.

use crate::types::Caller;
use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// CAP_FSETID: writes do not clear setuid and setgid bits.
pub const CAP_FSETID: u64 = 1 << 4;
/// CAP_DAC_READ_SEARCH: opening files by handle, and reading every file.
pub const CAP_DAC_READ_SEARCH: u64 = 1 << 2;

/// CAP_SYS_ADMIN: registering a passthrough file.
pub const CAP_SYS_ADMIN: u64 = 1 << 21;

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// The identity to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creds {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Creds {
    /// The caller with its current supplementary groups. Reads /proc only if they will be used.
    pub fn of(caller: &Caller) -> Self {
        let needed = caller.uid != 0 && daemon().switches;
        Self {
            uid: caller.uid,
            gid: caller.gid,
            groups: if needed { groups_of(caller) } else { vec![] },
        }
    }

    /// A file's owner, without supplementary groups: a drain needs none.
    pub fn owner(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: vec![],
        }
    }

    pub fn enter(&self) -> io::Result<Guard> {
        self.enter_keeping(0)
    }

    /// Like `enter`, but leaves the capabilities in `keep` in force.
    pub fn enter_keeping(&self, keep: u64) -> io::Result<Guard> {
        let daemon = daemon();
        debug_assert!(is_own(), "identities do not nest: the inner one ends both");
        HELD.set(true);
        let mut guard = Guard {
            undo: Undo::Nothing,
            _not_send: PhantomData,
        };
        if !daemon.switches {
            return Ok(guard);
        }
        if self.uid == 0 {
            // Root stays root, but files that it creates belong to its own group.
            if self.gid != daemon.gid {
                guard.undo = Undo::Group;
                set_fsgid(self.gid)?;
            }
            return Ok(guard);
        }
        guard.undo = Undo::All;
        set_groups(&self.groups)?;
        set_fsgid(self.gid)?;
        set_fsuid(self.uid)?;
        set_effective(daemon.effective & keep)?;
        Ok(guard)
    }

    /// Like `enter_keeping`, for an identity that the kernel will also use for other callers: root's loses
    /// CAP_FSETID, so that every caller's write clears setuid and setgid bits.
    pub fn enter_limited_to(&self, keep: u64) -> io::Result<Guard> {
        let mut guard = self.enter_keeping(keep)?;
        if daemon().switches && self.uid == 0 {
            guard.undo = Undo::All;
            set_effective(daemon().effective & !CAP_FSETID)?;
        }
        Ok(guard)
    }
}

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// True if no guard is held on this thread.
pub fn is_own() -> bool {
    !HELD.get()
}

/// Restores the thread's own identity when it is dropped.
#[must_use]
pub struct Guard {
    undo: Undo,
    /// The identity belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

enum Undo {
    Nothing,
    Group,
    All,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let daemon = daemon();
        let back = match self.undo {
            Undo::Nothing => Ok(()),
            Undo::Group => set_fsgid(daemon.gid),
            // Going back to one's own ids takes no capability; changing groups does.
            Undo::All => set_fsuid(0)
                .and_then(|()| set_fsgid(daemon.gid))
                .and_then(|()| set_effective(daemon.effective))
                .and_then(|()| set_groups(&daemon.groups)),
        };
        if let Err(error) = back {
            tracing::error!(%error, "a thread could not take its own identity back");
            std::process::abort();
        }
        HELD.set(false);
    }
}

/// The daemon's own identity, read once.
struct Daemon {
    /// The daemon runs as root: it can take other identities, and must.
    switches: bool,
    gid: u32,
    groups: Vec<u32>,
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

fn daemon() -> &'static Daemon {
    static DAEMON: OnceLock<Daemon> = OnceLock::new();
    DAEMON.get_or_init(|| {
        let groups = nix::unistd::getgroups().unwrap_or_default();
        let (effective, permitted, inheritable) = get_caps().unwrap_or_default();
        Daemon {
            switches: nix::unistd::geteuid().is_root(),
            gid: nix::unistd::getegid().as_raw(),
            groups: groups.into_iter().map(|g| g.as_raw()).collect(),
            effective,
            permitted,
            inheritable,
        }
    })
}

/// True when the daemon acts as its callers.
pub fn switches() -> bool {
    daemon().switches
}

/// The supplementary groups of the requesting process. Empty if the process is gone, or if its number belongs
/// to another process by now (whose identity does not match the request's).
fn groups_of(caller: &Caller) -> Vec<u32> {
    if caller.pid == 0 {
        return vec![];
    }
    std::fs::read_to_string(format!("/proc/{}/status", caller.pid))
        .ok()
        .and_then(|status| parse_groups(&status, caller))
        .unwrap_or_default()
}

fn parse_groups(status: &str, caller: &Caller) -> Option<Vec<u32>> {
    let field = |key: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .map(|rest| rest.split_ascii_whitespace())
    };
    // The fields are the real, effective, saved and file system id; the kernel sends the last with each request.
    let fsuid: u32 = field("Uid:")?.nth(3)?.parse().ok()?;
    let fsgid: u32 = field("Gid:")?.nth(3)?.parse().ok()?;
    if (fsuid, fsgid) != (caller.uid, caller.gid) {
        return None;
    }
    field("Groups:")?.map(|g| g.parse().ok()).collect()
}

fn set_fsuid(uid: u32) -> io::Result<()> {
    // SAFETY: takes and returns plain numbers.
    let now = unsafe {
        libc::setfsuid(uid);
        // `setfsuid` reports no errors; called with an impossible id it returns the one in force.
        libc::setfsuid(u32::MAX)
    };
    if now as u32 == uid {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

fn set_fsgid(gid: u32) -> io::Result<()> {
    // SAFETY: as in `set_fsuid`.
    let now = unsafe {
        libc::setfsgid(gid);
        libc::setfsgid(u32::MAX)
    };
    if now as u32 == gid {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }
}

fn set_groups(groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and the count describe `groups`, which outlives the call.
    let rc = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    check(rc)
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn get_caps() -> io::Result<(u64, u64, u64)> {
    let mut header = CapHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 reads a header and fills two data words, which is what is given.
    let rc = unsafe { libc::syscall(libc::SYS_capget, &mut header, data.as_mut_ptr()) };
    check(rc)?;
    let join = |f: fn(&CapData) -> u32| u64::from(f(&data[0])) | u64::from(f(&data[1])) << 32;
    Ok((
        join(|d| d.effective),
        join(|d| d.permitted),
        join(|d| d.inheritable),
    ))
}

/// Leaves the calling thread with this capability and no other.
pub fn keep_only(capability: u64) -> io::Result<()> {
    set_caps(capability, capability, 0)
}

fn set_effective(effective: u64) -> io::Result<()> {
    let daemon = daemon();
    set_caps(effective, daemon.permitted, daemon.inheritable)
}

fn set_caps(effective: u64, permitted: u64, inheritable: u64) -> io::Result<()> {
    let header = CapHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let word = |shift: u32| CapData {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: (inheritable >> shift) as u32,
    };
    let data = [word(0), word(32)];
    // SAFETY: as in `get_caps`; the kernel only reads both.
    let rc = unsafe { libc::syscall(libc::SYS_capset, &header, data.as_ptr()) };
    check(rc)
}

fn check(rc: libc::c_long) -> io::Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Runs `create` with the caller's umask, so that the backing applies it as it does for its own callers (that
/// is, not at all where there is a default ACL). `create` gets the mode to pass.
///
/// In a container that does not allow threads to have their own umask, the mask is applied to `mode` instead.
pub fn with_umask<T>(umask: u32, mode: u32, create: impl FnOnce(u32) -> T) -> T {
    thread_local! {
        static OWN_UMASK: bool = {
            // SAFETY: takes a flag; gives this thread its own umask, root and working directory.
            let own = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
            if !own {
                // SAFETY: takes and returns a number. All modes are explicit from here on.
                unsafe { libc::umask(0) };
            }
            own
        };
    }
    if OWN_UMASK.with(|own| *own) {
        let _back = Umask::set(umask & 0o777);
        create(mode)
    } else {
        create(mode & !(umask & 0o777))
    }
}

/// Restores the thread's previous umask when it is dropped: the next task on the thread may create
/// files of the daemon itself.
struct Umask(libc::mode_t);

impl Umask {
    fn set(umask: u32) -> Self {
        // SAFETY: takes and returns a number; this thread's umask is its own.
        Self(unsafe { libc::umask(umask as libc::mode_t) })
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::umask(self.0) };
    }
}

#[cfg(test)]
mod tests;
