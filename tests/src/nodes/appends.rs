//! All nodes append to one file at once.
//!
//! Each append is a record with its node, its number and its length, so the file itself shows the order of
//! the appends. All acknowledged records must be there once and whole, those of one node in its order.
//! Sometimes one node is killed meanwhile: its last record, which was not acknowledged, may be there whole or
//! in part, and all records of other nodes must be whole.

use super::world::{LARGEST, World};
use crate::rng::Rng;
use crate::sys;
use crate::wait::{LONG, wait_until};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Begins each record. For all practical purposes, other bytes do not contain it.
const MAGIC: [u8; 8] = *b"\xf0append\x0f";
const HEAD: usize = 8 + 3 * 8;

/// What a node did: the lengths of its acknowledged records in order, and how it ended.
struct Done {
    lens: Vec<usize>,
    /// Length of a record that was not acknowledged.
    last: Option<usize>,
    error: Option<io::Error>,
}

fn record(node: usize, number: usize, len: usize) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for word in [node, number, len] {
        bytes.extend((word as u64).to_le_bytes());
    }
    bytes.resize(HEAD + len, 1 + (node * 50 + number % 50) as u8);
    bytes
}

impl World {
    pub(super) fn appends(&mut self) -> &'static str {
        let Some((name, id)) = self.some_file() else {
            return "nothing";
        };
        let nodes = self.cluster.nodes();
        let room = LARGEST.saturating_sub(self.files[id].size());
        let victim = self.rng.one_in(4).then(|| self.some_node());
        let after = self.rng.below(6);
        let count = 2 + self.rng.below(8);
        let longest = (room / (count * nodes as u64)).saturating_sub(HEAD as u64);
        if longest < 100 {
            return "nothing";
        }
        if let Some(victim) = victim {
            self.before_kill(victim);
        }
        for node in 0..nodes {
            self.remark(id, node, format!("{count} appends beside the others"));
        }
        let seeds: Vec<u64> = (0..nodes).map(|_| self.rng.draw()).collect();
        let paths = self.cluster.paths(name);
        let steps: Vec<AtomicU64> = (0..nodes).map(|_| AtomicU64::new(0)).collect();
        let cluster = &mut self.cluster;
        let all: Vec<Done> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..nodes)
                .map(|node| {
                    let (path, steps, seed) = (&paths[node], &steps[node], seeds[node]);
                    scope.spawn(move || run(node, path, Rng::new(seed), count, longest, steps))
                })
                .collect();
            if let Some(victim) = victim {
                wait_until("the victim appends", LONG, || {
                    let ended = workers[victim].is_finished();
                    (ended || steps[victim].load(Ordering::Acquire) >= after).then_some(())
                });
                // Other nodes wait for what the victim has appended, so it is restarted at once.
                cluster.restart(victim);
            }
            let ended = workers.into_iter().map(|w| w.join());
            ended
                .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        for (node, done) in all.iter().enumerate() {
            self.counts.operations += done.lens.len() as u64;
            let note = format!("appended {:?}, then {:?}", done.lens, done.last);
            self.files[id].note(format!("node {node} {note}"));
            if let Some(error) = &done.error
                && Some(node) != victim
            {
                self.fail(id, node, &format!("append beside others: {error}"));
            }
        }
        // Data that the victim has not published is published with its next close.
        let asked = victim.unwrap_or(0);
        let got = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&paths[asked]);
        let got = got.and_then(|file| {
            let bytes = sys::read_at(&file, 0, 2 * LARGEST as usize)?;
            sys::close(file)?;
            Ok(bytes)
        });
        let got = self.require(id, asked, got.map_err(|e| format!("read: {e}")));
        let judged = self.judge_appends(id, &got, &all);
        self.require(id, asked, judged);
        self.files[id].data = got;
        self.agree_on_mtime(id, &paths);
        self.check_everywhere(id);
        match victim {
            Some(_) => "appends side by side with a kill",
            None => "appends side by side",
        }
    }

    fn judge_appends(&self, id: usize, got: &[u8], all: &[Done]) -> Result<(), String> {
        let old = &self.files[id].data;
        if !got.starts_with(old) {
            return self.files[id].compare(0, old.len() as u64, &got[..got.len().min(old.len())]);
        }
        let mut next: BTreeMap<usize, usize> = BTreeMap::new();
        let mut rest = &got[old.len()..];
        while !rest.is_empty() {
            let at = got.len() - rest.len();
            if !rest.starts_with(&MAGIC) || rest.len() < HEAD {
                // A part of a record that was not acknowledged, up to the next record.
                let end = (1..rest.len()).find(|i| rest[*i..].starts_with(&MAGIC));
                let end = end.unwrap_or(rest.len());
                let last = all.iter().enumerate();
                let mut last = last.filter_map(|(node, d)| Some((node, d.lens.len(), d.last?)));
                if !last
                    .any(|(node, number, len)| is_part(&rest[..end], &record(node, number, len)))
                {
                    return Err(format!("{end} bytes at {at} are no record"));
                }
                rest = &rest[end..];
                continue;
            }
            let word = |i: usize| {
                let bytes = rest[8 + 8 * i..16 + 8 * i].try_into().expect("eight bytes");
                u64::from_le_bytes(bytes) as usize
            };
            let (node, number, len) = (word(0), word(1), word(2));
            let want = record(node, number, len.min(LARGEST as usize));
            let number_due = *next.entry(node).or_default();
            let done = all.get(node).ok_or(format!("node {node} at byte {at}?"))?;
            let acknowledged = done.lens.get(number) == Some(&len);
            let may_be = number == done.lens.len() && done.last == Some(len);
            if number != number_due || !(acknowledged || may_be) {
                return Err(format!(
                    "record {number} of node {node} at byte {at}, {number_due} was due"
                ));
            }
            let there = rest.len().min(want.len());
            if rest[..there] != want[..there] || (acknowledged && there < want.len()) {
                return Err(format!(
                    "record {number} of node {node} at byte {at} is torn"
                ));
            }
            next.insert(node, number + 1);
            rest = &rest[there..];
        }
        for (node, done) in all.iter().enumerate() {
            let found = next.get(&node).copied().unwrap_or(0);
            if found < done.lens.len() {
                return Err(format!("node {node}: record {found} is missing"));
            }
        }
        Ok(())
    }
}

