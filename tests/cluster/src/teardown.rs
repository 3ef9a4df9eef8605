//! Taking a cluster down, whatever is left of it.
//!
//! Data first: unless it is told to throw it away, `down` stops before it ends anything whose store
//! has bytes that are nowhere else. Then every process on the nodes, the nodes, and the files, the
//! state last; so it can be called again after each of these steps, and finds nothing to do after
//! the last. Only processes that are in a namespace of this cluster are ended: while its keeper
//! lives, the namespace's number is its alone; when it does not, the process must also have been
//! started with this cluster's name in its environment.

use crate::failure::{Code, Failure, Result};
use crate::keeper::{self, Tie};
use crate::node::{FOREVER, OnNode};
use crate::process::{self, Process};
use crate::state::{self, Lock, Node, Place, State, VARIABLE};
use nix::sys::signal::Signal;
use std::io;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Throw away what is not drained.
    pub discard: bool,
    pub keep_logs: bool,
    /// How long each node may drain.
    pub timeout: Option<Duration>,
}

/// The number of its nodes, or `None` if there was no cluster.
pub fn down(place: &Place, options: &Options, ties: Vec<Tie>) -> Result<Option<usize>> {
    // Before the lock, which is a file: nothing is made where no cluster is.
    if State::load_if_any(place)?.is_none() {
        return Ok(None);
    }
    let _lock = Lock::take(place)?;
    let Some(state) = State::load_if_any(place)? else {
        return Ok(None);
    };
    if state.complete && !options.discard {
        save_data(place, &state, options.timeout)?;
    }
    clear(place, &state, options.keep_logs, ties)?;
    Ok(Some(state.nodes.len()))
}

/// Everything into the files below, and the mounts away.
fn save_data(place: &Place, state: &State, timeout: Option<Duration>) -> Result<()> {
    let (alive, dead): (Vec<OnNode>, Vec<OnNode>) =
        OnNode::all(place, state).partition(|on| on.node.daemon().is_some());
    for on in dead {
        refuse_loss(&on)?;
    }
    let stays = |failure: Failure| {
        Failure::new(
            failure.code,
            format!("{failure}; the cluster stays as it is (--discard throws undrained data away)"),
        )
    };
    // All at once: nodes drain each other's data.
    for on in &alive {
        on.drain(false, None).map_err(stays)?;
    }
    for on in &alive {
        on.drain(true, timeout).map_err(stays)?;
    }
    for on in &alive {
        let text = timeout.map(|limit| humantime::format_duration(limit).to_string());
        let options: Vec<&str> = text.iter().flat_map(|t| ["--timeout", t]).collect();
        on.umount(&options, timeout.map_or(FOREVER, |t| t + PATIENCE))
            .map_err(stays)?;
        if let Some(handle) = on.node.daemon().and_then(|d| d.open().ok().flatten()) {
            let ended = handle.wait(PATIENCE);
            let ended = ended.map_err(|e| Failure::failed(format!("node {}: {e}", on.name())))?;
            if !ended {
                return Err(Failure::failed(format!(
                    "the daemon of node {} has unmounted and does not end",
                    on.name()
                )));
            }
        }
    }
    Ok(())
}

fn refuse_loss(on: &OnNode) -> Result<()> {
    let left = on.left_in_store()?;
    if left == 0 {
        return Ok(());
    }
    let name = on.name();
    let rescue = match on.node.keeper() {
        Ok(_) => format!("bring it back (forebay-cluster restart {name})"),
        Err(_) => format!(
            "drain it (forebay recover --store {} --backing {})",
            on.place.store(name).display(),
            on.state.backing.display()
        ),
    };
    Err(Failure::new(
        Code::StillDirty,
        format!(
            "the daemon of node {name} does not run, and its store has {left} bytes that are nowhere else; {rescue}, or throw them away (--discard)"
        ),
    ))
}

/// Ends and removes everything, without a thought for data.
pub fn clear(place: &Place, state: &State, keep_logs: bool, ties: Vec<Tie>) -> Result<()> {
    for node in &state.nodes {
        let cannot =
            |e: io::Error| Failure::failed(format!("node {} cannot be cleared: {e}", node.name));
        keeper::end_inside(|| processes(place, node)).map_err(cannot)?;
        if let Some(keeper) = &node.keeper {
            keeper
                .process
                .end(Signal::SIGKILL, PATIENCE)
                .map_err(cannot)?;
        }
    }
    if let Some(switch) = &state.switch {
        let cannot = |e: io::Error| Failure::failed(format!("the network stays: {e}"));
        switch.end(Signal::SIGKILL, PATIENCE).map_err(cannot)?;
    }
    for tie in ties {
        tie.reap()
            .map_err(|e| Failure::failed(format!("a node's keeper cannot be waited for: {e}")))?;
    }
    state::remove(place, state, keep_logs)
}

/// Every process on the node but its keeper.
fn processes(place: &Place, node: &Node) -> io::Result<Vec<Process>> {
    let Some(keeper) = &node.keeper else {
        return Ok(Vec::new());
    };
    let found = process::inside(&keeper.namespace)?;
    let name = place.0.to_string_lossy();
    let ours =
        |p: &Process| keeper.process.is_alive() || process::has_variable(p.pid, VARIABLE, &name);
    Ok(found
        .into_iter()
        .filter(|p| *p != keeper.process && ours(p))
        .collect())
}

/// Ends what runs on the nodes beside keepers and daemons: jobs that do not end by themselves.
pub fn end_jobs(place: &Place, state: &State) -> io::Result<()> {
    for node in &state.nodes {
        keeper::end_inside(|| {
            let mut found = processes(place, node)?;
            found.retain(|p| Some(*p) != node.daemon);
            Ok(found)
        })?;
    }
    Ok(())
}
