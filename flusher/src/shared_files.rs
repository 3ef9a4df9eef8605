//! Shared files: the files that other nodes also use, and for which this node has something to do.
//!
//! The drain works on a file not only while the store has bytes of it, but until everything that
//! this node published is in the canonical file. Any file can also be requested as a whole: by a
//! caller that must read or write the canonical file itself, or because a node died that had a part
//! in it.
//!
//! Nothing here is durable: a start finds the same files in the shared directory
//! ([`Peers::resume`]).

use layout_index::{File, FileId, Peers};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) struct SharedFiles {
    pub peers: Arc<Peers>,
    files: Mutex<HashMap<FileId, SharedFile>>,
}

struct SharedFile {
    file: Arc<File>,
    /// Drain everything that is published, whichever node published it.
    all: bool,
    egress_lock: Arc<tokio::sync::Mutex<()>>,
}

impl SharedFiles {
    pub fn new(peers: Arc<Peers>) -> SharedFiles {
        SharedFiles {
            peers,
            files: Mutex::default(),
        }
    }

    /// The drain works on the file until [`SharedFiles::is_busy`] returns false.
    pub fn add(&self, file: &Arc<File>, all: bool) {
        let mut files = self.files.lock();
        let shared_file = files.entry(file.id()).or_insert(SharedFile {
            file: file.clone(),
            all,
            egress_lock: Arc::default(),
        });
        shared_file.all |= all;
    }

    /// Locks the file's way out of the log: only one task at a time moves its bytes. A second task
    /// waits, and then finds that little is left to do. Without this lock both would move the same
    /// bytes; correctness does not depend on it.
    pub async fn egress_lock(&self, file: &Arc<File>) -> tokio::sync::OwnedMutexGuard<()> {
        let egress_lock = match self.files.lock().get(&file.id()) {
            Some(shared_file) => shared_file.egress_lock.clone(),
            None => Arc::default(),
        };
        egress_lock.lock_owned().await
    }

    /// The file is gone: what other nodes have published of it is dropped by them and never drained.
    pub fn withdraw_request(&self, file: &File) {
        if let Some(shared_file) = self.files.lock().get_mut(&file.id()) {
            shared_file.all = false;
        }
    }

    /// Forgets the file if there is nothing more to do for it. True if there is not.
    ///
    /// An open file without a name is idle, but what this node has published of it is dropped at its
    /// last close, and only the `File` knows of that: it is forgotten then
    /// ([`Publisher::drop_published`](layout_index::Publisher::drop_published)). A publication of it may
    /// be under way now, which ends with a clean file that has a part: hence the order of the checks.
    pub fn remove_idle(&self, file: &Arc<File>) -> bool {
        let mut files = self.files.lock();
        let all = files.get(&file.id()).is_some_and(|i| i.all);
        if self.has_work(file, all) {
            return false;
        }
        if file.is_clean() && !self.peers.has_part(file) {
            files.remove(&file.id());
        }
        true
    }

    pub fn is_busy(&self, file: &File) -> bool {
        let all = self.files.lock().get(&file.id()).is_some_and(|i| i.all);
        self.has_work(file, all)
    }

    fn has_work(&self, file: &File, all: bool) -> bool {
        if file.is_unlinked() {
            return self.peers.has_pending(file);
        }
        let is_published = || all && file.has_published();
        !file.is_clean() || self.peers.has_part(file) || is_published()
    }

    pub fn files(&self) -> Vec<Arc<File>> {
        self.files.lock().values().map(|i| i.file.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout_index::sharing::shared_dir::{Owner, SharedDir};
    use layout_index::{Canonical, Intro, NodeId, RealDisk, SpaceOptions, Store, StoreOptions};
    use std::time::Duration;

    /// S1.5, S9.2: the last close of a file without a name drops what this node has published of it.
    /// The node still knows of that when a job found nothing to do for the file while it was open.
    #[test]
    fn a_published_file_without_a_name_is_idle_and_known() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions {
            dir: dir.path().join("store"),
            node: "a".into(),
            backing: dir.path().into(),
            index_memory: 4 << 20,
            space: SpaceOptions {
                capacity: Some(32 << 20),
                ..SpaceOptions::default()
            },
        };
        let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
        let backing = std::fs::File::open(dir.path()).unwrap().into();
        let me = Owner {
            id: NodeId(1),
            run: 1,
        };
        let shared_dir = SharedDir::join(backing, me, "a", Duration::from_secs(60)).unwrap();
        let peers = Peers::new(&store, shared_dir, layout_index::sleep);
        let id = FileId { ino: 42, birth: 1 };
        let file = store.file(id);
        file.exclusive().begin(Intro::default()).unwrap();
        file.write(0, 0, b"published").unwrap();
        let shared_files = SharedFiles::new(peers.clone());
        shared_files.add(&file, false);
        file.set_nameless(true);
        assert!(shared_files.remove_idle(&file), "there is nothing to do");
        assert_eq!(shared_files.files().len(), 1, "it may be published now");
        file.set_nameless(false);

        let canonical = || Ok(Canonical { size: 0, uid: 0 });
        assert!(peers.publish(&file, &canonical).unwrap());
        assert!(!shared_files.remove_idle(&file), "it has to be drained");
        file.set_nameless(true);
        assert!(shared_files.remove_idle(&file), "there is nothing to do");
        drop(file);
        let file = store.lookup(id).expect("the file is known");
        assert!(shared_files.peers.has_part(&file));

        file.set_nameless(false);
        shared_files.peers.discard(&file).unwrap();
        assert!(shared_files.remove_idle(&file));
        assert!(shared_files.files().is_empty(), "forgotten");
    }
}
