//! The requested cluster ([`Spec`]) and the checked one ([`Plan`]): every path is resolved, every
//! program is found, and everything is refused that would otherwise fail later with a worse
//! message.

use crate::failure::{Failure, Result};
use crate::programs;
use crate::state::{Network, Place};
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Each node has an address in 10.88.0.0/24.
pub const MOST: usize = 200;
/// The names of the sockets below it are limited to 108 bytes.
const LONGEST: usize = 80;

/// A directory that one node shows in place of another. It gives each node its own client of the
/// file system below: another mount on each node, at the same path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    pub node: usize,
    pub source: PathBuf,
    pub target: PathBuf,
}

/// A requested cluster. Values that are not set are chosen.
#[derive(Clone, Debug)]
pub struct Spec {
    pub nodes: usize,
    pub backing: Option<PathBuf>,
    pub mount: Option<PathBuf>,
    pub dir: Option<PathBuf>,
    pub config: Option<PathBuf>,
    pub arguments: Vec<String>,
    pub network: Network,
    pub forebay: Option<PathBuf>,
    pub binds: Vec<Bind>,
    pub environment: Vec<(String, String)>,
}

impl Spec {
    /// For tests: unless they are set, backing, mount point and state are below a temporary
    /// directory of the cluster.
    pub fn new(nodes: usize) -> Spec {
        Spec {
            nodes,
            backing: None,
            mount: None,
            dir: None,
            config: None,
            arguments: Vec::new(),
            network: Network::Own,
            forebay: None,
            binds: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Sets the directory that all nodes overlay.
    pub fn backing(mut self, dir: impl Into<PathBuf>) -> Spec {
        self.backing = Some(dir.into());
        self
    }

    /// Sets where it is mounted on every node.
    pub fn mount(mut self, dir: impl Into<PathBuf>) -> Spec {
        self.mount = Some(dir.into());
        self
    }

    /// Sets where stores, logs and the state are.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Spec {
        self.dir = Some(dir.into());
        self
    }

    /// Sets a configuration file for all daemons.
    pub fn config(mut self, file: impl Into<PathBuf>) -> Spec {
        self.config = Some(file.into());
        self
    }

    /// Adds an argument of `forebay mount`.
    pub fn arg(mut self, argument: impl Into<String>) -> Spec {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments of `forebay mount`.
    pub fn args<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Spec {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    pub fn network(mut self, network: Network) -> Spec {
        self.network = network;
        self
    }

    /// Shows `source` at `target` on that node, from before its daemon starts. Outside of the nodes
    /// `target` is unchanged, and with it [`crate::Cluster::canonical`].
    pub fn bind(
        mut self,
        node: usize,
        source: impl Into<PathBuf>,
        target: impl Into<PathBuf>,
    ) -> Spec {
        self.binds.push(Bind {
            node,
            source: source.into(),
            target: target.into(),
        });
        self
    }

    /// Sets a variable for all daemons and for the `forebay` commands that the cluster runs.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Spec {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Uses this `forebay` instead of the one beside this program.
    pub fn forebay(mut self, program: impl Into<PathBuf>) -> Spec {
        self.forebay = Some(program.into());
        self
    }
}

/// A cluster that was checked and can be made.
#[derive(Clone, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub place: Place,
    pub mount: PathBuf,
    pub backing: PathBuf,
    pub forebay: PathBuf,
    /// This program, which runs as the processes that keep the nodes.
    pub program: PathBuf,
    pub config: Option<PathBuf>,
    pub arguments: Vec<String>,
    pub network: Network,
    pub binds: Vec<Bind>,
    pub environment: Vec<(String, String)>,
}

impl Plan {
    /// Resolves and checks everything. Makes nothing.
    pub fn of(spec: &Spec) -> Result<Plan> {
        let plan = Plan::of_paths(spec)?;
        machine(spec.network)?;
        Ok(plan)
    }

    fn of_paths(spec: &Spec) -> Result<Plan> {
        if spec.nodes == 0 || spec.nodes > MOST {
            return Err(Failure::usage(format!(
                "a cluster of {} nodes is impossible; choose 1 to {MOST}",
                spec.nodes
            )));
        }
        let backing = spec.backing.as_deref().ok_or_else(|| {
            Failure::usage("the nodes need a backing: the directory that they share (--backing)")
        })?;
        let backing = directory(backing, "the backing")?;
        let mount = match &spec.mount {
            Some(mount) => directory(mount, "the mount point")?,
            None => backing.clone(),
        };
        let place = Place(state_directory(spec.dir.as_deref())?);
        apart(&place.0, &backing, &mount)?;
        let config = spec.config.as_deref().map(file).transpose()?;
        let mut arguments = spec.arguments.clone();
        if !says_store_size(config.as_deref(), &arguments)? {
            arguments.extend(store_share(&place.0, spec.nodes)?);
        }
        Ok(Plan {
            nodes: spec.nodes,
            place,
            mount,
            backing,
            forebay: programs::forebay(spec.forebay.as_deref())?,
            program: programs::cluster()?,
            config,
            arguments,
            network: spec.network,
            binds: spec
                .binds
                .iter()
                .map(|bind| real_bind(bind, spec.nodes))
                .collect::<Result<_>>()?,
            environment: spec.environment.clone(),
        })
    }
}

/// Checks for root, FUSE and, if the nodes have their own network, `ip`.
fn machine(network: Network) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::failed(
            "nodes are namespaces with mounts of their own, which needs root; run it with sudo",
        ));
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(Failure::failed(
            "/dev/fuse is missing; load the driver: modprobe fuse",
        ));
    }
    if network == Network::Own {
        programs::on_path("ip").ok_or_else(|| {
            Failure::failed(
                "ip is missing, which makes the nodes' network; install it (apt-get install iproute2) or use the machine's network (--network host)",
            )
        })?;
    }
    Ok(())
}

