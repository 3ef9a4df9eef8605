//! Operations on the files that a worker has to itself: the choice of an operation, and those on the files'
//! bytes. `private_names.rs` has those on names and attributes.

use super::tree::{Mtime, NodeId, now};
use super::worker::{Outcome, Worker};
use crate::sys::{self, Mapping};
use std::fs::{File, OpenOptions};

/// Largest private file, in bytes.
const MAX_SIZE: u64 = 1 << 20;
const MAX_REQUEST: u64 = 300 << 10;
const PAGE: u64 = 4096;

type Operation = fn(&mut Worker) -> Outcome;

/// Weights and operations.
const OPERATIONS: &[(u64, Operation)] = &[
    (24, Worker::write),
    (8, Worker::append),
    (20, Worker::read),
    (5, Worker::truncate),
    (5, Worker::allocate),
    (4, Worker::seek),
    (4, Worker::sync),
    (4, Worker::create),
    (4, Worker::rename),
    (3, Worker::link),
    (4, Worker::unlink),
    (5, Worker::open),
    (5, Worker::close),
    (2, Worker::open_truncating),
    (4, Worker::map_write),
    (3, Worker::map_read),
    (4, Worker::copy),
    (3, Worker::set_times),
    (3, Worker::chmod),
    (3, Worker::xattr),
    (5, Worker::stat),
    (2, Worker::list),
];

pub(super) fn fail(what: String) -> impl FnOnce(std::io::Error) -> String {
    move |e| format!("{what}: {e}")
}

impl Worker {
    pub(super) fn private_step(&mut self) -> Outcome {
        let total = OPERATIONS.iter().map(|(weight, _)| weight).sum();
        let mut left = self.rng.below(total);
        for (weight, operation) in OPERATIONS {
            if left < *weight {
                return operation(self);
            }
            left -= weight;
        }
        Err("the weights do not add up".into())
    }

    pub(super) fn new_name(&mut self) -> String {
        let dir = if self.rng.one_in(4) { "sub/" } else { "" };
        format!("{dir}f{}", self.rng.below(40))
    }

    /// Returns an existing name; creates the first file if there is none.
    pub(super) fn some_name(&mut self) -> Result<String, String> {
        if self.tree.names.is_empty() {
            self.create()?;
        }
        let at = self.rng.below(self.tree.names.len() as u64) as usize;
        let name = self.tree.names.keys().nth(at);
        Ok(name.expect("below the number of names").clone())
    }

    /// Returns a file to work on: through a handle that is open already (perhaps of an unlinked file), or
    /// opened for this one operation.
    fn some_file(&mut self) -> Result<(File, NodeId, String), String> {
        if !self.handles.is_empty() && self.rng.one_in(2) {
            let at = self.rng.below(self.handles.len() as u64) as usize;
            let handle = &self.handles[at];
            let file = handle.file.try_clone().map_err(fail("dup".into()))?;
            return Ok((file, handle.node, format!("handle {at}")));
        }
        let name = self.some_name()?;
        let path = self.dir.join(&name);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(fail(format!("open {name}")))?;
        Ok((file, self.tree.names[&name], name))
    }

    fn write(&mut self) -> Outcome {
        let (file, id, name) = self.some_file()?;
        let len = self.rng.size(MAX_REQUEST);
        let reach = (self.tree.node(id).size() + (64 << 10)).min(MAX_SIZE - len);
        let at = self.rng.below(reach + 1);
        let data = self.rng.bytes(len as usize);
        let began = now();
        let did = format!("write {name} {len} at {at}");
        sys::write_all_at(&file, &data, at).map_err(fail(did.clone()))?;
        let node = self.tree.node(id);
        node.write(at, &data);
        node.mtime = Mtime::Since(began);
        self.maybe_check(&file, id, did)
    }

    fn append(&mut self) -> Outcome {
        let name = self.some_name()?;
        let id = self.tree.names[&name];
        let size = self.tree.node(id).size();
        let len = self
            .rng
            .size(MAX_REQUEST.min(MAX_SIZE.saturating_sub(size).max(1)));
        if size + len > MAX_SIZE {
            return self.truncate();
        }
        let data = self.rng.bytes(len as usize);
        let did = format!("append {name} {len}");
        let path = self.dir.join(&name);
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(fail(did.clone()))?;
        let began = now();
        // Linux ignores the offset of pwrite on such a descriptor.
        sys::write_all_at(&file, &data, 0).map_err(fail(did.clone()))?;
        let node = self.tree.node(id);
        node.write(size, &data);
        node.mtime = Mtime::Since(began);
        self.maybe_check(&file, id, did)
    }

    fn read(&mut self) -> Outcome {
        let (file, id, name) = self.some_file()?;
        let size = self.tree.node(id).size();
        let at = self.rng.below(size + 1000);
        let len = self.rng.size(MAX_REQUEST) as usize;
        let did = format!("read {name} {len} at {at}");
        let got = sys::read_at(&file, at, len).map_err(fail(did.clone()))?;
        self.compare(id, at, len, &got, &did)?;
        Ok(did)
    }

    fn compare(
        &self,
        id: NodeId,
        at: u64,
        len: usize,
        got: &[u8],
        did: &str,
    ) -> Result<(), String> {
        let want = self.tree.nodes[&id].read(at, len);
        if got.len() != want.len() {
            let (got, want) = (got.len(), want.len());
            return Err(format!("{did}: {got} bytes, expected {want}"));
        }
        match (0..got.len()).find(|i| got[*i] != want[*i]) {
            Some(i) => Err(format!(
                "{did}: byte {} is {:02x}, expected {:02x}",
                at + i as u64,
                got[i],
                want[i]
            )),
            None => Ok(()),
        }
    }

