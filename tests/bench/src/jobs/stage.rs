//! Nodes that are clients of one simulated file system. The mount of client *n* is bound over the
//! backing's path on node *n*, so ranks and daemons of a node share that client's locks, and every
//! path is the same on all nodes.
//!
//! Taken down in the order daemons, nodes, file system, also after an interruption: the nodes'
//! namespaces hold the mounts.

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

/// Bounds a hang; has no influence on what is measured.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two polls: short compared with what is measured, long compared with one poll.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Stage {
    // Dropped in this order, which matters.
    cluster: Cluster,
    _left: Left,
    place: Place,
}

pub fn failed(failure: Failure) -> io::Error {
    io::Error::other(failure.to_string())
}

impl Stage {
    /// Returns when all daemons answer and have probed the OSTs.
    pub fn set(options: &Options, seed: u64) -> io::Result<Stage> {
        // Room for the files of three ways; Forebay's are there twice, as subfiles and canonical
        // files.
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
            // The provider that `auto` chooses on Lustre. `auto` does not take a FUSE file system
            // for Lustre.
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

    /// Waits until the file system has no request left to serve.
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

    /// Returns the path of the file as the ranks use it.
    pub fn path(&self, way: Way, name: &str) -> PathBuf {
        let root = match way {
            Way::Direct => self.cluster.backing(),
            Way::Publish | Way::Defer => self.cluster.path(),
        };
        root.join(way.name()).join(name)
    }

    /// Returns the path of the canonical file as that client sees it.
    pub fn canonical(&self, client: usize, way: Way, name: &str) -> PathBuf {
        self.place.client(client).join(way.name()).join(name)
    }

    /// Removes the file through the file system in which it was created.
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

    /// Takes everything down regularly and returns the log lines in which daemons complained.
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

/// Returns a configuration with one directory for each kind of close on the same mounts, so both
/// kinds are measured with the same daemons at the same time.
fn policies() -> String {
    let ways = [Way::Publish, Way::Defer].map(Way::name);
    ways.map(|way| format!("[[policy]]\nmatch = \"{way}/**\"\nclose = \"{way}\"\n\n"))
        .concat()
}
