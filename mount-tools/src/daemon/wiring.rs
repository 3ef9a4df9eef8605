//! Constructs a mount from its parts. The file system and the drain know each other by the traits in
//! `layout_index::interfaces` only, and nothing is handed over after construction.

use super::joining::{Joining, join};
use crate::coherence;
use crate::exit_codes::{Failure, Result};
use crate::settings::MountSettings;
use caps::{CapSet, Capability};
use flusher::ost::{self, Kind, OstSettings, Provider, ProviderError, Targets};
use flusher::{Flusher, Osts};
use forebay_fs::{
    Backing, Descriptors, MountOptions, Mounted, Others, Overlay, OverlayOptions, PageDropper,
    Requests,
};
use layout_index::sharing::shared_dir::Standing;
use layout_index::{Peers, Placement, Publisher, Store};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// A running mount.
pub struct Parts {
    pub flusher: Arc<Flusher>,
    pub requests: Arc<Requests>,
    /// The storage targets, if there are any to choose from.
    pub targets: Option<Arc<Targets>>,
    pub peers: Option<Arc<Peers>>,
    /// Why nodes may not see each other's data through this backing.
    pub doubt: Option<String>,
    pub mounted: Mounted,
}

pub fn open_backing(path: &Path) -> Result<Backing> {
    Backing::open(path)
        .map_err(|e| Failure::failed(format!("cannot open the backing {}: {e}", path.display())))
}

/// Returns the provider that places files on storage targets, if there is one. Must be called before anything
/// is mounted over the backing.
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

/// Starts the process that drops the pages of mapped files, if other nodes may change these. The process must
/// be able to open files by handle, or it is of no use. Must be called before there are threads.
pub fn page_dropper(settings: &MountSettings) -> Result<Option<PageDropper>> {
    let by_handle = caps::has_cap(None, CapSet::Effective, Capability::CAP_DAC_READ_SEARCH);
    if settings.lease.is_none() || !by_handle.is_ok_and(|may| may) {
        return Ok(None);
    }
    let started = PageDropper::start(&settings.mount);
    let failed = |e| Failure::failed(format!("no process to drop the pages of mapped files: {e}"));
    started.map(Some).map_err(failed)
}

/// Starts the drain, then mounts, so that everything is there at the first request.
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
    let target_settings = OstSettings {
        stripe: settings.drain.stripe,
        first: store.id().0 as usize,
        ..settings.target_settings.clone()
    };
    let targets = provider.map(|provider| Targets::start(provider, target_settings.clone()));
    let placement = targets.clone().map(|targets| targets as Arc<dyn Placement>);
    let (peers, pending) = match settings.lease {
        Some(lease) => {
            let joining = Joining {
                lease,
                standing,
                placement: placement.clone(),
                pause: forebay_fs::pause,
            };
            let (peers, pending) = join(&backing, &store, joining)?;
            (Some(peers), pending)
        }
        None => (None, Vec::new()),
    };
    let doubt = peers.as_ref().and_then(|peers| {
        let can_map = || peers.shared_dir().membership().can_map_files();
        coherence::doubt(&settings.backing, settings.shared_locks, &can_map)
    });
    let osts = Osts::new(
        targets.as_ref(),
        peers.clone(),
        &settings.backing,
        &target_settings,
    );
    let descriptors = Descriptors::prepare(&backing)
        .map_err(|e| Failure::failed(format!("the file system could not be set up: {e}")))?;
    let overlay_with = |drain: &Weak<Flusher>| {
        let drain: Weak<dyn Publisher> = drain.clone();
        Overlay::new(OverlayOptions {
            backing,
            store: store.clone(),
            policies: settings.policies.clone(),
            ttl: settings.attr_timeout,
            placement,
            others: peers.clone().map(|peers| Others::new(peers, drain)),
            shared_locks: settings.shared_locks,
            descriptors,
        })
    };
    let (flusher, overlay) =
        Flusher::start_with(store.clone(), overlay_with, settings.drain.clone(), osts)
            .map_err(|e| Failure::failed(format!("the drain could not be started: {e}")))?;
    pending
        .iter()
        .for_each(|file| flusher.request_publish(file));
    let options = mount_options(settings);
    let requests = Requests::new(overlay);
    let mounted = forebay_fs::mount(requests.clone(), &settings.mount, &options, pages);
    let mounted = mounted.map_err(|e| {
        Failure::failed(format!("cannot mount at {}: {e}", settings.mount.display()))
    })?;
    Ok(Parts {
        flusher,
        requests,
        targets,
        peers,
        doubt,
        mounted,
    })
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
