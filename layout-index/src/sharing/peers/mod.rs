//! This node among other nodes: what is published of a file, and publishing.
//!
//! Between the store and the shared directory (`crate::sharing::shared_dir`) there is one view for each file:
//! everything that all nodes, this one included, have published and the canonical file does not
//! have yet. Reads go to the store's own bytes first, then to the view, then to the canonical file.
//! `docs/decisions/0008-many-nodes.md` describes the protocol and what a kill at each of its steps
//! leaves behind.
//!
//! # Order that readers rely on
//!
//! Bytes enter the view before the store forgets them, and leave it only when a base says that the
//! canonical file has them. So a reader that looks at the store first, then at the view, then at
//! the canonical file never misses a byte.
//!
//! # Threads
//!
//! Everything here waits for the shared file system. A file has one refresh at a time (`refresh_lock`)
//! and one publication at a time (`publication_lock`); no lock that a read or a write needs is held
//! meanwhile.

mod append;
mod idle_subfiles;
mod overlap;
mod own_layouts;
mod publish;
mod refresh;
mod shared_file;
mod survey;

pub use append::{AppendTurn, Appends};
pub use idle_subfiles::{IdleSubfile, idle_subfiles};
pub use overlap::Overlap;
pub use publish::INLINE;
pub use refresh::Wait;
pub use survey::{Survey, SurveyedFile, SurveyedLayout, published_by, survey};

use crate::error::{Result, StoreError};
use crate::interfaces::Canonical;
use crate::sharing::layout::{SubfileRef, View};
use crate::sharing::shared_dir::{Announcement, SharedDir};
use crate::store::Store;
use crate::store::file::{File, Piece, published_pieces};
use crate::store::state::StoreState;
use crate::types::{ByteRange, FileId, NodeId};
use overlap::Overlaps;
use parking_lot::{Condvar, Mutex, MutexGuard};
use shared_file::shared;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Waits for the given time, or fails if the request must end: `Interrupted`, `Crowded`.
pub type Pause = fn(Duration) -> Result<()>;

/// The [`Pause`] of callers that serve no request.
pub fn sleep(time: Duration) -> Result<()> {
    std::thread::sleep(time);
    Ok(())
}

/// Asks the backing for the canonical file's size and owner.
pub type AskCanonical<'a> = &'a dyn Fn() -> io::Result<Canonical>;

/// This node's part in the shared directory.
pub struct Peers {
    shared_dir: SharedDir,
    state: Arc<StoreState>,
    /// The number of the next refresh that finds news of any file; see [`Peers::news`].
    news: AtomicU64,
    /// What a request calls repeatedly while it waits for other nodes.
    pause: Pause,
    /// Files whose append lock this node holds.
    appending: Mutex<HashMap<FileId, Arc<File>>>,
    overlaps: Overlaps,
    heartbeat_thread: Mutex<HeartbeatThread>,
    stop: Condvar,
}

/// The thread that keeps the lease.
#[derive(Debug, Default)]
struct HeartbeatThread {
    stopped: bool,
    handle: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peers({})", self.me())
    }
}

/// A layout that this node writes.
#[derive(Debug, Default)]
struct OwnLayout {
    len: u64,
    end: End,
    subfiles: BTreeSet<SubfileRef>,
    /// Bytes of the file that the layout had when it was read after a start.
    bytes: u64,
}

impl OwnLayout {
    /// The canonical file has everything in the layout, whose length is covered up to `drained`,
    /// and no failed append can still add to it.
    fn is_covered(&self, drained: u64) -> bool {
        drained >= self.len && self.end != End::Abandoned
    }
}

/// Whether more can be appended to a layout of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// An append to it failed, and may still be done later. Nothing more is appended to it, and
    /// nothing is published in another layout before this one is sealed.
    Abandoned,
    /// The layout ends at its length for all nodes; its file may be longer.
    Sealed,
}

impl Peers {
    /// How long to wait for other nodes.
    pub fn patience(&self, file: &File) -> Duration {
        file.settings().visibility_timeout
    }

    /// `pause` is how requests wait.
    pub fn new(store: &Store, shared_dir: SharedDir, pause: Pause) -> Arc<Peers> {
        Arc::new(Peers {
            shared_dir,
            state: store.state().clone(),
            news: AtomicU64::new(1),
            pause,
            appending: Mutex::default(),
            overlaps: Overlaps::default(),
            heartbeat_thread: Mutex::default(),
            stop: Condvar::new(),
        })
    }

    /// Keeps this node's lease from now on, on a thread of its own, so that nothing that waits for
    /// a file can delay a heartbeat.
    pub fn keep_lease(self: &Arc<Self>) -> io::Result<()> {
        let peers = self.clone();
        let thread = std::thread::Builder::new()
            .name("forebay-lease".into())
            .spawn(move || peers.send_heartbeats())?;
        self.heartbeat_thread.lock().handle = Some(thread);
        Ok(())
    }

