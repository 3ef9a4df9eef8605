//! The daemon: from resolved settings to a mount that answers, and back to a closed store.
//!
//! # Start, in this order
//!
//! Before any thread exists, signals are blocked, privileges are trimmed and the process that drops pages is
//! forked. The backing is opened before anything is mounted over it. The store is recovered and the drain
//! runs before the first request. The control socket is bound before readiness is reported.
//!
//! # End
//!
//! Whatever the reason (umount, a signal, or another program's `umount(8)`, after which the daemon drains
//! what is left), the last steps are the same: the drain stops, the store is checkpointed and closed, and the
//! socket is removed. If the daemon is killed anywhere in between, the store still has every acknowledged
//! byte.

pub mod daemonize;
pub mod joining;
mod layout;
mod lifecycle;
mod mount_table;
mod point;
pub mod privileges;
mod probe;
mod signals;
mod undrained;
mod verbs;
pub mod wiring;

use crate::control::location::{self, Info, Place};
use crate::control::server::Server;
use crate::exit_codes::{Failure, Result};
use crate::settings::MountSettings;
use forebay_fs::Backing;
use layout_index::{Peers, RealDisk, Store, StoreOptions};
use lifecycle::Lifecycle;
use std::sync::Arc;
use std::time::Duration;
use verbs::Node;

/// Time for replies that are still being sent when the daemon ends, and for telling other nodes that it ends.
const FAREWELL: Duration = Duration::from_secs(5);

/// Mounts, serves and ends. `ready` is called once, when the mount answers, with what the user who mounts
/// should know.
pub fn run(settings: &MountSettings, ready: impl FnOnce(Option<String>)) -> Result<()> {
    let signals = signals::block()?;
    privileges::trim()?;
    let pages = wiring::page_dropper(settings)?;
    let runtime_dir = location::prepare()?;
    let place = Place::of(&runtime_dir, &settings.mount);

    let backing = wiring::open_backing(&settings.backing)?;
    let (store, report) = open_store(settings)?;
    let mut unbinding = Unbinding(store.is_fresh().then(|| store.clone()));
    if report.undrained > 0 {
        tracing::info!(
            files = report.files,
            bytes = report.undrained,
            replayed = report.replayed,
            "undrained data of an earlier mount was found"
        );
    }
    for damage in &report.damaged {
        tracing::error!("{damage}");
    }
    drop_lost(&backing, &store);
    let parts = wiring::assemble(settings, backing, store.clone(), pages)?;
    let lifecycle = Arc::new(Lifecycle::new(
        Box::new(parts.mounted.unmounter()),
        parts.flusher.clone(),
        settings.mount.clone(),
    ));
    let node = Arc::new(Node::new(
        settings,
        store.clone(),
        parts.flusher.clone(),
        parts.targets,
        parts.requests,
        lifecycle.clone(),
        report,
    ));
    let server = bind(settings, &place).and_then(|listener| {
        Server::start(listener, node)
            .map_err(|e| Failure::failed(format!("the control socket: {e}")))
    });
    let server = match server {
        Ok(server) => server,
        Err(failure) => {
            // The mount must not stay behind without a daemon that answers on the control socket.
            lifecycle.abandon();
            return Err(failure);
        }
    };
    let started = signals::listen(signals, lifecycle.clone(), settings.log_file.clone())
        .and_then(|()| answers(settings))
        .and_then(|()| mount_table::watch(lifecycle.clone()));
    if let Err(failure) = started {
        lifecycle.abandon();
        return Err(failure);
    }
    tracing::info!(
        mount = %settings.mount.display(),
        backing = %settings.backing.display(),
        store = %settings.store.display(),
        node = settings.node,
        "mounted"
    );
    unbinding.0 = None;
    if let Some(doubt) = &parts.doubt {
        tracing::warn!("{doubt}");
    }
    ready(parts.doubt);

    let ended = lifecycle.wait(parts.mounted);
    lifecycle.linger();
    let closing = lifecycle.close(&store, ended);
    if let Some(peers) = parts.peers {
        leave(peers);
    }
    if let Err(error) = place.retract(std::process::id()) {
        tracing::warn!(%error, "the control socket could not be removed");
    }
    lifecycle.closed(closing.clone());
    server.stop(FAREWELL);
    match closing.error {
        None => Ok(()),
        Some(message) => Err(Failure::failed(message)),
    }
}

