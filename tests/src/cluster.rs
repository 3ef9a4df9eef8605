//! Several nodes over one backing: a [`Bay`] for each, killed, started again and cleared away
//! together.

use crate::bay::{Bay, Drain};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The first bay has the backing in its own directory and goes last.
pub struct Cluster {
    bays: Vec<Bay>,
}

impl Cluster {
    /// Nodes `n0`, `n1` … with the same settings, not started.
    pub fn new(nodes: usize, drain: Drain, limit: Duration) -> Self {
        let mut cluster = Self { bays: Vec::new() };
        for n in 0..nodes {
            let mut bay = Bay::with_limit(drain, limit);
            bay.set("node", &format!("n{n}"));
            if let Some(first) = cluster.bays.first() {
                bay.set_backing(first.backing());
            }
            cluster.bays.push(bay);
        }
        cluster
    }

    /// A text setting on all nodes.
    pub fn set(&mut self, key: &str, value: &str) -> &mut Self {
        for bay in &mut self.bays {
            bay.set(key, value);
        }
        self
    }

    /// The `[[policy]]`s of all nodes.
    pub fn rules(&mut self, rules: &[&str]) -> &mut Self {
        for bay in &mut self.bays {
            bay.rules(rules);
        }
        self
    }

    /// Announces a WARN or ERROR line that any node may log.
    pub fn allow_log(&mut self, text: &str) -> &mut Self {
        for bay in &mut self.bays {
            bay.allow_log(text);
        }
        self
    }

    pub fn start(&mut self) -> &mut Self {
        for bay in &mut self.bays {
            bay.start();
        }
        self
    }

    pub fn nodes(&self) -> usize {
        self.bays.len()
    }

    pub fn bay(&self, node: usize) -> &Bay {
        &self.bays[node]
    }

    pub fn bay_mut(&mut self, node: usize) -> &mut Bay {
        &mut self.bays[node]
    }

    pub fn bays(&self) -> &[Bay] {
        &self.bays
    }

    /// A name in the mount of each node.
    pub fn paths(&self, name: impl AsRef<Path>) -> Vec<PathBuf> {
        self.bays.iter().map(|bay| bay.path(&name)).collect()
    }

    pub fn canonical(&self, name: impl AsRef<Path>) -> PathBuf {
        self.bays[0].canonical(name)
    }

    /// `kill -9`, and the next start.
    pub fn restart(&mut self, node: usize) {
        self.bays[node].kill();
        self.bays[node].start();
    }

    /// `forebay drain --wait` on every node.
    pub fn drain(&self) {
        for bay in &self.bays {
            bay.drain();
        }
    }

    /// Unmounts all; a test that ends well ends with this.
    pub fn finish(mut self) {
        while let Some(bay) = self.bays.pop() {
            bay.finish();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        while let Some(bay) = self.bays.pop() {
            drop(bay);
        }
    }
}
