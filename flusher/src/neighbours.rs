//! What this node hears from the others beside its own work: that they wait for something, and that
//! one of them is dead.
//!
//! Nodes watch each other in a ring, by id: each looks at the next one's heartbeat and nobody else's,
//! so that a thousand nodes cost the file system a thousand looks in a lease and not a million. Who
//! finds its neighbour dead drains what that one has published, and watches the one after it too.
//! What the dead node had published stays in its layouts until it comes back: only its own store
//! knows whether it may forget them.

use crate::drain;
use crate::engine::Shared;
use crate::schedule::Scope;
use crate::together::Together;
use layout_index::commons::Owner;
use layout_index::{FileId, NodeId, StoreError};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often notes are looked for while something was promised.
const NOTES: Duration = Duration::from_millis(100);

/// Whom this node looks at, and when the list of all was last read.
#[derive(Default)]
struct Ring {
    nodes: BTreeMap<NodeId, Owner>,
    read: Option<Instant>,
    /// Whose files are being drained here.
    dead: Vec<NodeId>,
}

/// What others have asked for and was not published yet.
#[derive(Default)]
struct Asked {
    files: BTreeSet<FileId>,
    /// One at a time for each file: askers come again and again.
    under_way: HashMap<FileId, JoinHandle<()>>,
}

pub(crate) async fn hear(shared: Arc<Shared>) {
    let Some(together) = &shared.together else {
        return;
    };
    let lease = together.peers.commons().lease();
    let mut ring = Ring::default();
    let mut asked = Asked::default();
    let mut looked = Instant::now();
    while !shared.stopping.load(Ordering::Acquire) {
        shared.sleep(NOTES).await;
        let owing = together.files().iter().any(|f| together.peers.owes(f));
        if owing {
            take_notes(&shared, &mut asked).await;
        }
        if together.peers.is_appending() {
            yield_appends(&shared, &mut asked).await;
        }
        hurry(&shared, together, &mut asked);
        if looked.elapsed() >= lease / 2 {
            looked = Instant::now();
            let there = shared.clone();
            let turn = tokio::task::spawn_blocking(move || {
                let found = watch(&there, &mut ring);
                (ring, found)
            });
            match turn.await {
                Ok((back, Ok(()))) => ring = back,
                Ok((back, Err(error))) => {
                    tracing::warn!(%error, "other nodes cannot be looked at");
                    ring = back;
                }
                Err(_) => return,
            }
        }
    }
}

async fn take_notes(shared: &Arc<Shared>, asked: &mut Asked) {
    let there = shared.clone();
    let taken = tokio::task::spawn_blocking(move || match &there.together {
        Some(together) => together.peers.asked(),
        None => Ok(Vec::new()),
    });
    match taken.await {
        Ok(Ok(taken)) => asked.files.extend(taken),
        Ok(Err(error)) => {
            tracing::warn!(%error, "whether others wait for this node cannot be seen");
        }
        // The runtime goes away.
        Err(_) => {}
    }
}

/// Gives up append locks that other nodes want, and those that rest. What was appended is announced
/// then, and published at once: the node that takes the lock waits for it.
async fn yield_appends(shared: &Arc<Shared>, asked: &mut Asked) {
    let there = shared.clone();
    let yielded = tokio::task::spawn_blocking(move || {
        let mut announced = Vec::new();
        let Some(together) = &there.together else {
            return announced;
        };
        let files = together.peers.appends_to_yield().unwrap_or_else(|error| {
            tracing::warn!(%error, "whether other nodes want to append cannot be seen");
            Vec::new()
        });
        for file in files {
            match together.peers.yield_append(&file) {
                Ok(true) => {
                    together.add(&file, false);
                    announced.push(file.id());
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(file = %file.id(), %error, "the append lock stays here for now");
                }
            }
        }
        announced
    });
    // An error says that the runtime goes away.
    asked.files.extend(yielded.await.unwrap_or_default());
}

/// Publishes what others ask for. A drain of the file that is under way is no reason to leave it to
/// that: it may be past the bytes that were announced, and busy with older ones for long; and it
/// keeps to the rate limit unless it hears that somebody waits.
fn hurry(shared: &Arc<Shared>, together: &Together, asked: &mut Asked) {
    let Asked { files, under_way } = asked;
    under_way.retain(|_, publication| !publication.is_finished());
    files.retain(|id| {
        let file = shared.store.lookup(*id);
        let Some(file) = file.filter(|file| together.peers.owes(file)) else {
            return false;
        };
        // That one may have begun before the announcement: this is for the next.
        let Entry::Vacant(place) = under_way.entry(*id) else {
            return true;
        };
        let (shared, id) = (shared.clone(), *id);
        place.insert(tokio::spawn(async move {
            if drain::shared::publish(&shared, &file, Scope::Everything, drain::Pace::Full)
                .await
                .is_err()
            {
                tracing::debug!(file = %id, "another node waits longer");
            }
            shared.wake(id);
        }));
        false
    });
}

/// Looks at the next node, and at those after it for as long as they are dead.
fn watch(shared: &Arc<Shared>, ring: &mut Ring) -> io::Result<()> {
    let Some(together) = &shared.together else {
        return Ok(());
    };
    let commons = together.peers.commons();
    let stale = 4 * commons.lease();
    if ring.read.is_none_or(|at| at.elapsed() >= stale) {
        let nodes = commons.nodes()?;
        let known = nodes.into_iter().filter_map(|node| {
            let run = node.state.ok()?.run;
            Some((node.id, Owner { id: node.id, run }))
        });
        ring.nodes = known.collect();
        ring.read = Some(Instant::now());
    }
    let me = commons.me().id;
    let after = ring
        .nodes
        .range((std::ops::Bound::Excluded(me), std::ops::Bound::Unbounded));
    let around = after.chain(ring.nodes.range(..me));
    let mut dead = Vec::new();
    for (id, owner) in around {
        if !commons.is_dead(*owner)? {
            break;
        }
        dead.push(*id);
    }
    let new = dead.iter().any(|id| !ring.dead.contains(id));
    if new || !dead.is_empty() && ring.read.is_some_and(|at| at.elapsed() < commons.lease()) {
        rescue(shared, &dead)?;
    }
    ring.dead = dead;
    Ok(())
}

/// Takes over the drain of what dead nodes have published.
fn rescue(shared: &Arc<Shared>, dead: &[NodeId]) -> io::Result<()> {
    let Some(together) = &shared.together else {
        return Ok(());
    };
    let commons = together.peers.commons();
    for id in commons.files()? {
        let Some(listing) = commons.list(id)? else {
            continue;
        };
        let theirs = |node: &NodeId| dead.contains(node);
        if !listing.layouts.iter().any(|(node, _)| theirs(node)) {
            continue;
        }
        let file = shared.store.file(id);
        let ask = || shared.canonicals.look(&file);
        match together.peers.look_at(&file, &ask) {
            Ok(_) => {}
            // It was removed: there is nothing to drain.
            Err(StoreError::Gone(_)) => continue,
            Err(error) => {
                tracing::warn!(file = %id, %error, "what a dead node left cannot be read");
                continue;
            }
        }
        if !file.published_view().is_empty() {
            tracing::info!(file = %id, "a node that died had published data of it: drained from here");
            together.add(&file, true);
            shared.wake(id);
        }
    }
    Ok(())
}