    fn truncate(&mut self) -> Outcome {
        let old_and_new = |worker: &mut Self, id: NodeId| {
            let old = worker.tree.node(id).size();
            let new = worker.rng.below(MAX_SIZE);
            // POSIX leaves open whether cutting a file to its own size is a modification.
            if new == old { old + 1 } else { new }
        };
        let began = now();
        let (id, did) = if self.rng.one_in(2) {
            let name = self.some_name()?;
            let id = self.tree.names[&name];
            let size = old_and_new(self, id);
            let did = format!("truncate {name} to {size}");
            sys::truncate(&self.dir.join(&name), size).map_err(fail(did.clone()))?;
            self.tree.node(id).truncate(size);
            (id, did)
        } else {
            let (file, id, name) = self.some_file()?;
            let size = old_and_new(self, id);
            let did = format!("ftruncate {name} to {size}");
            file.set_len(size).map_err(fail(did.clone()))?;
            self.tree.node(id).truncate(size);
            (id, did)
        };
        self.tree.node(id).mtime = Mtime::Since(began);
        Ok(did)
    }

    fn allocate(&mut self) -> Outcome {
        let (file, id, name) = self.some_file()?;
        let at = self.rng.below(MAX_SIZE - MAX_REQUEST);
        let len = self.rng.size(MAX_REQUEST);
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        let mode = *self.rng.pick(&[0, keep, sys::PUNCH, zero, zero | keep]);
        let did = format!("fallocate {name} mode {mode} {len} at {at}");
        let began = now();
        sys::fallocate(&file, mode, at, len).map_err(fail(did.clone()))?;
        let node = self.tree.node(id);
        let (old, plain) = (node.size(), mode & !keep == 0);
        if !plain {
            node.zero(at, len, mode == zero);
        } else if mode == 0 && at + len > old {
            node.truncate(at + len);
        }
        let changed = node.size() != old || (!plain && at < old);
        node.mtime = match (changed, node.mtime) {
            (true, _) => Mtime::Since(began),
            (false, _) => Mtime::Open,
        };
        self.maybe_check(&file, id, did)
    }

    fn seek(&mut self) -> Outcome {
        let (file, id, name) = self.some_file()?;
        let size = self.tree.node(id).size();
        let from = self.rng.below(size + 1);
        let did = format!("lseek {name} from {from}");
        let data = sys::seek(&file, from, libc::SEEK_DATA).map_err(fail(did.clone()))?;
        let hole = sys::seek(&file, from, libc::SEEK_HOLE).map_err(fail(did.clone()))?;
        let node = &self.tree.nodes[&id];
        if !node.all_zero(from, data.unwrap_or(size)) {
            return Err(format!("{did}: SEEK_DATA skips data, it says {data:?}"));
        }
        let valid = match hole {
            None => from == size,
            Some(hole) => {
                from <= hole && hole <= size && (hole == size || node.data[hole as usize] == 0)
            }
        };
        if !valid {
            return Err(format!("{did}: no hole at {hole:?} (size {size})"));
        }
        Ok(did)
    }

    fn sync(&mut self) -> Outcome {
        let (file, _, name) = self.some_file()?;
        let did = format!("fsync {name}");
        if self.rng.one_in(2) {
            file.sync_all().map_err(fail(did.clone()))?;
        } else {
            file.sync_data().map_err(fail(did.clone()))?;
        }
        Ok(did)
    }

    /// Maps a page-aligned piece of a file; `None` if the file is empty.
    fn map(&mut self) -> Result<Option<(Mapping, NodeId, u64, String)>, String> {
        let (file, id, name) = self.some_file()?;
        let size = self.tree.node(id).size();
        if size == 0 {
            return Ok(None);
        }
        let at = self.rng.below(size) / PAGE * PAGE;
        let len = self.rng.size(128 << 10).min(size - at);
        let did = format!("mmap {name} {len} at {at}");
        let mapping = Mapping::new(&file, at, len as usize).map_err(fail(did.clone()))?;
        Ok(Some((mapping, id, at, did)))
    }

    fn map_write(&mut self) -> Outcome {
        let began = now();
        let Some((mut mapping, id, at, did)) = self.map()? else {
            return self.write();
        };
        let mut data = vec![0; mapping.bytes().len()];
        self.rng.fill(&mut data);
        mapping.bytes_mut().copy_from_slice(&data);
        mapping.sync().map_err(fail(did.clone()))?;
        let node = self.tree.node(id);
        node.write(at, &data);
        node.mtime = Mtime::Since(began);
        Ok(format!("{did}, written"))
    }

    fn map_read(&mut self) -> Outcome {
        let Some((mapping, id, at, did)) = self.map()? else {
            return self.read();
        };
        let got = mapping.bytes();
        self.compare(id, at, got.len(), got, &did)?;
        Ok(did)
    }

    fn copy(&mut self) -> Outcome {
        let (from, source, source_name) = self.some_file()?;
        let (to, target, target_name) = self.some_file()?;
        let size = self.tree.node(source).size();
        if size == 0 || source == target {
            return self.read();
        }
        let at = self.rng.below(size);
        let len = self.rng.size(MAX_REQUEST).min(size - at);
        let to_at = self.rng.below(MAX_SIZE - MAX_REQUEST);
        let did = format!("copy {len} from {source_name} at {at} to {target_name} at {to_at}");
        let began = now();
        let copied = sys::copy_range(&from, at, &to, to_at, len).map_err(fail(did.clone()))?;
        if copied != len {
            return Err(format!("{did}: {copied} bytes copied"));
        }
        let data = self.tree.node(source).read(at, len as usize).to_vec();
        let node = self.tree.node(target);
        node.write(to_at, &data);
        node.mtime = Mtime::Since(began);
        self.maybe_check(&to, target, did)
    }
}
