//! All nodes write one file at once, each in its own ranges.
//!
//! Units have an odd length, so that neighbouring units share pages and stripes. Sometimes one node is killed
//! meanwhile. Its last call was then not answered, and that node is asked for the effect once it is back:
//! every byte must be the old or the new one, and then all nodes must agree.

use super::world::World;
use crate::rng::Rng;
use crate::sys;
use crate::wait::{LONG, wait_until};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const UNIT: u64 = 4099;
const UNITS: u64 = 60;

/// An operation of a node, with the bytes.
enum Did {
    Write(u64, Vec<u8>),
    Punch(u64, u64),
    Sync,
}

impl std::fmt::Display for Did {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Did::Write(at, bytes) => write!(f, "pwrite {} at {at}", bytes.len()),
            Did::Punch(at, len) => write!(f, "punch {len} at {at}"),
            Did::Sync => write!(f, "fsync"),
        }
    }
}

struct Share {
    done: Vec<Did>,
    /// The operation that failed, and its error.
    broken: Option<(Did, io::Error)>,
    closed: bool,
}

impl World {
    pub(super) fn shares(&mut self) -> &'static str {
        let Some((name, id)) = self.some_file() else {
            return "nothing";
        };
        let nodes = self.cluster.nodes();
        let victim = self.rng.one_in(6).then(|| self.some_node());
        let after = self.rng.below(20);
        if let Some(victim) = victim {
            self.before_kill(victim);
        }
        let count = 10 + self.rng.below(30);
        let rngs: Vec<Rng> = (0..nodes).map(|_| Rng::new(self.rng.draw())).collect();
        let paths = self.cluster.paths(name);
        let steps: Vec<AtomicU64> = (0..nodes).map(|_| AtomicU64::new(0)).collect();
        for node in 0..nodes {
            self.remark(id, node, format!("{count} operations in its own ranges"));
        }
        let cluster = &mut self.cluster;
        let shares: Vec<Result<Share, String>> = std::thread::scope(|scope| {
            let workers: Vec<_> = rngs
                .into_iter()
                .enumerate()
                .map(|(node, rng)| {
                    let (path, steps) = (&paths[node], &steps[node]);
                    let own = Own {
                        node: node as u64,
                        nodes: nodes as u64,
                        rng,
                    };
                    scope.spawn(move || own.run(path, count, steps))
                })
                .collect();
            if let Some(victim) = victim {
                wait_until("the victim is at work", LONG, || {
                    let ended = workers[victim].is_finished();
                    (ended || steps[victim].load(Ordering::Acquire) >= after).then_some(())
                });
                // Other nodes may wait for what the victim has announced, so it is restarted at once.
                cluster.restart(victim);
            }
            let ended = workers.into_iter().map(|w| w.join());
            ended.map(|e| e.unwrap_or(Err("panicked".into()))).collect()
        });
        if let Some(victim) = victim {
            self.remark(id, victim, "killed meanwhile and started".into());
        }
        let mut open = None;
        for (node, share) in shares.into_iter().enumerate() {
            let share = self.require(id, node, share);
            self.counts.operations += share.done.len() as u64;
            for did in share.done {
                self.files[id].note(format!("node {node} did {did}"));
                self.apply(id, &did);
            }
            match share.broken {
                Some((did, _)) if Some(node) == victim => open = Some(did),
                Some((_, error)) => self.fail(id, node, &format!("in its own range: {error}")),
                None if !share.closed && Some(node) != victim => {
                    self.fail(id, node, "the close failed");
                }
                None => {}
            }
        }
        if let Some(victim) = victim {
            self.resolve(id, victim, &paths[victim], open);
        }
        self.agree_on_mtime(id, &paths);
        self.check_everywhere(id);
        match victim {
            Some(_) => "shares with a kill",
            None => "shares",
        }
    }

    fn apply(&mut self, id: usize, did: &Did) {
        match did {
            Did::Write(at, bytes) => self.files[id].write(*at, bytes),
            Did::Punch(at, len) => self.files[id].punch(*at, *len),
            Did::Sync => {}
        }
    }

    /// Opens the file on the node that was killed, and takes over what its last call has left.
    fn resolve(&mut self, id: usize, node: usize, path: &Path, last: Option<Did>) {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = self.require(id, node, opened.map_err(|e| format!("open: {e}")));
        if let Some(did) = last {
            let mut new = self.files[id].clone();
            let range = match &did {
                Did::Write(at, bytes) => {
                    new.write(*at, bytes);
                    Some((*at, bytes.len() as u64))
                }
                Did::Punch(at, len) => {
                    new.punch(*at, *len);
                    Some((*at, *len))
                }
                Did::Sync => None,
            };
            if let Some((at, len)) = range {
                let got = sys::read_at(&file, at, len as usize);
                let got = self.require(id, node, got.map_err(|e| format!("read: {e}")));
                let old = &self.files[id];
                let wrong = got.iter().enumerate().find(|(i, byte)| {
                    let there = |c: &super::Content| c.slice(at + *i as u64, 1).first().copied();
                    there(&new) != Some(**byte) && there(old).unwrap_or(0) != **byte
                });
                if let Some((i, _)) = wrong {
                    let at = at + i as u64;
                    self.fail(
                        id,
                        node,
                        &format!("byte {at} is neither old nor new after a kill"),
                    );
                }
                self.files[id].write(at, &got);
            }
        }
        let closed = sys::close(file).map_err(|e| format!("close: {e}"));
        self.require(id, node, closed);
    }

    /// Any of several concurrent changes may have set the mtime, but it must be the same on all nodes once
    /// every node has waited for what other nodes have announced.
    pub(super) fn agree_on_mtime(&mut self, id: usize, paths: &[std::path::PathBuf]) {
        for (node, path) in paths.iter().enumerate().rev() {
            let dated = File::open(path).and_then(|file| file.metadata());
            let meta = self.require(id, node, dated.map_err(|e| format!("stat: {e}")));
            if node == 0 {
                let dated = self.files[id].dated(sys::mtime(&meta), true);
                self.require(id, node, dated);
            }
        }
    }
}

