//! Runs code as another user. On Linux, credentials belong to threads, so a test becomes two users by
//! starting two threads. Commands that are started there inherit the credentials.

use std::io;

/// Two users that no machine has, so that nothing on it belongs to them.
pub const ALICE: u32 = 65001;
pub const BOB: u32 = 65002;
/// A group both may be in.
pub const TEAM: u32 = 65003;

/// Runs `act` as `uid` with the group of the same number and the given further groups.
pub fn as_user<T: Send>(uid: u32, groups: &[u32], act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            become_user(uid, groups).unwrap_or_else(|e| panic!("become user {uid}: {e}"));
            act()
        });
        match thread.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Changes the credentials of this thread. The C library's wrappers would change every thread of the process,
/// hence the raw system calls.
fn become_user(uid: u32, groups: &[u32]) -> io::Result<()> {
    let check = |rc: libc::c_long| {
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: the pointer and the count describe `groups`, which outlives the call.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    // SAFETY: numbers only; changes this thread's credentials.
    check(unsafe { libc::syscall(libc::SYS_setresgid, uid, uid, uid) })?;
    // SAFETY: numbers only; changes this thread's credentials and drops its capabilities.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })?;
    // SAFETY: numbers only. The kernel marks a process whose user changed as not dumpable,
    // which would hide its /proc files from the daemon's view of the caller's groups.
    check(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 1, 0, 0, 0) })
}
