//! Opens an image as the next daemon would, and compares it with the histories.

use crate::drain;
use crate::history::Expected;
use crate::image::Loss;
use crate::osts::{OSTS, Osts};
use crate::rig::{CAPACITY, Slot, canonical_path, options};
use layout_index::{Disk, DiskFile, File, RealDisk, Store, StoreError};
use std::path::Path;
use std::sync::Arc;

struct Seen {
    file: Arc<File>,
    canonical: Arc<dyn DiskFile>,
    content: Vec<u8>,
}

/// How much is done with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Recover, compare, drain, compare, reopen.
    Once,
    /// The same, with a checkpoint and a second crash after the first comparison, and with the data in the log moved
    /// to subfiles.
    Twice,
}

/// Recovers the store below `root`, compares every file with what `expected` allows, drains it and compares again.
/// The error says in one sentence what is wrong.
pub fn image<'a>(
    root: &Path,
    loss: Loss,
    depth: Depth,
    slots: impl Iterator<Item = &'a Slot> + Clone,
    expected: impl Fn(&'a Slot) -> Expected<'a>,
) -> Result<(), String> {
    let store = open(root, loss)?;
    let mut seen = Vec::new();
    for slot in slots.clone() {
        // The file was made after the cut: it does not exist yet.
        let path = canonical_path(root, slot.id);
        if !path.exists() {
            continue;
        }
        let canonical = RealDisk
            .open(&path)
            .map_err(|e| format!("{}: {e}", path.display()))?;
        let file = store.file(slot.id);
        let found = compare(&file, &*canonical, loss, &expected(slot))
            .map_err(|why| format!("file {}: {why}", slot.id))?;
        seen.push(Seen {
            file,
            canonical,
            content: found,
        });
    }
    let (store, seen) = match depth {
        Depth::Once => (store, seen),
        Depth::Twice => {
            let (store, seen) = second_crash(root, loss, store, seen)?;
            for file in &seen {
                move_one(root, &store, file)
                    .map_err(|why| format!("file {}: {why}", file.file.id()))?;
            }
            (store, seen)
        }
    };
    for file in &seen {
        drain_one(file).map_err(|why| format!("file {}: {why}", file.file.id()))?;
    }
    drop(seen);
    settle(&store)?;
    no_subfiles(root, &store)?;
    drop(store);
    reopen_clean(root)
}

fn open(root: &Path, loss: Loss) -> Result<Arc<Store>, String> {
    let (store, report) = Store::open(options(root, CAPACITY), Arc::new(RealDisk))
        .map_err(|e| format!("the store does not open: {e}"))?;
    if !report.damaged.is_empty() {
        return Err(format!("damage is reported: {}", report.damaged.join("; ")));
    }
    if loss == Loss::Killed && report.torn > 0 {
        return Err(format!(
            "{} records are torn though no power was lost",
            report.torn
        ));
    }
    let osts = osts(root);
    store.set_subfiles(Arc::new(osts.clone()));
    osts.remove_orphans(&store)
        .map_err(|e| format!("removing orphans: {e}"))?;
    Ok(store)
}

fn osts(root: &Path) -> Osts {
    Osts::new(Arc::new(RealDisk), root)
}

fn compare(
    file: &File,
    canonical: &dyn DiskFile,
    loss: Loss,
    expected: &Expected<'_>,
) -> Result<Vec<u8>, String> {
    let content = drain::content(file, canonical).map_err(|e| format!("reading failed: {e}"))?;
    // No handle of a file without a name outlived the crash: its data is dropped when the store is opened.
    let dropped = expected.discarded().max(expected.unlinked());
    if dropped == Some(true) && !file.is_clean() {
        return Err("the data of an unlinked file is back".into());
    }
    if file.is_unlinked() {
        return Err("a file without a name was kept".into());
    }
    if dropped.is_some() && file.is_clean() || expected.discarded().is_some() {
        return Ok(content);
    }
    expected.check(&content)?;
    let mtime = file.stat().map(|s| s.mtime.0);
    if let (Loss::Killed, Some(was), Some(is)) = (loss, expected.mtime, mtime)
        && was != is
    {
        return Err(format!("its time was {was} and is {is}"));
    }
    Ok(content)
}

