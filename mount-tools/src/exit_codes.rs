//! The exit codes of `forebay`, for every command in one place.

use std::fmt;
use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Done; for `drain` and `umount`: everything is in the canonical files.
    Ok = 0,
    /// It did not work; one sentence on standard error says why.
    Failed = 1,
    /// The command line or the configuration file is wrong.
    Usage = 2,
    /// Undrained data is left: time ran out, or the command did not wait.
    StillDirty = 3,
    /// The mount is in use.
    Busy = 4,
    /// There is no Forebay mount here, or no daemon answers for it.
    NoDaemon = 5,
    /// Data in the store is damaged and was left where it is.
    Damaged = 6,
    /// Only root, the daemon's user or the file's owner may do this.
    Denied = 7,
}

/// The table for `forebay --help`.
pub const HELP: &str = "\
Exit codes:
  0  done; for drain and umount: everything is in the canonical files
  1  failed; one sentence on standard error says why
  2  wrong command line or configuration file
  3  undrained data is left (time ran out, or the command did not wait)
  4  the mount is in use
  5  no Forebay mount here, or no daemon answers for it
  6  data in the store is damaged and was left where it is
  7  only root, the daemon's user or the file's owner may do this";

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}

/// The one way a command fails: a sentence for the user and a code for the script.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

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

pub type Result<T, E = Failure> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_code_once_and_in_order() {
        let codes = [
            Code::Ok,
            Code::Failed,
            Code::Usage,
            Code::StillDirty,
            Code::Busy,
            Code::NoDaemon,
            Code::Damaged,
            Code::Denied,
        ];
        let listed: Vec<u8> = HELP
            .lines()
            .skip(1)
            .map(|line| line.trim().split(' ').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(listed, codes.map(|c| c as u8));
    }
}
