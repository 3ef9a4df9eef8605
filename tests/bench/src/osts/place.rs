//! A fresh simulated file system for one measurement, with one mount for each client.
//!
//! A file system that was used before would carry over locks, jitter and memory from the earlier
//! measurement.

use crate::teardown::Left;
use pfs_sim::{Builder, Change, Sim};
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub struct Place {
    // Dropped in this order, which matters.
    sim: Sim,
    left: Left,
    dir: TempDir,
}

impl Place {
    /// Starts a file system with the settings of `builder` and mounts it for `clients` clients.
    pub fn start(parent: &Path, clients: usize, builder: Builder) -> io::Result<Place> {
        let dir = tempfile::Builder::new()
            .prefix("bench-osts.")
            .tempdir_in(parent)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", parent.display())))?;
        let mut left = Left::below(dir.path());
        let mut mounts = Vec::new();
        for n in 0..clients {
            let mount = dir.path().join(format!("n{n}"));
            std::fs::create_dir(&mount)?;
            left.mount(&mount);
            mounts.push(mount);
        }
        let sim = builder.start(&mounts)?;
        Ok(Place { sim, left, dir })
    }

    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// Returns the mount of client `n`.
    pub fn client(&self, n: usize) -> &Path {
        &self.sim.mounts()[n]
    }

    /// Returns the path of `name` for each of the first `count` clients.
    pub fn seen_by(&self, count: usize, name: &str) -> Vec<PathBuf> {
        (0..count).map(|n| self.client(n).join(name)).collect()
    }

    /// Makes a directory on disk beside the mounts.
    pub fn scratch(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Makes a directory with the files from which a Lustre client learns its OSTs.
    pub fn lustre_root(&self) -> io::Result<PathBuf> {
        let root = self.scratch("lustre-root")?;
        self.sim.lustre_root(&root)?;
        Ok(root)
    }

    /// Runs `look` while every OST is as fast as the machine, then restores the settings. For
    /// checks of results, which are not measured.
    pub fn unhurt<T>(&self, look: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let before = self.sim.config()?;
        self.sim.set_all(Change {
            bandwidth: Some("1000G".into()),
            latency: Some("0".into()),
            ..Change::default()
        })?;
        self.sim.set_lock_cost("0")?;
        let result = look()?;
        self.sim
            .set_lock_cost(&format!("{}ns", before.lock_cost_ns))?;
        for ost in &before.osts {
            let change = Change {
                bandwidth: Some(ost.settings.bandwidth.to_string()),
                latency: Some(format!("{}ns", ost.settings.latency_ns)),
                ..Change::default()
            };
            self.sim.set(ost.ost, change)?;
        }
        Ok(result)
    }

    pub fn stop(self) -> io::Result<()> {
        let Place { sim, left, dir } = self;
        sim.stop()?;
        drop(left);
        dir.close()
    }
}
