//! Subfiles as files on OSTs: making them, opening them, and removing what nobody needs.
//!
//! # Who may be removed
//!
//! A subfile goes when the store has retired it and the log has synced that. Beyond those there
//! are orphans: files that a daemon of this store made and was killed before it recorded them, or
//! after it recorded their end. They are found once, at the start: names that begin with this
//! store's prefix, with a number from before the start, that no life knows. Other stores' files
//! are never touched.

use crate::engine::Shared;
use crate::ost::{Fleet, Ost, OstError, Provider};
use crate::sharing::Sharing;
use layout_index::{DiskFile, File, RealFile, Store, StoreError, Subfile, SubfileRow, Subfiles};
use parking_lot::Mutex;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Units on their way at once, for each OST that is in use: one is copied while one is written.
const UNITS_PER_OST: usize = 2;
/// And over all: each has a buffer of a stripe.
const MOST_UNITS: usize = 64;

/// Where subfiles can go.
pub(crate) struct Targets {
    pub fleet: Arc<Fleet>,
    pub sharing: Sharing,
    pub opener: Arc<Opener>,
    /// Units on their way.
    pub permits: Arc<Semaphore>,
    /// Retired, but not removed: their OST did not answer.
    leftovers: Mutex<Vec<Arc<Subfile>>>,
}

impl Targets {
    pub fn new(fleet: Arc<Fleet>, backing: OwnedFd, store: &Store) -> Targets {
        let osts = fleet.provider().osts().map_or(1, |osts| osts.len());
        let id = store.subfile_prefix();
        Targets {
            sharing: Sharing::new(backing, store.node(), id.trim_end_matches('-')),
            opener: Arc::new(Opener::new(fleet.provider().clone())),
            permits: Arc::new(Semaphore::new((UNITS_PER_OST * osts).clamp(4, MOST_UNITS))),
            leftovers: Mutex::default(),
            fleet,
        }
    }
}

/// Opens subfiles for the store.
pub struct Opener(Arc<dyn Provider>);

impl Opener {
    pub fn new(provider: Arc<dyn Provider>) -> Opener {
        Opener(provider)
    }
}

impl Subfiles for Opener {
    /// OSTs may have been given in another order this time, so their names count first.
    fn open(&self, row: &SubfileRow) -> io::Result<Arc<dyn DiskFile>> {
        let provider = &self.0;
        let osts = provider.osts().map_err(|e| e.source)?;
        let named = osts.iter().find(|ost| ost.name == row.ost_name);
        let ost = named.or_else(|| osts.iter().find(|ost| ost.index == row.ost));
        let ost = ost.ok_or_else(|| {
            io::Error::other(format!(
                "no such OST is known now; mount with the targets that were there when {} was made",
                row.name
            ))
        })?;
        let file = provider.open(ost, &row.name).map_err(|e| e.source)?;
        Ok(Arc::new(RealFile(file)))
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
    let (row, made) = loop {
        let no = store.new_subfile_no();
        let name = format!("{}{no:08x}", store.subfile_prefix());
        match provider.create(ost, &name, false) {
            // An orphan that could not be removed yet has this number.
            Err(e) if e.errno() == Some(libc::EEXIST) => {}
            Err(e) => return Err(NotMade::Ost(e)),
            Ok(made) => {
                let row = SubfileRow {
                    no,
                    ost: ost.index,
                    ost_name: ost.name.clone(),
                    name,
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
    if let Err(e) = owned {
        remove(&row.name);
        let what = "giving a subfile to its owner";
        return Err(NotMade::Ost(OstError::new(ost, what, e)));
    }
    let subfile = Arc::new(Subfile::made(row, Arc::new(RealFile(made))));
    match file.add_subfile(subfile.clone()) {
        Ok(()) => Ok(subfile),
        Err(error) => {
            remove(&subfile.row().name);
            Err(NotMade::Store(error))
        }
    }
}

/// Removes subfiles that nothing refers to any more. May wait for OSTs.
pub(crate) fn remove_retired(store: &Store, targets: &Targets) {
    let retired = match store.take_retired_subfiles() {
        Ok(retired) => retired,
        Err(error) => {
            tracing::warn!(%error, "subfiles that nobody needs stay for now");
            return;
        }
    };
    let waiting = std::mem::take(&mut *targets.leftovers.lock());
    let provider = targets.fleet.provider();
    for subfile in waiting.into_iter().chain(retired) {
        let row = subfile.row();
        let ost = Ost {
            index: row.ost,
            name: row.ost_name.clone(),
        };
        if !targets.fleet.is_usable(ost.index) {
            targets.leftovers.lock().push(subfile);
            continue;
        }
        if let Err(error) = provider.remove(&ost, &row.name) {
            tracing::warn!("{error}; it is tried again");
            targets.leftovers.lock().push(subfile);
        }
    }
}

/// Removes what earlier daemons of this store left on `ost`. `before` is a number that no subfile
/// of theirs has reached.
pub(crate) fn remove_orphans(store: &Store, targets: &Targets, ost: &Ost, before: u32) {
    let provider = targets.fleet.provider();
    let names = match provider.list(ost) {
        Ok(names) => names,
        Err(error) => {
            tracing::warn!("{error}; what an earlier daemon left there stays");
            return;
        }
    };
    let prefix = store.subfile_prefix();
    let known = store.subfiles();
    for name in names {
        let no = name
            .strip_prefix(&prefix)
            .and_then(|no| u32::from_str_radix(no, 16).ok());
        let is_known = || known.iter().any(|s| s.row().name == name);
        if no.is_none_or(|no| no >= before) || is_known() {
            continue;
        }
        match provider.remove(ost, &name) {
            Ok(()) => tracing::info!(ost = ost.index, name, "removed an orphaned subfile"),
            Err(error) => tracing::warn!("{error}"),
        }
    }
}
