//! The settings of `forebay mount`: the command line and the configuration file, merged, checked and with
//! every default filled in. Plain values; nothing here changes while the daemon runs.

use crate::args::{Keys, Locks, MountArgs, Nodes, Switch};
use crate::control::location::{self, fnv1a};
use crate::exit_codes::{Failure, Result};
use crate::units::Span;
use crate::{checks, config};
use flusher::ost::{Kind, OstSettings, ProbeOptions};
use forebay_fs::Policies;
use layout_index::policy::Value;
use layout_index::{FileSettings, SpaceOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
mod tests;

#[derive(Clone, Debug)]
pub struct MountSettings {
    /// A real path, as are `backing`, `store` and `osts`.
    pub mount: PathBuf,
    pub backing: PathBuf,
    pub store: PathBuf,
    pub osts: Vec<PathBuf>,
    pub ost_provider: Kind,
    pub target_settings: OstSettings,
    pub node: String,
    /// Apply to files for which neither `policies` nor their attributes set other values.
    pub files: FileSettings,
    pub policies: Arc<Policies>,
    /// `None` if no other node may use the backing.
    pub lease: Option<Duration>,
    pub drain: flusher::Settings,
    pub index_memory: u64,
    pub space: SpaceOptions,
    /// Whether locks hold across nodes.
    pub shared_locks: bool,
    pub attr_timeout: Duration,
    pub threads: usize,
    pub options: Options,
    pub foreground: bool,
    /// `None` means standard error.
    pub log_file: Option<PathBuf>,
}

/// The mount options (`-o`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub allow_other: bool,
    pub read_only: bool,
    pub suid: bool,
    pub dev: bool,
    pub fsname: Option<String>,
}

pub const INDEX_MEMORY: u64 = 256 << 20;
pub const LEASE: Duration = Duration::from_secs(30);

impl MountSettings {
    pub fn resolve(args: &MountArgs, root: bool) -> Result<MountSettings> {
        let file = args.config.as_deref().map(config::load).transpose()?;
        let (policies, file) = config::policies(&args.keys, file);
        let keys = match file {
            Some(file) => args.keys.clone().or(file),
            None => args.keys.clone(),
        };
        let mount = checks::existing_dir(&args.dir, "the mount point")?;
        let backing = match &keys.backing {
            Some(backing) => checks::existing_dir(backing, "the backing")?,
            None => mount.clone(),
        };
        let Some(store) = &keys.store else {
            return Err(Failure::usage(
                "no store was given; say --store DIR or put `store = \"DIR\"` into the configuration file",
            ));
        };
        let store = checks::store_path(store)?;
        checks::apart(&store, &backing, &mount)?;
        if let Some(size) = keys.store_size {
            checks::store_size(size.0, &store)?;
        }
        let osts = checks::osts(&keys.ost)?;
        let ost_provider = keys.ost_provider.unwrap_or_default();
        flusher::ost::check(ost_provider, &osts).map_err(|e| Failure::usage(e.to_string()))?;
        let node = node(&keys)?;
        let target_settings = target_settings(&keys)?;
        let log_file = match &args.log_file {
            Some(path) => Some(
                std::path::absolute(path)
                    .map_err(|e| Failure::usage(format!("the log file {}: {e}", path.display())))?,
            ),
            None if args.foreground => None,
            None => Some(store.join("forebay.log")),
        };
        checks::not_below(
            &mount,
            &location::own_dir(),
            "the runtime directory",
            location::OVERRIDE,
        )?;
        if let Some(log_file) = &log_file {
            checks::not_below(&mount, log_file, "the log file", "--log-file")?;
        }
        Ok(MountSettings {
            drain: drain(&keys)?,
            space: space(&keys)?,
            files: files(&keys, &policies)?,
            policies: Arc::new(policies),
            lease: lease(&keys)?,
            index_memory: within(
                "index-memory",
                keys.index_memory.map_or(INDEX_MEMORY, |s| s.0),
                1 << 20,
                u64::MAX,
            )?,
            shared_locks: keys.locks != Some(Locks::Local),
            attr_timeout: keys.attr_timeout.map_or(Duration::from_secs(1), |s| s.0),
            threads: within("threads", keys.threads.unwrap_or_else(threads), 1, 64)?,
            options: options(&args.options, root)?,
            foreground: args.foreground,
            log_file,
            ost_provider,
            target_settings,
            osts,
            node,
            mount,
            backing,
            store,
        })
    }
}

impl MountSettings {
    /// A hash that is equal for mounts with the same settings, however they were given and wherever the log
    /// goes.
    pub fn digest(&self) -> u64 {
        let same = MountSettings {
            foreground: false,
            log_file: None,
            ..self.clone()
        };
        fnv1a(format!("{} {same:?}", env!("CARGO_PKG_VERSION")).as_bytes())
    }
}

fn node(keys: &Keys) -> Result<String> {
    let name = match &keys.node {
        Some(name) => name.clone(),
        None => nix::unistd::gethostname()
            .map_err(|e| Failure::failed(format!("the host name: {e}; give one with --node")))?
            .to_string_lossy()
            .into_owned(),
    };
    checks::node_name(&name)?;
    Ok(name)
}

/// What holds for files of which neither rules nor attributes say anything.
fn files(keys: &Keys, policies: &Policies) -> Result<FileSettings> {
    let given = keys.of_files();
    if let Some((key, flaw)) = given.flaw() {
        let value = given.text(key).unwrap_or_default();
        return Err(Failure::usage(format!("{key} = {value} is {flaw}")));
    }
    Ok(policies.of_mount())
}