fn directory(path: &Path, what: &str) -> Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Ok(real) if real.is_dir() => text(real, what),
        Ok(_) => Err(Failure::usage(format!(
            "{what} {} is not a directory",
            path.display()
        ))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Failure::usage(format!(
            "{what} {} does not exist; make it first",
            path.display()
        ))),
        Err(e) => Err(Failure::usage(format!(
            "{what} {} cannot be used: {e}",
            path.display()
        ))),
    }
}

fn real_bind(bind: &Bind, nodes: usize) -> Result<Bind> {
    if bind.node >= nodes {
        return Err(Failure::usage(format!(
            "{} is to be bound on node {}, and the cluster has {nodes}, counted from 0",
            bind.source.display(),
            bind.node
        )));
    }
    Ok(Bind {
        node: bind.node,
        source: directory(&bind.source, "the bound directory")?,
        target: directory(&bind.target, "the place to bind over")?,
    })
}

fn file(path: &Path) -> Result<PathBuf> {
    let real = std::fs::canonicalize(path)
        .map_err(|e| Failure::usage(format!("the configuration {}: {e}", path.display())))?;
    text(real, "the configuration")
}

/// Paths must be UTF-8, because they go into a JSON file and into environment variables.
fn text(path: PathBuf, what: &str) -> Result<PathBuf> {
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(Failure::usage(format!(
            "{what} {} has a name that is not UTF-8; use another",
            path.display()
        ))),
    }
}

/// Returns the real path of a state directory, which need not exist. `None` means the default
/// place.
pub fn state_directory(dir: Option<&Path>) -> Result<PathBuf> {
    let from_environment = std::env::var_os(crate::state::VARIABLE)
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from);
    let dir = match dir {
        Some(dir) => dir.to_owned(),
        None => from_environment.unwrap_or_else(|| crate::state::DEFAULT.into()),
    };
    let cannot =
        |e: std::io::Error| Failure::usage(format!("the state directory {}: {e}", dir.display()));
    let absolute = std::path::absolute(&dir).map_err(cannot)?;
    let real = match (std::fs::canonicalize(&absolute), absolute.parent()) {
        (Ok(real), _) => real,
        (Err(_), Some(parent)) => {
            let parent = directory(parent, "the parent of the state directory")?;
            parent.join(absolute.file_name().unwrap_or_default())
        }
        (Err(e), None) => return Err(cannot(e)),
    };
    let real = text(real, "the state directory")?;
    let name = real.to_string_lossy();
    if name.len() > LONGEST {
        return Err(Failure::usage(format!(
            "the state directory {name} has a name of {} bytes, too long for the sockets in it; use one of at most {LONGEST} (--dir)",
            name.len()
        )));
    }
    // Open MPI splits the launcher's name at these characters.
    if name.contains([' ', '\t', '\n', ':']) {
        return Err(Failure::usage(format!(
            "the state directory \"{}\" has a space or a colon in its name, which Open MPI cannot take; use another (--dir)",
            name.escape_debug()
        )));
    }
    Ok(real)
}

fn apart(state: &Path, backing: &Path, mount: &Path) -> Result<()> {
    for (what, dir) in [("the backing", backing), ("the mount point", mount)] {
        if state.starts_with(dir) {
            return Err(Failure::usage(format!(
                "the state directory {} is inside {what} {}; the stores in it must be outside (--dir)",
                state.display(),
                dir.display()
            )));
        }
    }
    Ok(())
}

fn says_store_size(config: Option<&Path>, arguments: &[String]) -> Result<bool> {
    if arguments.iter().any(|a| a.starts_with("--store-size")) {
        return Ok(true);
    }
    let Some(path) = config else {
        return Ok(false);
    };
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("the configuration {}: {e}", path.display())))?;
    // An invalid configuration is reported by the daemon, with a better message.
    Ok(text
        .parse::<toml::Table>()
        .is_ok_and(|table| table.contains_key("store-size")))
}

/// All stores are on one disk here, so each gets its part of the size that a single store would
/// have.
fn store_share(state: &Path, nodes: usize) -> Result<[String; 2]> {
    let disk = state.ancestors().find(|dir| dir.is_dir());
    let disk = disk.unwrap_or(Path::new("/"));
    let free = nix::sys::statvfs::statvfs(disk)
        .map_err(|e| Failure::failed(format!("{}: {e}", disk.display())))?;
    let bytes = free.blocks_available() as u64 * free.fragment_size() as u64;
    let share = bytes / 10 * 8 / nodes as u64;
    Ok(["--store-size".to_owned(), share.to_string()])
}
