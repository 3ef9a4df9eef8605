//! The command line as the user types it. Nothing is looked up or decided here: `settings.rs` combines it
//! with the configuration file into the settings that the program works with.

use crate::exit_codes;
use crate::units::{Fraction, Size, Span};
use clap::{Args, Parser, Subcommand};
use flusher::ost::Kind;
use std::path::PathBuf;

mod keys;
pub use keys::{Keys, Locks, Nodes, RuleKeys, Switch};

#[cfg(test)]
mod tests;

#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about = "Absorbs a node's writes on local storage and drains them into the files below",
    after_help = exit_codes::HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount Forebay over a directory
    #[command(after_help = MOUNT_EXAMPLES)]
    Mount(Box<MountArgs>),
    /// Drain everything, then unmount
    #[command(after_help = UMOUNT_EXAMPLES)]
    Umount(UmountArgs),
    /// Show what is mounted, how full the store is and what has not been drained yet
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Drain a file, a directory or a whole mount now
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(DrainArgs),
    /// Read files into the store, so that later reads are served from there
    #[command(after_help = PREFETCH_EXAMPLES)]
    Prefetch(PrefetchArgs),
    /// Show where the bytes of a file are
    #[command(after_help = LAYOUT_EXAMPLES)]
    Layout(LayoutArgs),
    /// Show how a file is treated, and which rule, attribute or option decides it
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain(ExplainArgs),
    /// Measure storage targets and choose among them
    #[command(after_help = PROBE_EXAMPLES)]
    Probe(ProbeArgs),
    /// Drain a store without mounting it
    #[command(after_help = RECOVER_EXAMPLES)]
    Recover(RecoverArgs),
}

const MOUNT_EXAMPLES: &str = "\
Examples:
  forebay mount /scratch --store /nvme/forebay
      Mounts over the directory itself: jobs keep using /scratch.
  forebay mount /mnt/fast --backing /scratch/project --store /nvme/forebay --drain on-close
      Mounts at another place, and drains files when they are closed.
  forebay mount /scratch --config /etc/forebay.toml --foreground
      For a service manager. The keys of the file are the names of the options, for example
          store = \"/nvme/forebay\"
          drain-rate = \"500MiB\"

The command returns when the mount answers. Stop the mount with `forebay umount` or SIGTERM (both
drain first; a second SIGTERM leaves undrained data in the store for the next mount).";

const UMOUNT_EXAMPLES: &str = "\
Examples:
  forebay umount /scratch
      Drains everything, then unmounts.
  forebay umount /scratch --timeout 10m
      Stays mounted (exit code 3) if draining takes longer than ten minutes.
  forebay umount /scratch --keep
      Unmounts at once; undrained data stays in the store for the next mount.";

const STATUS_EXAMPLES: &str = "\
Examples:
  forebay status
      All mounts on this machine that you may see.
  forebay status /scratch --watch
      One mount, refreshed every second.
  forebay status --store /nvme/forebay
      Uses only the store, if no daemon is running.
  forebay status --backing /scratch
      All nodes, files and epochs, using only the directory that the nodes share (as root).
  forebay status /scratch --json | jq .bytes.undrained

You see your own files by name, and only the number and size of other users' files. Root and the
daemon's user see everything.";

const DRAIN_EXAMPLES: &str = "\
Examples:
  forebay drain /scratch/run7/out.h5 --wait
      Returns when the file below is byte for byte what the mount shows.
  forebay drain /scratch/run7 --wait --timeout 5m
      Drains every file below that directory, for five minutes at most.
  forebay drain /scratch
      Requests a drain of the whole mount and returns at once.
  forebay drain --adopt /scratch
      On a login node: drains what dead nodes have published over /scratch, and lists the files
      with data that only their stores hold.

Exit codes: 0 drained, 3 still dirty, 1 failed. Other users' files in a directory are left to
their owners unless you are root.";

const PREFETCH_EXAMPLES: &str = "\
Examples:
  forebay prefetch /scratch/run7/restart.h5
      Returns when the whole file is on the node's own disk.
  forebay prefetch /scratch/run7/input /scratch/mesh
      Reads every file below those directories that you may read.

Files that already have a local copy are not read again. Files with undrained data, or open for
writing, are skipped. The exit code is 1 if the store has no room for all files, or a file could
not be read.";

const LAYOUT_EXAMPLES: &str = "\
Examples:
  forebay layout /scratch/run7/out.h5
      A table of ranges, and one line of blocks: log, subfile, canonical file, hole.
  forebay layout /scratch/run7/out.h5 --json";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  forebay explain /scratch/run7/out.h5
      Each key with its value and where it comes from: the command line, an attribute of the file
      (user.forebay.KEY) or of a directory when the file was created, a [[policy]] rule of the
      configuration file, a key of that file for the whole mount, or the default. The first of
      these wins.
  forebay explain /scratch/run7/out.h5 --json
  forebay explain /scratch/run7/out.h5 --config /etc/forebay.toml --backing /scratch
      Without a daemon: what a mount with that configuration would do.";

