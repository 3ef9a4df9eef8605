//! `forebay umount`.

use crate::args::UmountArgs;
use crate::control::client::{self, Client};
use crate::control::location::{self, Found};
use crate::control::protocol::{Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::holders::Holder;
use crate::output::progress::DrainBar;
use crate::output::table::{Align, Table};
use crate::output::{self, plain};
use crate::report::StatusReport;
use crate::{mountinfo, process, units};
use nix::mount::{MntFlags, umount2};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct Outcome {
    mount: PathBuf,
    store: Option<PathBuf>,
    /// False if the daemon was dead and only its mount was removed.
    daemon: bool,
    /// Bytes left in the store, or published and not drained. `None` if there was no daemon to ask and the
    /// store cannot be read.
    undrained: Option<u64>,
    files: Option<usize>,
    /// Why `undrained` is unknown, or does not include what was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

pub fn run(args: &UmountArgs) -> Result<Code> {
    if args.is_dead {
        return Ok(match mountinfo::is_dead(&args.dir) {
            true => Code::Ok,
            false => Code::Busy,
        });
    }
    let cannot =
        |e: io::Error| Failure::failed(format!("cannot look at {}: {e}", args.dir.display()));
    let point = mountinfo::real_point(&args.dir).map_err(cannot)?;
    let mounted = mountinfo::forebay_at(&point).map_err(cannot)?;
    let outcome = match Client::connect(&point) {
        // The daemon may also run without its mount, if another program has unmounted it: it drains what is
        // left.
        Ok(client) => ask(args, client, point)?,
        Err(failure) if failure.code == Code::NoDaemon && mounted => bury(point, failure)?,
        Err(failure) if mounted => return Err(failure),
        Err(failure) => match location::find(&point) {
            // The daemon is dead, and another program has removed its mount.
            Some(found) if client::is_gone(&found) => report_left(point, Some(found)),
            Some(_) => return Err(failure),
            None => {
                return Err(Failure::new(
                    Code::NoDaemon,
                    format!("{} is not a Forebay mount", args.dir.display()),
                ));
            }
        },
    };
    output::report(&outcome, args.json, |outcome, _| sentence(outcome))?;
    Ok(code(&outcome, args.keep))
}

/// Undrained data is a failure unless the user asked to keep it. Not knowing whether there is any is a
/// failure too.
fn code(outcome: &Outcome, keep: bool) -> Code {
    match (outcome.undrained, outcome.files) {
        _ if keep => Code::Ok,
        (Some(0), Some(0)) if outcome.problem.is_none() => Code::Ok,
        (Some(0), Some(0)) | (None, _) | (_, None) => Code::Failed,
        (Some(_), Some(_)) => Code::StillDirty,
    }
}

fn ask(args: &UmountArgs, client: Client, mount: PathBuf) -> Result<Outcome> {
    let store = client.found.info.store.clone();
    let request = Request::Umount {
        keep: args.keep,
        timeout_ms: super::millis(args.timeout),
    };
    let bar = DrainBar::new();
    let reply = client.ask_to_end(&request, |progress| bar.show(progress));
    bar.clear();
    match reply? {
        Reply::Unmounted { undrained, files } => Ok(Outcome {
            mount,
            store: Some(store),
            daemon: true,
            undrained: Some(undrained),
            files: Some(files),
            problem: None,
        }),
        other => Err(client::unexpected(&other)),
    }
}

/// Removes the mount of a dead daemon, and reads its store. A daemon that is alive and cannot be reached is
/// left alone. A daemon that was killed and cannot end, because it waits for a file system below that hangs,
/// counts as dead: the kernel answers for it from then on.
fn bury(mount: PathBuf, failure: Failure) -> Result<Outcome> {
    let found = location::find(&mount);
    let killed = found
        .as_ref()
        .is_some_and(|f| process::is_killed(f.info.pid));
    if !killed && !is_dead(&mount) {
        return Err(failure);
    }
    if killed
        && let Ok(Some(device)) = mountinfo::device_of(&mount)
        && let Err(e) = forebay_fs::abort_connection(device)
    {
        eprintln!("forebay: requests of the dead mount wait until its daemon has ended: {e}");
    }
    detach(&mount).map_err(|e| {
        Failure::failed(format!(
            "{} is the mount of a dead daemon and cannot be taken away: {e}",
            mount.display()
        ))
    })?;
    Ok(report_left(mount, found))
}

/// Whether the daemon of the mount at `point` is gone, as the user who mounted it sees it.
pub fn is_dead(point: &Path) -> bool {
    mountinfo::is_dead(point) || super::status::is_dead_to_its_user(point)
}

/// Reads the store of a dead daemon whose mount is gone, and removes the daemon's entry from the runtime
/// directory.
fn report_left(mount: PathBuf, found: Option<Found>) -> Outcome {
    let left = match &found {
        Some(found) => left_of(&found.info.store, found.owner),
        None => Err("no store is known of it".to_owned()),
    };
    if let Some(found) = &found
        && let Err(e) = found.place.retract(found.info.pid)
    {
        eprintln!("forebay: the dead daemon's control socket stays: {e}");
    }
    let (undrained, files, problem) = match left {
        Ok(left) => (
            Some(left.bytes.undrained),
            Some(left.files.len()),
            left.unknown,
        ),
        Err(why) => (None, None, Some(why)),
    };
    Outcome {
        store: found.map(|f| f.info.store),
        daemon: false,
        undrained,
        files,
        problem,
        mount,
    }
}

/// Returns what a store without a daemon and its node's publications hold, as the store's owner sees it.
fn left_of(store: &Path, owner: u32) -> Result<StatusReport, String> {
    let report = match owner == nix::unistd::geteuid().as_raw() {
        true => super::status::from_store(store, None),
        false => super::status::as_owner(store, owner),
    };
    report.map_err(|e| e.to_string())
}

pub fn detach(mount: &Path) -> io::Result<()> {
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
        // The path may come from a file that another user has written.
        Some(store) => format!("the store {}", plain(&store.display().to_string())),
        None => "its store".to_owned(),
    };
    let dead = if o.daemon {
        ""
    } else {
        " its daemon was dead;"
    };
    match (o.undrained, o.files) {
        (Some(0), Some(0)) => match &o.problem {
            None => format!("{mount} is unmounted;{dead} everything is drained\n"),
            Some(why) => format!(
                "{mount} is unmounted;{dead} nothing undrained is in {store}; what its node has published and is not drained cannot be known: {}\n",
                plain(why)
            ),
        },
        (Some(undrained), Some(files)) => format!(
            "{mount} is unmounted;{dead} {} in {} stay undrained for the next mount of {store}{}\n",
            units::bytes(undrained),
            units::files(files),
            match &o.problem {
                None => String::new(),
                Some(why) => format!(
                    "; what its node has published and is not drained cannot be known: {}",
                    plain(why)
                ),
            }
        ),
        _ => format!(
            "{mount} is unmounted;{dead} what is not drained is in {store}, which cannot be looked at: {}\n",
            plain(o.problem.as_deref().unwrap_or("no answer"))
        ),
    }
}

/// Lines that list the processes that hold a mount.
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
            problem: None,
        };
        assert_eq!(sentence(&o), "/m is unmounted; everything is drained\n");
        (o.undrained, o.files) = (Some(2048), Some(3));
        assert!(
            sentence(&o)
                .contains("2.00 KiB in 3 files stay undrained for the next mount of the store /s")
        );
        o.daemon = false;
        assert!(sentence(&o).contains("dead; 2.00 KiB"));
        o.problem = Some("no answer".into());
        let said = sentence(&o);
        assert!(said.contains("3 files stay") && said.contains("no answer"));
        (o.undrained, o.files) = (Some(0), Some(0));
        let said = sentence(&o);
        assert!(!said.contains("everything is drained") && said.contains("no answer"));
        (o.undrained, o.files, o.problem) = (None, None, Some("permission denied".into()));
        assert!(sentence(&o).contains("permission denied"));
    }

    #[test]
    fn the_code_is_what_the_help_says() {
        let left = |undrained, files| Outcome {
            mount: "/m".into(),
            store: None,
            daemon: false,
            undrained,
            files,
            problem: None,
        };
        for daemon in [true, false] {
            let of = |undrained, files, keep| {
                let outcome = Outcome {
                    daemon,
                    ..left(undrained, files)
                };
                code(&outcome, keep)
            };
            assert_eq!(of(Some(0), Some(0), false), Code::Ok);
            assert_eq!(of(Some(9), Some(1), false), Code::StillDirty);
            // A file may have only a new size to drain, and no bytes.
            assert_eq!(of(Some(0), Some(1), false), Code::StillDirty);
            assert_eq!(of(None, None, false), Code::Failed);
            assert_eq!(of(Some(9), Some(1), true), Code::Ok);
            let unknown = |undrained, files| {
                let problem = Some("no answer".into());
                code(
                    &Outcome {
                        problem,
                        ..left(undrained, files)
                    },
                    false,
                )
            };
            assert_eq!(unknown(Some(0), Some(0)), Code::Failed);
            assert_eq!(unknown(Some(9), Some(1)), Code::StillDirty);
        }
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
