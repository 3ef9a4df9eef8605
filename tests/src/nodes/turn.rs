//! Turns of one node at a time: from a sync point that refreshes to one that publishes.

use super::content::Content;
use super::world::{Held, LARGEST, World};
use crate::locks::{How, lock, unlock};
use crate::sys;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Largest number of operations in a turn. All nodes check the whole file after each turn, and after each
/// sync point in it.
const STEPS: u64 = 20;

/// A node's turn at a file.
struct Turn {
    node: usize,
    id: usize,
    file: File,
    /// The file is open with `O_APPEND`: its writes go to the end of the file, whatever their offset.
    appends: bool,
    locked: Option<How>,
    changed: bool,
    may_hold: bool,
}

impl World {
    /// One node opens a file (or uses one that it has open), changes and reads it, and publishes.
    pub(super) fn alone(&mut self) -> &'static str {
        let (name, node) = (self.some_name(), self.some_node());
        let mut turn = match self.names.get(name).copied() {
            Some(id) => self.begin(node, name, id),
            None => self.create(node, name),
        };
        for _ in 0..1 + self.rng.below(STEPS) {
            self.step(&mut turn);
            if self.rng.one_in(17 * STEPS) {
                self.kill_within(&mut turn, name);
            }
        }
        let id = turn.id;
        self.publish(turn);
        self.check_everywhere(id);
        "turns of one node"
    }

    pub(super) fn new_content(&mut self, name: &'static str) -> usize {
        let id = self.files.len();
        self.files.push(Content::new());
        self.names.insert(name, id);
        id
    }

    fn create(&mut self, node: usize, name: &'static str) -> Turn {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.custom_flags(if self.rng.one_in(2) { libc::O_EXCL } else { 0 });
        let id = self.new_content(name);
        self.note(id, node, format!("create {name}"));
        let file = options.open(self.path(node, name));
        let file = self.require(id, node, file.map_err(|e| format!("create: {e}")));
        Turn {
            node,
            id,
            file,
            appends: false,
            locked: None,
            changed: true,
            may_hold: true,
        }
    }

    fn begin(&mut self, node: usize, name: &str, id: usize) -> Turn {
        let mine = |held: &Held| held.node == node && held.id == id && held.writable;
        if let Some(at) = self.held.iter().position(mine)
            && !self.rng.one_in(3)
        {
            let file = self.held.swap_remove(at).file;
            let mut turn = Turn {
                node,
                id,
                file,
                appends: false,
                locked: None,
                changed: false,
                may_hold: true,
            };
            if self.rng.one_in(2) {
                self.note(id, node, "fsync of a held file".into());
                let synced = turn.file.sync_all().map_err(|e| format!("fsync: {e}"));
                self.require(id, node, synced);
            } else {
                self.lock(&mut turn);
            }
            return turn;
        }
        let cut = self.rng.one_in(12);
        let appends = self.rng.one_in(4);
        let mut flags = if cut { libc::O_TRUNC } else { 0 };
        if appends {
            flags |= libc::O_APPEND;
        }
        let direct = appends && self.rng.one_in(3);
        if direct {
            flags |= libc::O_DIRECT;
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(self.path(node, name));
        self.note(
            id,
            node,
            format!("open {name}, O_TRUNC: {cut}, O_APPEND: {appends}, O_DIRECT: {direct}"),
        );
        let file = self.require(id, node, opened.map_err(|e| format!("open: {e}")));
        if cut {
            self.files[id].cut(0);
        }
        let mut turn = Turn {
            node,
            id,
            file,
            appends,
            locked: None,
            changed: cut,
            may_hold: !appends,
        };
        if self.rng.one_in(5) {
            self.lock(&mut turn);
        }
        turn
    }

    fn lock(&mut self, turn: &mut Turn) {
        let how = *self.rng.pick(&How::ALL);
        self.note(turn.id, turn.node, format!("lock {how:?}"));
        // All earlier holders of a lock have closed or unlocked the file, so this must not fail (S3.2).
        let locked = lock(&turn.file, how).map_err(|e| format!("lock: {e}"));
        self.require(turn.id, turn.node, locked);
        turn.locked = Some(how);
    }

    /// Does one operation and checks it at once.
    fn step(&mut self, turn: &mut Turn) {
        let (id, node) = (turn.id, turn.node);
        let size = self.files[id].size();
        match self.rng.below(100) {
            0..45 if turn.appends || self.rng.one_in(5) => self.append(turn),
            0..45 => {
                let at = self
                    .rng
                    .below(size + 1 + size / 8 + self.rng.clone().below(5000));
                let at = at.min(LARGEST - 1);
                let len = self.rng.size(100_000.min(LARGEST - at));
                let bytes = self.rng.bytes(len as usize);
                self.note(id, node, format!("pwrite {len} at {at}"));
                let done = sys::write_all_at(&turn.file, &bytes, at);
                self.require(id, node, done.map_err(|e| format!("pwrite: {e}")));
                self.files[id].write(at, &bytes);
                turn.changed = true;
            }
            45..72 => {
                let at = self.rng.below(size + 2);
                let len = self.rng.size(100_000);
                self.note(id, node, format!("pread {len} at {at}"));
                let got =
                    sys::read_at(&turn.file, at, len as usize).map_err(|e| format!("pread: {e}"));
                let same = got.and_then(|got| self.files[id].compare(at, len, &got));
                self.require(id, node, same);
            }
            72..79 => {
                let size = self.rng.below(size + 1 + size / 4 + 100).min(LARGEST);
                self.note(id, node, format!("ftruncate to {size}"));
                let done = turn
                    .file
                    .set_len(size)
                    .map_err(|e| format!("ftruncate: {e}"));
                self.require(id, node, done);
                self.files[id].cut(size);
                turn.changed = true;
            }
            79..85 => {
                let at = self.rng.below(size + 1);
                let len = self.rng.size(60_000);
                self.note(id, node, format!("punch {len} at {at}"));
                let done = sys::fallocate(&turn.file, sys::PUNCH, at, len);
                self.require(id, node, done.map_err(|e| format!("punch: {e}")));
                self.files[id].punch(at, len);
                turn.changed = true;
            }
            85..90 => self.sync(turn, "fsync"),
            90..95 => {
                self.note(id, node, "fstat".into());
                let meta = turn.file.metadata().map_err(|e| format!("fstat: {e}"));
                let got = self.require(id, node, meta).len();
                let end = sys::seek(&turn.file, 0, libc::SEEK_END);
                let end = self.require(id, node, end.map_err(|e| format!("lseek: {e}")));
                let same = (got == size && end == Some(size))
                    .then_some(())
                    .ok_or(format!("size {got}, end {end:?}, expected {size}"));
                self.require(id, node, same);
            }
            _ => match turn.locked.take() {
                Some(how) => self.unlock(turn, how),
                None => self.lock(turn),
            },
        }
    }

    /// Appends in one of the ways that programs use. The bytes must come after everything that the turn knows
    /// of.
    fn append(&mut self, turn: &mut Turn) {
        let (id, node) = (turn.id, turn.node);
        let size = self.files[id].size();
        let room = LARGEST.saturating_sub(size);
        if room == 0 {
            return;
        }
        let len = self.rng.size(room.min(50_000));
        let bytes = self.rng.bytes(len as usize);
        let once = !turn.appends && self.rng.one_in(2);
        self.note(id, node, format!("append {len}, RWF_APPEND: {once}"));
        let set = |append| match turn.appends {
            true => Ok(()),
            false => sys::set_append(&turn.file, append),
        };
        let done = match once {
            true => sys::append_once(&turn.file, &bytes),
            false => set(true)
                .and_then(|()| (&turn.file).write_all(&bytes))
                .and_then(|()| set(false)),
        };
        self.require(id, node, done.map_err(|e| format!("append: {e}")));
        self.files[id].write(size, &bytes);
        turn.changed |= len > 0;
    }

    fn sync(&mut self, turn: &mut Turn, what: &str) {
        self.date(turn);
        self.note(turn.id, turn.node, what.into());
        let done = turn.file.sync_all().map_err(|e| format!("fsync: {e}"));
        self.require(turn.id, turn.node, done);
        self.look_around(turn);
    }

    fn unlock(&mut self, turn: &mut Turn, how: How) {
        self.date(turn);
        self.note(turn.id, turn.node, format!("unlock {how:?}"));
        let done = unlock(&turn.file, how).map_err(|e| format!("unlock: {e}"));
        self.require(turn.id, turn.node, done);
        self.look_around(turn);
    }

    /// Checks that what was just published is visible on every node. The turn's own node is left out while it
    /// holds a process lock: closing another handle would give the lock up.
    fn look_around(&mut self, turn: &Turn) {
        let own = (turn.locked == Some(How::Posix)).then_some(turn.node);
        self.check_within_turn(turn.id, own);
    }

    /// Kills a node with `kill -9` while it has the file open. What was acknowledged must be there when the
    /// node is back, and becomes visible to other nodes with the next close.
    fn kill_within(&mut self, turn: &mut Turn, name: &str) {
        let (id, node) = (turn.id, turn.node);
        self.remark(id, node, "killed within its turn and started".into());
        self.before_kill(node);
        self.cluster.restart(node);
        let opened = open_both_ways(&self.path(node, name));
        turn.file = self.require(id, node, opened.map_err(|e| format!("open: {e}")));
        turn.appends = false;
        turn.locked = None;
        self.date(turn);
        self.check(id, node, &turn.file);
    }

    fn date(&mut self, turn: &mut Turn) {
        let meta = turn.file.metadata().map_err(|e| format!("fstat: {e}"));
        let mtime = sys::mtime(&self.require(turn.id, turn.node, meta));
        let dated = self.files[turn.id].dated(mtime, turn.changed);
        self.require(turn.id, turn.node, dated);
        turn.changed = false;
    }

    /// Ends a turn in one of the ways that make its changes visible to other nodes.
    fn publish(&mut self, mut turn: Turn) {
        self.date(&mut turn);
        let (id, node) = (turn.id, turn.node);
        let mut told = false;
        if self.rng.one_in(2)
            && let Some(how) = turn.locked.take()
        {
            self.unlock(&mut turn, how);
            told = true;
        }
        if !told && self.rng.one_in(4) {
            self.sync(&mut turn, "fsync at the end");
            told = true;
        }
        let hold = told && turn.may_hold && turn.locked.is_none() && self.held.len() < 6;
        if hold && self.rng.one_in(2) {
            let held = Held {
                node,
                id,
                file: turn.file,
                writable: true,
            };
            return self.held.push(held);
        }
        self.note(id, node, "close".into());
        let closed = sys::close(turn.file).map_err(|e| format!("close: {e}"));
        self.require(id, node, closed);
    }

    /// Passes a lock on by a close: the close of the file through which a node has its lock gives the lock
    /// up. Once the close has returned, an attempt on any node that does not wait must succeed (S3.2), and
    /// see what was written.
    fn pass_on_by_close(&mut self, turns: &mut [Turn], at: usize, name: &str) {
        let id = turns[at].id;
        self.date(&mut turns[at]);
        let opened = open_both_ways(&self.path(at, name));
        let again = self.require(id, at, opened.map_err(|e| format!("open: {e}")));
        let held = std::mem::replace(&mut turns[at].file, again);
        let next = self.some_node();
        let how = *self.rng.pick(&How::ALL);
        self.note(
            id,
            at,
            format!("close with a lock, {how:?} lock on node {next}"),
        );
        let closed = sys::close(held).map_err(|e| format!("close: {e}"));
        let locked = lock(&turns[next].file, how).map_err(|e| format!("lock after a close: {e}"));
        self.require(id, at, closed);
        self.require(id, next, locked);
        self.check(id, next, &turns[next].file);
        self.unlock(&mut turns[next], how);
    }

    /// Several nodes have the file open and take turns under locks. They do not close it in between, except
    /// to pass a lock on.
    pub(super) fn under_locks(&mut self) -> &'static str {
        let Some((name, id)) = self.some_file() else {
            return "nothing";
        };
        let mut turns = Vec::new();
        for node in 0..self.cluster.nodes() {
            let opened = open_both_ways(&self.path(node, name));
            self.note(id, node, format!("open {name} for turns under locks"));
            let file = self.require(id, node, opened.map_err(|e| format!("open: {e}")));
            turns.push(Turn {
                node,
                id,
                file,
                appends: false,
                locked: None,
                changed: false,
                may_hold: false,
            });
        }
        for _ in 0..3 + self.rng.below(8) {
            let at = self.some_node();
            self.lock(&mut turns[at]);
            self.check(id, at, &turns[at].file);
            for _ in 0..1 + self.rng.below(6) {
                let turn = &mut turns[at];
                self.step(turn);
                if turn.locked.is_none() {
                    self.lock(turn);
                }
            }
            let turn = &mut turns[at];
            match turn.locked.take() {
                Some(_) if self.rng.one_in(3) => self.pass_on_by_close(&mut turns, at, name),
                Some(how) => self.unlock(turn, how),
                None => {}
            }
        }
        for turn in turns {
            let node = turn.node;
            self.note(id, node, "close".into());
            let closed = sys::close(turn.file).map_err(|e| format!("close: {e}"));
            self.require(id, node, closed);
        }
        self.check_everywhere(id);
        "turns under locks"
    }
}

fn open_both_ways(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}
