//! The one place where the file system and the drain meet: each gets the other's side as a trait
//! object or a closure, and neither imports the other.

use super::point::{Point, UnmountFailure};
use super::verbs::Names;
use crate::coherence;
use crate::exit_codes::{Failure, Result};
use crate::settings::MountSettings;
use caps::{CapSet, Capability};
use flusher::ost::{self, Fleet, InFlight, Kind, Ost, OstSettings, Provider, ProviderError};
use flusher::{Canonicals, Flusher, Osts};
use forebay_fs::{
    Backing, Explained, FsError, MountOptions, Mounted, Others, Overlay, OverlayOptions,
    PageDropper, Placement, Prefetched, Publisher, UnmountError, Unmounter,
};
use layout_index::commons::{Commons, Owner, Placing, Standing};
use layout_index::{Canonical, DiskFile, File, FileId, FilePolicy, Peers, StickyError, Store};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Stripes of files that have one only.
const UNIT: u64 = 1 << 20;

/// A running mount.
pub struct Parts {
    pub flusher: Arc<Flusher>,
    /// The storage targets, where there are some to choose from.
    pub fleet: Option<Arc<Fleet>>,
    pub names: Arc<dyn Names>,
    pub peers: Option<Arc<Peers>>,
    /// Why nodes may not see each other's data through this backing.
    pub doubt: Option<String>,
    pub point: Box<dyn Point>,
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

/// What the drain needs to know of storage targets and other nodes. Where nodes share the backing
/// and there are no targets, their subfiles are in the backing itself.
pub fn osts(
    fleet: Option<&Arc<Fleet>>,
    peers: Option<Arc<Peers>>,
    backing: &Path,
    targets: &OstSettings,
) -> Option<Osts> {
    let fleet = match (fleet, &peers) {
        (Some(fleet), _) => fleet.clone(),
        (None, Some(_)) => backing_alone(backing, targets),
        (None, None) => return None,
    };
    Some(Osts { fleet, peers })
}

/// The backing as the only target: there is nothing to choose, so it is not probed.
fn backing_alone(backing: &Path, targets: &OstSettings) -> Arc<Fleet> {
    let settings = OstSettings {
        probing: false,
        ..targets.clone()
    };
    let provider = ost::Directories::backing(backing.to_path_buf());
    Fleet::start(Arc::new(provider), settings)
}

/// Makes this node one of those that share the backing, and takes up what it had promised them.
pub fn join(
    backing: &Backing,
    store: &Store,
    lease: Duration,
    patience: Duration,
    standing: Standing,
) -> Result<(Arc<Peers>, Vec<Arc<File>>)> {
    let failed = |e: io::Error| {
        Failure::failed(format!(
            "the directory that nodes share below the backing: {e}; if no other node uses the backing, say --nodes one"
        ))
    };
    let root = backing.root().try_clone_to_owned().map_err(failed)?;
    let me = Owner {
        id: store.id(),
        run: store.run(),
    };
    let commons = match Commons::join_with(root, me, store.node(), lease, standing) {
        // There is nothing wrong with the directory, but with what else lives there.
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::AlreadyExists | io::ErrorKind::InvalidInput
            ) =>
        {
            return Err(Failure::failed(format!(
                "store {}: {e}",
                store.dir().display()
            )));
        }
        other => other.map_err(failed)?,
    };
    let peers = Peers::new(store, commons, patience);
    peers.keep_lease().map_err(failed)?;
    let owed = peers.resume().map_err(failed)?;
    Ok((peers, owed))
}

/// Who drops the pages of mapped files, where other nodes may change them. It is a process of its own
/// that must open files by handle to be of use. Before there are threads.
pub fn page_dropper(settings: &MountSettings) -> Result<Option<PageDropper>> {
    let by_handle = caps::has_cap(None, CapSet::Effective, Capability::CAP_DAC_READ_SEARCH);
    if settings.sharing.is_none() || !by_handle.is_ok_and(|may| may) {
        return Ok(None);
    }
    let started = PageDropper::start(&settings.mount);
    let failed = |e| Failure::failed(format!("no process to drop the pages of mapped files: {e}"));
    started.map(Some).map_err(failed)
}

