//! The command line as it is typed. Nothing is looked up or decided here: `settings.rs` turns it,
//! together with the configuration file, into what the program works with.

use crate::exit_codes;
use crate::units::{Fraction, Size, Span};
use clap::{Args, Parser, Subcommand, ValueEnum};
use flusher::ost::Kind;
use layout_index::policy::{Absorb, Close, Drain, Fsync, Subfiles};
use serde::Deserialize;
use std::path::PathBuf;

#[cfg(test)]
mod tests;

#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    about = "Absorbs the writes of a node onto local storage and drains them into the files below",
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
    /// Show what is mounted, how full the store is and what is not drained yet
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Drain a file, a directory or a whole mount now
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain(DrainArgs),
    /// Read files into the store, so that they are read from there
    #[command(after_help = PREFETCH_EXAMPLES)]
    Prefetch(PrefetchArgs),
    /// Show which bytes of a file are where
    #[command(after_help = LAYOUT_EXAMPLES)]
    Layout(LayoutArgs),
    /// Show how a file is treated, and which rule, attribute or option decided that
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
      Over the directory itself: jobs go on using /scratch.
  forebay mount /mnt/fast --backing /scratch/project --store /nvme/forebay --drain on-close
      At another place, draining when files are closed.
  forebay mount /scratch --config /etc/forebay.toml --foreground
      For a service manager. The file has the same keys as the options, e.g.
          store = \"/nvme/forebay\"
          drain-rate = \"500MiB\"

Returns when the mount answers. Stop it with `forebay umount` or SIGTERM (both drain first; a
second SIGTERM leaves undrained data in the store for the next mount).";

const UMOUNT_EXAMPLES: &str = "\
Examples:
  forebay umount /scratch
      Drains everything, then unmounts.
  forebay umount /scratch --timeout 10m
      Stays mounted (exit code 3) if ten minutes are not enough.
  forebay umount /scratch --keep
      At once; what is not drained stays in the store for the next mount.";

const STATUS_EXAMPLES: &str = "\
Examples:
  forebay status
      All mounts of this machine that you may see.
  forebay status /scratch --watch
      One mount, again every second.
  forebay status --store /nvme/forebay
      From the store alone, when no daemon runs.
  forebay status --backing /scratch
      All nodes, files and epochs, from the directory that the nodes share alone (root).
  forebay status /scratch --json | jq .bytes.undrained

Who may see what: your own files by name, the number and size of everybody else's; root and the
daemon's user see all.";

const DRAIN_EXAMPLES: &str = "\
Examples:
  forebay drain /scratch/run7/out.h5 --wait
      Returns when the file below is byte for byte what the mount shows.
  forebay drain /scratch/run7 --wait --timeout 5m
      Every file below that directory.
  forebay drain /scratch
      Asks for the whole mount and returns at once.
  forebay drain --adopt /scratch
      On a login node: finishes what dead nodes had published over /scratch, and lists what only
      their stores hold.

Exit codes: 0 drained, 3 still dirty, 1 failed. Other users' files in a directory are left to
their owners unless you are root.";

const PREFETCH_EXAMPLES: &str = "\
Examples:
  forebay prefetch /scratch/run7/restart.h5
      Returns when the node's own disk has all of it.
  forebay prefetch /scratch/run7/input /scratch/mesh
      Every file below those directories that you may read.

What is kept already is not read again. Files with undrained data, or open for writing, are left
out. Exit code 1 if the store has no room for all of it, or a file could not be read.";

const LAYOUT_EXAMPLES: &str = "\
Examples:
  forebay layout /scratch/run7/out.h5
      A table of ranges, and one line of blocks: log, canonical file, hole.
  forebay layout /scratch/run7/out.h5 --json";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  forebay explain /scratch/run7/out.h5
      Each key with its value and who decided: the command line, an attribute of the file
      (user.forebay.KEY) or of a directory when the file was made, a [[policy]] rule of the
      configuration file, that file for the whole mount, or the default. The first of these counts.
  forebay explain /scratch/run7/out.h5 --json
  forebay explain /scratch/run7/out.h5 --config /etc/forebay.toml --backing /scratch
      Without a daemon: what a mount with that configuration would do.";

const PROBE_EXAMPLES: &str = "\
Examples:
  forebay probe /scratch
      On a Forebay mount: what its daemon has measured. Elsewhere: writes 16 MiB of random data to
      every target of a Lustre or MooseFS at the same time, or to the directory itself.
  forebay probe /scratch --fresh
      On a Forebay mount: its daemon measures again, now (root and the user who mounted it).
  forebay probe /scratch --ost /osts/0 --ost /osts/1 --ost /osts/2
      To each of three directories, which are not on a Forebay mount.
  forebay probe /scratch --ost /osts/0 --ost /osts/1 --size 64MiB --svg probe.svg
      More data for a steadier figure, and the two curves as a picture.
  forebay probe /scratch --json | jq .chosen

