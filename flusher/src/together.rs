//! Files that this node shares with others: which ones it has something to do with.
//!
//! A file is the drain's business not only while the store has bytes of it, but until what this
//! node published is in the canonical file. And any file can be asked for as a whole: by somebody
//! who must read or write the canonical file itself, or because a node died that had a part in it.
//!
//! Nothing here is durable: a start finds the same in the shared directory ([`Peers::resume`]).

use layout_index::{File, FileId, Peers};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) struct Together {
    pub peers: Arc<Peers>,
    files: Mutex<HashMap<FileId, Interest>>,
}

struct Interest {
    file: Arc<File>,
    /// Whoever published it.
    all: bool,
    way: Arc<tokio::sync::Mutex<()>>,
}

impl Together {
    pub fn new(peers: Arc<Peers>) -> Together {
        Together {
            peers,
            files: Mutex::default(),
        }
    }

    /// The drain looks after the file until [`Together::is_busy`] says no.
    pub fn add(&self, file: &Arc<File>, all: bool) {
        let mut files = self.files.lock();
        let interest = files.entry(file.id()).or_insert(Interest {
            file: file.clone(),
            all,
            way: Arc::default(),
        });
        interest.all |= all;
    }

    /// The file's bytes leave the log one way at a time: whoever comes second waits, and finds that
    /// there is little left to do. Without this both would move the same bytes; no more than that
    /// depends on it.
    pub async fn way(&self, file: &Arc<File>) -> tokio::sync::OwnedMutexGuard<()> {
        let way = match self.files.lock().get(&file.id()) {
            Some(interest) => interest.way.clone(),
            None => Arc::default(),
        };
        way.lock_owned().await
    }

    /// Forgets the file, if there is nothing more to do with it. True if so.
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
        let life = !file.is_clean() && !file.is_unlinked();
        life || self.peers.has_part(file) || all && !file.published_view().is_empty()
    }

    pub fn files(&self) -> Vec<Arc<File>> {
        self.files.lock().values().map(|i| i.file.clone()).collect()
    }
}
