//! Subfiles as files on OSTs: making them, opening them, and removing those that are no longer
//! needed.
//!
//! # Which files may be removed
//!
//! A subfile is removed when the store has retired it and the log has synced that record. Besides
//! those there are orphans, left by a daemon of this store that was killed before it had recorded a
//! new subfile, or after it had recorded the end of one. They are looked for once, at the start:
//! names that begin with this store's prefix, are of another run than this one, and belong to no
//! dirty period that was known when the store was opened. Files of other stores are never touched.
//! Files of probes belong to no store: what a killed probe left is removed at the start of any
//! store, once it is so old that no node can still be writing it.

use crate::engine::EngineState;
use crate::ost::{Ost, OstError, Provider, Targets, is_probe};
use layout_index::{DiskFile, File, Store, StoreError, Subfile, SubfileRow, Subfiles};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Units on their way at once for each OST that is in use: one is copied while another one is
/// written.
const UNITS_PER_OST: usize = 2;
/// The same limit over all OSTs: each unit has a buffer of a stripe.
const MOST_UNITS: usize = 64;

/// Longer than any probe takes, and more than the clocks of nodes and servers differ by.
const OLD_PROBE: Duration = Duration::from_secs(3600);

/// The OSTs that subfiles can go to, and what is to be removed from them.
pub(crate) struct SubfileKeeper {
    pub targets: Arc<Targets>,
    pub opener: Arc<Opener>,
    /// Permits for units on their way.
    pub permits: Arc<Semaphore>,
    /// Subfiles, by OST, that are durably retired and still to be removed.
    leftovers: Mutex<HashMap<String, Vec<Arc<Subfile>>>>,
    /// OSTs from which a thread removes files now: an OST that hangs must not collect threads.
    removing: Mutex<HashSet<String>>,
    removed: Condvar,
    collecting: Mutex<()>,
}

impl SubfileKeeper {
    pub fn new(targets: Arc<Targets>) -> SubfileKeeper {
        let osts = targets.provider().osts().map_or(1, |osts| osts.len());
        SubfileKeeper {
            opener: Arc::new(Opener::new(targets.provider().clone())),
            permits: Arc::new(Semaphore::new((UNITS_PER_OST * osts).clamp(4, MOST_UNITS))),
            leftovers: Mutex::default(),
            removing: Mutex::default(),
            removed: Condvar::new(),
            collecting: Mutex::default(),
            targets,
        }
    }

    /// Returns the OST that a subfile is on, if that OST is known now.
    pub fn ost_of(&self, row: &SubfileRow) -> Option<Ost> {
        find_ost(&**self.targets.provider(), row).ok().flatten()
    }
}

/// Finds an OST by name: the directories may have been given in another order this time.
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

/// Why no subfile was made.
pub(crate) enum NotMade {
    Ost(OstError),
    Store(StoreError),
}

/// Makes a subfile for `file` on `ost`, gives it to the file's owner and records it.
pub(crate) fn make_subfile(
    engine: &EngineState,
    keeper: &SubfileKeeper,
    file: &File,
    ost: &Ost,
) -> Result<Arc<Subfile>, NotMade> {
    let provider = keeper.targets.provider();
    let store = &engine.store;
    let intro = file.intro().ok_or(NotMade::Store(StoreError::Clean))?;
    let (mut row, made) = loop {
        let no = store.new_subfile_no();
        let name = format!("{}{no:08x}", store.subfile_run());
        match provider.create(ost, &name, false) {
            // The name is taken. The next number is tried; numbers do not run out.
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
    // Without the right to give files away (not root), all files belong to the one user there is.
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

/// Takes over the subfiles that the store has retired.
pub(crate) fn collect_retired(store: &Store, keeper: &SubfileKeeper) {
    // A second caller must not return before the first has handed over what it took.
    let _one = keeper.collecting.lock();
    match store.take_retired_subfiles() {
        Ok(retired) => {
            let mut leftovers = keeper.leftovers.lock();
            for subfile in retired {
                let ost = subfile.row().ost_name.clone();
                leftovers.entry(ost).or_default().push(subfile);
            }
        }
        Err(error) => tracing::warn!(%error, "subfiles that are no longer needed stay for now"),
    }
}

/// Returns the OSTs that have something to be removed and that no thread works on. Each of them
/// belongs to the caller until it has been passed to [`remove_retired`].
pub(crate) fn osts_to_clear(keeper: &SubfileKeeper) -> Vec<String> {
    let leftovers = keeper.leftovers.lock();
    let mut removing = keeper.removing.lock();
    let waiting = leftovers.iter().filter(|(_, files)| !files.is_empty());
    waiting
        .map(|(ost, _)| ost.clone())
        .filter(|ost| removing.insert(ost.clone()))
        .collect()
}

/// Removes retired subfiles from one OST. May wait for that OST.
pub(crate) fn remove_retired(keeper: &SubfileKeeper, name: &str) {
    let files = keeper.leftovers.lock().remove(name).unwrap_or_default();
    for subfile in files {
        let row = subfile.row();
        let ost = keeper.ost_of(row);
        let usable = ost.filter(|ost| keeper.targets.is_usable(ost.index));
        let removed = usable.is_some_and(|ost| {
            let flight = keeper.targets.begin(ost.index, 0);
            match keeper.targets.provider().remove(&ost, &row.name) {
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
            let mut leftovers = keeper.leftovers.lock();
            leftovers.entry(name.to_owned()).or_default().push(subfile);
        }
    }
    keeper.removing.lock().remove(name);
    keeper.removed.notify_all();
}

/// Removes everything that is collected, and waits for other threads that are removing files.
pub(crate) fn clear_all(keeper: &SubfileKeeper) {
    for ost in osts_to_clear(keeper) {
        remove_retired(keeper, &ost);
    }
    let mut removing = keeper.removing.lock();
    while !removing.is_empty() {
        keeper.removed.wait(&mut removing);
    }
}

/// Removes what earlier daemons of this store left on `ost`, and what killed probes left there.
pub(crate) fn remove_orphans(store: Arc<Store>, keeper: &SubfileKeeper, ost: &Ost) {
    let provider = keeper.targets.provider();
    let names = match provider.list(ost) {
        Ok(names) => names,
        Err(error) => {
            tracing::warn!("{error}; what an earlier daemon left there stays");
            return;
        }
    };
    let orphans: Vec<&String> = names.iter().filter(|n| store.is_orphan(n)).collect();
    // Looking at a probe's file may hang with its target. Holding the store meanwhile would keep it
    // from being closed.
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

/// True if no node can still be writing this file of a probe.
fn is_old(provider: &dyn Provider, ost: &Ost, name: &str) -> bool {
    match provider.modified(ost, name) {
        // A file that is newer than now has no age.
        Ok(modified) => modified.elapsed().is_ok_and(|age| age > OLD_PROBE),
        // That probe has just ended and removed its file.
        Err(error) if error.errno() == Some(libc::ENOENT) => false,
        Err(error) => {
            tracing::warn!("{error}");
            false
        }
    }
}
