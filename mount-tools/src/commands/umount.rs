//! `forebay umount`.

use crate::args::UmountArgs;
use crate::control::client::{self, Client};
use crate::control::location;
use crate::control::protocol::{Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::holders::Holder;
use crate::output::progress::DrainBar;
use crate::output::table::{Align, Table};
use crate::output::{self, plain};
use crate::{mountinfo, units};
use nix::mount::{MntFlags, umount2};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct Outcome {
    mount: PathBuf,
    store: Option<PathBuf>,
    /// False when the daemon was dead and only its mount was taken away.
    daemon: bool,
    /// Left in the store; unknown when there was no daemon to ask.
    undrained: Option<u64>,
    files: Option<usize>,
}

pub fn run(args: &UmountArgs) -> Result<Code> {
    let cannot =
        |e: io::Error| Failure::failed(format!("cannot look at {}: {e}", args.dir.display()));
    let point = mountinfo::real_point(&args.dir).map_err(cannot)?;
    if !mountinfo::forebay_at(&point).map_err(cannot)? {
        return Err(Failure::new(
            Code::NoDaemon,
            format!("{} is not a Forebay mount", args.dir.display()),
        ));
    }
    let outcome = match Client::connect(&point) {
        Ok(client) => ask(args, client, point)?,
        Err(failure) if failure.code == Code::NoDaemon => bury(point, failure)?,
        Err(failure) => return Err(failure),
    };
    if args.json {
        output::print_json(&outcome, true).map_err(super::output_failed)?;
    } else {
        output::print(&sentence(&outcome)).map_err(super::output_failed)?;
    }
    // Data that was told to stay is no failure; data that should not have stayed is.
    let left = outcome.undrained.unwrap_or(0) > 0 || outcome.files.unwrap_or(0) > 0;
    Ok(if left && !args.keep {
        Code::StillDirty
    } else {
        Code::Ok
    })
}

fn ask(args: &UmountArgs, client: Client, mount: PathBuf) -> Result<Outcome> {
    let store = client.found.info.store.clone();
    let request = Request::Umount {
        keep: args.keep,
        timeout_ms: super::millis(args.timeout),
    };
    let bar = DrainBar::new();
    let reply = client.ask(&request, |progress| bar.show(progress));
    bar.clear();
    match reply? {
        Reply::Unmounted { undrained, files } => Ok(Outcome {
            mount,
            store: Some(store),
            daemon: true,
            undrained: Some(undrained),
            files: Some(files),
        }),
        other => Err(client::unexpected(&other)),
    }
}

/// Takes the mount of a dead daemon away. A live one that cannot be reached is left alone.
fn bury(mount: PathBuf, failure: Failure) -> Result<Outcome> {
    if !mountinfo::is_dead(&mount) {
        return Err(failure);
    }
    detach(&mount).map_err(|e| {
        Failure::failed(format!(
            "{} is the mount of a dead daemon and cannot be taken away: {e}",
            mount.display()
        ))
    })?;
    let found = location::find(&mount);
    if let Some(found) = &found
        && let Err(e) = found.place.retract()
    {
        eprintln!("forebay: the dead daemon's control socket stays: {e}");
    }
    Ok(Outcome {
        store: found.map(|f| f.info.store),
        daemon: false,
        undrained: None,
        files: None,
        mount,
    })
}

fn detach(mount: &Path) -> io::Result<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(umount2(mount, MntFlags::MNT_DETACH)?);
    }
    let out = std::process::Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(mount)
        .output()?;
    if out.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    Err(io::Error::other(message))
}

fn sentence(o: &Outcome) -> String {
    let mount = o.mount.display();
    let store = match &o.store {
        Some(store) => format!("the store {}", store.display()),
        None => "its store".to_owned(),
    };
    match (o.daemon, o.undrained, o.files) {
        (true, Some(0), Some(0)) => format!("{mount} is unmounted; everything is drained\n"),
        (true, undrained, files) => format!(
            "{mount} is unmounted; {} in {} stay in {store} for the next mount\n",
            units::bytes(undrained.unwrap_or(0)),
            units::files(files.unwrap_or(0))
        ),
        (false, ..) => format!(
            "{mount} is unmounted; its daemon was dead, and what is not drained is in {store}\n"
        ),
    }
}

/// Lines that say who holds a mount.
pub fn held_by(holders: &[Holder]) -> Vec<String> {
    const MOST: usize = 20;
    if holders.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(&[
        ("pid", Align::Right),
        ("user", Align::Left),
        ("command", Align::Left),
        ("how", Align::Left),
        ("path", Align::Left),
    ]);
    for h in holders.iter().take(MOST) {
        table.row([
            h.pid.to_string(),
            plain(&h.user),
            plain(&h.command),
            plain(&h.how),
            plain(&h.path),
        ]);
    }
    let mut lines: Vec<String> = table.render().lines().map(String::from).collect();
    if holders.len() > MOST {
        lines.push(format!("  and {} more", holders.len() - MOST));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_says_what_is_left_and_where() {
        let mut o = Outcome {
            mount: "/m".into(),
            store: Some("/s".into()),
            daemon: true,
            undrained: Some(0),
            files: Some(0),
        };
        assert_eq!(sentence(&o), "/m is unmounted; everything is drained\n");
        (o.undrained, o.files) = (Some(2048), Some(3));
        assert!(sentence(&o).contains("2.00 KiB in 3 files stay in the store /s"));
        (o.daemon, o.undrained) = (false, None);
        assert!(sentence(&o).contains("dead"));
    }

    #[test]
    fn many_holders_are_cut() {
        let holder = Holder {
            pid: 1,
            user: "u".into(),
            command: "evil\x1b[2J".into(),
            how: "cwd".into(),
            path: "/m".into(),
        };
        let lines = held_by(&vec![holder; 25]);
        assert_eq!(lines.len(), 22);
        assert!(lines[21].contains("5 more"));
        assert!(lines.iter().all(|l| !l.contains('\x1b')));
        assert!(held_by(&[]).is_empty());
    }
}
