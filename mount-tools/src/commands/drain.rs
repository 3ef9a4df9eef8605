//! `forebay drain`.

use crate::args::DrainArgs;
use crate::control::client::{self, Client};
use crate::control::protocol::{DrainResult, DrainState, Reply, Request, Target, WirePath};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::progress::DrainBar;
use crate::output::{self, plain};
use crate::units;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct Outcome<'a> {
    path: &'a Path,
    mount: PathBuf,
    #[serde(flatten)]
    result: &'a DrainResult,
}

pub fn run(args: &DrainArgs) -> Result<Code> {
    if args.adopt {
        return super::adopt::run(args);
    }
    let (mount, below) = client::mount_of(&args.path)?;
    // Connect before the path is accessed: a mount without its daemon does not answer.
    let daemon = Client::connect(&mount)?;
    let request = Request::Drain {
        target: target(&args.path, &below)?,
        wait: args.wait || args.timeout.is_some(),
        timeout_ms: super::millis(args.timeout),
    };
    let bar = DrainBar::new();
    let reply = daemon.ask(&request, |progress| bar.show(progress));
    bar.clear();
    let result = match reply? {
        Reply::Drain(result) => result,
        other => return Err(client::unexpected(&other)),
    };
    let outcome = Outcome {
        path: &args.path,
        mount,
        result: &result,
    };
    output::report(&outcome, args.json, |o, _| sentence(o.path, o.result))?;
    for error in result.errors.iter().filter(|_| !args.json) {
        eprintln!("forebay: {}", plain(error));
    }
    Ok(code(result.state))
}

fn code(state: DrainState) -> Code {
    match state {
        DrainState::Drained => Code::Ok,
        DrainState::StillDirty => Code::StillDirty,
        DrainState::Failed => Code::Failed,
    }
}

fn target(path: &Path, below: &Path) -> Result<Target> {
    let meta = std::fs::metadata(path)
        .map_err(|e| Failure::failed(format!("cannot look at {}: {e}", path.display())))?;
    if meta.is_dir() {
        return Ok(match below.as_os_str().is_empty() {
            true => Target::Mount,
            false => Target::Directory(WirePath(below.as_os_str().as_bytes().to_vec())),
        });
    }
    if meta.is_file() {
        return Ok(Target::File(meta.ino()));
    }
    Err(Failure::usage(format!(
        "{} is neither a file nor a directory, so there is nothing to drain",
        path.display()
    )))
}

fn sentence(path: &Path, result: &DrainResult) -> String {
    let path = path.display();
    let left = || {
        format!(
            "{} in {}",
            units::bytes(result.undrained),
            units::files(result.files)
        )
    };
    let others = match result.others {
        0 => String::new(),
        n => format!(" ({} of other users not counted)", units::files(n)),
    };
    match result.state {
        DrainState::Drained => format!("{path} is drained{others}\n"),
        DrainState::StillDirty => format!("{path} is not drained yet: {} to go\n", left()),
        DrainState::Failed => format!("{path} could not be drained: {} left\n", left()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_how_it_went() {
        assert_eq!(code(DrainState::Drained), Code::Ok);
        assert_eq!(code(DrainState::StillDirty), Code::StillDirty);
        assert_eq!(code(DrainState::Failed), Code::Failed);
    }

    #[test]
    fn what_is_meant_depends_on_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "x").unwrap();
        let ino = std::fs::metadata(&file).unwrap().ino();
        assert_eq!(target(&file, Path::new("f")).unwrap(), Target::File(ino));
        assert_eq!(target(dir.path(), Path::new("")).unwrap(), Target::Mount);
        assert_eq!(
            target(dir.path(), Path::new("a/b")).unwrap(),
            Target::Directory(WirePath(b"a/b".to_vec()))
        );
        assert!(target(Path::new("/dev/null"), Path::new("null")).is_err());
    }

    #[test]
    fn json_is_flat() {
        let result = DrainResult {
            state: DrainState::StillDirty,
            files: 1,
            undrained: 5,
            drained: 0,
            others: 0,
            errors: vec![],
        };
        let outcome = Outcome {
            path: Path::new("/m/f"),
            mount: "/m".into(),
            result: &result,
        };
        let value = serde_json::to_value(&outcome).unwrap();
        assert_eq!(value["state"], "still-dirty");
        assert_eq!(value["undrained"], 5);
        assert!(sentence(Path::new("/m/f"), &result).contains("5 B in 1 file to go"));
    }
}