const PROBE_EXAMPLES: &str = "\
Examples:
  forebay probe /scratch
      On a Forebay mount: shows what its daemon has measured. Elsewhere: writes 16 MiB of random
      data to every target of a Lustre or MooseFS file system at the same time, or to the directory
      itself.
  forebay probe /scratch --fresh
      On a Forebay mount: has its daemon measure again now (only for root and the user who mounted
      it).
  forebay probe /scratch --ost /osts/0 --ost /osts/1 --ost /osts/2
      Writes to each of three directories, which must not be on a Forebay mount.
  forebay probe /scratch --ost /osts/0 --ost /osts/1 --size 64MiB --svg probe.svg
      Writes more data for a steadier result, and draws the two curves.
  forebay probe /scratch --json | jq .chosen

The command removes the files that it writes. The exit code is 1 if no target can be used.";

const RECOVER_EXAMPLES: &str = "\
Examples:
  forebay recover --store /nvme/forebay --backing /scratch --dry-run
      Only checks what is undrained, and whether every checksum is right.
  forebay recover --store /nvme/forebay --backing /scratch
      Writes all of it into the files below.

For a node that will not mount its store again. A mount on the same store recovers by itself.";

#[derive(Debug, Args)]
#[command(mut_args = keys::plain)]
pub struct MountArgs {
    /// Mount point; without --backing, also the directory to overlay
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub keys: Keys,
    /// TOML file with the same keys; options on the command line override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Stay in the foreground and log to standard error, or to the file given with --log-file
    #[arg(long, short)]
    pub foreground: bool,
    /// Log file of the daemon; SIGHUP opens it again [default in the background: STORE/forebay.log]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Mount options, separated by commas: allow_other, ro, rw, suid, nosuid, dev, nodev, exec,
    /// atime, noatime, relatime, default_permissions, fsname=NAME
    #[arg(short = 'o', value_name = "OPTS", value_delimiter = ',')]
    pub options: Vec<String>,
}

#[derive(Debug, Args)]
pub struct UmountArgs {
    /// The mount point
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Do not drain: undrained data stays in the store for the next mount
    #[arg(long)]
    pub keep: bool,
    /// Give up draining after this long, and stay mounted
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Only tell another `forebay` whether the daemon is gone: exit code 0 if it is
    #[arg(long, hide = true)]
    pub is_dead: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// A mount point, or any path below one [default: all mounts]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Show a store that no daemon has open
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    pub store: Option<PathBuf>,
    /// Show all nodes that share this backing and what they have published, using only the directory that
    /// they share
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dir", "store"])]
    pub backing: Option<PathBuf>,
    /// Tell another `forebay` what this node has published there
    #[arg(long, value_name = "ID", requires = "backing", hide = true)]
    pub published_by: Option<u64>,
    /// Repeat every second until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Report as JSON (with --watch: one object per line)
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// A file, a directory or a mount point; with --adopt, a backing
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Drain what dead nodes have published over the backing PATH, from this machine and without a mount
    #[arg(long, conflicts_with = "wait")]
    pub adopt: bool,
    /// With --adopt: a directory on a storage target, as when the nodes were mounted; repeat the option for
    /// each target
    #[arg(long = "ost", value_name = "DIR", requires = "adopt")]
    pub ost: Vec<PathBuf>,
    /// With --adopt: what places files on storage targets
    #[arg(long, value_name = "KIND", default_value = "auto", requires = "adopt")]
    pub ost_provider: Kind,
    /// Return only when everything is drained
    #[arg(long)]
    pub wait: bool,
    /// Wait no longer than this (implies --wait)
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PrefetchArgs {
    /// Files and directories on one or more mounts
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LayoutArgs {
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// If no daemon answers: the configuration file that a mount would use
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// If no daemon answers: the directory that a mount would overlay [default: the one in the configuration
    /// file]
    #[arg(long, value_name = "DIR")]
    pub backing: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// A directory of the parallel file system, or a Forebay mount (then its daemon is asked)
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// A directory on a storage target (one mount per target); repeat the option for each target
    #[arg(long = "ost", value_name = "DIR")]
    pub ost: Vec<PathBuf>,
    /// What places files on storage targets: directories (those given with --ost), lustre, moosefs, none (DIR
    /// itself is the only target), or auto: directories if any are given, else what DIR is on
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub ost_provider: Kind,
    /// How much to write to each target [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Longest time that a target may take; a target that hangs is left out [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<Span>,
    /// How much one more target may lower the aggregate before the list is cut there [default: 2%]
    #[arg(long, value_name = "FRACTION")]
    pub delta: Option<Fraction>,
    /// Draw the bandwidths and the aggregate into this SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// On a Forebay mount: have the daemon measure again now, instead of showing its last measurement
    #[arg(long)]
    pub fresh: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Do the work and print the report in one line
    #[arg(long, hide = true)]
    pub worker: bool,
}

#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The store to drain
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
    /// The backing that the store belongs to
    #[arg(long, value_name = "DIR")]
    pub backing: PathBuf,
    /// A directory on a storage target, as when the store was mounted: data may be in subfiles there; repeat
    /// the option for each target
    #[arg(long = "ost", value_name = "DIR")]
    pub ost: Vec<PathBuf>,
    /// What places files on storage targets, as when the store was mounted
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub ost_provider: Kind,
    /// Only read the store and verify its checksums
    #[arg(long)]
    pub dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}
