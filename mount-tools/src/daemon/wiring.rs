//! The one place where the file system and the drain meet: each gets the other's side as a trait
//! object or a closure, and neither imports the other.

use super::lifecycle::{Unmount, UnmountFailure};
use super::verbs::Names;
use crate::exit_codes::{Failure, Result};
use crate::settings::MountSettings;
use flusher::ost::Fleet;
use flusher::{Canonicals, Flusher};
use forebay_fs::{Backing, MountOptions, Mounted, Overlay, OverlayOptions, UnmountError};
use layout_index::{DiskFile, File, FileId, Store};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A running mount.
pub struct Parts {
    pub flusher: Arc<Flusher>,
    /// The storage targets, where data is placed on any.
    pub fleet: Option<Arc<Fleet>>,
    pub names: Arc<dyn Names>,
    pub unmount: Unmount,
    /// Waits until the session has ended.
    pub wait: Box<dyn FnOnce() -> io::Result<()> + Send>,
}

pub fn open_backing(path: &Path) -> Result<Backing> {
    Backing::open(path)
        .map_err(|e| Failure::failed(format!("cannot open the backing {}: {e}", path.display())))
}

/// Starts the drain, then mounts: from the first request on everything is there.
pub fn assemble(settings: &MountSettings, backing: Backing, store: Arc<Store>) -> Result<Parts> {
    let overlay = Overlay::new(OverlayOptions {
        backing,
        store: store.clone(),
        absorb: settings.absorb,
        ttl: settings.attr_timeout,
    })
    .map_err(|e| Failure::failed(format!("the file system could not be set up: {e}")))?;
    let view = Arc::new(View(overlay.clone()));
    let fleet = fleet(settings);
    let flusher = Flusher::start(store, view.clone(), settings.drain.clone())
        .map_err(|e| Failure::failed(format!("the drain could not be started: {e}")))?;
    let mounted =
        forebay_fs::mount(overlay, &settings.mount, &mount_options(settings)).map_err(|e| {
            Failure::failed(format!("cannot mount at {}: {e}", settings.mount.display()))
        })?;
    Ok(parts(mounted, flusher, fleet, view))
}

/// The storage targets that the settings ask for, `Fleet::start(provider, targets)`. Nothing is
/// placed on targets yet, so nothing is probed either.
fn fleet(_: &MountSettings) -> Option<Arc<Fleet>> {
    None
}

fn parts(mounted: Mounted, flusher: Flusher, fleet: Option<Arc<Fleet>>, names: Arc<View>) -> Parts {
    let unmounter = mounted.unmounter();
    Parts {
        flusher: Arc::new(flusher),
        fleet,
        names,
        unmount: Box::new(move |lazy| {
            unmounter.unmount(lazy).map_err(|e| match e {
                UnmountError::Busy(_) => UnmountFailure::Busy,
                UnmountError::NotMounted(_) => UnmountFailure::Gone,
                other => UnmountFailure::Other(other.to_string()),
            })
        }),
        wait: Box::new(move || mounted.wait()),
    }
}

fn mount_options(settings: &MountSettings) -> MountOptions {
    let o = &settings.options;
    MountOptions {
        allow_other: o.allow_other,
        read_only: o.read_only,
        suid: o.suid,
        dev: o.dev,
        fsname: o
            .fsname
            .clone()
            .unwrap_or_else(|| settings.backing.display().to_string()),
        threads: settings.threads,
    }
}

/// The overlay as the drain and the control socket see it.
struct View(Arc<Overlay>);

impl Canonicals for View {
    fn open(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        self.0.open_canonical(file)
    }

    fn finished(&self, id: FileId) {
        self.0.file_clean(id);
    }
}

impl Names for View {
    fn path_of(&self, id: FileId) -> Option<PathBuf> {
        self.0.path_of(id)
    }

    fn open_handles(&self) -> usize {
        self.0.open_handles()
    }
}

/// The backing without a mount, for `forebay recover`.
pub struct Bare(pub Backing);

impl Canonicals for Bare {
    fn open(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        match file.intro() {
            Some(intro) => self.0.open_canonical(file.id(), &intro),
            None => Err(io::Error::other("the file has no undrained data")),
        }
    }

    fn finished(&self, _: FileId) {}
}
