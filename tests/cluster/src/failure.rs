//! The error type of this crate: a sentence for people and an exit code for scripts.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Failed = 1,
    Usage = 2,
    /// Undrained data would be lost, or a drain did not finish.
    StillDirty = 3,
    Busy = 4,
    /// There is no cluster, no such node, or the node is not up.
    NotThere = 5,
    /// The command of `run` or `exec` did not start, so there is no exit code of its own to pass
    /// on.
    NotRun = 125,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure {
            code,
            message: message.into(),
        }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Failure::new(Code::Failed, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Failure::new(Code::Usage, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Makes an error for `map_err` that says what was done with which path.
pub fn doing(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let text = format!("cannot {what} {}", path.display());
    move |e| Failure::failed(format!("{text}: {e}"))
}
