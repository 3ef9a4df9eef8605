//! A cluster and a plain directory beside it. There is one at a time.

use crate::compare::assert_same_tree;
use crate::programs::{Program, program, yielding};
use forebay_cluster::{Cluster, Job, Mpi, Spec};
use forebay_tests::daemon_log;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// Jobs wait by spinning: two of them at once are slower than one after another, and one that starves
/// looks like one that hangs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns the number of ranks: two on each node, so that ranks share a node as well as a file; four if there is
/// only one node.
pub fn ranks(nodes: usize) -> usize {
    (2 * nodes).max(4)
}

/// Number of Open MPI's ranks. On different nodes they talk by TCP, and when there are many more of them than
/// processors that takes most of the time.
const FEW: usize = 4;

/// A job that takes longer than this hangs. On two processors that others use too, a job may need minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// Makes a job of one of the programs on these nodes, also with more ranks than processors.
pub fn job(cluster: &Cluster, mpi: Mpi, ranks: usize) -> Job<'_> {
    let job = cluster.job(mpi, ranks);
    match mpi {
        Mpi::Mpich => job.env("LD_PRELOAD", yielding()),
        Mpi::OpenMpi => job,
    }
}

pub struct Rig {
    pub cluster: Cluster,
    allowed: Vec<String>,
    few: bool,
    plain: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    pub fn up(spec: Spec) -> Rig {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let plain = tempfile::Builder::new()
            .prefix("forebay-plain-")
            .tempdir()
            .expect("make a temporary directory");
        let mut cluster = Cluster::up(spec).expect("start the nodes");
        cluster.set_limit(LIMIT);
        Rig {
            cluster,
            // Programs write fill values and data of the same bytes on different nodes (S2.16).
            allowed: vec!["has written the same bytes".into()],
            few: true,
            plain,
            _turn: turn,
        }
    }

    /// Runs as many ranks with Open MPI as with MPICH.
    pub fn with_all_ranks(mut self) -> Rig {
        self.few = false;
        self
    }

    /// Allows a WARN or ERROR line on any node.
    pub fn allow_log(&mut self, text: &str) {
        self.allowed.push(text.to_owned());
    }

    /// Returns the plain directory of that name.
    pub fn plain(&self, name: &str) -> PathBuf {
        self.plain.path().join(name)
    }

    /// Returns the same directory in the mount, as the ranks see it.
    pub fn mounted(&self, name: &str) -> PathBuf {
        self.cluster.path().join(name)
    }

    /// Makes a job on these nodes.
    pub fn job(&self, mpi: Mpi, ranks: usize) -> Job<'_> {
        job(&self.cluster, mpi, ranks)
    }

    /// Makes both directories.
    pub fn make(&self, name: &str) {
        std::fs::create_dir(self.plain(name)).expect("make the plain directory");
        let inside = self.cluster.at(0, name).expect("a path on a node");
        std::fs::create_dir(inside).expect("make the directory in the mount");
    }

    /// Makes both directories of that name, and runs a job in each. `{}` in an argument is the directory.
    pub fn run(&self, name: &str, mpi: Mpi, which: Program, arguments: &[&str]) {
        self.make(name);
        self.again(name, mpi, which, arguments, |job| job);
    }

    /// Runs the job in directories that are there already; `more` can change the job.
    pub fn again<'a>(
        &'a self,
        name: &str,
        mpi: Mpi,
        which: Program,
        arguments: &[&str],
        more: impl Fn(Job<'a>) -> Job<'a>,
    ) {
        self.to_its_end(&self.plain(name), mpi, which, arguments, &more);
        self.to_its_end(&self.mounted(name), mpi, which, arguments, &more);
    }

    /// Runs the job in the mount only.
    pub fn in_mount<'a>(
        &'a self,
        name: &str,
        mpi: Mpi,
        which: Program,
        arguments: &[&str],
        more: impl Fn(Job<'a>) -> Job<'a>,
    ) {
        self.to_its_end(&self.mounted(name), mpi, which, arguments, &more);
    }

    fn to_its_end<'a>(
        &'a self,
        dir: &Path,
        mpi: Mpi,
        which: Program,
        arguments: &[&str],
        more: &impl Fn(Job<'a>) -> Job<'a>,
    ) {
        let what = format!("{which:?} {arguments:?} of {mpi:?} in {}", dir.display());
        let nodes = self.cluster.nodes().expect("the nodes");
        let ranks = match mpi {
            Mpi::OpenMpi if self.few => FEW,
            _ => ranks(nodes),
        };
        let job = more(self.job(mpi, ranks));
        let done = job
            .run(program(which, mpi), with_dir(arguments, dir))
            .unwrap_or_else(|failure| panic!("{what}: {failure}"));
        print!("{}", done.stdout);
        done.expect(&what);
    }

    /// Checks that every node's mount shows what is in the plain directory, byte for byte.
    pub fn assert_seen_everywhere(&self, name: &str) {
        for node in 0..self.cluster.nodes().expect("the nodes") {
            let there = self.cluster.at(node, name).expect("a path on a node");
            assert_same_tree(&self.plain(name), &there, &format!("the mount of n{node}"));
        }
    }

    /// Drains, and checks that the backing has it too.
    pub fn assert_canonical(&self, name: &str) {
        self.cluster.drain().expect("drain all nodes");
        let there = self.cluster.canonical(name);
        assert_same_tree(&self.plain(name), &there, "the backing");
    }

    /// Ends the nodes in good order, and checks that their logs have only lines that are allowed.
    pub fn finish(self) {
        let mut strange = Vec::new();
        for node in 0..self.cluster.nodes().expect("the nodes") {
            let log = self.cluster.log(node).expect("the node's log");
            for line in daemon_log::unexpected(&log, &self.allowed) {
                strange.push(format!("n{node}: {line}"));
            }
        }
        assert!(
            strange.is_empty(),
            "unexpected in the logs:\n{}",
            strange.join("\n")
        );
        self.cluster.down().expect("end the nodes");
    }
}

pub fn with_dir(arguments: &[&str], dir: &Path) -> Vec<OsString> {
    let dir = dir.to_str().expect("test paths are plain text");
    let arguments = arguments.iter();
    arguments.map(|a| a.replace("{}", dir).into()).collect()
}