fn lease(keys: &Keys) -> Result<Option<Duration>> {
    match keys.nodes {
        Some(Nodes::One) => Ok(None),
        _ => within_time("lease", keys.lease, LEASE).map(Some),
    }
}

fn drain(keys: &Keys) -> Result<flusher::Settings> {
    let default = flusher::Settings::default();
    let stripe = keys.stripe.map_or(default.stripe, |s| s.0);
    within("stripe", stripe, 4096, 1 << 30)?;
    if !stripe.is_multiple_of(4096) {
        return Err(Failure::usage(format!(
            "stripe = {stripe} is not a multiple of 4096; use for example 1MiB"
        )));
    }
    Ok(flusher::Settings {
        stripe,
        concurrency: within(
            "drain-concurrency",
            keys.drain_concurrency.unwrap_or(default.concurrency),
            1,
            256,
        )?,
        rate_limit: keys.drain_rate.map(|s| s.0).filter(|rate| *rate > 0),
        verify: keys.verify.unwrap_or(default.verify),
        // A canonical file is on targets too, and other targets cannot stand in for them.
        patience: within_time("ost-deadline", keys.ost_deadline, default.patience)?,
        ..default
    })
}

fn target_settings(keys: &Keys) -> Result<OstSettings> {
    let default = OstSettings::default();
    let block = 1 << 20;
    Ok(OstSettings {
        probing: keys.probe != Some(Switch::Off),
        probe: ProbeOptions {
            size: within(
                "probe-size",
                keys.probe_size.map_or(default.probe.size, |s| s.0),
                block,
                u64::MAX,
            )?,
            ..default.probe
        },
        probe_age: keys.probe_age.map_or(default.probe_age, |s| s.0),
        width: match keys.subfile_width {
            Some(width) => Some(within("subfile-width", width, 1, usize::MAX)?),
            None => None,
        },
        deadline: within_time("ost-deadline", keys.ost_deadline, default.deadline)?,
        retry_after: within_time("ost-retry", keys.ost_retry, default.retry_after)?,
        ..default
    })
}

fn within_time(key: &str, given: Option<Span>, default: Duration) -> Result<Duration> {
    match given {
        Some(Span(time)) => match time.flaw() {
            Some(flaw) => Err(Failure::usage(format!("{key} = {time:?} is {flaw}"))),
            None => Ok(time),
        },
        None => Ok(default),
    }
}

fn space(keys: &Keys) -> Result<SpaceOptions> {
    let default = SpaceOptions::default();
    Ok(SpaceOptions {
        capacity: keys.store_size.map(|s| s.0),
        segment: keys.segment_size.map(|s| s.0),
        high_watermark: keys.high_watermark.map_or(default.high_watermark, |f| f.0),
        user_share: keys.user_share.map_or(default.user_share, |f| f.0),
    })
}

fn within<T: PartialOrd + std::fmt::Display>(key: &str, value: T, min: T, max: T) -> Result<T> {
    if value < min {
        return Err(Failure::usage(format!(
            "{key} = {value} is too small; the least is {min}"
        )));
    }
    if value > max {
        return Err(Failure::usage(format!(
            "{key} = {value} is too large; the most is {max}"
        )));
    }
    Ok(value)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 4))
}

fn options(given: &[String], root: bool) -> Result<Options> {
    let mut options = Options {
        allow_other: root,
        read_only: false,
        suid: false,
        dev: false,
        fsname: None,
    };
    for option in given.iter().map(|o| o.trim()).filter(|o| !o.is_empty()) {
        match option
            .split_once('=')
            .map_or((option, None), |(k, v)| (k, Some(v)))
        {
            ("allow_other", None) => options.allow_other = true,
            ("ro", None) => options.read_only = true,
            ("rw", None) => options.read_only = false,
            ("suid", None) => options.suid = true,
            ("nosuid", None) => options.suid = false,
            ("dev", None) => options.dev = true,
            ("nodev", None) => options.dev = false,
            ("fsname", Some(name)) if !name.is_empty() => options.fsname = Some(name.into()),
            // These always apply, or have no meaning here: reads of a file below set its access time.
            ("default_permissions" | "exec" | "atime" | "noatime" | "relatime", None) => {}
            ("defaults" | "_netdev" | "auto" | "noauto" | "nofail", None) => {}
            _ => {
                return Err(Failure::usage(format!(
                    "mount option \"{}\" is not known; see forebay mount --help",
                    option.escape_default()
                )));
            }
        }
    }
    if !root && (options.suid || options.dev) {
        return Err(Failure::usage(
            "the mount options suid and dev are for root only",
        ));
    }
    Ok(options)
}

/// Creates the store's directory, which other users cannot access.
pub fn make_store(store: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    match std::fs::DirBuilder::new().mode(0o700).create(store) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) => {
            return Err(Failure::failed(format!(
                "cannot make the store {}: {e}",
                store.display()
            )));
        }
    }
    let failed = |e: std::io::Error| Failure::failed(format!("the store {}: {e}", store.display()));
    let meta = std::fs::symlink_metadata(store).map_err(failed)?;
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        return Err(Failure::usage(format!(
            "the store {} belongs to another user (uid {}); use one of your own",
            store.display(),
            meta.uid()
        )));
    }
    if meta.mode() & 0o077 != 0 {
        // The directory is empty, so other users had nothing in it to see or change.
        if std::fs::read_dir(store).map_err(failed)?.next().is_none() {
            let closed = std::fs::Permissions::from_mode(0o700);
            return std::fs::set_permissions(store, closed).map_err(failed);
        }
        return Err(Failure::usage(format!(
            "the store {} is open to other users (mode {:o}); run chmod 700 on it",
            store.display(),
            meta.mode() & 0o777
        )));
    }
    Ok(())
}
