//! Takes locks, and starts processes that hold locks or wait for them.

use crate::sys;
use crate::wait::{LONG, wait_until};
use crate::{Drain, TestMount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Two nodes over one backing, not started. The first has the backing in its own directory and
/// must outlive the second.
pub fn pair() -> (TestMount, TestMount) {
    let mut a = TestMount::new(Drain::Never);
    let mut b = TestMount::new(Drain::Never);
    a.set("node", "one");
    b.set("node", "two").set_backing(a.backing());
    (a, b)
}

pub fn with_pair(test: impl FnOnce(&mut TestMount, &mut TestMount)) {
    let (mut a, mut b) = pair();
    a.start();
    b.start();
    test(&mut a, &mut b);
    b.finish();
    a.finish();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Posix,
    Ofd,
    Flock,
}

impl How {
    pub const ALL: [How; 3] = [How::Posix, How::Ofd, How::Flock];
}

pub fn fcntl(file: &File, command: i32, kind: i32, range: (i64, i64)) -> io::Result<()> {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: range.0,
        l_len: range.1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and `lock` is the structure these commands read.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn flock(file: &File, operation: i32) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Locks the whole file exclusively, without waiting.
pub fn lock(file: &File, how: How) -> io::Result<()> {
    match how {
        How::Posix => fcntl(file, libc::F_SETLK, libc::F_WRLCK, (0, 0)),
        How::Ofd => fcntl(file, libc::F_OFD_SETLK, libc::F_WRLCK, (0, 0)),
        How::Flock => flock(file, libc::LOCK_EX | libc::LOCK_NB),
    }
}

/// Locks the whole file exclusively, as soon as it is free.
pub fn wait_for_lock(file: &File, how: How) -> io::Result<()> {
    match how {
        How::Posix => fcntl(file, libc::F_SETLKW, libc::F_WRLCK, (0, 0)),
        How::Ofd => fcntl(file, libc::F_OFD_SETLKW, libc::F_WRLCK, (0, 0)),
        How::Flock => flock(file, libc::LOCK_EX),
    }
}

pub fn unlock(file: &File, how: How) -> io::Result<()> {
    match how {
        How::Posix => fcntl(file, libc::F_SETLK, libc::F_UNLCK, (0, 0)),
        How::Ofd => fcntl(file, libc::F_OFD_SETLK, libc::F_UNLCK, (0, 0)),
        How::Flock => flock(file, libc::LOCK_UN),
    }
}

/// Returns false if the lock was obtained, and true if another lock excluded it. Any other error fails the
/// test.
pub fn excluded(tried: io::Result<()>) -> bool {
    match tried {
        Ok(()) => false,
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => true,
        Err(e) => panic!("a lock failed in a strange way: {e}"),
    }
}

/// Calls F_GETLK over the whole file.
pub fn get_lock(file: &File, kind: i32) -> Option<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open and `lock` is the structure this command reads and fills.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) };
    assert_eq!(rc, 0, "F_GETLK: {}", io::Error::last_os_error());
    (i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock)
}

/// Number of lock requests that wait in the daemon of this test mount.
pub fn waiters(mount: &TestMount) -> usize {
    let tasks =
        std::fs::read_dir(format!("/proc/{}/task", mount.pid())).expect("the daemon's tasks");
    let name = |task: io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks
        .filter_map(name)
        .filter(|name| name.trim() == "lock-wait")
        .count()
}

const LOCK: &str = "
import fcntl, os, signal, struct, sys, threading, time
# A shell without job control starts programs in the background with SIGQUIT ignored.
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
def say(word): print(word, flush=True)
def lock(fd, how, first, count):
    if how == 'Flock': fcntl.flock(fd, fcntl.LOCK_EX)
    elif how == 'Posix': fcntl.lockf(fd, fcntl.LOCK_EX, count, first)
    else: fcntl.fcntl(fd, 38, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, first, count, 0))
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
";

const HOLD: &str = "
lock(fd, sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
say('got')
sys.stdin.read()
";

/// Two threads wait for the lock. Neither is the first thread, which has SIGXCPU blocked.
const TWO: &str = "
open('/proc/self/comm', 'wb').write(b'w\\xc3')
def wait(): lock(os.open(sys.argv[1], os.O_RDWR), 'Flock', 0, 0)
threads = [threading.Thread(target=wait) for _ in range(2)]
for thread in threads: thread.start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGXCPU])
say('blocked')
for thread in threads: thread.join()
";