/// Starts the drain, then mounts: from the first request on everything is there.
pub fn assemble(
    settings: &MountSettings,
    backing: Backing,
    store: Arc<Store>,
    pages: Option<PageDropper>,
) -> Result<Parts> {
    let provider = provider(settings.ost_provider, &backing, &settings.osts)?;
    let kind = provider.as_ref().map_or("backing", |p| p.kind());
    let named = settings.osts.iter().map(|p| p.display().to_string());
    let standing = Standing::new(store.home(), kind, named);
    let fleet = provider.map(|provider| Fleet::start(provider, settings.targets.clone()));
    let joined = match &settings.sharing {
        Some(s) => {
            let patience = s.visibility_timeout;
            Some(join(&backing, &store, s.lease, patience, standing)?)
        }
        None => None,
    };
    if let (Some((peers, _)), Some(fleet)) = (&joined, &fleet) {
        // Not all nodes begin with the same target.
        let next = AtomicUsize::new(store.id().0 as usize);
        let fleet = fleet.clone();
        peers
            .commons()
            .set_placing(Arc::new(Spreading { fleet, next }));
    }
    let doubt = joined.as_ref().and_then(|(peers, _)| {
        coherence::doubt(&settings.backing, settings.shared_locks, &|| {
            peers.commons().can_map()
        })
    });
    let (peers, owed) = joined.map_or((None, Vec::new()), |(peers, owed)| (Some(peers), owed));
    let osts = osts(
        fleet.as_ref(),
        peers.clone(),
        &settings.backing,
        &settings.targets,
    );
    let others = settings.sharing.as_ref().zip(peers.clone());
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
        policies: settings.policies.clone(),
        ttl: settings.attr_timeout,
        placement: fleet.as_ref().map(striping),
        others: others.map(|(s, peers)| Others::new(peers, s.close, s.fsync)),
        shared_locks: settings.shared_locks,
    })
    .map_err(|e| Failure::failed(format!("the file system could not be set up: {e}")))?;
    let view = Arc::new(View(overlay.clone()));
    let flusher = Flusher::start(store, view.clone(), settings.drain.clone(), osts)
        .map_err(|e| Failure::failed(format!("the drain could not be started: {e}")))?;
    let flusher = Arc::new(flusher);
    owed.iter().for_each(|file| flusher.owes(file));
    if let Some(sharing) = &settings.sharing {
        view.0.set_publisher(Arc::new(Publishing {
            flusher: flusher.clone(),
            patience: sharing.visibility_timeout,
        }));
    }
    let options = mount_options(settings);
    let mounted = forebay_fs::mount(overlay, &settings.mount, &options, pages).map_err(|e| {
        Failure::failed(format!("cannot mount at {}: {e}", settings.mount.display()))
    })?;
    Ok(Parts {
        doubt,
        ..parts(mounted, flusher, view, fleet, peers)
    })
}

fn parts(
    mounted: Mounted,
    flusher: Arc<Flusher>,
    names: Arc<View>,
    fleet: Option<Arc<Fleet>>,
    peers: Option<Arc<Peers>>,
) -> Parts {
    Parts {
        flusher,
        peers,
        fleet,
        names,
        doubt: None,
        point: Box::new(mounted.unmounter()),
        wait: Box::new(move || mounted.wait()),
    }
}

impl Point for Unmounter {
    fn unmount(&self, lazy: bool) -> Result<(), UnmountFailure> {
        self.unmount(lazy).map_err(|e| match e {
            UnmountError::Busy(_) => UnmountFailure::Busy,
            UnmountError::NotMounted(_) => UnmountFailure::Gone,
            other => UnmountFailure::Other(other.to_string()),
        })
    }

    fn is_mounted(&self) -> io::Result<bool> {
        self.is_mounted()
    }

    fn device(&self) -> u64 {
        self.device()
    }

    fn abort(&self) -> io::Result<()> {
        forebay_fs::abort_connection(self.device())
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
        stripe(&self.fleet, file, &chosen, self.unit);
    }
}

/// What nodes tell each other, each on one of the targets that are in use.
struct Spreading {
    fleet: Arc<Fleet>,
    next: AtomicUsize,
}

impl Placing for Spreading {
    fn create_flags(&self) -> i32 {
        self.fleet.provider().create_flags()
    }

    fn place(&self, file: BorrowedFd<'_>) -> Option<u32> {
        let chosen = self.fleet.chosen();
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % chosen.len().max(1);
        let one = chosen.get(turn..=turn).unwrap_or_default();
        let placed = stripe(&self.fleet, file, one, UNIT);
        one.first().filter(|_| placed).map(|ost| ost.index)
    }

    fn begin(&self, place: u32) -> Box<dyn Send> {
        Box::new(Flight(Some(self.fleet.begin(place, 0))))
    }

    fn answers(&self, place: u32) -> bool {
        self.fleet.is_usable(place)
    }

    fn deadline(&self) -> Duration {
        self.fleet.settings().deadline
    }
}

