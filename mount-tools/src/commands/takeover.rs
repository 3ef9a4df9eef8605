//! Takes over a store before it is mounted.
//!
//! If another program has unmounted an earlier mount of the same store, its daemon drains what is left
//! without a mount. Such a daemon is asked to hand over the store, with what is left, to the next mount. If a
//! daemon without a mount has another store but the same mount point, the new mount is refused until that
//! daemon is done: two daemons at one mount point could not be told apart.
//!
//! Nothing is lost if this breaks off: the store has every acknowledged byte, and opening a store that is in
//! use is refused.

use crate::control::client::{self, Client};
use crate::control::location::{self, Found, Info};
use crate::control::protocol::{Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::settings::MountSettings;
use crate::units;

/// Returns when no daemon without a mount has the store or the mount point of these settings.
pub fn of_store(settings: &MountSettings) -> Result<()> {
    let (store, mount) = (&settings.store, &settings.mount);
    if let Some(found) = location::find(mount).filter(|f| f.info.store != *store)
        && let Some(reply) = ask(&found, |client| client.ask(&Request::Status, |_| {}))?
    {
        let Reply::Status(report) = reply else {
            return Err(client::unexpected(&reply));
        };
        if report.mounted == Some(false) {
            let (mount, store) = (mount.display(), report.store.path.display());
            return Err(Failure::failed(format!(
                "{mount}: a daemon drains what an earlier mount here has left in the store {store}; wait for it, or say forebay umount {mount} --keep, or mount with --store {store}"
            )));
        }
    }
    for found in location::all() {
        if found.info.store != *store {
            continue;
        }
        let pid = found.info.pid;
        let handed_over = ask(&found, |client| {
            is_theirs(&found, settings)?;
            client.ask_to_end(&Request::HandOver, |_| {})
        });
        match handed_over {
            Ok(None) => {}
            Ok(Some(Reply::Unmounted { undrained, files })) => eprintln!(
                "forebay: process {pid}, which was draining the store without its mount, has handed it over with {} in {} undrained",
                units::bytes(undrained),
                units::files(files)
            ),
            // The daemon still has its mount. Opening the store will say which process uses it.
            Err(failure) if failure.code == Code::Busy => {}
            Ok(Some(other)) => return Err(client::unexpected(&other)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// Returns the daemon's answer, or `None` if the daemon is gone. It may end while it is asked.
fn ask(found: &Found, question: impl FnOnce(Client) -> Result<Reply>) -> Result<Option<Reply>> {
    match Client::of(found.clone()).and_then(question) {
        Ok(reply) => Ok(Some(reply)),
        Err(failure) if failure.code == Code::NoDaemon || client::is_gone(found) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Refuses settings that cannot use this store anyway: such a mount must not end the drain of what is in the
/// store.
fn is_theirs(found: &Found, settings: &MountSettings) -> Result<()> {
    let Info {
        pid,
        store,
        backing,
        node,
        ..
    } = &found.info;
    let whose = if *backing != settings.backing {
        format!(
            "belongs to {}, not to {}",
            backing.display(),
            settings.backing.display()
        )
    } else if *node != settings.node {
        format!("belongs to node {node}, and this is node {}", settings.node)
    } else {
        return Ok(());
    };
    Err(Failure::failed(format!(
        "store {} {whose}; process {pid} has it, see forebay status --store {}",
        store.display(),
        store.display()
    )))
}
