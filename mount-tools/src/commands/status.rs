//! `forebay status`: asks the daemons that run, and reads the stores of mounts whose daemon is gone.

pub mod backing;
mod owner;
mod published;
mod render;
mod targets;

use crate::args::StatusArgs;
use crate::checks;
use crate::control::client::{self, Client};
use crate::control::location::{self, Found};
use crate::control::protocol::{Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::{self, Style};
use crate::report::{Bytes, ErrorStatus, FileStatus, Source, StatusReport, StoreStatus};
use crate::{mountinfo, units};
use layout_index::{NodeId, Store};
use published::{Canonical, Published};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

const AGAIN: Duration = Duration::from_secs(1);

pub fn run(args: &StatusArgs) -> Result<Code> {
    if let (Some(id), Some(dir)) = (args.published_by, &args.backing) {
        return published::tell(NodeId(id), dir);
    }
    loop {
        if let Some(dir) = &args.backing {
            backing::show(dir, args.json, args.watch)?;
            if !args.watch {
                return Ok(Code::Ok);
            }
            std::thread::sleep(AGAIN);
            continue;
        }
        let (reports, code) = collect(args)?;
        show(args, &reports)?;
        if !args.watch {
            return Ok(code);
        }
        std::thread::sleep(AGAIN);
    }
}

fn show(args: &StatusArgs, reports: &[StatusReport]) -> Result<()> {
    if args.json {
        let one = args.dir.is_some() || args.store.is_some();
        return match reports {
            [report] if one => output::print_json(report, !args.watch),
            _ => output::print_json(&reports, !args.watch),
        };
    }
    let style = Style::for_stdout();
    let mut text = String::new();
    if args.watch && std::io::stdout().is_terminal() {
        text.push_str("\x1b[H\x1b[2J");
    }
    for (i, report) in reports.iter().enumerate() {
        if i > 0 {
            text.push('\n');
        }
        text.push_str(&render::report(report, style));
    }
    let others = match (&args.dir, &args.store) {
        (None, None) => owner::mounts_of_others(),
        _ => String::new(),
    };
    if reports.is_empty() && others.is_empty() {
        text.push_str("There is no Forebay mount here that you may see.\n");
    }
    text.push_str(&others);
    output::print(&text)
}

/// Returns the reports and one exit code for all of them. A mount without a daemon is shown from its store,
/// but still counts as a failure. A store that was given by its path needs no daemon.
fn collect(args: &StatusArgs) -> Result<(Vec<StatusReport>, Code)> {
    if let Some(store) = &args.store {
        if let Some(uid) = owner::of_store(store) {
            let report = owner::ask("--store", store, uid)?;
            let code = code_of_store(&report);
            return Ok((vec![report], code));
        }
        let store = checks::existing_dir(store, "the store")?;
        let alive = location::all()
            .into_iter()
            .filter(|found| found.info.store == store)
            .find_map(|found| ask(found).ok());
        let report = match alive {
            Some(report) => report,
            None => from_store(&store, None)?,
        };
        let code = code_of_store(&report);
        return Ok((vec![report], code));
    }
    if let Some(dir) = &args.dir {
        let report = of_dir(dir)?;
        let code = code_of(&report);
        return Ok((vec![report], code));
    }
    let mut worst = Code::Ok;
    let mut reports = Vec::new();
    for found in location::all() {
        let mount = found.info.mount.clone();
        let code = match either(found) {
            Ok(report) => {
                let code = code_of(&report);
                reports.push(report);
                code
            }
            Err(failure) => {
                eprintln!("forebay: {}: {failure}", mount.display());
                failure.code
            }
        };
        if worst == Code::Ok {
            worst = code;
        }
    }
    Ok((reports, worst))
}

fn code_of(report: &StatusReport) -> Code {
    match report.source {
        Source::Daemon => Code::Ok,
        Source::Store => Code::NoDaemon,
    }
}

/// A report that misses a part of the data is a failure.
fn code_of_store(report: &StatusReport) -> Code {
    match report.unknown {
        None => Code::Ok,
        Some(_) => Code::Failed,
    }
}

fn of_dir(dir: &Path) -> Result<StatusReport> {
    // This must come before anything is looked up below another user's mount.
    if let Some(uid) = owner::of_mount(dir) {
        return owner::ask("--", dir, uid);
    }
    // A mount whose daemon has died, or that another program has unmounted, is found by its mount point.
    if let Ok(point) = mountinfo::real_point(dir) {
        if let Some(uid) = owner::of_mount(&point) {
            return owner::ask("--", &point, uid);
        }
        if let Some(found) = location::find(&point) {
            return either(found);
        }
    }
    let (mount, _) = client::mount_of(dir)?;
    ask(Client::connect(&mount)?.found)
}

fn ask(found: Found) -> Result<StatusReport> {
    match Client::of(found)?.ask(&Request::Status, |_| {})? {
        Reply::Status(report) => Ok(*report),
        other => Err(client::unexpected(&other)),
    }
}

/// Asks the daemon, or reads the store if the daemon is gone.
fn either(found: Found) -> Result<StatusReport> {
    let info = found.info.clone();
    match ask(found) {
        Err(failure) if failure.code == Code::NoDaemon => from_store(&info.store, Some(info.mount))
            .map_err(|from_store| {
                Failure::new(Code::NoDaemon, format!("{failure}; and {from_store}"))
            }),
        other => other,
    }
}

/// Returns what another user's store holds, as that user sees it.
pub(super) fn as_owner(store: &Path, uid: u32) -> Result<StatusReport> {
    owner::ask("--store", store, uid)
}

/// Whether the user who mounted `point` finds the mount dead. Root may not access the mount of a user who has
/// not allowed it (`allow_other`), and the kernel then answers as if all were well, so a process of that user
/// asks.
pub(super) fn is_dead_to_its_user(point: &Path) -> bool {
    owner::is_dead(point).unwrap_or_else(|failure| {
        eprintln!("forebay: {failure}");
        false
    })
}

/// Reports what a store without a daemon holds, and what its node has published and is not drained. Files
/// that were removed while they were open do not count: the next mount drops their data.
pub(super) fn from_store(dir: &Path, mount: Option<PathBuf>) -> Result<StatusReport> {
    let inspection = Store::inspect(dir, false, None)
        .map_err(|e| Failure::failed(format!("the store {}: {e}", dir.display())))?;
    let mut files: Vec<FileStatus> = inspection
        .files
        .iter()
        .filter(|f| !f.unlinked)
        .map(|f| FileStatus {
            path: f.path.display().to_string(),
            id: f.id.to_string(),
            size: f.size,
            undrained: f.undrained,
            uid: f.uid,
            writers: None,
            error: None,
        })
        .collect();
    let mut errors = Vec::new();
    let unknown = published::by(inspection.id, &inspection.backing)
        .map(|(published, canonicals)| {
            add_published(&mut files, &mut errors, published, &canonicals);
        })
        .err();
    files.sort_by(|a, b| (b.undrained, &a.path).cmp(&(a.undrained, &b.path)));
    Ok(StatusReport {
        source: Source::Store,
        version: env!("CARGO_PKG_VERSION").into(),
        node: inspection.node,
        pid: None,
        uptime: None,
        mount,
        mounted: None,
        backing: inspection.backing,
        targets: None,
        store: StoreStatus {
            path: dir.to_path_buf(),
            capacity: None,
            used: inspection.used,
            live: None,
            high_watermark: None,
            segment: None,
            segments: inspection.segments,
            failure: None,
        },
        bytes: Bytes {
            undrained: files.iter().map(|f| f.undrained).sum(),
            ..Bytes::default()
        },
        files,
        unknown,
        kept: None,
        more_files: 0,
        more_undrained: 0,
        open_handles: None,
        operations: BTreeMap::new(),
        drain: None,
        errors,
        overlaps: 0,
        overlapped: Vec::new(),
        recovery: Some(inspection.report),
    })
}

/// Adds published data to the list of files. A file may have some of its bytes in the store and some
/// published.
fn add_published(
    files: &mut Vec<FileStatus>,
    errors: &mut Vec<ErrorStatus>,
    published: Vec<Published>,
    canonicals: &[Canonical],
) {
    for part in published {
        let id = part.id.to_string();
        let canonical = canonicals.iter().find(|c| c.id == part.id);
        let index = files.iter().position(|f| f.id == id).unwrap_or_else(|| {
            files.push(FileStatus {
                path: canonical.map_or(format!("(file {id})"), |c| c.path.display().to_string()),
                id,
                size: canonical.map_or(0, |c| c.size),
                undrained: 0,
                uid: canonical.map_or(nix::unistd::geteuid().as_raw(), |c| c.uid),
                writers: None,
                error: None,
            });
            files.len() - 1
        });
        let file = &mut files[index];
        file.undrained += part.bytes;
        file.size = file.size.max(part.end);
        for message in part.problems {
            file.error = Some(message.clone());
            let path = file.path.clone();
            errors.push(ErrorStatus { path, message });
        }
    }
}
