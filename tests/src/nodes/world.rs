//! The nodes, the files that they share, and the choice of what happens next.

use super::content::Content;
use crate::cluster::Cluster;
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Names that files get and lose.
pub(super) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Files are not written beyond this size.
pub(super) const LARGEST: u64 = 400_000;

/// A file that stays open between turns.
pub(super) struct Held {
    pub node: usize,
    pub id: usize,
    pub file: File,
    pub writable: bool,
}

/// Counts for a whole run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Operations that nodes were asked to do, and did.
    pub operations: u64,
    /// Checks of whole files and of names, which only compare.
    pub checks: u64,
    pub kills: u64,
    /// Bytes that came into canonical files while only the drain wrote these.
    pub drained: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.operations += other.operations;
        self.checks += other.checks;
        self.kills += other.kills;
        self.drained += other.drained;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            operations,
            checks,
            kills,
            drained,
        } = self;
        write!(
            f,
            "{operations} operations, {checks} checks, {kills} kills, {drained} bytes drained meanwhile"
        )
    }
}

pub struct World {
    pub(super) cluster: Cluster,
    pub(super) rng: Rng,
    pub(super) names: BTreeMap<&'static str, usize>,
    pub(super) files: Vec<Content>,
    pub(super) held: Vec<Held>,
    pub(super) counts: Counts,
    /// Canonical files as they were when the last turn at them was over.
    pub(super) resting: BTreeMap<usize, Vec<u8>>,
    turns: BTreeMap<&'static str, u64>,
}

impl World {
    pub fn new(cluster: Cluster, rng: Rng) -> Self {
        Self {
            cluster,
            rng,
            names: BTreeMap::new(),
            files: Vec::new(),
            held: Vec::new(),
            counts: Counts::default(),
            resting: BTreeMap::new(),
            turns: BTreeMap::new(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    pub fn summary(&self) -> String {
        let turns: Vec<String> = self.turns.iter().map(|(k, n)| format!("{n} {k}")).collect();
        format!("{}; {}", self.counts, turns.join(", "))
    }

    /// One turn of some node, or of all of them.
    pub fn turn(&mut self) {
        let kind = match self.rng.below(100) {
            0..46 => self.alone(),
            46..52 => self.appends(),
            52..63 => self.under_locks(),
            63..73 => self.shares(),
            73..86 => self.change_names(),
            86..90 => self.drain_some(),
            90..92 => self.kill_one(),
            _ => self.look_through_held(),
        };
        *self.turns.entry(kind).or_default() += 1;
    }

    pub(super) fn some_node(&mut self) -> usize {
        self.rng.below(self.cluster.nodes() as u64) as usize
    }

    pub(super) fn some_name(&mut self) -> &'static str {
        NAMES[self.rng.below(NAMES.len() as u64) as usize]
    }

    /// Returns an existing file: one of its names and its number.
    pub(super) fn some_file(&mut self) -> Option<(&'static str, usize)> {
        let all: Vec<_> = self.names.iter().map(|(name, id)| (*name, *id)).collect();
        (!all.is_empty()).then(|| *self.rng.pick(&all))
    }

    /// Returns one of the names of a file that has any.
    pub(super) fn name_of(&self, id: usize) -> Option<&'static str> {
        let mut names = self.names.iter();
        names.find(|(_, i)| **i == id).map(|(name, _)| *name)
    }

    pub(super) fn path(&self, node: usize, name: &str) -> PathBuf {
        self.cluster.mount(node).path(name)
    }

    /// Notes an operation on a file.
    pub(super) fn note(&mut self, id: usize, node: usize, what: String) {
        self.counts.operations += 1;
        self.remark(id, node, what);
    }

    /// Notes anything else that happened to a file.
    pub(super) fn remark(&mut self, id: usize, node: usize, what: String) {
        self.wake(id);
        let number = self.counts.operations;
        self.files[id].note(format!("{number}: node {node}: {what}"));
    }

    /// Checks the whole file through an open handle.
    pub(super) fn check(&mut self, id: usize, node: usize, file: &File) {
        self.counts.checks += 1;
        let same = self.files[id].check(file);
        self.require(id, node, same);
    }

    /// Ends the test with all that is known of a file.
    pub(super) fn fail(&self, id: usize, node: usize, why: &str) -> ! {
        let names: Vec<_> = self.names.iter().filter(|(_, i)| **i == id).collect();
        panic!(
            "file {id} {names:?} on node {node}, after {} operations: {why}\nlast operations on it:\n  {}\nlast lines of the logs:\n{}",
            self.counts.operations,
            self.files[id].history(),
            self.last_log_lines()
        );
    }

    fn last_log_lines(&self) -> String {
        const LINES: usize = 12;
        let mut text = String::new();
        for mount in self.cluster.mounts() {
            let log = mount.log();
            let lines: Vec<_> = log.lines().collect();
            text += &format!("  {}\n", mount.log_file().display());
            for line in &lines[lines.len().saturating_sub(LINES)..] {
                text += &format!("    {line}\n");
            }
        }
        text
    }

    pub(super) fn require<T>(&self, id: usize, node: usize, result: Result<T, String>) -> T {
        result.unwrap_or_else(|why| self.fail(id, node, &why))
    }

    /// Checks that every node opens the file and sees all of it. Now and then one node is killed and
    /// restarted while other nodes look.
    pub(super) fn check_everywhere(&mut self, id: usize) {
        let Some(name) = self.name_of(id) else {
            return;
        };
        self.rest(id);
        let victim = self.rng.one_in(40).then(|| self.some_node());
        let writable = self.rng.one_in(4);
        let paths = self.cluster.paths(name);
        if let Some(victim) = victim {
            self.before_kill(victim);
        }
        let content = &self.files[id];
        let cluster = &mut self.cluster;
        let others = paths.iter().enumerate().filter(|(n, _)| Some(*n) != victim);
        let mut results = look_on(content, others, writable, || {
            if let Some(victim) = victim {
                cluster.restart(victim);
            }
        });
        if let Some(victim) = victim {
            results.push((victim, content.check_at(&paths[victim], writable)));
            self.remark(id, victim, "killed and started while others looked".into());
        }
        self.judge(id, results);
    }

    /// Like `check_everywhere`, but in the middle of a turn, when no node is killed. `without` is a node that
    /// must not open the file now, if there is one.
    pub(super) fn check_within_turn(&mut self, id: usize, without: Option<usize>) {
        let Some(name) = self.name_of(id) else {
            return;
        };
        let writable = self.rng.one_in(4);
        let paths = self.cluster.paths(name);
        let nodes = paths.iter().enumerate();
        let nodes = nodes.filter(|(n, _)| Some(*n) != without);
        let results = look_on(&self.files[id], nodes, writable, || {});
        self.judge(id, results);
    }

    fn judge(&mut self, id: usize, results: Vec<Looked>) {
        self.counts.checks += results.len() as u64;
        for (node, result) in results {
            self.require(id, node, result);
        }
    }

    /// Closes the files that are held open on the node.
    pub(super) fn before_kill(&mut self, node: usize) {
        self.held.retain(|held| held.node != node);
        self.counts.kills += 1;
    }

    fn kill_one(&mut self) -> &'static str {
        let node = self.some_node();
        self.before_kill(node);
        self.cluster.restart(node);
        for id in 0..self.files.len() {
            self.files[id].note(format!("node {node}: killed and started"));
        }
        if let Some((_, id)) = self.some_file() {
            self.check_everywhere(id);
        }
        "kills while idle"
    }

