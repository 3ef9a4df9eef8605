//! The definition of the command line.

use crate::mpi::Mpi;
use crate::state::Network;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Parser)]
#[command(
    name = "forebay-cluster",
    version,
    about = "Several Forebay nodes on one machine: same path, one backing, a daemon and a store each",
    after_help = EXAMPLES,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// The cluster's directory: its stores, logs and state [default: $FOREBAY_CLUSTER, or
    /// /var/tmp/forebay-cluster]
    #[arg(long, value_name = "STATE", global = true)]
    pub dir: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

/// Help text: what a node is, examples, and the exit codes.
const EXAMPLES: &str = "\
A node is a mount namespace with a host name (n0, n1, …) and an address of its own. Processes,
users and all other files are this machine's. Needs root.

Examples:
  forebay-cluster up 4 --backing /scratch
  forebay-cluster run -- mpirun -n 8 ./simulation /scratch/run7
  forebay-cluster exec 2 -- ls -l /scratch/run7
  forebay-cluster status
  forebay-cluster down

Exit codes:
  0    done
  1    failed; one sentence on standard error says why
  2    wrong command line
  3    undrained data is left; the cluster stays as it is
  4    a mount is in use
  5    no cluster there, no such node, or the node's daemon does not run
  run and exec pass on the exit code of their command (128 + N for signal N), or give
  125  when it could not be started";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make nodes, and return when all daemons answer
    #[command(after_help = UP_EXAMPLES)]
    Up(UpArgs),
    /// Run an MPI job with its ranks round robin over the nodes
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// Run a command on one node
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(ExecArgs),
    /// Show the nodes and what each has not drained
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Kill a node's daemon with kill -9
    #[command(after_help = KILL_EXAMPLES)]
    Kill(NodeArgs),
    /// Start a node's daemon again, on the same store
    #[command(after_help = RESTART_EXAMPLES)]
    Restart(NodeArgs),
    /// Drain all nodes now
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(DrainArgs),
    /// Show what the daemons have logged
    #[command(after_help = LOGS_EXAMPLES)]
    Logs(LogsArgs),
    /// Drain and unmount everything, and remove the nodes
    #[command(after_help = DOWN_EXAMPLES)]
    Down(DownArgs),
    /// Keep the namespaces of a node (started by `up`)
    #[command(hide = true)]
    Keep(KeepArgs),
}

const UP_EXAMPLES: &str = "\
Examples:
  forebay-cluster up 4 --backing /scratch
      On each of four nodes /scratch is Forebay; on the machine itself it stays the directory below.
  forebay-cluster up 2 --backing /scratch --mount /mnt/fast --dir /nvme/two
      At another place, with stores below /nvme/two.
  forebay-cluster up 2 --backing /scratch -- --close publish --drain never
      With further arguments for each `forebay mount`.
  forebay-cluster up 2 --backing /mfs/scratch --network host
      Without addresses of their own: for daemons that must reach a server. Open MPI then sees no
      several hosts.

If one node fails, all of it is taken away again, and the daemon's reason is shown.";

const RUN_EXAMPLES: &str = "\
Examples:
  forebay-cluster run -- mpirun -n 8 ./simulation /scratch/run7
      The machine's own mpirun, whichever MPI that is.
  forebay-cluster run --mpi openmpi -- mpirun -n 8 ./simulation /scratch/run7
  forebay-cluster run --nodes 0,2 -- mpirun -n 4 ./restart /scratch/run7
      Ranks 0 and 2 on n0, 1 and 3 on n2.
  forebay-cluster run -- make check
      Anything that calls mpirun, of either MPI, in between.

The command runs on the first of the nodes, in the current directory as it is there. mpirun finds
hosts and launcher in its environment (HYDRA_*, OMPI_MCA_*); options of its own have the last word.";

const EXEC_EXAMPLES: &str = "\
Examples:
  forebay-cluster exec 1 -- sha256sum /scratch/run7/out.h5
  forebay-cluster exec 1 -- forebay status /scratch
  forebay-cluster exec n0 -- bash";