/// Tells other nodes that they need not wait for this node's lease. They do wait if the backing does not take
/// that message in time.
fn leave(peers: Arc<Peers>) {
    let (said, heard) = std::sync::mpsc::channel();
    let leaving = std::thread::Builder::new()
        .name("forebay-leave".into())
        .spawn(move || {
            if said.send(peers.leave()).is_err() {
                tracing::debug!("the shared directory answered late");
            }
        });
    let error = match (leaving, heard.recv_timeout(FAREWELL)) {
        (_, Ok(Ok(()))) => return,
        (_, Ok(Err(error))) => error,
        (Ok(_), Err(_)) => std::io::ErrorKind::TimedOut.into(),
        (Err(error), Err(_)) => error,
    };
    // If the backing is gone, no other node is waiting.
    if error.kind() != std::io::ErrorKind::NotFound {
        tracing::warn!(%error, "other nodes wait for this one's lease");
    }
}

fn open_store(settings: &MountSettings) -> Result<(Arc<Store>, layout_index::RecoveryReport)> {
    let options = StoreOptions {
        dir: settings.store.clone(),
        node: settings.node.clone(),
        backing: settings.backing.clone(),
        index_memory: settings.index_memory,
        space: settings.space.clone(),
    };
    let failed = |e: layout_index::StoreError| Failure::failed(e.to_string());
    let (store, report) = Store::open(options, Arc::new(RealDisk)).map_err(failed)?;
    store.set_file_settings(settings.files);
    store.start_maintenance().map_err(failed)?;
    Ok((store, report))
}

/// Unbinds a new store from the backing again if the mount fails.
struct Unbinding(Option<Arc<Store>>);

impl Drop for Unbinding {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.0.take().map(|store| store.release()) {
            tracing::warn!(%error, "the new store stays bound to the backing of this mount");
        }
    }
}

fn bind(settings: &MountSettings, place: &Place) -> Result<std::os::unix::net::UnixListener> {
    let info = Info {
        pid: std::process::id(),
        node: settings.node.clone(),
        mount: settings.mount.clone(),
        store: settings.store.clone(),
        backing: settings.backing.clone(),
        settings: settings.digest(),
    };
    place.publish(&info).map_err(|e| {
        Failure::failed(format!(
            "the control socket {}: {e}",
            place.socket.display()
        ))
    })
}

/// Drops data of files that no longer exist. A daemon that was killed after it had removed a file's last
/// name, and before it had recorded that, leaves data that no file will ever take. Files that cannot be
/// accessed now are left to the drain, which reports the error.
fn drop_lost(backing: &Backing, store: &Store) {
    for file in store.dirty_files() {
        let Some(intro) = file.intro() else { continue };
        if !matches!(backing.open_canonical(file.id(), &intro), Ok(None)) {
            continue;
        }
        match file.discard() {
            Ok(()) => tracing::info!(file = %file.id(), "its file is gone: the data was dropped"),
            Err(error) => tracing::error!(file = %file.id(), %error, "its file is gone"),
        }
    }
}

/// Checks that the kernel has the mount. Nothing in this process may access the mount: a daemon that is
/// killed while its own request waits for itself could not end. `forebay mount` accesses it from outside.
fn answers(settings: &MountSettings) -> Result<()> {
    let failed = |e: std::io::Error| {
        Failure::failed(format!("{} does not answer: {e}", settings.mount.display()))
    };
    if crate::mountinfo::forebay_at(&settings.mount).map_err(failed)? {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} was mounted but something else lies over it",
        settings.mount.display()
    )))
}
