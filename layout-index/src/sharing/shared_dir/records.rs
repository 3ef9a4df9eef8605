//! The records of the nodes as files: a node's name, its run, its lease, and what its mount states
//! about itself. The record's mtime is the heartbeat: a random time, so that every heartbeat differs
//! whatever the server's clock does.

use super::dirs::is_missing;
use super::lease::LONGEST_LEASE;
use super::names::Owner;
use super::roots::Roots;
use super::standing::Standing;
use super::sys::{self, NameStat};
use crate::beneath::{entries, open_seen};
use crate::types::NodeId;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

const VERSION: u32 = 1;
const LONGEST_RECORD: u64 = 64 * 1024;
const LONGEST_NAME: usize = 255;

#[derive(Clone, Debug)]
pub struct NodeRecord {
    pub id: NodeId,
    /// Or the reason why its record cannot be used.
    pub state: Result<NodeState, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    pub name: String,
    pub run: u32,
    pub lease: Duration,
    pub standing: Standing,
    /// The node left in good order.
    pub left: bool,
    /// Its last heartbeat, by the file system's clock (the record's ctime).
    pub last_heartbeat: SystemTime,
}

#[derive(Debug, Serialize, Deserialize)]
struct RecordText {
    version: u32,
    name: String,
    run: String,
    lease_ms: u64,
    #[serde(default)]
    left: bool,
    #[serde(flatten)]
    standing: Standing,
}

/// Names are shown to users, so control characters are refused.
pub(super) fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(char::is_control)
}

/// Returns the text of a record. The heartbeat is not part of it.
pub(super) fn encode_record(
    me: Owner,
    name: &str,
    lease: Duration,
    standing: &Standing,
    left: bool,
) -> io::Result<String> {
    let text = RecordText {
        version: VERSION,
        name: name.to_owned(),
        run: format!("{:08x}", me.run),
        lease_ms: lease.as_millis().max(1) as u64,
        left,
        standing: standing.clone(),
    };
    toml::to_string(&text).map_err(io::Error::other)
}

/// All nodes that ever joined and were not forgotten.
pub(super) fn list_records(roots: &Roots) -> io::Result<Vec<NodeRecord>> {
    let mut found = Vec::new();
    for entry in entries(roots.nodes.as_fd())? {
        let Ok(id) = u64::from_str_radix(&entry.name, 16).map(NodeId) else {
            continue;
        };
        if id.to_string() != entry.name {
            continue;
        }
        let state = match read_record(roots, id) {
            Ok(Some((state, _))) => Ok(state),
            Ok(None) => continue,
            Err(e) => Err(e.to_string()),
        };
        found.push(NodeRecord { id, state });
    }
    found.sort_unstable_by_key(|node| node.id);
    Ok(found)
}

pub(super) fn read_record(roots: &Roots, id: NodeId) -> io::Result<Option<(NodeState, NameStat)>> {
    let name = id.to_string();
    let damaged = |what: String| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("nodes/{name} is damaged ({what}): remove it if that node is gone"),
        )
    };
    // The record and its mtime must belong to the same file, and the record may be replaced
    // between the two calls.
    for _ in 0..8 {
        let Some(stat) = sys::stat_name(roots.nodes.as_fd(), &name)? else {
            return Ok(None);
        };
        let opened = open_seen(roots.nodes.as_fd(), &name, OFlag::O_RDONLY, Some(roots.uid));
        let (file, meta) = match opened {
            Ok(opened) => opened,
            Err(e) if is_missing(&e) => continue,
            Err(e) if e.raw_os_error().is_none() => return Err(damaged(e.to_string())),
            Err(e) => return Err(e),
        };
        if meta.ino() != stat.ino {
            continue;
        }
        let mut text = String::new();
        match file.take(LONGEST_RECORD + 1).read_to_string(&mut text) {
            Ok(n) if n as u64 > LONGEST_RECORD => return Err(damaged("it is too long".into())),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                return Err(damaged("it is no text".into()));
            }
            Err(e) => return Err(e),
        }
        let last_heartbeat =
            SystemTime::UNIX_EPOCH + Duration::from_secs(meta.ctime().max(0) as u64);
        let state = parse(&text, last_heartbeat).map_err(damaged)?;
        return Ok(Some((state, stat)));
    }
    Err(Errno::ESTALE.into())
}

fn parse(text: &str, last_heartbeat: SystemTime) -> Result<NodeState, String> {
    let written: RecordText = toml::from_str(text).map_err(|e| e.message().to_owned())?;
    if written.version != VERSION {
        return Err(format!(
            "it has version {} and not {VERSION}",
            written.version
        ));
    }
    if !is_valid_name(&written.name) {
        return Err("its name cannot be shown".into());
    }
    let run = u32::from_str_radix(&written.run, 16).map_err(|e| format!("its run: {e}"))?;
    let lease = Duration::from_millis(written.lease_ms);
    if lease.is_zero() || lease > LONGEST_LEASE {
        return Err(format!("a lease of {lease:?}"));
    }
    Ok(NodeState {
        name: written.name,
        run,
        lease,
        left: written.left,
        standing: written.standing,
        last_heartbeat,
    })
}