    fn send_heartbeats(&self) {
        let turn = self.shared_dir.membership().lease_length() / 4;
        let mut sending = self.heartbeat_thread.lock();
        while !sending.stopped {
            self.stop.wait_for(&mut sending, turn);
            if sending.stopped {
                return;
            }
            MutexGuard::unlocked(&mut sending, || {
                if let Err(error) = self.shared_dir.membership().heartbeat() {
                    tracing::warn!(%error, "this node's lease could not be kept; others take over when it is out");
                }
            });
        }
    }

    /// Leaves the shared directory. This node writes nothing more, so other nodes need not wait for
    /// its lease.
    pub fn leave(&self) -> io::Result<()> {
        self.end_all_appends();
        let thread = {
            let mut sending = self.heartbeat_thread.lock();
            sending.stopped = true;
            sending.handle.take()
        };
        self.stop.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that kept the lease broke off");
        }
        self.shared_dir.membership().leave()
    }

    /// Leaves for good: the store is about to be removed, and has no data of any file.
    pub fn vanish(&self) -> io::Result<()> {
        self.leave()?;
        self.shared_dir.membership().forget_node(self.me())
    }

    pub fn shared_dir(&self) -> &SharedDir {
        &self.shared_dir
    }

    pub fn me(&self) -> NodeId {
        self.shared_dir.me().id
    }

    /// Announces a close whose data is published later: other nodes that open the file wait for
    /// that.
    pub fn announce(&self, file: &File) -> Result<()> {
        let announcement = self
            .shared_dir
            .announce(file.id())
            .map_err(|e| failed("announcing a close of", file, e))?;
        shared(file).known_state().announcements.push(announcement);
        Ok(())
    }

    /// Bytes of the file that this node has published and the canonical file does not have.
    pub fn published_bytes(&self, file: &File) -> u64 {
        self.resumed_bytes(file) + self.view(file).bytes_of(self.me())
    }

    /// Whether this node has announced data that it has not published yet.
    pub fn has_pending(&self, file: &File) -> bool {
        !shared(file).known_state().announcements.is_empty()
    }

    /// Removes announcements whose data is published, or was drained.
    fn fulfil(&self, file: &File, announcements: &[Announcement]) -> Result<()> {
        if announcements.is_empty() {
            return Ok(());
        }
        self.shared_dir
            .fulfil(file.id(), announcements)
            .map_err(|e| failed("ending the announcement of", file, e))?;
        shared(file)
            .known_state()
            .announcements
            .retain(|i| !announcements.contains(i));
        Ok(())
    }

    /// Returns the announcements that stand now, for [`Peers::fulfil_pending`] after everything is
    /// published or drained.
    pub fn pending(&self, file: &File) -> Pending {
        Pending(shared(file).known_state().announcements.clone())
    }

    /// Fulfils `pending`: everything that was written before they were taken is published, or in
    /// the canonical file.
    pub fn fulfil_pending(&self, file: &File, pending: Pending) -> Result<()> {
        self.fulfil(file, &pending.0)
    }
}

impl Peers {
    /// Everything that is published of this file and not in the canonical file.
    pub fn view(&self, file: &File) -> Arc<View> {
        shared(file).known_state().view().clone()
    }

    /// The pieces of a range if only `view` were published, which is a part of the file's view.
    pub fn pieces_of(&self, file: &File, view: &Arc<View>, range: ByteRange) -> Vec<Piece> {
        let layer = shared(file).known_state().layer(view.clone());
        published_pieces(&*layer, range)
    }

    /// A number that changes with each refresh that finds something new, and that no file had
    /// before. As long as it is the same, other nodes have changed nothing of what is shown here
    /// except through the canonical file.
    pub fn news(&self, file: &File) -> u64 {
        shared(file).known_state().news
    }

    /// Bytes that this node's layouts had when they were read after a start. Zero after the first
    /// refresh of the file, which finds how much of that is left: another node may have drained a
    /// part.
    pub fn resumed_bytes(&self, file: &File) -> u64 {
        let seen = shared(file).known_state();
        match seen.refreshed {
            true => 0,
            false => seen.own.values().map(|own| own.bytes).sum(),
        }
    }

    /// Whether there has been a complete refresh of what other nodes have published.
    pub fn has_refreshed(&self, file: &File) -> bool {
        shared(file).known_state().refreshed
    }

    /// The owner of the canonical file at the last refresh that found something published; root
    /// before that.
    pub fn owner(&self, file: &File) -> u32 {
        shared(file).known_state().canonical().uid
    }
}

/// Announcements of this node that stood at some moment.
#[derive(Debug)]
pub struct Pending(Vec<Announcement>);

fn failed(op: &'static str, file: &File, source: io::Error) -> StoreError {
    StoreError::SharedDir {
        file: file.id(),
        op,
        source,
    }
}

#[cfg(test)]
mod tests;