The files it writes are removed again. Exit code 1 if no target can be used.";

const RECOVER_EXAMPLES: &str = "\
Examples:
  forebay recover --store /nvme/forebay --backing /scratch --dry-run
      Only looks: what is undrained, and does every checksum hold.
  forebay recover --store /nvme/forebay --backing /scratch
      Writes it all into the files below.

For a node that will not mount again. A mount on the same store recovers by itself.";

/// What may stand in the configuration file as well as on the command line.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Keys {
    /// Directory on node-local storage that takes the writes (made, mode 0700, if missing)
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Directory that is overlaid [default: the mount point itself]
    #[arg(long, value_name = "DIR")]
    pub backing: Option<PathBuf>,
    /// A storage target, one option for each: a directory on it (one mount per target)
    #[arg(long = "ost", value_name = "DIR")]
    pub ost: Vec<PathBuf>,
    /// Who places files on storage targets: directories (those of --ost), lustre, moosefs, none,
    /// or auto: directories if some are given, else what the backing is [default: auto]
    #[arg(long, value_name = "KIND")]
    pub ost_provider: Option<Kind>,
    /// Whether data goes to subfiles on the fastest targets before it goes to the file below:
    /// auto (when another node writes the same file), always, never [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub subfiles: Option<Subfiles>,
    /// Targets that this node's subfiles are dealt over [default: all that the probe chose]
    #[arg(long, value_name = "N")]
    pub subfile_width: Option<usize>,
    /// Measure the targets, and use the fastest only; off uses all of them alike [default: on]
    #[arg(long, value_name = "on|off")]
    pub probe: Option<Switch>,
    /// Measure again when the last time is this long ago [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub probe_age: Option<Span>,
    /// How much a probe writes to each target [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub probe_size: Option<Size>,
    /// A target that has not answered for this long is dropped, and a file below that has not is
    /// left to itself until it does [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub ost_deadline: Option<Span>,
    /// And tried again after this long [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub ost_retry: Option<Span>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Whether other nodes may use the same backing: many, or one (nothing is shared then)
    /// [default: many]
    #[arg(long, value_name = "many|one")]
    pub nodes: Option<Nodes>,
    /// What a close waits for: defer (others who open the file wait for the data), defer-next (the
    /// same, and the next open of a file of the same base name waits too), or publish (the data is
    /// where other nodes see it) [default: defer]
    #[arg(long, value_name = "WHAT")]
    pub close: Option<Close>,
    /// What an fsync waits for: publish (durable, and other nodes see it) or local (durable here)
    /// [default: publish]
    #[arg(long, value_name = "WHAT")]
    pub fsync: Option<Fsync>,
    /// How long an open waits for what another node has closed and not published [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub visibility_timeout: Option<Span>,
    /// A node that has not been heard of for this long is dead to the others [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub lease: Option<Span>,
    /// Take writes into the store (on), let all go through to the files below (off), or take them and
    /// show each to all nodes before it is answered (coherent) [default: on]
    #[arg(long, value_name = "on|off|coherent")]
    pub absorb: Option<Absorb>,
    /// When data drains: immediate, on-close, or never (until asked, or until the store is above
    /// its high watermark) [default: immediate]
    #[arg(long, value_name = "WHEN")]
    pub drain: Option<Drain>,
    /// Bytes per second the drain may write; 0 is no limit [default: 0]
    #[arg(long, value_name = "SIZE")]
    pub drain_rate: Option<Size>,
    /// Stripes written at once [default: 4]
    #[arg(long, value_name = "N")]
    pub drain_concurrency: Option<usize>,
    /// Unit of drain writes, a multiple of 4KiB [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    pub stripe: Option<Size>,
    /// Bound on the extent index's memory [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub index_memory: Option<Size>,
    /// Bytes the store may take [default: 80 % of what is free at the first mount]
    #[arg(long, value_name = "SIZE")]
    pub store_size: Option<Size>,
    /// Bytes of one log segment [default: by the store's size, 64MiB at most]
    #[arg(long, value_name = "SIZE")]
    pub segment_size: Option<Size>,
    /// Fill level from which writers are slowed and everything drains [default: 0.75]
    #[arg(long, value_name = "FRACTION")]
    pub high_watermark: Option<Fraction>,
    /// Part of the store that one user's undrained data may take [default: 0.8]
    #[arg(long, value_name = "FRACTION")]
    pub user_share: Option<Fraction>,
    /// Whom fcntl and flock locks exclude: shared (other nodes too, by the locks of the file
    /// system below), local (this node) [default: shared]
    #[arg(long, value_name = "shared|local")]
    pub locks: Option<Locks>,
    /// How long the kernel may keep names and attributes [default: 1s]
    #[arg(long, value_name = "TIME")]
    pub attr_timeout: Option<Span>,
    /// Threads that take requests from the kernel [default: 2 to 4, by the number of cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Read every drained stripe back and compare checksums [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub verify: Option<bool>,
    /// Leave what is drained on this node as a copy, to be read there, as far as the log leaves
    /// room [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub keep: Option<bool>,
    /// Rules for files by path: in the configuration file only
    #[arg(skip)]
    pub policy: Vec<toml::Spanned<RuleKeys>>,
}

