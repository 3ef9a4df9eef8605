//! Where the programs are that a cluster starts.

use crate::failure::{Failure, Result};
use std::path::{Path, PathBuf};

/// The first of this name on the `PATH`, or where administrators' programs are.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// As this program's neighbour: in the directory of a build, also when this is one of its tests,
/// or of an installation.
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

/// The `forebay` that is asked for, or `FOREBAY_BIN`, or the one beside this program, or the one
/// that is installed.
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

/// This program, also for tests that use the library.
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

/// The program, or the sentence that says how to get it.
pub fn needed(name: &str, package: &str) -> Result<PathBuf> {
    on_path(name).ok_or_else(|| {
        Failure::failed(format!(
            "{name} is missing; install it: apt-get install {package}"
        ))
    })
}
