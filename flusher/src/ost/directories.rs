//! OSTs that are directories: one mount of each target, for example several local disks, one
//! MooseFS or NFS mount for each server, or the embedded default.
//!
//! The directory itself must exist: if it is missing, the target is not mounted, and making it
//! would fill the disk below.
//!
//! # When they are opened
//!
//! The overlay may be mounted over the directory, or over one above it, and a daemon that walks
//! into its own mount waits for itself. So each directory is opened when this is made, before the
//! mount, and kept open (a target that hangs at that moment holds up the start). A directory that
//! was missing then, or that was removed or whose mount broke since, is looked for again when it is
//! used: from the nearest directory above it that existed, which was opened at the same time and
//! for the same reason. A target that was a mount of its own is used again only when something is
//! mounted there again.

use super::place::{Place, was_removed};
use super::{Ost, OstError, Provider, at_place};
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TOP: OFlag = OFlag::O_PATH
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);

#[derive(Debug)]
pub struct Directories {
    targets: Vec<Target>,
}

#[derive(Debug)]
struct Target {
    /// Name by which other nodes find the target.
    name: String,
    path: PathBuf,
    /// The nearest existing directory above the path; `rest` is the way down from it.
    above: io::Result<File>,
    rest: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    dir: Option<Arc<OwnedFd>>,
    /// The directory was on another file system than the one above it.
    mounted: bool,
}

impl Directories {
    pub fn new(paths: Vec<PathBuf>) -> Directories {
        let named = |path: PathBuf| Target::new(path.display().to_string(), path);
        let targets = paths.into_iter().map(named).collect();
        Directories { targets }
    }

    /// The backing itself as the only target, for when there are no others to choose from. Nodes
    /// need not have it at the same path.
    pub fn backing(path: PathBuf) -> Directories {
        Directories {
            targets: vec![Target::new("backing".to_owned(), path)],
        }
    }

    fn target(&self, ost: &Ost) -> io::Result<&Target> {
        let target = self.targets.get(ost.index as usize);
        target.ok_or_else(|| io::Error::other("there is no such directory in the list of OSTs"))
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

    fn place_failed(&self, place: &Place, error: io::Error) -> io::Error {
        let removed = was_removed(&error);
        if removed || is_dead(&error) {
            let mut state = self.state.lock();
            state.dir.take_if(|dir| place.is_below(dir));
        }
        if removed { missing() } else { error }
    }
}

/// The error of a missing directory. It has no error number: ENOENT is only for a missing file,
/// which may have been drained.
fn missing() -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        "the directory is missing: is the target mounted?",
    )
}

/// True if the mount is gone for good, whatever is mounted in its place later.
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
    // Only the root has no directory above it.
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
        at_place(self, ost, "making a file", |place| {
            place.create(name, flags)
        })
    }

    fn place(&self, ost: &Ost) -> io::Result<Place> {
        Ok(Place::new(self.target(ost)?.dir()?))
    }

    fn place_failed(&self, ost: &Ost, place: &Place, error: io::Error) -> io::Error {
        match self.target(ost) {
            Ok(target) => target.place_failed(place, error),
            Err(_) => error,
        }
    }
}

#[cfg(test)]
mod tests;