/// Moves the checkpoint of the recovered store and kills it again: nothing may change.
fn second_crash(
    root: &Path,
    loss: Loss,
    store: Arc<Store>,
    seen: Vec<Seen>,
) -> Result<(Arc<Store>, Vec<Seen>), String> {
    store
        .checkpoint()
        .map_err(|e| format!("checkpoint after recovery: {e}"))?;
    // Every `File` holds a part of the store: all must go before the directory can be opened again.
    let kept: Vec<_> = seen
        .into_iter()
        .map(|s| {
            (
                s.file.id(),
                s.file.is_clean(),
                s.file.is_unlinked(),
                s.canonical,
                s.content,
            )
        })
        .collect();
    drop(store);
    let store = open(root, loss)?;
    let mut seen = Vec::new();
    for (id, clean, unlinked, canonical, content) in kept {
        let file = store.file(id);
        if (file.is_clean(), file.is_unlinked()) != (clean, unlinked) {
            return Err(format!("file {id}: another state after a second crash"));
        }
        let again = drain::content(&file, &*canonical)
            .map_err(|e| format!("file {id}: reading after a second crash failed: {e}"))?;
        if again != content {
            return Err(format!("file {id}: other contents after a second crash"));
        }
        seen.push(Seen {
            file,
            canonical,
            content,
        });
    }
    Ok((store, seen))
}

/// Moves what is in the log to subfiles, also to those that the crash left: nothing may change.
fn move_one(root: &Path, store: &Store, seen: &Seen) -> Result<(), String> {
    match osts(root).copy(store, &seen.file, usize::MAX) {
        Err(StoreError::Clean | StoreError::Full) => return Ok(()),
        copied => copied.and_then(|copied| copied.record(&seen.file)),
    }
    .map_err(|e| format!("moving to subfiles: {e}"))?;
    let again = drain::content(&seen.file, &*seen.canonical)
        .map_err(|e| format!("reading from subfiles: {e}"))?;
    if again != seen.content {
        return Err("other contents in subfiles".into());
    }
    Ok(())
}

/// Checks that no subfile is on the OSTs when nothing is undrained. A file that a probe was writing when the store
/// was killed stays there until it is an hour old (S9.6).
fn no_subfiles(root: &Path, store: &Store) -> Result<(), String> {
    let osts = osts(root);
    osts.remove_retired(store)
        .map_err(|e| format!("removing subfiles of a drained store: {e}"))?;
    for ost in 0..OSTS {
        let mut names = osts.names(ost).map_err(|e| e.to_string())?;
        names.retain(|name| !name.to_string_lossy().starts_with("probe-"));
        if !names.is_empty() {
            return Err(format!("OST {ost} of a drained store has {names:?}"));
        }
    }
    Ok(())
}

fn drain_one(seen: &Seen) -> Result<(), String> {
    if seen.file.is_unlinked() {
        return seen.file.discard().map_err(|e| format!("discard: {e}"));
    }
    drain::all(&seen.file, &*seen.canonical).map_err(|e| format!("drain: {e}"))?;
    let after = drain::canonical_content(&seen.file, &*seen.canonical)
        .map_err(|e| format!("reading the canonical file: {e}"))?;
    if after != seen.content {
        let at = after.iter().zip(&seen.content).position(|(a, b)| a != b);
        return Err(format!(
            "the drained file differs from what was read before (sizes {} and {}, first byte {at:?})",
            after.len(),
            seen.content.len()
        ));
    }
    Ok(())
}

/// Checks that a drained store has neither live nor undrained bytes.
fn settle(store: &Store) -> Result<(), String> {
    for _ in 0..2 {
        store
            .checkpoint()
            .map_err(|e| format!("checkpoint of a drained store: {e}"))?;
    }
    let (live, undrained) = (store.space().live, store.totals().undrained);
    if live != 0 || undrained != 0 {
        return Err(format!(
            "a drained store has {live} live and {undrained} undrained bytes"
        ));
    }
    Ok(())
}

fn reopen_clean(root: &Path) -> Result<(), String> {
    let (_store, report) = Store::open(options(root, CAPACITY), Arc::new(RealDisk))
        .map_err(|e| format!("the drained store does not open: {e}"))?;
    if report.files != 0 || report.undrained != 0 || !report.damaged.is_empty() {
        return Err(format!("the drained store opens dirty: {report:?}"));
    }
    Ok(())
}
