//! The daemon: from resolved settings to a mount that answers, and back to a closed store.
//!
//! # Start, in this order
//!
//! Privileges are trimmed, signals blocked and the process that drops pages is forked before any thread
//! exists. The backing is opened
//! before anything is mounted over it. The store is recovered and the drain runs before the first
//! request; the control socket is bound before readiness is reported.
//!
//! # End
//!
//! Whatever the reason (umount, a signal, somebody else's `umount(8)`), the last steps are the
//! same: the drain stops, the store is checkpointed and closed, the socket goes. Killed anywhere
//! in between, the store still has every acknowledged byte.

pub mod daemonize;
mod layout;
mod lifecycle;
pub mod privileges;
mod signals;
mod verbs;
pub mod wiring;

use crate::control::location::{self, Info, Place};
use crate::control::server::Server;
use crate::exit_codes::{Failure, Result};
use crate::settings::MountSettings;
use forebay_fs::Backing;
use layout_index::{RealDisk, Store, StoreOptions};
use lifecycle::Lifecycle;
use std::sync::Arc;
use std::time::Duration;
use verbs::Node;

/// Replies that are still being sent when the daemon ends get this long.
const FAREWELL: Duration = Duration::from_secs(5);

/// Mounts, serves and ends. `ready` is called once, when the mount answers.
pub fn run(settings: &MountSettings, ready: impl FnOnce()) -> Result<()> {
    let signals = signals::block()?;
    privileges::trim()?;
    let pages = wiring::page_dropper(settings)?;
    let runtime_dir = location::prepare()?;
    let place = Place::of(&runtime_dir, &settings.mount);

    let backing = wiring::open_backing(&settings.backing)?;
    let (store, report) = open_store(settings)?;
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
        parts.unmount,
        parts.flusher.clone(),
        settings.mount.clone(),
    ));
    let node = Arc::new(Node::new(
        settings,
        store.clone(),
        parts.flusher.clone(),
        parts.fleet,
        parts.names,
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
            // The mount must not stay behind without anybody to ask.
            lifecycle.abandon();
            return Err(failure);
        }
    };
    signals::listen(signals, lifecycle.clone(), settings.foreground)?;
    if let Err(failure) = answers(settings) {
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
    ready();

    let ended = lifecycle.wait(parts.wait);
    let closing = lifecycle.close(&store, ended);
    if let Some(peers) = &parts.peers
        && let Err(error) = peers.leave()
        // The backing is gone, and with it those who could wait.
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "other nodes wait for this one's lease");
    }
    if let Err(error) = place.retract() {
        tracing::warn!(%error, "the control socket could not be removed");
    }
    lifecycle.closed(closing.clone());
    server.stop(FAREWELL);
    match closing.error {
        None => Ok(()),
        Some(message) => Err(Failure::failed(message)),
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
    store.start_maintenance().map_err(failed)?;
    Ok((store, report))
}

fn bind(settings: &MountSettings, place: &Place) -> Result<std::os::unix::net::UnixListener> {
    let info = Info {
        pid: std::process::id(),
        node: settings.node.clone(),
        mount: settings.mount.clone(),
        store: settings.store.clone(),
        backing: settings.backing.clone(),
    };
    place.publish(&info).map_err(|e| {
        Failure::failed(format!(
            "the control socket {}: {e}",
            place.socket.display()
        ))
    })
}

/// A daemon that was killed between removing a file's last name and recording that leaves data
/// that no file will ever take. What cannot be looked at now is the drain's to report.
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

/// The kernel has the mount. Nothing in this process may look into it: killed while its own
/// request waits for itself, a daemon could not end. `forebay mount` looks, from outside.
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
