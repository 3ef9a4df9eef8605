//! The program that the MPIs use instead of `ssh`: it goes to a node by entering the node's
//! namespaces.
//!
//! It is this program under another name, a link in the state directory, because MPICH takes only a
//! path for its launcher. The state directory is passed in the environment, as for everything that
//! runs on a node.

use crate::failure::{Code, Failure, Result};
use crate::node::OnNode;
use crate::spec;
use crate::state::{Place, State};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;

#[cfg(test)]
mod tests;

pub const NAME: &str = "forebay-cluster-ssh";

/// Parses host and command line as `ssh` would take them from these arguments.
fn parse(arguments: &[OsString]) -> Result<(String, OsString)> {
    let usage = || {
        Failure::usage(format!(
            "{NAME} stands in for ssh: {NAME} [OPTIONS] NODE COMMAND"
        ))
    };
    let mut rest = arguments.iter();
    let host = loop {
        let word = rest.next().ok_or_else(usage)?.to_string_lossy();
        match word.strip_prefix('-') {
            None => break word.into_owned(),
            // These options take a value, attached or as the next word.
            Some(option) if option.len() == 1 && "bceFiIlLmopRSW".contains(option) => {
                rest.next();
            }
            Some(_) => {}
        }
    };
    let host = host.rsplit('@').next().unwrap_or_default().to_owned();
    let words: Vec<&OsStr> = rest.map(OsString::as_os_str).collect();
    if words.is_empty() {
        return Err(usage());
    }
    // As in ssh, the words become one line for the shell on the node.
    Ok((host, words.join(OsStr::new(" "))))
}

/// Replaces this process with the command; returns only if that fails.
pub fn run(arguments: &[OsString]) -> Failure {
    match prepare(arguments) {
        Ok(mut command) => Failure::new(
            Code::NotRun,
            format!("cannot start the shell: {}", command.exec()),
        ),
        Err(failure) => failure,
    }
}

fn prepare(arguments: &[OsString]) -> Result<std::process::Command> {
    let (host, line) = parse(arguments)?;
    let place = Place(spec::state_directory(None)?);
    let state = State::load(&place)?;
    let mut nodes = OnNode::all(&place, &state);
    let node = nodes.find(|on| on.name() == host).ok_or_else(|| {
        Failure::new(
            Code::NotThere,
            format!("there is no node {host} in {}", place.display()),
        )
    })?;
    let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
    let mut command = node.command("/bin/sh", &here)?;
    command.arg("-c").arg(line);
    Ok(command)
}