    fn drain_some(&mut self) -> &'static str {
        let node = self.some_node();
        let wait = self.rng.one_in(3);
        if wait {
            self.cluster.mount(node).drain();
        } else {
            let mount = self.cluster.mount(node);
            let out = mount.run(["drain".as_ref(), mount.mnt().as_os_str()]);
            let code = out.status.code();
            assert!(
                matches!(code, Some(0 | 3)),
                "{}",
                crate::test_mount::text(&out)
            );
        }
        for id in 0..self.files.len() {
            self.files[id].note(format!("node {node}: drain, waiting: {wait}"));
        }
        if let Some((_, id)) = self.some_file() {
            self.check_everywhere(id);
        }
        "drains"
    }

    /// Checks that fsync through a file that was open all the time shows what other nodes have published.
    fn look_through_held(&mut self) -> &'static str {
        if self.held.len() < 6 && self.rng.one_in(2) {
            let Some((name, id)) = self.some_file() else {
                return "nothing";
            };
            let (node, writable) = (self.some_node(), self.rng.one_in(2));
            let path = self.path(node, name);
            let opened = File::options().read(true).write(writable).open(&path);
            let file = self.require(id, node, opened.map_err(|e| format!("open: {e}")));
            self.note(id, node, format!("open to hold, writable: {writable}"));
            let held = Held {
                node,
                id,
                file,
                writable,
            };
            self.held.push(held);
            return "opens to hold";
        }
        if self.held.is_empty() {
            return "nothing";
        }
        let at = self.rng.below(self.held.len() as u64) as usize;
        let (node, id) = (self.held[at].node, self.held[at].id);
        self.note(id, node, "fsync and look through a held file".into());
        self.counts.checks += 1;
        let held = &self.held[at].file;
        let looked = held.sync_all().map_err(|e| format!("fsync: {e}"));
        let looked = looked.and_then(|()| self.files[id].check(held));
        self.require(id, node, looked);
        if self.rng.one_in(3) {
            self.held.swap_remove(at);
        }
        "looks through held files"
    }

    /// Ends the run after the last turn: drains everything and compares the backing. Returns the cluster.
    pub fn end(mut self) -> Cluster {
        self.held.clear();
        let ids: Vec<usize> = self.names.values().copied().collect();
        for id in ids {
            self.check_everywhere(id);
        }
        self.cluster.drain();
        for (name, id) in self.names.clone() {
            let checked = self.files[id].check_at(&self.cluster.canonical(name), false);
            self.require(id, 0, checked.map_err(|e| format!("canonical file: {e}")));
            self.check_everywhere(id);
        }
        let there = names_in(self.cluster.mount(0).backing());
        let want: Vec<String> = self.names.keys().map(|n| n.to_string()).collect();
        assert_eq!(there, want, "names in the backing");
        self.cluster
    }
}

/// A node, and the result of its check.
type Looked = (usize, Result<(), String>);

/// Lets these nodes open the file concurrently and compare all of it, while `meanwhile` runs.
fn look_on<'a>(
    content: &Content,
    nodes: impl Iterator<Item = (usize, &'a PathBuf)>,
    writable: bool,
    meanwhile: impl FnOnce(),
) -> Vec<Looked> {
    std::thread::scope(|scope| {
        let looks: Vec<_> = nodes
            .map(|(n, path)| (n, scope.spawn(move || content.check_at(path, writable))))
            .collect();
        meanwhile();
        looks
            .into_iter()
            .map(|(n, look)| (n, look.join().unwrap_or(Err("panicked".into()))))
            .collect()
    })
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("list the backing");
    let mut names: Vec<String> = entries
        .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name != ".forebay")
        .collect();
    names.sort();
    names
}
