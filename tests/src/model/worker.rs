//! One worker process of the model test: chooses operations, keeps the history, and meets the other workers
//! at barriers.

use super::manifest::{Expected, Manifest};
use super::shared::SharedFile;
use super::tree::{Node, NodeId, Tree};
use crate::rng::Rng;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::PathBuf;

/// Arguments of a worker.
pub struct Task {
    pub mount: PathBuf,
    /// Plain directory outside the mount for the expected content.
    pub side: PathBuf,
    pub worker: u64,
    pub workers: u64,
    pub seed: u64,
    pub operations: u64,
    pub rounds: u64,
}

pub(super) struct Handle {
    pub file: File,
    pub node: NodeId,
}

pub struct Worker {
    pub(super) rng: Rng,
    pub(super) dir: PathBuf,
    pub(super) tree: Tree,
    pub(super) handles: Vec<Handle>,
    shared: Vec<SharedFile>,
    history: VecDeque<String>,
    task: Task,
}

pub(super) type Outcome = Result<String, String>;

impl Worker {
    pub fn new(task: Task) -> Result<Self, String> {
        let name = format!("w{}", task.worker);
        let dir = task.mount.join(&name);
        let make = || -> std::io::Result<Vec<SharedFile>> {
            std::fs::create_dir(&dir)?;
            std::fs::create_dir(dir.join("sub"))?;
            std::fs::create_dir(task.side.join(&name))?;
            ["shared0", "shared1"]
                .iter()
                .map(|name| {
                    let (path, expected) = (task.mount.join(name), task.side.join(name));
                    SharedFile::open(&path, &expected, task.worker, task.workers)
                })
                .collect()
        };
        Ok(Self {
            shared: make().map_err(|e| format!("set up: {e}"))?,
            rng: Rng::derive(task.seed, task.worker),
            dir,
            tree: Tree::default(),
            handles: Vec::new(),
            history: VecDeque::new(),
            task,
        })
    }

    /// Runs all rounds. The error says what differed and which operations led there.
    pub fn run(&mut self) -> Result<(), String> {
        let mut done = 0;
        for round in 0..self.task.rounds {
            let until = self.task.operations * (round + 1) / self.task.rounds;
            while done < until {
                self.step().map_err(|e| self.explain(done, &e))?;
                done += 1;
            }
            self.meet(round).map_err(|e| self.explain(done, &e))?;
        }
        self.leave(done).map_err(|e| self.explain(done, &e))
    }

    fn step(&mut self) -> Result<(), String> {
        let did = if self.rng.one_in(3) {
            let which = self.rng.below(self.shared.len() as u64) as usize;
            self.shared[which].step(&mut self.rng)?
        } else {
            self.private_step()?
        };
        self.history.push_back(did);
        if self.history.len() > 40 {
            self.history.pop_front();
        }
        let open: BTreeSet<NodeId> = self.handles.iter().map(|h| h.node).collect();
        self.tree.sweep(&open);
        Ok(())
    }

    fn explain(&self, done: u64, what: &str) -> String {
        let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
        format!(
            "worker {} of {} after {done} operations (seed {}):\n  {what}\nlast operations:\n  {}",
            self.task.worker,
            self.task.workers,
            self.task.seed,
            history.join("\n  ")
        )
    }

    /// Stops until all workers have stopped, compares the shared files as a whole, and lets the first worker
    /// resize them.
    fn meet(&mut self, round: u64) -> Result<(), String> {
        barrier()?;
        for shared in &self.shared {
            shared.compare()?;
        }
        barrier()?;
        if self.task.worker == 0 && round + 1 < self.task.rounds {
            for shared in &self.shared {
                shared.resize(&mut self.rng)?;
            }
        }
        barrier()
    }

    /// Checks every private file once more and writes down what the files should be.
    fn leave(&mut self, operations: u64) -> Result<(), String> {
        let mut manifest = Manifest {
            operations,
            ..Manifest::default()
        };
        let name = format!("w{}", self.task.worker);
        for (file, id) in &self.tree.names {
            let node = &self.tree.nodes[id];
            let path = self.dir.join(file);
            let meta = std::fs::metadata(&path).map_err(|e| format!("{file}: {e}"))?;
            node.check(&meta).map_err(|e| format!("{file}: {e}"))?;
            let content = self.task.side.join(&name).join(id.to_string());
            std::fs::write(&content, &node.data).map_err(|e| format!("{file}: {e}"))?;
            manifest
                .files
                .insert(format!("{name}/{file}"), expected(node, content));
        }
        let path = self.task.side.join(format!("{name}.json"));
        manifest
            .save(&path)
            .map_err(|e| format!("{}: {e}", path.display()))
    }
}

fn expected(node: &Node, content: PathBuf) -> Expected {
    Expected {
        content,
        mode: node.mode,
        links: node.links,
        xattrs: node.xattrs.clone(),
    }
}

/// Tells the test that this worker has stopped, and waits until the test lets it go on.
fn barrier() -> Result<(), String> {
    let wait = || -> std::io::Result<usize> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "barrier")?;
        out.flush()?;
        std::io::stdin().lock().read_line(&mut String::new())
    };
    match wait() {
        Ok(0) => Err("the test went away at a barrier".into()),
        Ok(_) => Ok(()),
        Err(e) => Err(format!("barrier: {e}")),
    }
}
