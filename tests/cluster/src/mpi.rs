//! Makes both MPIs treat the nodes as several hosts.
//!
//! All settings are in the environment, for both MPIs at once: an `mpirun` that is started on a
//! node by hand, by a script or by a test suite finds its hosts and how to reach them. Ranks go
//! round robin: rank r runs on node number r modulo the number of nodes. `mpirun` itself runs on
//! the first of them.

use crate::failure::{Failure, Result, doing};
use crate::network::INTERFACE;
use crate::node::OnNode;
use crate::programs;
use crate::state::{Network, Place, State};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::Path;

#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mpi {
    Mpich,
    #[value(name = "openmpi")]
    OpenMpi,
}

impl Mpi {
    pub const BOTH: [Mpi; 2] = [Mpi::Mpich, Mpi::OpenMpi];

    /// Suffix of its programs' names on Debian.
    pub fn suffix(self) -> &'static str {
        match self {
            Mpi::Mpich => "mpich",
            Mpi::OpenMpi => "openmpi",
        }
    }

    fn named(name: &str) -> Option<Mpi> {
        let (_, suffix) = name.rsplit_once('.')?;
        match suffix {
            "mpich" | "hydra" => Some(Mpi::Mpich),
            "openmpi" => Some(Mpi::OpenMpi),
            _ => None,
        }
    }

    /// Returns the name of this MPI's `mpirun`. The name and not the path: if Open MPI is called by
    /// its path, it expects to be found at that path on the other hosts too.
    pub fn launcher(self) -> Result<OsString> {
        self.program("mpirun")
    }

    /// Returns the name of its C compiler.
    pub fn compiler(self) -> Result<OsString> {
        self.program("mpicc")
    }

    fn program(self, name: &str) -> Result<OsString> {
        let package = match (self, name) {
            (Mpi::Mpich, "mpicc") => "libmpich-dev",
            (Mpi::Mpich, _) => "mpich",
            (Mpi::OpenMpi, "mpicc") => "libopenmpi-dev",
            (Mpi::OpenMpi, _) => "openmpi-bin",
        };
        let name = format!("{name}.{}", self.suffix());
        programs::needed(&name, package)?;
        Ok(name.into())
    }
}

/// Returns the program that a command of `run` starts: a bare `mpirun` or `mpiexec` is replaced by
/// that of the requested MPI.
pub fn program(state: &State, asked: Option<Mpi>, program: &OsStr) -> Result<OsString> {
    let path = Path::new(program);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let bare = matches!(&*name, "mpirun" | "mpiexec");
    let (program, mpi) = match (asked, Mpi::named(&name)) {
        (Some(asked), Some(named)) if asked != named => {
            return Err(Failure::usage(format!(
                "{name} is not of the MPI that --mpi {} asks for; leave one of them out",
                asked.suffix()
            )));
        }
        (Some(asked), _) if bare => (asked.program(&name)?, Some(asked)),
        (asked, named) => (program.to_owned(), asked.or(named)),
    };
    if mpi == Some(Mpi::OpenMpi) {
        needs_network(state)?;
    }
    Ok(program)
}

fn needs_network(state: &State) -> Result<()> {
    match state.network {
        Network::Own => Ok(()),
        Network::Host => Err(Failure::failed(
            "Open MPI wants an address for each host, and these nodes share the machine's; make the cluster with --network own",
        )),
    }
}

/// Returns the nodes to use, in the order of their ranks. An empty list means all nodes.
pub fn choose(state: &State, nodes: &[usize]) -> Result<Vec<usize>> {
    if nodes.is_empty() {
        return Ok((0..state.nodes.len()).collect());
    }
    for (at, index) in nodes.iter().enumerate() {
        state.node(*index)?;
        if nodes[..at].contains(index) {
            return Err(Failure::usage(format!(
                "node {index} is named twice; ranks go to each named node in turn"
            )));
        }
    }
    Ok(nodes.to_vec())
}

/// Writes the host files and returns the variables that make both MPIs use these nodes.
pub fn environment(
    place: &Place,
    state: &State,
    nodes: &[usize],
) -> Result<Vec<(&'static str, OsString)>> {
    let mut names = Vec::new();
    for index in nodes {
        let on = OnNode::new(place, state, *index)?;
        on.node.keeper()?;
        names.push(on.name());
    }
    let list = names.join("-");
    let hosts = |mpi: Mpi| place.mpi().join(format!("{list}.{}", mpi.suffix()));
    write(&hosts(Mpi::Mpich), &names, "")?;
    // One slot for each host, however many ranks: then Open MPI knows that its ranks share
    // processors, and they yield to each other while they wait.
    write(&hosts(Mpi::OpenMpi), &names, " slots=1")?;
    let interface = match state.network {
        Network::Own => INTERFACE,
        Network::Host => "lo",
    };
    let launcher = place.launcher();
    let text = OsString::from;
    Ok(vec![
        ("HYDRA_LAUNCHER", text("ssh")),
        ("HYDRA_LAUNCHER_EXEC", launcher.clone().into()),
        // Uses the launcher even if the host's name is one of this machine's.
        ("HYDRA_LAUNCHER_AUTOFORK", text("0")),
        ("HYDRA_HOST_FILE", hosts(Mpi::Mpich).into()),
        ("HYDRA_IFACE", text(interface)),
        ("OMPI_ALLOW_RUN_AS_ROOT", text("1")),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", text("1")),
        ("OMPI_MCA_plm_rsh_agent", launcher.into()),
        ("OMPI_MCA_plm_rsh_no_tree_spawn", text("1")),
        ("OMPI_MCA_orte_default_hostfile", hosts(Mpi::OpenMpi).into()),
        (
            "OMPI_MCA_rmaps_base_mapping_policy",
            text("node:oversubscribe"),
        ),
        ("OMPI_MCA_hwloc_base_binding_policy", text("none")),
        ("OMPI_MCA_pml", text("ob1")),
        ("OMPI_MCA_btl", text("self,vader,tcp")),
        ("OMPI_MCA_btl_tcp_if_include", text(interface)),
        ("OMPI_MCA_oob_tcp_if_include", text(interface)),
    ])
}

/// Replaces the file in one step, because another job over the same nodes may be reading it.
fn write(file: &Path, names: &[&str], after: &str) -> Result<()> {
    let text: String = names.iter().map(|n| format!("{n}{after}\n")).collect();
    let dir = file.parent().unwrap_or(Path::new("/"));
    let written = tempfile::NamedTempFile::new_in(dir).and_then(|mut fresh| {
        fresh.write_all(text.as_bytes())?;
        Ok(fresh.persist(file)?)
    });
    written.map(drop).map_err(doing("write", file))
}
