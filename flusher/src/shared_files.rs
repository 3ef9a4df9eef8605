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

    /// Forgets the file if there is nothing more to do for it. True if so.
    pub fn remove_idle(&self, file: &Arc<File>) -> bool {
        let mut files = self.files.lock();
        let all = files.get(&file.id()).is_some_and(|i| i.all);
        if self.has_work(file, all) {
            return false;
        }
        files.remove(&file.id());
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
