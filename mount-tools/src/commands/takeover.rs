//! Before a mount: a daemon that lost its mount to another program and drains what is left of the same
//! store gives the store up, and what is left to the next one. If it has another store, the mount point
//! is its own until it is done: two daemons at one place could not be told apart.
//!
//! Nothing is lost if it breaks off: the store has every acknowledged byte, and one that is in use is
//! refused when it is opened.

use crate::control::client::Client;
use crate::control::location;
use crate::control::protocol::{Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::units;
use std::path::Path;

/// Returns when no daemon without a mount has the store or the mount point. Both are real paths.
pub fn of_store(store: &Path, mount: &Path) -> Result<()> {
    if let Some(found) = location::find(mount).filter(|f| f.info.store != store)
        && let Ok(client) = Client::of(found)
        && let Ok(Reply::Status(report)) = client.ask(&Request::Status, |_| {})
        && report.mounted == Some(false)
    {
        let (mount, store) = (mount.display(), report.store.path.display());
        return Err(Failure::failed(format!(
            "{mount}: a daemon drains what an earlier mount here has left in the store {store}; wait for it, or say forebay umount {mount} --keep, or mount with --store {store}"
        )));
    }
    for found in location::all() {
        if found.info.store != store {
            continue;
        }
        let pid = found.info.pid;
        let Ok(client) = Client::of(found) else {
            continue;
        };
        match client.ask_to_end(&Request::HandOver, |_| {}) {
            Ok(Reply::Unmounted { undrained, files }) => eprintln!(
                "forebay: process {pid}, which was draining the store without its mount, has handed it over with {} in {} undrained",
                units::bytes(undrained),
                units::files(files)
            ),
            // It has its mount: opening the store says who uses it.
            Err(failure) if failure.code == Code::Busy => {}
            Ok(other) => return Err(crate::control::client::unexpected(&other)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}
