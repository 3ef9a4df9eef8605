//! What a mount states about itself beyond its name, and the checks against conflicting statements
//! of other living nodes.
//!
//! # One store
//!
//! Two copies of one store must not both be nodes: each would take the other's layouts, terms and
//! subfiles for its own.
//!
//! A node's record says where its store is ([`crate::Store::home`]: which lock file, on which
//! running kernel). A daemon that starts and finds its own home there holds that very lock, so the
//! daemon that wrote the record is dead (after `kill -9`, or when the store was renamed), and the
//! new daemon begins at once. With another home the store was copied, or moved to another disk or
//! machine, or the machine was rebooted; then the record is watched. A heartbeat in it means that
//! the other copy is alive, and the new daemon is refused. After a lease without a heartbeat the
//! other copy is dead, as for all nodes ([`super::Membership::is_dead`]).
//!
//! If two copies start at the same moment, both see the old record; the one whose record was
//! replaced finds that with its first heartbeat.
//!
//! # The same targets
//!
//! A subfile is found by the number of its target. Nodes with other targets, or the same targets in
//! another order, would look for each other's subfiles in the wrong place and fail when they read.
//! If a living node names other targets, the mount is refused; a node that names others and sends
//! no heartbeat while it is watched is named in the log. Nodes that begin at the same moment have
//! no record yet when the other compares. So each compares again after it has written its own
//! record: of two nodes that differ, at least one finds the other, and does not stay.

use super::membership::Membership;
use super::records::read_record;
use super::sys::NameStat;
use crate::types::NodeId;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(100);
/// Records are read whole, so a longer list is replaced by its length and a checksum.
const LONGEST_TARGETS: usize = 16 * 1024;

/// A node that has other targets, and the heartbeat that was seen of it.
struct Differing {
    id: NodeId,
    seen: NameStat,
    targets: Vec<String>,
    lease: Duration,
}

/// Statements of a mount in its node's record. An empty field means that nothing is stated, and it
/// is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Where the store is: [`crate::Store::home`].
    #[serde(default)]
    pub home: String,
    /// The kind of the targets, followed by the targets in order.
    #[serde(default)]
    pub targets: Vec<String>,
}

impl Standing {
    pub fn new(home: String, kind: &str, targets: impl IntoIterator<Item = String>) -> Standing {
        let mut all: Vec<String> = targets.into_iter().collect();
        if all.iter().map(String::len).sum::<usize>() > LONGEST_TARGETS {
            let sum = crate::checksum::crc32c(all.join("\n").as_bytes());
            all = vec![format!("{} of them, {sum:08x}", all.len())];
        }
        all.insert(0, kind.to_owned());
        Standing { home, targets: all }
    }
}

impl Membership {
    pub(super) fn refuse_beside_living_copy(&self) -> io::Result<()> {
        let mut first = None;
        loop {
            let before = self.lease.now();
            let (state, heartbeat) = match read_record(&self.roots, self.me.id) {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(()),
                // A damaged record is no evidence of a living copy, and is replaced.
                Err(e) if e.kind() == io::ErrorKind::InvalidData => return Ok(()),
                Err(e) => return Err(e),
            };
            let unknown = self.standing.home.is_empty() || state.standing.home.is_empty();
            if state.left || unknown || state.standing.home == self.standing.home {
                return Ok(());
            }
            let (seen, since) = *first.get_or_insert_with(|| {
                let (node, id) = (&state.name, self.me.id);
                let lease = state.lease.max(self.lease.length());
                tracing::info!(%node, %id, ?lease, "this store was elsewhere: is it still in use there?");
                (heartbeat, self.lease.now())
            });
            if seen != heartbeat {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    format!(
                        "node {} lives, with another copy of this store: unmount that one first, or \
                         mount with an empty directory as --store",
                        state.name
                    ),
                ));
            }
            if before.saturating_sub(since) >= state.lease.max(self.lease.length()) {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Refuses if a living node names other targets. Returns the nodes that name others and are not
    /// alive.
    pub(super) fn compare_targets(&self) -> io::Result<Vec<NodeId>> {
        if self.standing.targets.is_empty() {
            return Ok(Vec::new());
        }
        let others = self.nodes_with_other_targets()?;
        let since = self.lease.now();
        let longest = others.iter().map(|node| node.lease).max();
        // A living node sends a heartbeat every quarter of its lease.
        while self.lease.now().saturating_sub(since) < longest.unwrap_or_default() / 2 {
            for other in &others {
                match read_record(&self.roots, other.id)? {
                    Some((state, now)) if now != other.seen && !state.left => {
                        return Err(self.other_targets_error(&state.name, &other.targets));
                    }
                    _ => {}
                }
            }
            std::thread::sleep(PAUSE);
        }
        for other in &others {
            let name = self.name_of(other.id);
            tracing::warn!(
                "{}; it does not seem to live",
                self.other_targets_error(&name, &other.targets)
            );
        }
        Ok(others.into_iter().map(|other| other.id).collect())
    }

    /// Compares again once this node's record is visible. Withdraws it if another node that has
    /// begun since names other targets.
    pub(super) fn compare_targets_again(&self, dead: &[NodeId]) -> io::Result<()> {
        if self.standing.targets.is_empty() {
            return Ok(());
        }
        let others = self.nodes_with_other_targets()?;
        let Some(other) = others.iter().find(|other| !dead.contains(&other.id)) else {
            return Ok(());
        };
        self.leave()?;
        Err(self.other_targets_error(&self.name_of(other.id), &other.targets))
    }

    fn nodes_with_other_targets(&self) -> io::Result<Vec<Differing>> {
        let mut found = Vec::new();
        for id in self.nodes()?.into_iter().map(|node| node.id) {
            // Records that cannot be read are reported by the callers that need them.
            let Ok(Some((state, seen))) = read_record(&self.roots, id) else {
                continue;
            };
            let theirs = state.standing.targets;
            let differ = !theirs.is_empty() && theirs != self.standing.targets;
            if id != self.me.id && !state.left && differ {
                found.push(Differing {
                    id,
                    seen,
                    targets: theirs,
                    lease: state.lease,
                });
            }
        }
        Ok(found)
    }

    fn other_targets_error(&self, name: &str, theirs: &[String]) -> io::Error {
        let (ours, theirs) = (self.standing.targets.join(" "), theirs.join(" "));
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "node {name} has other storage targets ({theirs}) than this one ({ours}): name the same \
                 paths in the same order on all nodes, or unmount that node first"
            ),
        )
    }
}
