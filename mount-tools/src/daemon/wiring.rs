//! The one place where the file system and the drain meet: each gets the other's side as a trait
//! object or a closure, and neither imports the other.

use super::lifecycle::{Unmount, UnmountFailure};
use super::verbs::Names;
use crate::exit_codes::{Failure, Result};
use crate::settings::MountSettings;
use flusher::ost::{self, Fleet, Kind, Provider, ProviderError};
use flusher::{Canonicals, Flusher, Osts};
use forebay_fs::{
    Backing, MountOptions, Mounted, Overlay, OverlayOptions, Placement, UnmountError,
};
use layout_index::{DiskFile, File, FileId, Store};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// A running mount.
pub struct Parts {
    pub flusher: Arc<Flusher>,
    /// The storage targets, where there are some to choose from.
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

/// Who places files on storage targets, if anybody does. Before anything is mounted over the
/// backing.
pub fn provider(
    kind: Kind,
    backing: &Backing,
    osts: &[PathBuf],
) -> Result<Option<Arc<dyn Provider>>> {
    ost::provider(kind, backing.root(), osts).map_err(|e| match e {
        ProviderError::Named(_) | ProviderError::NoneNamed => Failure::usage(e.to_string()),
        e => Failure::failed(e.to_string()),
    })
}

/// What the drain needs to know of storage targets.
pub fn osts(fleet: Option<&Arc<Fleet>>, backing: &Backing) -> Result<Option<Osts>> {
    let Some(fleet) = fleet else { return Ok(None) };
    let backing = backing
        .root()
        .try_clone_to_owned()
        .map_err(|e| Failure::failed(format!("the backing: {e}")))?;
    Ok(Some(Osts {
        fleet: fleet.clone(),
        backing,
    }))
}

/// Starts the drain, then mounts: from the first request on everything is there.
pub fn assemble(settings: &MountSettings, backing: Backing, store: Arc<Store>) -> Result<Parts> {
    let provider = provider(settings.ost_provider, &backing, &settings.osts)?;
    let fleet = provider.map(|provider| Fleet::start(provider, settings.targets.clone()));
    let osts = osts(fleet.as_ref(), &backing)?;
    let striping = |fleet: &Arc<Fleet>| -> Arc<dyn Placement> {
        Arc::new(Striping {
            fleet: fleet.clone(),
            unit: settings.drain.stripe,
        })
    };
    let overlay = Overlay::new(OverlayOptions {
        backing,
        store: store.clone(),
        absorb: settings.absorb,
        ttl: settings.attr_timeout,
        placement: fleet.as_ref().map(striping),
        shared_locks: settings.shared_locks,
    })
    .map_err(|e| Failure::failed(format!("the file system could not be set up: {e}")))?;
    let view = Arc::new(View(overlay.clone()));
    let flusher = Flusher::start(store, view.clone(), settings.drain.clone(), osts)
        .map_err(|e| Failure::failed(format!("the drain could not be started: {e}")))?;
    let mounted =
        forebay_fs::mount(overlay, &settings.mount, &mount_options(settings)).map_err(|e| {
            Failure::failed(format!("cannot mount at {}: {e}", settings.mount.display()))
        })?;
    Ok(parts(mounted, flusher, view, fleet))
}

fn parts(mounted: Mounted, flusher: Flusher, names: Arc<View>, fleet: Option<Arc<Fleet>>) -> Parts {
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

/// New canonical files over the storage targets that are fastest now.
struct Striping {
    fleet: Arc<Fleet>,
    unit: u64,
}

impl Placement for Striping {
    fn create_flags(&self) -> i32 {
        self.fleet.provider().create_flags()
    }

    fn place(&self, file: BorrowedFd<'_>) {
        // Before the first probe is over nothing is known that the file system does not know.
        let ready = self.fleet.wait_ready(Instant::now());
        let chosen = if ready {
            self.fleet.chosen()
        } else {
            Vec::new()
        };
        let provider = self.fleet.provider();
        let placed = match provider.stripe(file, &chosen, self.unit) {
            // It must have some place before a byte goes through this descriptor.
            Err(error) if !chosen.is_empty() => {
                tracing::debug!("{error}; a new file is striped as by default");
                provider.stripe(file, &[], self.unit)
            }
            other => other,
        };
        if let Err(error) = placed {
            tracing::debug!("{error}");
        }
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