/// One node's part of the work.
struct Own {
    node: u64,
    nodes: u64,
    rng: Rng,
}

impl Own {
    fn run(mut self, path: &Path, count: u64, steps: &AtomicU64) -> Result<Share, String> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let mut share = Share {
            done: Vec::new(),
            broken: None,
            closed: false,
        };
        let file = match opened {
            Ok(file) => file,
            Err(e) => {
                share.broken = Some((Did::Sync, e));
                return Ok(share);
            }
        };
        for _ in 0..count {
            let did = self.next();
            let result = match &did {
                Did::Write(at, bytes) => sys::write_all_at(&file, bytes, *at),
                Did::Punch(at, len) => sys::fallocate(&file, sys::PUNCH, *at, *len),
                Did::Sync => file.sync_all(),
            };
            match result {
                Ok(()) => share.done.push(did),
                Err(e) => {
                    share.broken = Some((did, e));
                    return Ok(share);
                }
            }
            if let Some(Did::Write(at, bytes)) = share.done.last()
                && self.rng.one_in(4)
            {
                let got = match sys::read_at(&file, *at, bytes.len()) {
                    Ok(got) => got,
                    Err(e) => {
                        share.broken = Some((Did::Sync, e));
                        return Ok(share);
                    }
                };
                if got != *bytes {
                    return Err(format!(
                        "{} bytes at {at}: not what was just written",
                        bytes.len()
                    ));
                }
            }
            steps.fetch_add(1, Ordering::Release);
        }
        share.closed = sys::close(file).is_ok();
        Ok(share)
    }

    fn next(&mut self) -> Did {
        let unit = self.rng.below(UNITS / self.nodes) * self.nodes + self.node;
        let start = self.rng.below(UNIT);
        let len = self.rng.size(UNIT - start);
        let at = unit * UNIT + start;
        match self.rng.below(20) {
            0..16 => Did::Write(at, self.rng.bytes(len as usize)),
            16..18 => Did::Punch(at, len),
            _ => Did::Sync,
        }
    }
}
