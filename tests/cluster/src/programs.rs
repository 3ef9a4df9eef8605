//! Finds the programs that a cluster starts.

use crate::failure::{Failure, Result};
use std::path::{Path, PathBuf};

/// Returns the first program of this name on the `PATH` or in the directories of administrators'
/// programs.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// Returns the program of this name beside the current one: in the build directory, even if the
/// current program is a test of that build, or in the directory of an installation.
fn beside(name: &str) -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    let dir = exe.parent()?;
    let dir = match dir.file_name() {
        Some(deps) if deps == "deps" => dir.parent()?,
        _ => dir,
    };
    Some(dir.join(name)).filter(|path| path.is_file())
}

fn real(path: &Path, what: &str) -> Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Ok(real) if real.is_file() => Ok(real),
        Ok(_) => Err(Failure::usage(format!(
            "{what} {} is not a file",
            path.display()
        ))),
        Err(e) => Err(Failure::usage(format!("{what} {}: {e}", path.display()))),
    }
}

/// Returns the `forebay` to use: `asked`, or `FOREBAY_BIN`, or the one beside this program, or the
/// installed one.
pub fn forebay(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = asked {
        return real(path, "the forebay program");
    }
    if let Some(path) = std::env::var_os("FOREBAY_BIN") {
        return real(Path::new(&path), "FOREBAY_BIN");
    }
    match beside("forebay").or_else(|| on_path("forebay")) {
        Some(path) => real(&path, "forebay"),
        None => Err(Failure::failed(
            "there is no forebay beside this program and none on the PATH; build it (make build) or name it (--forebay)",
        )),
    }
}

/// Returns this program; for a test that uses the library, the one beside the test.
pub fn cluster() -> Result<PathBuf> {
    const NAME: &str = "forebay-cluster";
    match std::env::current_exe() {
        Ok(exe) if exe.file_name().is_some_and(|name| name == NAME) => return Ok(exe),
        _ => {}
    }
    beside(NAME).ok_or_else(|| {
        Failure::failed(
            "forebay-cluster is missing beside this program; build it: cargo build -p forebay-cluster --bins (same profile)",
        )
    })
}

/// Returns the program, or an error that says how to install it.
pub fn needed(name: &str, package: &str) -> Result<PathBuf> {
    on_path(name).ok_or_else(|| {
        Failure::failed(format!(
            "{name} is missing; install it: apt-get install {package}"
        ))
    })
}
