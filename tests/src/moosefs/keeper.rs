//! The process that starts and ends every process of a cluster.
//!
//! The test program cannot do it itself. A child closes its copies of the parent's files before it runs
//! another program, and closing a file on a mount that hangs waits for the mount. So a process that has such
//! a file open cannot start a program, not even the one that would heal the mount. The keeper is started
//! before there is a mount, and has no file open on one.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lock;
use crate::wait::{LONG, wait_until};
use nix::sys::signal::Signal;

struct Pipes {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

pub struct Keeper {
    pipes: Mutex<Option<Pipes>>,
    child: Child,
    root: PathBuf,
}

impl Keeper {
    /// Starts the keeper. `root` belongs to it from now on: the keeper removes it.
    pub fn start(root: &Path, tag: &str) -> Self {
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc", "-c", include_str!("keeper.sh")])
            .env("ROOT", root)
            .env("TAG", tag)
            .env("LC_ALL", "C")
            .current_dir("/")
            // A signal from the keyboard that ends the test must not end the keeper before it is done.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start bash");
        let pipes = Pipes {
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stdout.take().expect("a pipe")),
        };
        Self {
            pipes: Mutex::new(Some(pipes)),
            child,
            root: root.to_owned(),
        }
    }

    /// Runs a line of shell. Returns the exit code and what the line printed.
    fn shell(&self, line: &str) -> (i32, String) {
        assert!(!line.contains('\n'), "one line at a time: {line:?}");
        let mut guard = lock(&self.pipes);
        let pipes = guard.as_mut().expect("the keeper runs");
        writeln!(pipes.input, "{line}").expect("ask the keeper");
        let mut code = String::new();
        let got = pipes.output.read_line(&mut code);
        got.expect("hear from the keeper");
        let said = std::fs::read(self.root.join("said")).unwrap_or_default();
        let code = code.trim().parse();
        (
            code.unwrap_or_else(|_| panic!("the keeper died of: {line}")),
            String::from_utf8_lossy(&said).into_owned(),
        )
    }

    /// Runs a program that ends by itself (or is ended after a minute), and fails the test if the program
    /// fails. Returns what it printed.
    pub fn run<S: AsRef<OsStr>>(&self, command: &[S]) -> String {
        let line = quoted(command);
        let (code, said) = self.shell(&format!("timeout --kill-after=1 60 {line}"));
        assert!(code == 0, "{line} failed with {code}: {said}");
        said
    }

    /// Starts a daemon in a network namespace. Its output is appended to `log`.
    pub fn spawn<S: AsRef<OsStr>>(&self, command: &[S], namespace: &Path, log: &Path) -> Daemon {
        let line = quoted(command);
        let net = quoted(&[format!("--net={}", namespace.display())]);
        let log_quoted = quoted(&[log]);
        // The daemon dies with the keeper, should the keeper be killed.
        let (code, said) = self.shell(&format!(
            "nsenter {net} setpriv --pdeathsig KILL {line} >>{log_quoted} 2>&1 & echo $!"
        ));
        assert!(code == 0, "starting {line} failed: {said}");
        let pid: i32 = said.trim().parse().expect("a process id");
        // SAFETY: takes two numbers and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
        assert!(fd >= 0, "{line} ended at once");
        Daemon {
            line,
            log: log.to_owned(),
            pid,
            // SAFETY: the descriptor is new, and nothing else owns it.
            handle: unsafe { OwnedFd::from_raw_fd(fd) },
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(lock(&self.pipes).take());
        match self.child.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("the cluster's keeper: {status}"),
            Err(e) => eprintln!("wait for the cluster's keeper: {e}"),
        }
    }
}

fn quoted<S: AsRef<OsStr>>(words: &[S]) -> String {
    let quote = |word: &S| {
        let word = word.as_ref().to_str().expect("test arguments are text");
        format!("'{}'", word.replace('\'', r"'\''"))
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// A process of the cluster. The keeper ends it when the cluster is removed, if it still runs.
pub struct Daemon {
    line: String,
    log: PathBuf,
    pid: i32,
    /// A pidfd: it names this process even if its number has gone to another one.
    handle: OwnedFd,
}

impl Daemon {
    pub fn pid(&self) -> i32 {
        self.pid
    }

    fn try_signal(&self, signal: Signal) -> io::Result<()> {
        // SAFETY: an open descriptor, a signal number, no details, no flags.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.handle.as_raw_fd(),
                signal as i32,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    pub fn signal(&self, signal: Signal) {
        let sent = self.try_signal(signal);
        sent.unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.line));
    }

    fn ended(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.handle.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd that outlives the call; it does not wait.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    /// Fails the test, with the last output of the daemon, if the daemon is not running.
    pub fn check(&self) {
        if self.ended() {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            panic!("{} ended by itself:\n{said}", self.line);
        }
    }

    /// Ends the daemon as an administrator would, so that it writes out what it has.
    pub fn terminate(self) {
        self.signal(Signal::SIGTERM);
        let what = format!("{} ends after SIGTERM", self.line);
        wait_until(&what, LONG, || self.ended().then_some(()));
    }

    /// Kills the daemon when the cluster is taken down, also after a failure: it never panics, and the
    /// process may be gone.
    pub fn kill(self) {
        if let Err(e) = self.try_signal(Signal::SIGKILL)
            && e.raw_os_error() != Some(libc::ESRCH)
        {
            eprintln!("kill {}: {e}", self.line);
        }
        let patience = Instant::now() + Duration::from_secs(10);
        while !self.ended() {
            if Instant::now() > patience {
                eprintln!("{} does not end", self.line);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
