//! Joining the nodes that share a backing.

use crate::exit_codes::{Failure, Result};
use forebay_fs::Backing;
use layout_index::sharing::shared_dir::{Owner, SharedDir, Standing};
use layout_index::{File, Pause, Peers, Placement, Store};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How a node joins the others over its backing.
pub struct Joining {
    pub lease: Duration,
    pub standing: Standing,
    pub placement: Option<Arc<dyn Placement>>,
    pub pause: Pause,
}

impl Joining {
    /// For a command that serves no requests and makes no files on targets.
    pub fn alone(lease: Duration, standing: Standing) -> Joining {
        Joining {
            lease,
            standing,
            placement: None,
            pause: layout_index::sleep,
        }
    }
}

/// Makes this node one of those that share the backing, and takes up its announcements and publications from
/// before the start. Returns the files that they concern.
pub fn join(
    backing: &Backing,
    store: &Store,
    joining: Joining,
) -> Result<(Arc<Peers>, Vec<Arc<File>>)> {
    let Joining {
        lease,
        standing,
        placement,
        pause,
    } = joining;
    let failed = |e: io::Error| {
        Failure::failed(format!(
            "the directory that nodes share below the backing: {e}; if no other node uses the backing, say --nodes one"
        ))
    };
    let root = backing.root().try_clone_to_owned().map_err(failed)?;
    let me = Owner {
        id: store.id(),
        run: store.run(),
    };
    let shared_dir = match SharedDir::join_with(root, me, store.node(), lease, standing, placement)
    {
        // The shared directory itself is in order: the error is about another node that uses it, or about a
        // setting.
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::AlreadyExists | io::ErrorKind::InvalidInput
            ) =>
        {
            return Err(Failure::failed(format!(
                "store {}: {e}",
                store.dir().display()
            )));
        }
        other => other.map_err(failed)?,
    };
    let peers = Peers::new(store, shared_dir, pause);
    peers.keep_lease().map_err(failed)?;
    let pending = peers.resume().map_err(failed)?;
    Ok((peers, pending))
}
