//! Subfiles as files on OSTs: making them, opening them, and removing what nobody needs.
//!
//! # Who may be removed
//!
//! A subfile goes when the store has retired it and the log has synced that. Beyond those there
//! are orphans: files that a daemon of this store made and was killed before it recorded them, or
//! after it recorded their end. They are found once, at the start: names that begin with this
//! store's prefix, of another run than this one, that no life knew when the store was opened.
//! Other stores' files are never touched. Probes have no store: what a killed one left goes when it
//! is so old that no node can be writing it, at the start of whichever store comes first.

use crate::engine::Shared;
use crate::ost::{Fleet, Ost, OstError, Provider, is_probe};
use layout_index::{DiskFile, File, Store, StoreError, Subfile, SubfileRow, Subfiles};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Units on their way at once, for each OST that is in use: one is copied while one is written.
const UNITS_PER_OST: usize = 2;
/// And over all: each has a buffer of a stripe.
const MOST_UNITS: usize = 64;

/// Longer than any probe, and than clocks of nodes and servers are apart.
const OLD_PROBE: Duration = Duration::from_secs(3600);

/// Where subfiles can go.
pub(crate) struct Targets {
    pub fleet: Arc<Fleet>,
    pub opener: Arc<Opener>,
    /// Units on their way.
    pub permits: Arc<Semaphore>,
    /// Retired, durably, and still to be removed; by OST.
    leftovers: Mutex<HashMap<String, Vec<Arc<Subfile>>>>,
    /// OSTs that are being removed from: one that hangs must not collect threads.
    removing: Mutex<HashSet<String>>,
    removed: Condvar,
    collecting: Mutex<()>,
}

impl Targets {
    pub fn new(fleet: Arc<Fleet>) -> Targets {
        let osts = fleet.provider().osts().map_or(1, |osts| osts.len());
        Targets {
            opener: Arc::new(Opener::new(fleet.provider().clone())),
            permits: Arc::new(Semaphore::new((UNITS_PER_OST * osts).clamp(4, MOST_UNITS))),
            leftovers: Mutex::default(),
            removing: Mutex::default(),
            removed: Condvar::new(),
            collecting: Mutex::default(),
            fleet,
        }
    }

    /// The OST that a subfile is on, if it is known now.
    pub fn ost_of(&self, row: &SubfileRow) -> Option<Ost> {
        find_ost(&**self.fleet.provider(), row).ok().flatten()
    }
}

/// By name: directories may have been given in another order this time.
fn find_ost(provider: &dyn Provider, row: &SubfileRow) -> Result<Option<Ost>, OstError> {
    let osts = provider.osts()?;
    Ok(osts.into_iter().find(|ost| ost.name == row.ost_name))
}

/// Opens subfiles for the store.
pub struct Opener(Arc<dyn Provider>);

impl Opener {
    pub fn new(provider: Arc<dyn Provider>) -> Opener {
        Opener(provider)
    }
}

impl Subfiles for Opener {
    fn open(&self, row: &SubfileRow) -> io::Result<Arc<dyn DiskFile>> {
        let ost = find_ost(&*self.0, row).map_err(|e| e.source)?;
        let ost = ost.ok_or_else(|| {
            io::Error::other(format!(
                "no such OST is known now; mount with the same --ost as before, when {} was made",
                row.name
            ))
        })?;
        let file = self.0.open(&ost, &row.name).map_err(|e| e.source)?;
        if file.metadata()?.uid() != row.uid {
            return Err(io::Error::other(format!(
                "{} belongs to another user than the file that it was made for",
                row.name
            )));
        }
        Ok(self.0.disk(&ost, &row.name, file))
    }
}

/// Why there is no subfile.
pub(crate) enum NotMade {
    Ost(OstError),
    Store(StoreError),
}

/// Makes a subfile for `file` on `ost`, gives it to the file's owner and records it.
pub(crate) fn make(
    shared: &Shared,
    targets: &Targets,
    file: &File,
    ost: &Ost,
) -> Result<Arc<Subfile>, NotMade> {
    let provider = targets.fleet.provider();
    let store = &shared.store;
    let intro = file.intro().ok_or(NotMade::Store(StoreError::Clean))?;
    let (mut row, made) = loop {
        let no = store.new_subfile_no();
        let name = format!("{}{no:08x}", store.subfile_run());
        match provider.create(ost, &name, false) {
            // Somebody is in the way; numbers do not run out.
            Err(e) if e.errno() == Some(libc::EEXIST) => {}
            Err(e) => return Err(NotMade::Ost(e)),
            Ok(made) => {
                let row = SubfileRow {
                    no,
                    ost: ost.index,
                    ost_name: ost.name.clone(),
                    name,
                    uid: 0,
                };
                break (row, made);
            }
        }
    };
    let remove = |name: &str| match provider.remove(ost, name) {
        Ok(()) => {}
        Err(error) => tracing::warn!("{error}; the next start removes it"),
    };
    // Without the right to give files away everything belongs to the one user there is.
    let owned = if nix::unistd::geteuid().is_root() {
        fchown(&made, Some(intro.uid), Some(intro.gid))
    } else {
        Ok(())
    };
    match owned.and_then(|()| made.metadata()) {
        Ok(meta) => row.uid = meta.uid(),
        Err(e) => {
            remove(&row.name);
            let what = "giving a subfile to its owner";
            return Err(NotMade::Ost(OstError::new(ost, what, e)));
        }
    }
    let disk = provider.disk(ost, &row.name, made);
    let subfile = Arc::new(Subfile::made(row, disk));
    match file.add_subfile(subfile.clone()) {
        Ok(()) => Ok(subfile),
        Err(error) => {
            remove(&subfile.row().name);
            Err(NotMade::Store(error))
        }
    }
}

