//! Whether the caller of a request that waits has been interrupted or killed.
//!
//! The kernel says so with a request that the transport refuses, and then keeps even a killed
//! process waiting for the answer. So the thread's signals are looked at in `/proc`. "Interrupted"
//! is only said when the kernel will deliver a signal to that very thread on its way out: it turns
//! the answer into a restart of the call, and without a signal the bare number of that restart
//! would reach the program.
//!
//! A signal of the thread's own is one. A signal for the process as a whole goes to one thread of the
//! kernel's choice, which does not show. It is the first thread if that can take it. Otherwise the chosen
//! thread takes it at once, unless it cannot run; so a signal that stays is the asker's, or that of
//! another thread that is stuck, and then nothing is said until that one has it.
//!
//! A signal that ends the process ends this thread too, whichever thread takes it. The kernel makes most of
//! these SIGKILL of each thread when they are sent, but not those that write a core file (SIGQUIT, SIGXCPU),
//! nor one that comes while the thread has another signal pending. So "ends the process" is read from the
//! thread's handlers ([`Signals::fatal`]), and not from SIGKILL alone.

use std::io;
use std::path::PathBuf;

pub struct Asker {
    tid: u32,
    /// Pending for the whole process when last looked at.
    seen: u64,
}

/// Of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Signals {
    process: u32,
    threads: u32,
    /// Neither runs nor could a signal wake it.
    stuck: bool,
    /// Pending, as bits.
    own: u64,
    shared: u64,
    blocked: u64,
    ignored: u64,
    caught: u64,
}

/// What these do by default ends no process: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG and WINCH.
const HARMLESS: u64 = (0x7f << (libc::SIGCHLD - 1)) | (1 << (libc::SIGWINCH - 1));

impl Signals {
    /// Pending signals that end the process, whichever of its threads takes them.
    fn fatal(&self) -> u64 {
        (self.own | self.shared) & !(self.blocked | self.ignored | self.caught | HARMLESS)
    }
}

impl Asker {
    /// `tid` as the kernel sent it: a thread's number, 0 if it cannot be seen from here.
    pub fn new(tid: u32) -> Self {
        Self { tid, seen: 0 }
    }

    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// A signal waits for the thread, or it is gone. False where nothing can be known.
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

    /// The kernel ends the thread as soon as its request is answered. False where nothing can be known; so for
    /// a thread that is gone: it does not wait, and another one of its process may want the answer.
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

/// Another thread of the process could take one of `signals` but for being stuck.
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

/// `None` when there is no such thread.
fn read(status: PathBuf) -> io::Result<Option<Signals>> {
    // The kernel cuts a program's name after 15 bytes, also within a character.
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
