//! A simulated PFS, and the Lustre provider on it.

// Each test file is a crate of its own and uses only a part of this.
#![allow(dead_code)]

use flusher::ost::{Lustre, ProbeOptions, Probed, Provider, probe};
use forebay_tests::prereq;
use pfs_sim::{Builder, Sim};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub struct Pfs {
    pub sim: Sim,
    /// Removed after the mount in it.
    pub dir: tempfile::TempDir,
}

/// A simulator so fast that only what a test sets up takes time.
pub fn quick(osts: usize) -> Builder {
    let builder = Sim::builder().osts(osts).bandwidth("10G");
    builder.latency("0").lock_cost("0")
}

pub fn start(builder: Builder, mount: &Path) -> Sim {
    prereq::mounting();
    let builder = builder.program(prereq::helper("pfs-sim"));
    builder.start(&[mount]).expect("start pfs-sim")
}

impl Pfs {
    pub fn new(builder: Builder) -> Pfs {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = dir.path().join("pfs");
        std::fs::create_dir(&mount).expect("mkdir");
        let sim = start(builder, &mount);
        sim.lustre_root(dir.path()).expect("write the list of OSTs");
        Pfs { sim, dir }
    }

    pub fn mount(&self) -> &Path {
        &self.sim.mounts()[0]
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    pub fn lustre(&self) -> Lustre {
        let mount = File::open(self.mount()).expect("open the mount");
        Lustre::with_root(mount.as_fd(), self.root()).expect("hold it")
    }
}

/// Probes all OSTs with little data.
pub fn probe_all(provider: Arc<dyn Provider>, deadline: Duration) -> Vec<Probed> {
    let osts = provider.osts().expect("list the OSTs");
    let options = ProbeOptions {
        size: 2 << 20,
        deadline,
    };
    probe(&provider, &osts, options)
}
