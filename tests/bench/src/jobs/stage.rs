//! Nodes over a simulated file system of which each is a client: the mount of client *n* is bound over
//! the backing's path on node *n*, so that ranks and daemons of a node share that client's locks and
//! every path is the same on all nodes.
//!
//! Ends in the order daemons, nodes, file system, also when it is interrupted: the nodes' namespaces
//! hold the mounts.

use super::Way;
use super::measure::Options;
use crate::osts::place::Place;
use crate::osts::{JITTER, UNIT};
use crate::teardown::Left;
use forebay_cluster::{Cluster, Failure, Spec};
use forebay_tests::daemon_log;
use pfs_sim::Sim;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bounds a hang; measures nothing.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two looks: short beside what is measured, long beside a look.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Stage {
    // In the order in which they must go.
    cluster: Cluster,
    _left: Left,
    place: Place,
}

pub fn failed(failure: Failure) -> io::Error {
    io::Error::other(failure.to_string())
}

impl Stage {
    /// Returns when all daemons answer and know how fast the OSTs are.
    pub fn set(options: &Options, seed: u64) -> io::Result<Stage> {
        // Files of three ways, and Forebay's twice: subfiles and canonical files.
        let most = 6 * options.size * options.ranks as u64;
        let builder = Sim::builder()
            .osts(options.osts)
            .bandwidth(&options.bandwidth.to_string())
            .jitter(JITTER)
            .stripe(&UNIT.to_string(), options.osts)
            .lock_cost(&options.lock_cost)
            .write_behind(&options.write_behind.to_string())
            .seed(seed)
            .option("warm", most.to_string());
        let place = Place::start(&options.dir, options.nodes, builder)?;
        let (backing, mount) = (place.scratch("scratch")?, place.scratch("forebay")?);
        let nodes = place.scratch("nodes")?;
        let config = nodes.join("forebay.toml");
        std::fs::write(&config, policies())?;
        for way in Way::ALL {
            std::fs::create_dir(place.client(0).join(way.name()))?;
        }
        let state = nodes.join("state");
        let mut left = Left::below(&nodes);
        left.cluster(&state);
        let root = place.lustre_root()?;
        let mut spec = Spec::new(options.nodes)
            .backing(&backing)
            .mount(mount)
            .dir(state)
            .config(config)
            .forebay(&options.forebay)
            .env("FOREBAY_LUSTRE_ROOT", root.to_string_lossy())
            // As `auto` does on a Lustre, which FUSE cannot be taken for.
            .args(["--ost-provider", "lustre"])
            .args(options.forebay_args.clone());
        for node in 0..options.nodes {
            spec = spec.bind(node, place.client(node), &backing);
        }
        let mut cluster = Cluster::up(spec).map_err(failed)?;
        cluster.set_limit(PATIENCE);
        let stage = Stage {
            cluster,
            _left: left,
            place,
        };
        stage.wait("probe the targets", || stage.probed())?;
        Ok(stage)
    }

    fn probed(&self) -> io::Result<bool> {
        for node in 0..self.cluster.nodes().map_err(failed)? {
            let status = self.cluster.status(node).map_err(failed)?;
            if !status["targets"].is_null() && status["targets"]["probed_seconds_ago"].is_null() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until the file system has nothing left to do.
    pub fn settle(&self) -> io::Result<()> {
        self.wait("take what was written", || {
            let counters = self.place.sim().counters()?;
            Ok(counters.osts.iter().all(|ost| ost.pending == 0))
        })
    }

    fn wait(&self, what: &str, done: impl Fn() -> io::Result<bool>) -> io::Result<()> {
        let begin = Instant::now();
        while !done()? {
            if begin.elapsed() > PATIENCE {
                let text = format!("the nodes did not {what} within {PATIENCE:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The file as the ranks name it.
    pub fn path(&self, way: Way, name: &str) -> PathBuf {
        let root = match way {
            Way::Direct => self.cluster.backing(),
            Way::Publish | Way::Defer => self.cluster.path(),
        };
        root.join(way.name()).join(name)
    }

    /// The canonical file as one of the clients sees it.
    pub fn canonical(&self, client: usize, way: Way, name: &str) -> PathBuf {
        self.place.client(client).join(way.name()).join(name)
    }

    /// Removes the file where it was made.
    pub fn remove(&self, way: Way, name: &str) -> io::Result<()> {
        let path = match way {
            Way::Direct => self.canonical(0, way, name),
            Way::Publish | Way::Defer => {
                let name = Path::new(way.name()).join(name);
                self.cluster.at(0, name).map_err(failed)?
            }
        };
        std::fs::remove_file(path)
    }

    /// Takes it down in good order; the lines in which daemons complained.
    pub fn end(self) -> io::Result<Vec<String>> {
        let Stage {
            cluster,
            _left,
            place,
        } = self;
        let mut complaints = Vec::new();
        for node in 0..cluster.nodes().map_err(failed)? {
            let log = cluster.log(node).map_err(failed)?;
            let lines = daemon_log::unexpected(&log, &[]);
            complaints.extend(lines.into_iter().map(|line| format!("n{node}: {line}")));
        }
        cluster.down().map_err(failed)?;
        drop(_left);
        place.stop()?;
        Ok(complaints)
    }
}

/// One directory for each kind of close, on the same mounts: both meet the same daemons, in the same
/// minute.
fn policies() -> String {
    let ways = [Way::Publish, Way::Defer].map(Way::name);
    ways.map(|way| format!("[[policy]]\nmatch = \"{way}/**\"\nclose = \"{way}\"\n\n"))
        .concat()
}
