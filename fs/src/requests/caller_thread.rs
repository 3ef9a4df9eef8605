//! Finds out whether the caller of a waiting request has been interrupted or killed.
//!
//! The kernel reports this with an INTERRUPT request, which the FUSE library refuses, and then keeps even a
//! killed process waiting for the answer. So the pending signals of the calling thread are read from `/proc`.
//! The thread counts as interrupted only if the kernel will deliver a signal to that very thread when the
//! request is answered: the kernel then turns the answer (EINTR) into a restart of the call. Without a signal
//! the program would see the bare error number of that restart.
//!
//! A signal that is pending for the thread itself counts. A signal that is pending for the whole process goes
//! to one thread of the kernel's choice, which `/proc` does not show. The kernel chooses the first thread if
//! that can take it. Otherwise the chosen thread takes the signal at once, unless it cannot run. So a process
//! signal that stays pending is either for the calling thread or for another thread that is stuck; in the
//! second case the caller does not count as interrupted until the other thread has taken the signal.
//!
//! A signal that ends the process ends the calling thread too, whichever thread takes it. The kernel turns most of
//! these signals into SIGKILL of each thread when they are sent, but not those that write a core file (SIGQUIT,
//! SIGXCPU), and not a signal that arrives while the thread has another signal pending. So whether a signal ends
//! the process is computed from the thread's signal handlers ([`Signals::fatal`]), and not from SIGKILL alone.

use std::io;
use std::path::PathBuf;

pub struct CallerThread {
    tid: u32,
    /// Signals that were pending for the whole process at the last check.
    seen: u64,
}

/// The signal state of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signals {
    process: u32,
    threads: u32,
    /// The thread does not run, and a signal could not wake it.
    stuck: bool,
    /// Signals pending for this thread alone. This and the following fields are bit masks.
    own: u64,
    shared: u64,
    blocked: u64,
    ignored: u64,
    caught: u64,
}

/// Signals that end no process by default: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG and WINCH.
const HARMLESS: u64 = (0x7f << (libc::SIGCHLD - 1)) | (1 << (libc::SIGWINCH - 1));

impl Signals {
    /// Pending signals that will end the process, whichever of its threads takes them.
    fn fatal(&self) -> u64 {
        (self.own | self.shared) & !(self.blocked | self.ignored | self.caught | HARMLESS)
    }
}

impl CallerThread {
    /// `tid` is the thread number that the kernel sent with the request; 0 if the thread is not visible from here.
    pub fn new(tid: u32) -> Self {
        Self { tid, seen: 0 }
    }

    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// True if a signal is pending for the thread, or if the thread no longer exists. False
    /// where this cannot be known.
    pub fn is_interrupted(&mut self) -> bool {
        if self.tid == 0 {
            return false;
        }
        match read(PathBuf::from(format!("/proc/{}/status", self.tid))) {
            Ok(Some(me)) => {
                let tid = self.tid;
                self.judge(&me, |signals| others_stuck(tid, &me, signals))
            }
            Ok(None) => true,
            Err(error) => {
                tracing::debug!(tid = self.tid, %error, "a waiting thread cannot be looked at");
                false
            }
        }
    }

    /// True if the kernel will end the thread as soon as its request is answered. False where this cannot be
    /// known, and for a thread that no longer exists: that thread does not wait, and another thread of its
    /// process may want the answer.
    pub fn is_killed(&self) -> bool {
        self.tid != 0
            && read(PathBuf::from(format!("/proc/{}/status", self.tid)))
                .is_ok_and(|status| status.is_some_and(|me| me.fatal() != 0))
    }

    fn judge(&mut self, me: &Signals, others_stuck: impl FnOnce(u64) -> bool) -> bool {
        if me.own & !me.blocked != 0 {
            return true;
        }
        let shared = me.shared & !me.blocked;
        let stays = shared & std::mem::replace(&mut self.seen, shared);
        if stays & me.fatal() != 0 {
            return true;
        }
        match me.threads {
            0 | 1 => shared != 0,
            _ => stays != 0 && (me.process == self.tid || !others_stuck(stays)),
        }
    }
}

/// True if another thread of the process could take one of `signals` and has not only because it is stuck.
fn others_stuck(tid: u32, me: &Signals, signals: u64) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", me.process)) else {
        return true;
    };
    threads.flatten().any(|thread| {
        let other = thread.file_name() != *tid.to_string();
        let could = |t: &Signals| t.stuck && signals & !t.blocked != 0;
        other && matches!(read(thread.path().join("status")), Ok(Some(t)) if could(&t))
    })
}

/// `None` if there is no such thread.
fn read(status: PathBuf) -> io::Result<Option<Signals>> {
    // The kernel truncates a program's name to 15 bytes, which may cut a character in two.
    match std::fs::read(status) {
        Ok(text) => parse(&String::from_utf8_lossy(&text))
            .map(Some)
            .ok_or_else(|| {
                io::Error::other("its status does not look like what this kernel should say")
            }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(e),
    }
}

fn parse(status: &str) -> Option<Signals> {
    let mut signals = Signals::default();
    let mut found = 0;
    for line in status.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim();
        let bits = || u64::from_str_radix(value, 16).ok();
        match key {
            "State" => signals.stuck = value.starts_with(['D', 'T', 't']),
            "Tgid" => signals.process = value.parse().ok()?,
            "Threads" => signals.threads = value.parse().ok()?,
            "SigPnd" => signals.own = bits()?,
            "ShdPnd" => signals.shared = bits()?,
            "SigBlk" => signals.blocked = bits()?,
            "SigIgn" => signals.ignored = bits()?,
            "SigCgt" => signals.caught = bits()?,
            _ => continue,
        }
        found += 1;
    }
    (found == 8).then_some(signals)
}

#[cfg(test)]
mod tests;
