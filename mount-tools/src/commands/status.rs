//! `forebay status`: asks the daemons there are, and looks into the stores of those there are not.

pub mod backing;
mod render;
mod targets;

use crate::args::StatusArgs;
use crate::checks;
use crate::control::client::{self, Client};
use crate::control::location::{self, Found};
use crate::control::protocol::{Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::{self, Style};
use crate::report::{Bytes, FileStatus, Source, StatusReport, StoreStatus};
use crate::{mountinfo, units};
use layout_index::Store;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

const AGAIN: Duration = Duration::from_secs(1);

pub fn run(args: &StatusArgs) -> Result<Code> {
    loop {
        if let Some(dir) = &args.backing {
            backing::show(dir, args.json, args.watch)?;
            if !args.watch {
                return Ok(Code::Ok);
            }
            std::thread::sleep(AGAIN);
            continue;
        }
        let reports = collect(args)?;
        show(args, &reports).map_err(super::output_failed)?;
        if !args.watch {
            return Ok(Code::Ok);
        }
        std::thread::sleep(AGAIN);
    }
}

fn show(args: &StatusArgs, reports: &[StatusReport]) -> std::io::Result<()> {
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
    if reports.is_empty() {
        text.push_str("There is no Forebay mount here that you may see.\n");
    }
    output::print(&text)
}

fn collect(args: &StatusArgs) -> Result<Vec<StatusReport>> {
    if let Some(store) = &args.store {
        let store = checks::existing_dir(store, "the store")?;
        let alive = location::all()
            .into_iter()
            .filter(|found| found.info.store == store)
            .find_map(|found| ask(found).ok());
        return Ok(vec![match alive {
            Some(report) => report,
            None => from_store(&store, None)?,
        }]);
    }
    match &args.dir {
        Some(dir) => Ok(vec![of_dir(dir)?]),
        None => {
            let reports = location::all().into_iter().filter_map(|found| {
                let mount = found.info.mount.clone();
                either(found)
                    .map_err(|failure| eprintln!("forebay: {}: {failure}", mount.display()))
                    .ok()
            });
            Ok(reports.collect())
        }
    }
}

fn of_dir(dir: &Path) -> Result<StatusReport> {
    // A mount whose daemon died, or that somebody took away since, is known by its place.
    if let Ok(point) = mountinfo::real_point(dir)
        && let Some(found) = location::find(&point)
    {
        return either(found);
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

/// From the daemon, or from the store if there is no daemon any more.
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

fn from_store(dir: &Path, mount: Option<PathBuf>) -> Result<StatusReport> {
    let inspection = Store::inspect(dir, false, None)
        .map_err(|e| Failure::failed(format!("the store {}: {e}", dir.display())))?;
    let mut files: Vec<FileStatus> = inspection
        .files
        .iter()
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
    files.sort_by(|a, b| (b.undrained, &a.path).cmp(&(a.undrained, &b.path)));
    Ok(StatusReport {
        source: Source::Store,
        version: env!("CARGO_PKG_VERSION").into(),
        node: inspection.node,
        pid: None,
        uptime: None,
        mount,
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
            undrained: inspection.undrained,
            ..Bytes::default()
        },
        files,
        kept: None,
        more_files: 0,
        more_undrained: 0,
        open_handles: None,
        drain: None,
        errors: Vec::new(),
        recovery: Some(inspection.report),
    })
}
