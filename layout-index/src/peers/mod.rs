//! This node among the others: what is published of a file, and publishing to them.
//!
//! Between the store and the shared directory (`crate::commons`) stands one view for each file:
//! what all nodes, this one included, have published and the canonical file does not have yet.
//! Reads go to the store's own bytes first, then to the view, then to the canonical file. The
//! protocol and what a kill at each of its steps leaves: `docs/decisions/0008-many-nodes.md`.
//!
//! # Order that readers count on
//!
//! Bytes enter the view before the store forgets them, and leave it only when a base says that
//! the canonical file has them. So whoever looks at the store first, then at the view, then at the
//! canonical file never misses one.
//!
//! # Threads
//!
//! Everything here waits for the shared file system. One look at a file at a time (`looking`), one
//! publication at a time (`moving`); no lock that a read or a write needs is held meanwhile.

mod append;
mod idle;
mod look;
mod overlap;
mod own;
mod put;
mod survey;

pub(crate) use append::Append;
pub use append::{AppendTurn, Appends};
pub use idle::{IdleSubfile, idle_subfiles};
pub use look::Wait;
pub use overlap::Overlap;
pub(crate) use overlap::Overlaps;
pub use put::INLINE;
pub use survey::{Survey, SurveyedFile, SurveyedLayout, published_by, survey};

use crate::commons::{Commons, Intent, Stamp};
use crate::error::{Result, StoreError};
use crate::file::{File, Intro};
use crate::layout::{SubfileRef, View};
use crate::shared::Shared;
use crate::store::Store;
use crate::subfile::Subfile;
use crate::types::{FileId, NodeId};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The canonical file as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Canonical {
    pub size: u64,
    pub uid: u32,
}

/// Waits for so long, unless the request must end: `Interrupted`, `Crowded`.
pub type Pause = fn(Duration) -> Result<()>;

/// Asks the backing for it.
pub type AskCanonical<'a> = &'a dyn Fn() -> io::Result<Canonical>;

/// This node's part in the shared directory.
pub struct Peers {
    commons: Commons,
    shared: Arc<Shared>,
    patience: Duration,
    /// The next number of [`Seen::news`], of whatever file.
    news: AtomicU64,
    /// How requests wait for other nodes; see [`Peers::set_pause`].
    pause: OnceLock<Pause>,
    /// Files whose append lock this node has.
    appending: Mutex<HashMap<FileId, Arc<File>>>,
    beating: Mutex<Beating>,
    stop: Condvar,
}

/// The thread that keeps the lease.
#[derive(Debug, Default)]
struct Beating {
    stopped: bool,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peers({})", self.me())
    }
}

/// What is known of a file from the shared directory.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub view: Arc<View>,
    /// Of the last whole look; `None` if there was no directory.
    stamp: Option<Stamp>,
    looked: bool,
    /// Of the last look that found something new of other nodes, or that the canonical file has it; 0 for none.
    news: u64,
    /// Intents of others stood at that time.
    awaited: bool,
    pub canonical: Canonical,
    own: HashMap<u32, OwnLayout>,
    /// A batch of another node came to the view since this node last stamped for such: it may not
    /// be stamped yet.
    unstamped: bool,
    /// A publication of this node is under way.
    pub publishing: bool,
    /// Where the next batch goes.
    current: Option<u32>,
    intents: Vec<Intent>,
    subfiles: HashMap<String, Arc<Subfile>>,
    /// Of the last life.
    pub hint: Option<Intro>,
}

impl Seen {
    /// Nothing is published that the canonical file does not have, nor about to be.
    pub fn is_alone(&self) -> bool {
        self.view.is_empty() && !self.publishing
    }
}

/// A layout that this node writes.
#[derive(Debug, Default)]
struct OwnLayout {
    len: u64,
    end: End,
    subfiles: BTreeSet<SubfileRef>,
    /// Of the file, that it had when it was taken up after a start.
    bytes: u64,
}

impl OwnLayout {
    /// The canonical file has all of it, up to `drained`, and nobody adds to it unknown to others.
    fn is_covered(&self, drained: u64) -> bool {
        drained >= self.len && self.end != End::Abandoned
    }
}

/// Whether a layout of this node's goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// An append to it failed, and may still come true. Nothing goes to it, and nothing is published
    /// elsewhere before it is sealed.
    Abandoned,
    /// For everybody it ends at its length; its file may be longer.
    Sealed,
}

impl Peers {
    /// A request that waits for other nodes calls this, again and again. The first one stays.
    pub fn set_pause(&self, pause: Pause) {
        if self.pause.set(pause).is_err() {
            tracing::warn!("it is said already how requests wait; that stays");
        }
    }

    /// How long other nodes are waited for.
    pub fn patience(&self, file: &File) -> Duration {
        file.policy().visibility_timeout.unwrap_or(self.patience)
    }

    fn pause(&self, time: Duration) -> Result<()> {
        match self.pause.get() {
            Some(pause) => pause(time),
            None => {
                std::thread::sleep(time);
                Ok(())
            }
        }
    }

    /// `patience` is how long an open waits for what another node has yet to publish.
    pub fn new(store: &Store, commons: Commons, patience: Duration) -> Arc<Peers> {
        Arc::new(Peers {
            commons,
            shared: store.shared().clone(),
            patience,
            news: AtomicU64::new(1),
            pause: OnceLock::new(),
            appending: Mutex::default(),
            beating: Mutex::default(),
            stop: Condvar::new(),
        })
    }

    /// Keeps this node's lease from now on, on a thread of its own: nothing that waits for a file
    /// may keep it from that.
    pub fn keep_lease(self: &Arc<Self>) -> io::Result<()> {
        let peers = self.clone();
        let thread = std::thread::Builder::new()
            .name("forebay-lease".into())
            .spawn(move || peers.beat())?;
        self.beating.lock().thread = Some(thread);
        Ok(())
    }

