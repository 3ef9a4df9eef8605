//! Watches other nodes beside this node's own work: notices that another node waits for data or for
//! an append lock of this node, and that another node is dead.
//!
//! Nodes watch each other in a ring, ordered by id: each node checks only the heartbeat of the next
//! one, so that a thousand nodes cost the file system a thousand checks per lease and not a
//! million. A node that finds the next one dead drains what that node has published, and also
//! watches the one after it. What the dead node had published stays in its layouts until it comes
//! back: only its own store knows whether it may forget those bytes.

use crate::drain;
use crate::engine::EngineState;
use crate::schedule::Scope;
use crate::shared_files::SharedFiles;
use layout_index::sharing::shared_dir::Owner;
use layout_index::{FileId, NodeId, StoreError};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often this node looks for requests of other nodes while it has pending announcements.
const REQUESTS_TICK: Duration = Duration::from_millis(100);

/// The nodes to watch, and when the list of all nodes was last read.
#[derive(Default)]
struct Ring {
    nodes: BTreeMap<NodeId, Owner>,
    read: Option<Instant>,
    /// Nodes whose files are being drained here.
    dead: Vec<NodeId>,
}

/// Files that other nodes have asked for and that are not published yet.
#[derive(Default)]
struct Requests {
    files: BTreeSet<FileId>,
    /// At most one publication for each file at a time: other nodes ask again and again.
    under_way: HashMap<FileId, JoinHandle<()>>,
}

pub(crate) async fn watch_peers(engine: Arc<EngineState>, shared_files: Arc<SharedFiles>) {
    let lease = shared_files.peers.shared_dir().membership().lease_length();
    let mut ring = Ring::default();
    let mut requests = Requests::default();
    let mut checked = Instant::now();
    while !engine.stopping.load(Ordering::Acquire) {
        engine.sleep(REQUESTS_TICK).await;
        let pending = shared_files
            .files()
            .iter()
            .any(|f| shared_files.peers.has_pending(f));
        if pending {
            read_requests(&shared_files, &mut requests).await;
        }
        if shared_files.peers.is_appending() {
            yield_appends(&shared_files, &mut requests).await;
        }
        publish_requested(&engine, &shared_files, &mut requests);
        if checked.elapsed() >= lease / 2 {
            checked = Instant::now();
            let (there, shared) = (engine.clone(), shared_files.clone());
            let turn = tokio::task::spawn_blocking(move || {
                let found = check_heartbeats(&there, &shared, &mut ring);
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

async fn read_requests(shared_files: &Arc<SharedFiles>, requests: &mut Requests) {
    let peers = shared_files.peers.clone();
    let taken = tokio::task::spawn_blocking(move || peers.take_notes());
    match taken.await {
        Ok(Ok(taken)) => requests.files.extend(taken),
        Ok(Err(error)) => {
            tracing::warn!(%error, "whether others wait for this node cannot be seen");
        }
        // The runtime is shutting down.
        Err(_) => {}
    }
}

/// Gives up append locks that other nodes want, and idle ones. What was appended is then announced
/// and published at once, because the node that takes the lock waits for it.
async fn yield_appends(shared_files: &Arc<SharedFiles>, requests: &mut Requests) {
    let shared_files = shared_files.clone();
    let yielded = tokio::task::spawn_blocking(move || {
        let mut announced = Vec::new();
        let files = shared_files
            .peers
            .appends_to_yield()
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "whether other nodes want to append cannot be seen");
                Vec::new()
            });
        for file in files {
            match shared_files.peers.yield_append(&file) {
                Ok(true) => {
                    shared_files.add(&file, false);
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
    // An error means that the runtime is shutting down.
    requests.files.extend(yielded.await.unwrap_or_default());
}

/// Publishes what other nodes have asked for. This does not rely on a drain of the file that is
/// under way: that drain may be past the bytes that were announced and busy with older ones for a
/// long time, and it keeps to the rate limit unless it learns that a node waits.
fn publish_requested(
    engine: &Arc<EngineState>,
    shared_files: &SharedFiles,
    requests: &mut Requests,
) {
    let Requests { files, under_way } = requests;
    under_way.retain(|_, publication| !publication.is_finished());
    files.retain(|id| {
        let file = engine.store.lookup(*id);
        let Some(file) = file.filter(|file| shared_files.peers.has_pending(file)) else {
            return false;
        };
        // The publication that is under way may have begun before the announcement. The request
        // stays, so that another publication follows.
        let Entry::Vacant(place) = under_way.entry(*id) else {
            return true;
        };
        let (engine, id) = (engine.clone(), *id);
        place.insert(tokio::spawn(async move {
            if drain::publish(&engine, &file, Scope::Everything, drain::Pace::Full)
                .await
                .is_err()
            {
                tracing::debug!(file = %id, "another node waits longer");
            }
            engine.wake(id);
        }));
        false
    });
}

/// Checks the heartbeat of the next node, and of those after it for as long as they are dead.
fn check_heartbeats(
    engine: &EngineState,
    shared_files: &SharedFiles,
    ring: &mut Ring,
) -> io::Result<()> {
    let membership = shared_files.peers.shared_dir().membership();
    let stale = 4 * membership.lease_length();
    if ring.read.is_none_or(|at| at.elapsed() >= stale) {
        let nodes = membership.nodes()?;
        let known = nodes.into_iter().filter_map(|node| {
            let run = node.state.ok()?.run;
            Some((node.id, Owner { id: node.id, run }))
        });
        ring.nodes = known.collect();
        ring.read = Some(Instant::now());
    }
    let me = membership.me().id;
    let after = ring
        .nodes
        .range((std::ops::Bound::Excluded(me), std::ops::Bound::Unbounded));
    let around = after.chain(ring.nodes.range(..me));
    let mut dead = Vec::new();
    for (id, owner) in around {
        if !membership.is_dead(*owner)? {
            break;
        }
        dead.push(*id);
    }
    let new = dead.iter().any(|id| !ring.dead.contains(id));
    if new
        || !dead.is_empty()
            && ring
                .read
                .is_some_and(|at| at.elapsed() < membership.lease_length())
    {
        take_over_dead(engine, shared_files, &dead)?;
    }
    ring.dead = dead;
    Ok(())
}

/// Takes over the drain of what dead nodes have published.
fn take_over_dead(
    engine: &EngineState,
    shared_files: &SharedFiles,
    dead: &[NodeId],
) -> io::Result<()> {
    let shared_dir = shared_files.peers.shared_dir();
    for id in shared_dir.files()? {
        let Some(listing) = shared_dir.list(id)? else {
            continue;
        };
        let theirs = |node: &NodeId| dead.contains(node);
        if !listing.layouts.iter().any(|(node, _)| theirs(node)) {
            continue;
        }
        let file = engine.store.file(id);
        let ask = || engine.canonicals.stat_canonical(&file);
        match shared_files.peers.refresh_now(&file, &ask) {
            Ok(_) => {}
            // The file was removed: there is nothing to drain.
            Err(StoreError::Gone(_)) => continue,
            Err(error) => {
                tracing::warn!(file = %id, %error, "what a dead node left cannot be read");
                continue;
            }
        }
        if file.has_published() {
            tracing::info!(file = %id, "a node that died had published data of it: drained from here");
            shared_files.add(&file, true);
            engine.wake(id);
        }
    }
    Ok(())
}