/// Takes over what the store has retired.
pub(crate) fn collect_retired(store: &Store, targets: &Targets) {
    // Who comes second must not return before the first has handed over what it took.
    let _one = targets.collecting.lock();
    match store.take_retired_subfiles() {
        Ok(retired) => {
            let mut leftovers = targets.leftovers.lock();
            for subfile in retired {
                let ost = subfile.row().ost_name.clone();
                leftovers.entry(ost).or_default().push(subfile);
            }
        }
        Err(error) => tracing::warn!(%error, "subfiles that nobody needs stay for now"),
    }
}

/// OSTs that something is to be removed from and nobody is at it. Each is the caller's until it
/// was given to [`remove_retired`].
pub(crate) fn osts_to_clear(targets: &Targets) -> Vec<String> {
    let leftovers = targets.leftovers.lock();
    let mut removing = targets.removing.lock();
    let waiting = leftovers.iter().filter(|(_, files)| !files.is_empty());
    waiting
        .map(|(ost, _)| ost.clone())
        .filter(|ost| removing.insert(ost.clone()))
        .collect()
}

/// Removes retired subfiles from one OST. May wait for it.
pub(crate) fn remove_retired(targets: &Targets, name: &str) {
    let files = targets.leftovers.lock().remove(name).unwrap_or_default();
    for subfile in files {
        let row = subfile.row();
        let ost = targets.ost_of(row);
        let usable = ost.filter(|ost| targets.fleet.is_usable(ost.index));
        let removed = usable.is_some_and(|ost| {
            let flight = targets.fleet.begin(ost.index, 0);
            match targets.fleet.provider().remove(&ost, &row.name) {
                Ok(()) => {
                    flight.done();
                    true
                }
                Err(error) => {
                    tracing::warn!("{error}; it is tried again");
                    flight.failed(&error);
                    false
                }
            }
        });
        if !removed {
            let mut leftovers = targets.leftovers.lock();
            leftovers.entry(name.to_owned()).or_default().push(subfile);
        }
    }
    targets.removing.lock().remove(name);
    targets.removed.notify_all();
}

/// Removes all that is collected, and waits for those who are at it.
pub(crate) fn clear_all(targets: &Targets) {
    for ost in osts_to_clear(targets) {
        remove_retired(targets, &ost);
    }
    let mut removing = targets.removing.lock();
    while !removing.is_empty() {
        targets.removed.wait(&mut removing);
    }
}

/// Removes what earlier daemons of this store left on `ost`, and what killed probes did.
pub(crate) fn remove_orphans(store: Arc<Store>, targets: &Targets, ost: &Ost) {
    let provider = targets.fleet.provider();
    let names = match provider.list(ost) {
        Ok(names) => names,
        Err(error) => {
            tracing::warn!("{error}; what an earlier daemon left there stays");
            return;
        }
    };
    let orphans: Vec<&String> = names.iter().filter(|n| store.is_orphan(n)).collect();
    // Looking at a probe's file may hang with its target, and would keep the store from being closed.
    drop(store);
    let is_left = |name: &str| is_probe(name) && is_old(&**provider, ost, name);
    let probes = names.iter().filter(|n| is_left(n));
    for name in orphans.into_iter().chain(probes) {
        match provider.remove(ost, name) {
            Ok(()) => tracing::info!(ost = ost.index, name, "removed an orphan"),
            Err(error) => tracing::warn!("{error}"),
        }
    }
}

/// Whether nobody can be writing this file of a probe any more.
fn is_old(provider: &dyn Provider, ost: &Ost, name: &str) -> bool {
    match provider.modified(ost, name) {
        // One that is newer than now has no age.
        Ok(modified) => modified.elapsed().is_ok_and(|age| age > OLD_PROBE),
        // That probe has just ended.
        Err(error) if error.errno() == Some(libc::ENOENT) => false,
        Err(error) => {
            tracing::warn!("{error}");
            false
        }
    }
}
