//! The daemon's log: one line per event on standard error, which is the log file when the daemon is in the
//! background. In the foreground the log goes to a file of its own if one is named, and standard error keeps
//! what is for the terminal. `RUST_LOG` chooses what is logged; `info` is the default.
//!
//! A log that was moved away is opened again at SIGHUP ([`reopen`]). If that fails, logging goes on in the
//! old one.

use crate::exit_codes::{Failure, Result};
use parking_lot::RwLock;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tracing_subscriber::EnvFilter;

/// fuser reports an error when the kernel no longer waits for a reply, but that is how a request ends that a
/// signal has interrupted.
const SILENCED: &str = "fuser::reply=off";

/// The log of a daemon in the foreground, if it is not standard error.
static OWN: RwLock<Option<File>> = RwLock::new(None);

/// Opens the log for appending. A new log is readable by this user only.
pub fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path);
    opened.map_err(|e| Failure::failed(format!("cannot write the log {}: {e}", path.display())))
}

/// Sends standard output and standard error to the log.
pub fn redirect(log: &File) -> io::Result<()> {
    nix::unistd::dup2_stdout(log.as_fd())?;
    nix::unistd::dup2_stderr(log.as_fd())?;
    Ok(())
}

/// Writes the log to `log` from here on, not to standard error.
pub fn use_own(log: File) {
    *OWN.write() = Some(log);
}

/// Opens the log at `path` again, after the old one was moved away.
pub fn reopen(path: &Path) -> Result<()> {
    let log = open(path)?;
    if OWN.read().is_some() {
        use_own(log);
        return Ok(());
    }
    redirect(&log)
        .map_err(|e| Failure::failed(format!("cannot use the log {}: {e}", path.display())))
}

struct Sink;

impl Write for Sink {
    /// A line that cannot be written is lost, and that is all: the log may be on the disk that is full, and a
    /// thread that complains about that must not end because of it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = match &*OWN.read() {
            Some(log) => (&mut &*log).write(line),
            None => io::stderr().write(line),
        };
        Ok(written.unwrap_or(line.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn start() {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| "info".into());
    let filter = EnvFilter::try_new(format!("{wanted},{SILENCED}"))
        .unwrap_or_else(|_| EnvFilter::new(format!("info,{SILENCED}")));
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(OWN.read().is_none() && io::stderr().is_terminal() && !no_color)
        .with_writer(|| Sink)
        .log_internal_errors(false)
        .try_init();
    if let Err(error) = started {
        eprintln!("forebay: no log: {error}");
    }
}
