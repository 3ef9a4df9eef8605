//! OSTs that are directories: one mount of each target, as with several local disks, one MooseFS
//! or NFS mount for each server, or the embedded default.
//!
//! The directory itself must be there: a missing one is a target that is not mounted, and making
//! it would fill the disk below.
//!
//! # When they are opened
//!
//! The overlay may be mounted over the directory, or over one above it, and a daemon that walks
//! into its own mount waits for itself. So each directory is opened when this is made, before the
//! mount, and kept (a target that hangs at that moment holds up the start). One that was missing
//! then, or that was removed or whose mount broke since, is looked for again when it is used: from
//! the nearest directory above that was there, which was opened at the same time and for the same
//! reason. A target that was a mount of its own is taken again only when something is mounted there
//! again.

use super::place::{Place, was_removed};
use super::{Ost, OstError, Provider};
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

const TOP: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);

#[derive(Debug)]
pub struct Directories {
    targets: Vec<Target>,
}

#[derive(Debug)]
struct Target {
    /// What it is called: other nodes find the target by it.
    name: String,
    path: PathBuf,
    /// The nearest directory above that was there, and the way down from it.
    above: io::Result<File>,
    rest: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    dir: Option<Arc<OwnedFd>>,
    /// It was on another file system than the directory above.
    mounted: bool,
}

impl Directories {
    pub fn new(paths: Vec<PathBuf>) -> Directories {
        let named = |path: PathBuf| Target::new(path.display().to_string(), path);
        let targets = paths.into_iter().map(named).collect();
        Directories { targets }
    }

    /// The backing itself as the only target, where there are no others to choose from. Nodes need
    /// not have it at the same path.
    pub fn backing(path: PathBuf) -> Directories {
        Directories {
            targets: vec![Target::new("backing".to_owned(), path)],
        }
    }

    fn with<T>(
        &self,
        ost: &Ost,
        what: &'static str,
        act: impl FnOnce(Place<'_>) -> io::Result<T>,
    ) -> Result<T, OstError> {
        let target = self.targets.get(ost.index as usize);
        target
            .ok_or_else(|| io::Error::other("there is no such directory in the list of OSTs"))
            .and_then(|target| target.with(act))
            .map_err(|e| OstError::new(ost, what, e))
    }
}

impl Target {
    fn new(name: String, path: PathBuf) -> Target {
        let (above, rest) = nearest_above(&path);
        let target = Target {
            name,
            path,
            above,
            rest,
            state: Mutex::default(),
        };
        if let Err(e) = target.dir() {
            tracing::debug!(path = %target.path.display(), "not opened yet: {e}");
        }
        target
    }

    fn dir(&self) -> io::Result<Arc<OwnedFd>> {
        let mut state = self.state.lock();
        if let Some(dir) = &state.dir {
            return Ok(dir.clone());
        }
        let above = match &self.above {
            Ok(above) => above,
            Err(e) => return Err(io::Error::new(e.kind(), e.to_string())),
        };
        let dir = match openat(above, &self.rest, TOP, Mode::empty()) {
            Ok(dir) => File::from(dir),
            Err(nix::errno::Errno::ENOENT) => return Err(missing()),
            Err(e) => return Err(e.into()),
        };
        let mounted = dir.metadata()?.dev() != above.metadata()?.dev();
        if state.mounted && !mounted {
            return Err(missing());
        }
        state.mounted = mounted;
        let dir = Arc::new(OwnedFd::from(dir));
        state.dir = Some(dir.clone());
        Ok(dir)
    }

    fn with<T>(&self, act: impl FnOnce(Place<'_>) -> io::Result<T>) -> io::Result<T> {
        let dir = self.dir()?;
        let done = act(Place::new(dir.as_fd()));
        let Err(e) = done else {
            return done;
        };
        let removed = was_removed(&e);
        if removed || is_dead(&e) {
            let mut state = self.state.lock();
            if state.dir.as_ref().is_some_and(|now| Arc::ptr_eq(now, &dir)) {
                state.dir = None;
            }
        }
        Err(if removed { missing() } else { e })
    }
}

/// The number of an error is ENOENT only where a file is missing: that one may have been drained.
fn missing() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "the directory is missing: is the target mounted?",
    )
}

/// The mount is gone for good, whatever comes in its place.
fn is_dead(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ESTALE | libc::ENODEV)
    )
}

fn nearest_above(path: &Path) -> (io::Result<File>, PathBuf) {
    let path = match std::path::absolute(path) {
        Ok(path) => path,
        Err(e) => return (Err(e), path.to_owned()),
    };
    let mut result = Err(missing());
    for above in path.ancestors().skip(1) {
        match open(above, TOP, Mode::empty()) {
            Ok(dir) => {
                let rest = path.strip_prefix(above).unwrap_or(&path);
                return (Ok(File::from(dir)), rest.to_owned());
            }
            Err(e) => result = Err(e.into()),
        }
    }
    // Only the root has nothing above.
    if let Ok(dir) = open(&path, TOP, Mode::empty()) {
        return (Ok(File::from(dir)), PathBuf::from("."));
    }
    (result, path)
}

impl Provider for Directories {
    fn kind(&self) -> &'static str {
        "directories"
    }

    fn osts(&self) -> Result<Vec<Ost>, OstError> {
        let ost = |(n, target): (usize, &Target)| Ost {
            index: n as u32,
            name: target.name.clone(),
        };
        Ok(self.targets.iter().enumerate().map(ost).collect())
    }

    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<File, OstError> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        self.with(ost, "making a file", |place| place.create(name, flags))
    }

    fn open(&self, ost: &Ost, name: &str) -> Result<File, OstError> {
        self.with(ost, "opening a file", |place| place.open(name))
    }

    fn modified(&self, ost: &Ost, name: &str) -> Result<SystemTime, OstError> {
        self.with(ost, "looking at a file", |place| place.modified(name))
    }

    fn list(&self, ost: &Ost) -> Result<Vec<String>, OstError> {
        self.with(ost, "listing its files", |place| place.list())
    }

    fn remove(&self, ost: &Ost, name: &str) -> Result<(), OstError> {
        self.with(ost, "removing a file", |place| place.remove(name))
    }
}

#[cfg(test)]
mod tests;
