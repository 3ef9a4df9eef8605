//! Runs commands to their end, within a time limit.
//!
//! Their output goes to unnamed temporary files and not to pipes: a daemon that a command leaves
//! behind would hold a pipe open, and reading the pipe would wait for the daemon.

use crate::failure::{Failure, Result};
use crate::wait;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

/// How a command ended and what it printed.
#[derive(Clone, Debug)]
pub struct Done {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// Returns the exit code as a shell reports it: 128 + N for signal N.
    pub fn code(&self) -> i32 {
        let by_signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(by_signal).unwrap_or(-1)
    }

    /// Returns everything that the command printed.
    pub fn text(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Returns standard output. Panics with all output if the command failed.
    #[track_caller]
    pub fn expect(self, what: &str) -> String {
        assert!(
            self.success(),
            "{what}: {}\n--- standard output\n{}\n--- standard error\n{}",
            self.status,
            self.stdout,
            self.stderr
        );
        self.stdout
    }

    /// Returns the reason that one of our programs gave for failing, without the program's name, on
    /// one line.
    pub fn words(&self) -> String {
        let said = match self.stderr.trim() {
            "" => self.stdout.trim(),
            said => said,
        };
        let said = said.strip_prefix("forebay: ").unwrap_or(said);
        match said {
            "" => self.status.to_string(),
            said => said
                .split('\n')
                .map(str::trim)
                .collect::<Vec<_>>()
                .join("; "),
        }
    }
}

/// Runs the command. If it takes longer than `limit`, calls `give_up` to end everything that
/// belongs to it and returns an error.
pub fn run(mut command: Command, limit: Duration, give_up: impl FnOnce()) -> Result<Done> {
    let name = command.get_program().to_string_lossy().into_owned();
    let cannot = |e: io::Error| Failure::failed(format!("cannot run {name}: {e}"));
    let file = || tempfile::tempfile().map_err(cannot);
    let (mut out, mut err) = (file()?, file()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(cannot)?)
        .stderr(err.try_clone().map_err(cannot)?)
        .spawn()
        .map_err(cannot)?;
    let ended = wait::poll(limit, || child.try_wait().transpose());
    let status = match ended {
        Some(status) => status.map_err(cannot)?,
        None => {
            child.kill().map_err(cannot)?;
            give_up();
            child.wait().map_err(cannot)?;
            return Err(Failure::failed(format!(
                "{name} took longer than {limit:?} and was ended; it had said:\n{}{}",
                read(&mut out).map_err(cannot)?,
                read(&mut err).map_err(cannot)?
            )));
        }
    };
    Ok(Done {
        status,
        stdout: read(&mut out).map_err(cannot)?,
        stderr: read(&mut err).map_err(cannot)?,
    })
}

fn read(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
