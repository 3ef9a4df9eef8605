//! Operations on the names and attributes of the files that a worker has to itself.

use super::private::fail;
use super::tree::{Mtime, NodeId, now};
use super::worker::{Handle, Outcome, Worker};
use crate::sys;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

const MAX_FILES: usize = 12;
const MAX_HANDLES: usize = 6;

impl Worker {
    pub(super) fn create(&mut self) -> Outcome {
        if self.tree.names.len() >= MAX_FILES {
            return self.unlink();
        }
        let name = self.new_name();
        if self.tree.names.contains_key(&name) {
            return self.open();
        }
        let did = format!("create {name}");
        let began = now();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(self.dir.join(&name))
            .map_err(fail(did.clone()))?;
        let node = self.tree.create(&name, 0o644);
        self.tree.node(node).mtime = Mtime::Since(began);
        self.keep(file, node);
        Ok(did)
    }

    pub(super) fn keep(&mut self, file: File, node: NodeId) {
        if self.handles.len() < MAX_HANDLES {
            self.handles.push(Handle { file, node });
        }
    }

    pub(super) fn rename(&mut self) -> Outcome {
        let from = self.some_name()?;
        let to = if self.rng.one_in(3) {
            self.some_name()?
        } else {
            self.new_name()
        };
        let did = format!("rename {from} to {to}");
        std::fs::rename(self.dir.join(&from), self.dir.join(&to)).map_err(fail(did.clone()))?;
        if from != to {
            self.tree.rename(&from, &to);
        }
        Ok(did)
    }

    pub(super) fn link(&mut self) -> Outcome {
        let (from, to) = (self.some_name()?, self.new_name());
        if self.tree.names.contains_key(&to) || self.tree.names.len() >= MAX_FILES {
            return self.stat();
        }
        let did = format!("link {from} to {to}");
        std::fs::hard_link(self.dir.join(&from), self.dir.join(&to)).map_err(fail(did.clone()))?;
        let id = self.tree.names[&from];
        self.tree.link(id, &to);
        Ok(did)
    }

    pub(super) fn unlink(&mut self) -> Outcome {
        let name = self.some_name()?;
        let did = format!("unlink {name}");
        std::fs::remove_file(self.dir.join(&name)).map_err(fail(did.clone()))?;
        self.tree.unlink(&name);
        Ok(did)
    }

    pub(super) fn open(&mut self) -> Outcome {
        let name = self.some_name()?;
        let did = format!("open {name}");
        let path = self.dir.join(&name);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let node = self.tree.names[&name];
        self.keep(file.map_err(fail(did.clone()))?, node);
        Ok(did)
    }

    pub(super) fn close(&mut self) -> Outcome {
        if self.handles.is_empty() {
            return self.open();
        }
        let at = self.rng.below(self.handles.len() as u64) as usize;
        self.handles.remove(at);
        Ok(format!("close handle {at}"))
    }

    pub(super) fn open_truncating(&mut self) -> Outcome {
        let name = self.some_name()?;
        let did = format!("open {name} with O_TRUNC");
        let began = now();
        let path = self.dir.join(&name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .truncate(true)
            .open(path);
        let file = file.map_err(fail(did.clone()))?;
        let id = self.tree.names[&name];
        let node = self.tree.node(id);
        node.mtime = match node.size() {
            0 => Mtime::Open,
            _ => Mtime::Since(began),
        };
        node.truncate(0);
        self.keep(file, id);
        Ok(did)
    }

    pub(super) fn set_times(&mut self) -> Outcome {
        let name = self.some_name()?;
        let time = self
            .rng
            .within(1_000_000_000_000_000_000..1_600_000_000_000_000_000) as i64;
        let did = format!("utimensat {name} {time}");
        sys::set_times(&self.dir.join(&name), time, time).map_err(fail(did.clone()))?;
        let id = self.tree.names[&name];
        self.tree.node(id).mtime = Mtime::Exact(time);
        Ok(did)
    }

    pub(super) fn chmod(&mut self) -> Outcome {
        let name = self.some_name()?;
        let mode = *self.rng.pick(&[0o600, 0o644, 0o640, 0o755, 0o666, 0o400]);
        let did = format!("chmod {name} {mode:o}");
        let permissions = std::fs::Permissions::from_mode(mode);
        let path = self.dir.join(&name);
        std::fs::set_permissions(path, permissions).map_err(fail(did.clone()))?;
        let id = self.tree.names[&name];
        self.tree.node(id).mode = mode;
        Ok(did)
    }

    pub(super) fn xattr(&mut self) -> Outcome {
        let name = self.some_name()?;
        let path = self.dir.join(&name);
        let key = format!("user.k{}", self.rng.below(4));
        let id = self.tree.names[&name];
        let did = format!("xattr {key} of {name}");
        if self.tree.node(id).xattrs.contains_key(&key) && self.rng.one_in(2) {
            sys::remove_xattr(&path, &key).map_err(fail(did.clone()))?;
            self.tree.node(id).xattrs.remove(&key);
        } else {
            let len = self.rng.below(200) as usize;
            let value = self.rng.bytes(len);
            sys::set_xattr(&path, &key, &value, 0).map_err(fail(did.clone()))?;
            self.tree.node(id).xattrs.insert(key, value);
        }
        let node = &self.tree.nodes[&id];
        let got: BTreeSet<String> = sys::list_xattr(&path)
            .map_err(fail(did.clone()))?
            .into_iter()
            .filter(|name| name.starts_with("user."))
            .collect();
        let want: BTreeSet<String> = node.xattrs.keys().cloned().collect();
        if got != want {
            return Err(format!("{did}: the list is {got:?}, expected {want:?}"));
        }
        for (key, value) in &node.xattrs {
            if sys::get_xattr(&path, key).map_err(fail(did.clone()))? != *value {
                return Err(format!("{did}: {key} has another value"));
            }
        }
        Ok(did)
    }

    pub(super) fn stat(&mut self) -> Outcome {
        let name = self.some_name()?;
        let did = format!("stat {name}");
        let meta = std::fs::metadata(self.dir.join(&name)).map_err(fail(did.clone()))?;
        let node = &self.tree.nodes[&self.tree.names[&name]];
        node.check(&meta).map_err(|e| format!("{did}: {e}"))?;
        Ok(did)
    }

    /// Calls fstat now and then after an operation, also on unlinked files.
    pub(super) fn maybe_check(&mut self, file: &File, id: NodeId, did: String) -> Outcome {
        if self.rng.one_in(4) {
            let meta = file
                .metadata()
                .map_err(fail(format!("{did}, then fstat")))?;
            let node = &self.tree.nodes[&id];
            node.check(&meta)
                .map_err(|e| format!("{did}, then fstat: {e}"))?;
        }
        Ok(did)
    }

    pub(super) fn list(&mut self) -> Outcome {
        let mut got = BTreeSet::new();
        for (dir, prefix) in [(self.dir.clone(), ""), (self.dir.join("sub"), "sub/")] {
            for entry in std::fs::read_dir(dir).map_err(fail("list".into()))? {
                let entry = entry.map_err(fail("list".into()))?;
                if entry.file_type().map_err(fail("list".into()))?.is_file() {
                    got.insert(format!("{prefix}{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        let want: BTreeSet<String> = self.tree.names.keys().cloned().collect();
        if got != want {
            return Err(format!("list: {got:?}, expected {want:?}"));
        }
        Ok("list".into())
    }
}