/// A `[[policy]]` of the configuration file: what may be said of single files.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct RuleKeys {
    #[serde(rename = "match")]
    pub glob: Option<String>,
    pub absorb: Option<Absorb>,
    pub drain: Option<Drain>,
    pub close: Option<Close>,
    pub fsync: Option<Fsync>,
    pub subfiles: Option<Subfiles>,
    pub keep: Option<bool>,
    pub visibility_timeout: Option<Span>,
    /// What is none of these, for a sentence that says so.
    #[serde(flatten)]
    pub others: std::collections::BTreeMap<String, toml::Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nodes {
    Many,
    One,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Locks {
    Shared,
    Local,
}

#[derive(Debug, Args)]
pub struct MountArgs {
    /// Where to mount; without --backing also the directory that is overlaid
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub keys: Keys,
    /// TOML file with the same keys; the command line has the last word
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Stay in the foreground and log to standard error, or to --log-file
    #[arg(long, short)]
    pub foreground: bool,
    /// Where the daemon logs; SIGHUP opens it again [default in the background: STORE/forebay.log]
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
    /// Give up draining, and stay mounted, after this long
    #[arg(long, value_name = "TIME")]
    pub timeout: Option<Span>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Only say for another `forebay` whether the daemon is gone: exit code 0 if it is
    #[arg(long, hide = true)]
    pub is_dead: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// A mount point, or anything below one [default: all mounts]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Look at a store that no daemon has open
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    pub store: Option<PathBuf>,
    /// All nodes that share this backing and what they have published, from the directory that they
    /// share alone
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dir", "store"])]
    pub backing: Option<PathBuf>,
    /// Say for another `forebay` what this node has published there
    #[arg(long, value_name = "ID", requires = "backing", hide = true)]
    pub published_by: Option<u64>,
    /// Again every second until interrupted
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
    /// Drain what dead nodes have published over the backing PATH, from here, without a mount
    #[arg(long, conflicts_with = "wait")]
    pub adopt: bool,
    /// With --adopt: a storage target, one option for each, as the nodes were mounted with
    #[arg(long = "ost", value_name = "DIR", requires = "adopt")]
    pub ost: Vec<PathBuf>,
    /// With --adopt: who places files on storage targets
    #[arg(long, value_name = "KIND", default_value = "auto", requires = "adopt")]
    pub ost_provider: Kind,
    /// Return when it is drained
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
    /// Where no daemon answers: the configuration file that a mount would have
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where no daemon answers: the directory that a mount would overlay [default: the one in the
    /// configuration file]
    #[arg(long, value_name = "DIR")]
    pub backing: Option<PathBuf>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// A directory of the parallel file system, or a Forebay mount (its daemon is asked)
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// A storage target, one option for each: a directory on it (one mount per target)
    #[arg(long = "ost", value_name = "DIR")]
    pub ost: Vec<PathBuf>,
    /// Who places files on storage targets: directories (those of --ost), lustre, moosefs, none
    /// (DIR itself is the one target), or auto: directories if some are given, else what DIR is on
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub ost_provider: Kind,
    /// How much to write to each target [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// The longest that a target may take; one that hangs is left out [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub deadline: Option<Span>,
    /// How much the aggregate may fall by one more target before the list is cut there [default: 2%]
    #[arg(long, value_name = "FRACTION")]
    pub delta: Option<Fraction>,
    /// Draw bandwidths and aggregate into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// On a Forebay mount, which shows what its daemon measured: measure again now
    #[arg(long)]
    pub fresh: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Do the work and say all in one line
    #[arg(long, hide = true)]
    pub worker: bool,
}

#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The store to drain
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
    /// The directory whose files it belongs to
    #[arg(long, value_name = "DIR")]
    pub backing: PathBuf,
    /// A storage target, one option for each, as when it was mounted: data may be in subfiles there
    #[arg(long = "ost", value_name = "DIR")]
    pub ost: Vec<PathBuf>,
    /// Who places files on storage targets, as when it was mounted
    #[arg(long, value_name = "KIND", default_value = "auto")]
    pub ost_provider: Kind,
    /// Only look and verify checksums
    #[arg(long)]
    pub dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}
