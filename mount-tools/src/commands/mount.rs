//! `forebay mount`.

use super::umount;
use crate::args::MountArgs;
use crate::control::client::Client;
use crate::control::location;
use crate::control::protocol::Request;
use crate::daemon::{self, daemonize};
use crate::exit_codes::{Code, Failure, Result};
use crate::settings::{self, MountSettings};
use crate::{logging, mountinfo};
use std::path::{Path, PathBuf};

pub fn run(args: &MountArgs) -> Result<Code> {
    let root = nix::unistd::geteuid().is_root();
    let there = look_at_mount_point(args)?;
    if let There::Dead(point) = &there {
        clear(point)?;
    }
    let settings = MountSettings::resolve(args, root)?;
    if let There::Alive(point) = &there {
        return is_same(point, &settings);
    }
    settings::make_store(&settings.store)?;
    super::takeover::of_store(&settings)?;
    let Some(log) = settings
        .log_file
        .as_deref()
        .filter(|_| !settings.foreground)
    else {
        if let Some(log) = &settings.log_file {
            logging::use_own(logging::open(log)?);
        }
        logging::start();
        daemon::run(&settings, |_| {})?;
        return Ok(Code::Ok);
    };
    match daemonize::detach(log)? {
        daemonize::Side::Parent(pid, note) => {
            if let Some(note) = note {
                eprintln!("forebay: {note}");
            }
            std::fs::metadata(&settings.mount).map_err(|e| {
                Failure::failed(format!("{} does not answer: {e}", settings.mount.display()))
            })?;
            crate::output::print(&format!(
                "{} is mounted (node {}, store {}, pid {pid})\n",
                settings.mount.display(),
                settings.node,
                settings.store.display()
            ))?;
            Ok(Code::Ok)
        }
        daemonize::Side::Child(report) => {
            logging::start();
            let mut report = Some(report);
            let result = daemon::run(&settings, |note| {
                if let Some(report) = report.take() {
                    report.ready(note);
                }
            });
            if let (Err(failure), Some(report)) = (&result, report) {
                report.failed(failure);
            }
            result.map(|()| Code::Ok)
        }
    }
}

/// State of the mount point before anything is mounted there.
enum There {
    Nothing,
    /// A mount of this user whose daemon is gone.
    Dead(PathBuf),
    Alive(PathBuf),
}

/// Looks at the mount point. Must come before anything is looked up there, because a lookup in a dead mount
/// fails.
fn look_at_mount_point(args: &MountArgs) -> Result<There> {
    let Ok(point) = mountinfo::real_point(&args.dir) else {
        // Most likely the directory is missing. Resolving the settings reports that better.
        return Ok(There::Nothing);
    };
    let there = mountinfo::forebay_at(&point)
        .map_err(|e| Failure::failed(format!("cannot read the list of mounts: {e}")))?;
    if !there {
        return Ok(There::Nothing);
    }
    if !umount::is_dead(&point) {
        return Ok(There::Alive(point));
    }
    let me = nix::unistd::geteuid().as_raw();
    match mountinfo::user_of(&point) {
        Some((uid, _)) if uid != me => Err(Failure::failed(format!(
            "{0} is a Forebay mount of user {uid} whose daemon is gone; take it away with forebay umount {0}",
            point.display()
        ))),
        _ => Ok(There::Dead(point)),
    }
}

/// Removes the mounts that dead daemons have left at the mount point. Their stores are not touched: the data
/// in them is there again when they are mounted.
fn clear(point: &Path) -> Result<()> {
    let store = location::find(point).map(|found| found.info.store);
    let store = store.map_or("its store".into(), |dir| {
        format!("the store {}", dir.display())
    });
    while mountinfo::forebay_at(point).unwrap_or(false) && mountinfo::is_dead(point) {
        umount::detach(point).map_err(|e| {
            Failure::failed(format!(
                "{} is the mount of a dead daemon and cannot be taken away: {e}",
                point.display()
            ))
        })?;
        eprintln!(
            "forebay: the mount of a daemon that is gone was taken away from {}; what that had not drained is in {store}",
            point.display()
        );
    }
    Ok(())
}

/// Succeeds if the existing mount has the requested settings. Otherwise fails and says what differs.
fn is_same(point: &Path, settings: &MountSettings) -> Result<Code> {
    let shown = point.display();
    let client = Client::connect(point)?;
    let info = client.found.info.clone();
    client.ask(&Request::Ping, |_| {})?;
    if info.settings != settings.digest() || settings.foreground {
        let what = match (&settings.store, &settings.backing) {
            _ if settings.foreground => "and --foreground would have nothing to do".into(),
            (store, _) if *store != info.store => {
                format!("with the store {}", info.store.display())
            }
            (_, backing) if *backing != info.backing => {
                format!("over {}", info.backing.display())
            }
            _ => "with other settings".to_owned(),
        };
        return Err(Failure::failed(format!(
            "{shown} is a Forebay mount already, {what}; see forebay status {shown}, or forebay umount it first"
        )));
    }
    crate::output::print(&format!(
        "{shown} is mounted already, with these settings (node {}, store {}, pid {})\n",
        info.node,
        info.store.display(),
        info.pid
    ))?;
    Ok(Code::Ok)
}
