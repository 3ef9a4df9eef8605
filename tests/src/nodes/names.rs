//! Changes of names: the backing has them at once, and undrained data follows its file.

use super::world::World;
use crate::sys;
use std::fs;

impl World {
    pub(super) fn change_names(&mut self) -> &'static str {
        let Some((name, id)) = self.some_file() else {
            return "nothing";
        };
        let (node, other) = (self.some_node(), self.some_name());
        let path = self.path(node, name);
        let there = self.path(node, other);
        let kind = match self.rng.below(10) {
            0..2 => {
                self.note(id, node, format!("unlink {name}"));
                let done = fs::remove_file(path).map_err(|e| format!("unlink: {e}"));
                self.require(id, node, done);
                self.names.remove(name);
                self.lost_a_name(id);
                "unlinks"
            }
            2..6 if name != other && self.names.get(other) != Some(&id) => {
                self.note(id, node, format!("rename {name} to {other}"));
                let done = fs::rename(path, there).map_err(|e| format!("rename: {e}"));
                self.require(id, node, done);
                self.names.remove(name);
                if let Some(replaced) = self.names.insert(other, id) {
                    self.files[replaced].note(format!("replaced by file {id}"));
                    self.lost_a_name(replaced);
                }
                "renames"
            }
            6..8 if !self.names.contains_key(other) => {
                self.note(id, node, format!("link {other} to {name}"));
                let done = fs::hard_link(path, there).map_err(|e| format!("link: {e}"));
                self.require(id, node, done);
                self.names.insert(other, id);
                self.files[id].links += 1;
                "links"
            }
            _ => {
                let size = self.rng.below(self.files[id].size() + 1000);
                self.note(id, node, format!("truncate {name} to {size}"));
                let done = sys::truncate(&path, size).map_err(|e| format!("truncate: {e}"));
                self.require(id, node, done);
                self.files[id].cut(size);
                let meta = fs::metadata(&path).map_err(|e| format!("stat: {e}"));
                let mtime = sys::mtime(&self.require(id, node, meta));
                let dated = self.files[id].dated(mtime, true);
                self.require(id, node, dated);
                "truncates by name"
            }
        };
        self.check_names();
        self.check_everywhere(id);
        kind
    }

    fn lost_a_name(&mut self, id: usize) {
        self.files[id].links -= 1;
        if self.files[id].links == 0 {
            // Forebay does not promise what other nodes see of an open file that has no name.
            self.held.retain(|held| held.id != id);
            self.resting.remove(&id);
        }
    }

    /// Checks that every node finds the names that exist, and no others.
    fn check_names(&mut self) {
        for name in super::world::NAMES {
            let want = self.names.contains_key(name);
            for (node, path) in self.cluster.paths(name).iter().enumerate() {
                self.counts.checks += 1;
                let found = fs::symlink_metadata(path).is_ok();
                assert_eq!(found, want, "whether node {node} has a file {name}");
            }
        }
    }
}
