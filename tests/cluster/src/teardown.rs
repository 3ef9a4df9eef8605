//! Takes a cluster down, whatever is left of it.
//!
//! Data comes first: unless it is told to throw data away, `down` stops before it ends anything
//! whose store has bytes that are nowhere else. Then it ends every process on the nodes and the
//! nodes themselves, and removes the files, the state last. So it can be called again after each of
//! these steps, and finds nothing to do after the last.
//!
//! Only processes in a namespace of this cluster are ended. While the keeper lives, the namespace's
//! number belongs to its node alone; once the keeper is gone, the number may have been reused, so a
//! process must also have this cluster's directory in its environment.

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
    /// Throw undrained data away.
    pub discard: bool,
    pub keep_logs: bool,
    /// How long the drain of each node may take.
    pub timeout: Option<Duration>,
}

/// Returns the number of nodes that were taken down, or `None` if there was no cluster.
pub fn down(place: &Place, options: &Options, ties: Vec<Tie>) -> Result<Option<usize>> {
    // Checked before locking, because taking the lock makes a file: nothing may be made where no
    // cluster is.
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

/// Drains everything into the canonical files and unmounts.
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
    // All nodes are told at once, because they drain each other's data.
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

/// Ends and removes everything without saving data.
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

/// Returns every process on the node except its keeper.
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

/// Ends everything that runs on the nodes except keepers and daemons: jobs that do not end by
/// themselves.
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