/// Whether each byte is the byte that the record has there, or zero.
fn is_part(bytes: &[u8], record: &[u8]) -> bool {
    bytes.len() <= record.len()
        && bytes
            .iter()
            .zip(record)
            .all(|(byte, want)| byte == want || *byte == 0)
}

fn run(
    node: usize,
    path: &Path,
    mut rng: Rng,
    count: u64,
    longest: u64,
    steps: &AtomicU64,
) -> Done {
    let mut done = Done {
        lens: Vec::new(),
        last: None,
        error: None,
    };
    let open = || OpenOptions::new().append(true).open(path);
    let mut file = None;
    for number in 0..count {
        let len = rng.size(longest) as usize;
        let appended = match file.take() {
            Some(file) => Ok(file),
            None => open(),
        };
        let appended = appended.and_then(|mut opened| {
            done.last = Some(len);
            opened.write_all(&record(node, number as usize, len))?;
            done.last = None;
            Ok(opened)
        });
        match appended {
            Ok(opened) => {
                done.lens.push(len);
                steps.fetch_add(1, Ordering::Release);
                match rng.below(6) {
                    0 => done.error = sys::close(opened).err(),
                    1 => {
                        done.error = opened.sync_all().err();
                        file = Some(opened);
                    }
                    _ => file = Some(opened),
                }
            }
            Err(error) => done.error = Some(error),
        }
        if done.error.is_some() {
            return done;
        }
    }
    if let Some(file) = file {
        done.error = sys::close(file).err();
    }
    done
}