/// An I/O that is over when this is dropped.
struct Flight(Option<InFlight>);

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(flight) = self.0.take() {
            flight.done();
        }
    }
}

/// Wherever they are wished, or where the file system likes. True if they are where they are wished.
fn stripe(fleet: &Fleet, file: BorrowedFd<'_>, osts: &[Ost], unit: u64) -> bool {
    let provider = fleet.provider();
    let placed = match provider.stripe(file, osts, unit) {
        // It must have some place before a byte goes through this descriptor.
        Err(error) if !osts.is_empty() => {
            tracing::debug!("{error}; a new file is striped as by default");
            provider.stripe(file, &[], unit).map(|_| false)
        }
        other => other,
    };
    placed.unwrap_or_else(|error| {
        tracing::debug!("{error}");
        false
    })
}

/// The drain as the file system sees it.
struct Publishing {
    flusher: Arc<Flusher>,
    patience: Duration,
}

impl Publishing {
    fn deadline(&self, file: &File) -> Instant {
        let own = file.policy().visibility_timeout;
        Instant::now() + own.unwrap_or(self.patience)
    }
}

impl Publisher for Publishing {
    fn publish(&self, file: &Arc<File>) -> std::result::Result<(), StickyError> {
        self.flusher.publish(file)
    }

    fn deliver(
        &self,
        file: &Arc<File>,
        goes_on: &dyn Fn() -> bool,
    ) -> std::result::Result<(), StickyError> {
        self.flusher.deliver(file, self.deadline(file), goes_on)
    }

    fn owes(&self, file: &Arc<File>) {
        self.flusher.owes(file);
    }

    fn settle(&self, file: &Arc<File>, goes_on: &dyn Fn() -> bool) -> bool {
        self.flusher.settle(file, self.deadline(file), goes_on)
    }
}

/// The overlay as the drain and the control socket see it.
struct View(Arc<Overlay>);

impl Canonicals for View {
    fn open(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        self.0.open_canonical(file)
    }

    fn look(&self, file: &File) -> io::Result<Canonical> {
        self.0.look_canonical(file)
    }

    fn finished(&self, id: FileId) {
        self.0.file_clean(id);
    }

    fn has_policies(&self) -> bool {
        true
    }

    fn policy(&self, file: &File) -> io::Result<FilePolicy> {
        self.0.policy_of(file)
    }
}

impl Names for View {
    fn path_of(&self, id: FileId) -> Option<PathBuf> {
        self.0.path_of(id)
    }

    fn place_of(&self, id: FileId) -> Option<PathBuf> {
        let place = self.0.place_of(id);
        place.unwrap_or_else(|error| {
            tracing::info!(file = %id, %error, "the backing does not say where it is");
            None
        })
    }

    fn id_of(&self, ino: u64) -> Option<FileId> {
        self.0.id_of(ino)
    }

    fn open_handles(&self) -> usize {
        self.0.open_handles()
    }

    fn explain(&self, ino: u64) -> Result<Option<Explained>, FsError> {
        self.0.explain(ino)
    }

    fn prefetch(
        &self,
        ino: u64,
        by: Option<(u32, u32)>,
        began: Instant,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Option<io::Result<Prefetched>> {
        let handle = self.0.reading_handle(ino, by)?;
        Some(self.0.prefetch(&handle, began, progress))
    }
}

/// The backing without a mount, for `forebay recover`.
pub struct Bare(pub Backing);

impl Canonicals for Bare {
    fn open(&self, file: &File) -> io::Result<Option<Arc<dyn DiskFile>>> {
        self.0.open_canonical(file.id(), &file.hint())
    }

    fn look(&self, file: &File) -> io::Result<Canonical> {
        match self.0.find(file.id(), &file.hint())? {
            Some(fd) => {
                let meta = std::fs::File::from(fd).metadata()?;
                Ok(Canonical {
                    size: meta.len(),
                    uid: meta.uid(),
                })
            }
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    fn finished(&self, _: FileId) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `ost-deadline` and `ost-retry` say holds where no targets are named, too.
    #[test]
    fn the_backing_alone_has_the_settings_of_targets() {
        let dir = tempfile::tempdir().unwrap();
        let given = OstSettings {
            deadline: Duration::from_secs(71),
            retry_after: Duration::from_secs(73),
            ..OstSettings::default()
        };
        let fleet = backing_alone(dir.path(), &given);
        let used = fleet.settings();
        assert_eq!(used.deadline, given.deadline);
        assert_eq!(used.retry_after, given.retry_after);
        assert!(!used.probing && fleet.chosen().len() == 1);
    }
}
