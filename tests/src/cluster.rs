//! Several nodes over one backing: a [`TestMount`] for each. They are killed, restarted and removed together.

use crate::test_mount::{Drain, TestMount};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The first test mount has the backing in its own directory and is removed last.
pub struct Cluster {
    mounts: Vec<TestMount>,
}

impl Cluster {
    /// Nodes `n0`, `n1` … with the same settings, not started.
    pub fn new(nodes: usize, drain: Drain, limit: Duration) -> Self {
        let mut cluster = Self { mounts: Vec::new() };
        for n in 0..nodes {
            let mut mount = TestMount::with_limit(drain, limit);
            mount.set("node", &format!("n{n}"));
            if let Some(first) = cluster.mounts.first() {
                mount.set_backing(first.backing());
            }
            cluster.mounts.push(mount);
        }
        cluster
    }

    /// Sets a text key of the configuration file on all nodes.
    pub fn set(&mut self, key: &str, value: &str) -> &mut Self {
        for mount in &mut self.mounts {
            mount.set(key, value);
        }
        self
    }

    /// Sets the `[[policy]]` rules of all nodes.
    pub fn rules(&mut self, rules: &[&str]) -> &mut Self {
        for mount in &mut self.mounts {
            mount.rules(rules);
        }
        self
    }

    /// Allows a WARN or ERROR line that any node may log.
    pub fn allow_log(&mut self, text: &str) -> &mut Self {
        for mount in &mut self.mounts {
            mount.allow_log(text);
        }
        self
    }

    pub fn start(&mut self) -> &mut Self {
        for mount in &mut self.mounts {
            mount.start();
        }
        self
    }

    pub fn nodes(&self) -> usize {
        self.mounts.len()
    }

    pub fn mount(&self, node: usize) -> &TestMount {
        &self.mounts[node]
    }

    pub fn mount_mut(&mut self, node: usize) -> &mut TestMount {
        &mut self.mounts[node]
    }

    pub fn mounts(&self) -> &[TestMount] {
        &self.mounts
    }

    /// Paths of a name in the mounts of all nodes.
    pub fn paths(&self, name: impl AsRef<Path>) -> Vec<PathBuf> {
        self.mounts.iter().map(|mount| mount.path(&name)).collect()
    }

    pub fn canonical(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mounts[0].canonical(name)
    }

    /// Kills a node with `kill -9` and starts it again.
    pub fn restart(&mut self, node: usize) {
        self.mounts[node].kill();
        self.mounts[node].start();
    }

    /// Runs `forebay drain --wait` on every node.
    pub fn drain(&self) {
        for mount in &self.mounts {
            mount.drain();
        }
    }

    /// Unmounts all nodes. A test that succeeds ends with this.
    pub fn finish(mut self) {
        while let Some(mount) = self.mounts.pop() {
            mount.finish();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        while let Some(mount) = self.mounts.pop() {
            drop(mount);
        }
    }
}