    fn beat(&self) {
        let turn = self.commons.lease() / 4;
        let mut beating = self.beating.lock();
        while !beating.stopped {
            self.stop.wait_for(&mut beating, turn);
            if beating.stopped {
                return;
            }
            MutexGuard::unlocked(&mut beating, || {
                if let Err(error) = self.commons.heartbeat() {
                    tracing::warn!(%error, "this node's lease could not be kept; others take over when it is out");
                }
            });
        }
    }

    /// This node writes nothing more: others need not wait for its lease.
    pub fn leave(&self) -> io::Result<()> {
        self.end_all_appends();
        let thread = {
            let mut beating = self.beating.lock();
            beating.stopped = true;
            beating.thread.take()
        };
        self.stop.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that kept the lease broke off");
        }
        self.commons.leave()
    }

    /// The same for good: the store is about to go, and had nothing to say of any file.
    pub fn vanish(&self) -> io::Result<()> {
        self.leave()?;
        self.commons.forget(self.me())
    }

    pub fn commons(&self) -> &Commons {
        &self.commons
    }

    pub fn me(&self) -> NodeId {
        self.commons.me().id
    }

    /// Closes a file with the rest to follow: others who open it wait for that.
    pub fn intend(&self, file: &File) -> Result<()> {
        let intent = self
            .commons
            .intend(file.id())
            .map_err(|e| failed("announcing a close of", file, e))?;
        file.seen().intents.push(intent);
        Ok(())
    }

    /// What this node has published of the file and the canonical file does not have.
    pub fn published_bytes(&self, file: &File) -> u64 {
        file.resumed_bytes() + file.published_view().bytes_of(self.me())
    }

    /// Something was announced and is not published.
    pub fn owes(&self, file: &File) -> bool {
        !file.seen().intents.is_empty()
    }

    /// What `intents` announced is published, or was drained.
    fn fulfil(&self, file: &File, intents: &[Intent]) -> Result<()> {
        if intents.is_empty() {
            return Ok(());
        }
        self.commons
            .fulfil(file.id(), intents)
            .map_err(|e| failed("ending the announcement of", file, e))?;
        file.seen().intents.retain(|i| !intents.contains(i));
        Ok(())
    }

    /// Before a drain of everything: what [`Peers::kept`] is to end afterwards.
    pub fn promises(&self, file: &File) -> Promises {
        Promises(file.seen().intents.clone())
    }

    /// Everything that was written before `promises` is in the canonical file.
    pub fn kept(&self, file: &File, promises: Promises) -> Result<()> {
        self.fulfil(file, &promises.0)
    }
}

/// Announcements of this node that stood at some moment.
#[derive(Debug)]
pub struct Promises(Vec<Intent>);

fn failed(op: &'static str, file: &File, source: io::Error) -> StoreError {
    StoreError::Shared {
        file: file.id(),
        op,
        source,
    }
}

impl File {
    /// What is published of this file and not in the canonical file.
    pub fn published_view(&self) -> Arc<View> {
        self.seen().view.clone()
    }

    /// Another number after each look that finds something new, never one that any file had before: as
    /// long as it is the same, other nodes have changed nothing of what is shown here but by the canonical file.
    pub fn news(&self) -> u64 {
        self.seen().news
    }

    /// What this node's layouts had when they were taken up after a start, until the first look at the file finds what
    /// is left of that: another node may have drained a part.
    pub fn resumed_bytes(&self) -> u64 {
        let seen = self.seen();
        match seen.looked {
            true => 0,
            false => seen.own.values().map(|own| own.bytes).sum(),
        }
    }

    /// There has been a whole look at what others have published.
    pub fn has_looked(&self) -> bool {
        self.seen().looked
    }

    /// How long this node's layout is; `None` if it has none of that number.
    pub(crate) fn own_len(&self, gen_no: u32) -> Option<u64> {
        self.seen().own.get(&gen_no).map(|own| own.len)
    }

    /// A layout of this node's is sealed there: nothing more goes to it, also if this node does not
    /// know of that (sealing it failed half way). False if it hides what this node has published:
    /// then the seal is somebody else's.
    pub(crate) fn heed_seal(&self, gen_no: u32, seal: u64) -> bool {
        let mut seen = self.seen();
        let Some(own) = seen.own.get_mut(&gen_no) else {
            return true;
        };
        if seal < own.len {
            return false;
        }
        // One that was given up is sealed again, for this seal may not be durable.
        if own.end == End::Open {
            own.end = End::Sealed;
        }
        seen.current.take_if(|current| *current == gen_no);
        true
    }

    /// The canonical file is the whole truth, as far as this node has looked.
    pub fn is_settled(&self) -> bool {
        self.is_clean() && self.seen().view.is_empty()
    }

    /// Whose file it is, as far as is known.
    pub fn owner(&self) -> u32 {
        match self.intro() {
            Some(intro) => intro.uid,
            None => self.seen().canonical.uid,
        }
    }

    /// The subfile that bytes of the view are in.
    pub(crate) fn foreign(&self, node: NodeId, subfile: &SubfileRef) -> Arc<Subfile> {
        let mut seen = self.seen();
        let name = subfile.name(node);
        if let Some(known) = seen.subfiles.get(&name) {
            return known.clone();
        }
        let row = crate::index::SubfileRow {
            no: subfile.no,
            ost: 0,
            ost_name: subfile.ost.clone(),
            name: name.clone(),
            uid: seen.canonical.uid,
        };
        let new = Arc::new(Subfile::new(row));
        seen.subfiles.insert(name, new.clone());
        new
    }
}

#[cfg(test)]
mod tests;