const CROSS: &str = "
lock(fd, 'Posix', int(sys.argv[2]), 1)
say('first')
sys.stdin.readline()
lock(fd, 'Posix', int(sys.argv[3]), 1)
say('got')
sys.stdin.read()
";

const HANDLE: &str = "
class Handled(Exception): pass
def handler(number, frame): raise Handled
signal.signal(signal.SIGUSR1, handler)
def beside():
    while True:
        if sys.argv[2] == 'sleeper': time.sleep(60)
if sys.argv[2] != 'alone': threading.Thread(target=beside, daemon=True).start()
try: lock(fd, 'Flock', 0, 0)
except Handled: say('handled'); os._exit(9)
say('got')
";

/// A process that locks a file and says what it has done.
pub struct Worker {
    child: std::cell::RefCell<Child>,
    lines: Receiver<String>,
}

impl Worker {
    fn run(script: &str, args: &[&dyn AsRef<std::ffi::OsStr>]) -> Worker {
        let mut command = Command::new("python3");
        command.args(["-c", &format!("{LOCK}{script}")]);
        command.args(args.iter().map(|arg| arg.as_ref()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        sys::die_with_parent(&mut command);
        let mut child = command
            .spawn()
            .expect("python3 is missing; install it: apt-get install python3");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .all(|line| tell.send(line).is_ok())
        });
        Worker {
            child: child.into(),
            lines,
        }
    }

    /// Waits for a lock over (first byte, number of bytes), and holds it until it is told to end.
    pub fn start(path: &Path, how: How, (first, count): (u64, u64)) -> Worker {
        let (how, first, count) = (format!("{how:?}"), first.to_string(), count.to_string());
        Worker::run(HOLD, &[&path, &how, &first, &count])
    }

    /// Locks one byte, and when told to go on waits for a lock on another byte.
    pub fn crossing(path: &Path, first: u64, second: u64) -> Worker {
        Worker::run(CROSS, &[&path, &first.to_string(), &second.to_string()])
    }

    /// Two threads wait for the lock, beside the first thread, which has SIGXCPU blocked. The process has a
    /// name that is not UTF-8.
    pub fn two_threads(path: &Path) -> Worker {
        Worker::run(TWO, &[&path])
    }

    /// Waits for the lock until SIGUSR1 comes. `beside` says whether another thread runs as well, and what it
    /// does.
    pub fn handling(path: &Path, beside: &str) -> Worker {
        Worker::run(HANDLE, &[&path, &beside])
    }

    pub fn pid(&self) -> i32 {
        self.child.borrow().id() as i32
    }

    pub fn expect_line(&self, want: &str) {
        let line = self.lines.recv_timeout(LONG);
        assert_eq!(line.as_deref(), Ok(want));
    }

    pub fn go_on(&self) {
        let mut child = self.child.borrow_mut();
        let stdin = child.stdin.as_mut().expect("piped");
        stdin.write_all(b"go\n").expect("tell the worker");
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("signal the worker");
    }

    pub fn wait(self) -> ExitStatus {
        let mut child = self.child.borrow_mut();
        wait_until("the worker ends", LONG, || {
            child.try_wait().expect("ask after the worker")
        })
    }

    /// Sends a signal that kills the worker, and returns when it is gone.
    pub fn kill(self, signal: Signal) {
        self.signal(signal);
        self.wait();
    }

    /// Like `kill`, but the worker must be gone within `limit`. Otherwise the test fails and shows what the
    /// kernel says of the worker.
    pub fn kill_at_once(self, signal: Signal, limit: Duration) {
        self.signal(signal);
        let start = Instant::now();
        while start.elapsed() < limit {
            let ended = self.child.borrow_mut().try_wait();
            if ended.expect("ask after the worker").is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = ["status", "wchan", "stack", "syscall"].map(|what| {
            let said = std::fs::read(format!("/proc/{}/{what}", self.pid())).unwrap_or_default();
            format!("{what}: {}", String::from_utf8_lossy(&said))
        });
        panic!("{signal} did not end a worker: {}", said.join("\n"));
    }

    /// Lets the worker end by itself, and checks that it succeeded.
    pub fn end(self) {
        drop(self.child.borrow_mut().stdin.take());
        assert!(self.wait().success(), "the worker failed");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut child = self.child.borrow_mut();
        if matches!(child.try_wait(), Ok(None))
            && let Err(e) = child.kill().and_then(|()| child.wait().map(drop))
        {
            eprintln!("end a worker: {e}");
        }
    }
}