const STATUS_EXAMPLES: &str = "\
Examples:
  forebay-cluster status
  forebay-cluster status --json | jq '.nodes[] | {name, state, undrained}'
      `report` of each node is its own `forebay status --json`.";

const KILL_EXAMPLES: &str = "\
Examples:
  forebay-cluster kill 1
      Its mount is dead from then on, as after a crash; `restart` brings it back.";

const RESTART_EXAMPLES: &str = "\
Examples:
  forebay-cluster restart 1
      After `kill`: recovers the store. A daemon that runs is unmounted first (umount --keep).";

const DRAIN_EXAMPLES: &str = "\
Examples:
  forebay-cluster drain
      Asks all nodes and returns at once.
  forebay-cluster drain --wait --timeout 5m
      Returns when every file below is byte for byte what the nodes show; exit code 3 if that takes
      longer.";

const LOGS_EXAMPLES: &str = "\
Examples:
  forebay-cluster logs
      Of all nodes, with the node's name before each line.
  forebay-cluster logs 1 --lines 20";

const DOWN_EXAMPLES: &str = "\
Examples:
  forebay-cluster down
      Drains first. Stops, with everything as it is, if data would be lost.
  forebay-cluster down --discard
      At once: ends whatever runs on the nodes and throws away what is not drained.
  forebay-cluster down --keep-logs

Does nothing where nothing is up, and finishes what an `up` or `down` that was killed has left.";

#[derive(Debug, Args)]
pub struct UpArgs {
    /// How many nodes
    #[arg(value_name = "N")]
    pub nodes: usize,
    /// The directory that they share
    #[arg(long, value_name = "DIR")]
    pub backing: PathBuf,
    /// Where each mounts it [default: over the backing itself]
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// A configuration file for all daemons
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Whether each node has an address of its own
    #[arg(
        long,
        value_name = "own|host",
        default_value = "own",
        hide_possible_values = true
    )]
    pub network: Network,
    /// The forebay program [default: the one beside this program, or on the PATH]
    #[arg(long, value_name = "FILE")]
    pub forebay: Option<PathBuf>,
    /// Further arguments of `forebay mount`
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Only on these, in this order, such as 0,2 [default: all]
    #[arg(long, value_name = "NODES", value_delimiter = ',', value_parser = node)]
    pub nodes: Vec<usize>,
    /// Whose mpirun or mpiexec is meant: mpich or openmpi [default: the machine's]
    #[arg(long, value_name = "MPI", hide_possible_values = true)]
    pub mpi: Option<Mpi>,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Which node, such as 1 or n1
    #[arg(value_parser = node)]
    pub node: usize,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Which node, such as 1 or n1
    #[arg(value_parser = node)]
    pub node: usize,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Only of this node, such as 1 or n1
    #[arg(value_parser = node)]
    pub node: Option<usize>,
    /// Only so many lines from the end of each
    #[arg(long, value_name = "N")]
    pub lines: Option<usize>,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Return when everything is drained
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this for each node (implies --wait)
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct DownArgs {
    /// Throw away what is not drained, and end whatever runs on the nodes
    #[arg(long, conflicts_with = "timeout")]
    pub discard: bool,
    /// Leave the daemons' logs
    #[arg(long)]
    pub keep_logs: bool,
    /// Give up draining, with everything as it is, after this long for each node
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct KeepArgs {
    pub name: String,
    #[arg(long)]
    pub own_network: bool,
    /// A directory, and where it is seen on this node; may be repeated
    #[arg(long, num_args = 2, value_names = ["SOURCE", "TARGET"])]
    pub bind: Vec<PathBuf>,
}

/// Parses a node as people write it: `1` or `n1`.
fn node(text: &str) -> Result<usize, String> {
    let number = text.strip_prefix('n').unwrap_or(text);
    number
        .parse()
        .map_err(|_| format!("\"{text}\" is no node; write 1 or n1"))
}
