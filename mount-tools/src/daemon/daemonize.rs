//! Moves the daemon into the background. The process forks before any thread exists, and the parent waits for
//! the child's report, so that `forebay mount` returns when the mount answers, or with the reason why it does
//! not.
//!
//! The report is one JSON message on a pipe. The parent also reports a child that dies without sending one.

use crate::exit_codes::{Code, Failure, Result};
use crate::logging;
use nix::fcntl::OFlag;
use nix::unistd::{ForkResult, fork, pipe2, setsid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;

#[derive(Debug, Serialize, Deserialize)]
struct Word {
    pid: u32,
    failure: Option<(u8, String)>,
    note: Option<String>,
}

/// The process in which `detach` has returned.
pub enum Side {
    /// The mount answers. Holds the daemon's process id, and what the daemon wants the user to know.
    Parent(u32, Option<String>),
    Child(Report),
}

/// The child's end of the pipe.
pub struct Report(File);

impl Report {
    pub fn ready(self, note: Option<String>) {
        self.say(None, note);
    }

    pub fn failed(self, failure: &Failure) {
        self.say(Some((failure.code as u8, failure.message.clone())), None);
    }

    fn say(mut self, failure: Option<(u8, String)>, note: Option<String>) {
        let word = Word {
            pid: std::process::id(),
            failure,
            note,
        };
        let sent = serde_json::to_vec(&word)
            .map_err(io::Error::from)
            .and_then(|bytes| self.0.write_all(&bytes));
        if let Err(error) = sent {
            tracing::warn!(%error, "the parent process no longer waits for the mount");
        }
    }
}

/// Forks. Must be called while the process has one thread.
pub fn detach(log: &Path) -> Result<Side> {
    let failed = |what: &str, e: io::Error| Failure::failed(format!("{what}: {e}"));
    let log_file = logging::open(log)?;
    let (reader, writer) =
        pipe2(OFlag::O_CLOEXEC).map_err(|e| failed("no pipe to the daemon", e.into()))?;
    // SAFETY: no other thread exists yet (nothing before this starts one), so the child may go on
    // as an ordinary process.
    match unsafe { fork() }.map_err(|e| failed("cannot start the daemon", e.into()))? {
        ForkResult::Parent { .. } => {
            drop(writer);
            parent(reader.into(), log).map(|(pid, note)| Side::Parent(pid, note))
        }
        ForkResult::Child => {
            drop(reader);
            let report = Report(writer.into());
            match child(&log_file) {
                Ok(()) => Ok(Side::Child(report)),
                Err(e) => {
                    let failure = failed("the daemon could not detach itself", e);
                    report.failed(&failure);
                    Err(failure)
                }
            }
        }
    }
}

fn parent(mut reader: File, log: &Path) -> Result<(u32, Option<String>)> {
    let mut word = Vec::new();
    reader
        .read_to_end(&mut word)
        .map_err(|e| Failure::failed(format!("the daemon cannot be heard: {e}")))?;
    let Ok(word) = serde_json::from_slice::<Word>(&word) else {
        return Err(Failure::failed(format!(
            "the daemon died before the mount was ready; see {}",
            log.display()
        )));
    };
    match word.failure {
        None => Ok((word.pid, word.note)),
        Some((code, message)) => Err(Failure::new(
            if code == Code::Usage as u8 {
                Code::Usage
            } else {
                Code::Failed
            },
            message,
        )),
    }
}

fn child(log: &File) -> io::Result<()> {
    setsid()?;
    std::env::set_current_dir("/")?;
    let null = File::open("/dev/null")?;
    nix::unistd::dup2_stdin(null.as_fd())?;
    logging::redirect(log)
}
