//! `forebay recover`: drains a store without a mount.
//!
//! The command takes the store's lock as a mount does, replays the log and writes everything undrained into
//! the files below, each as its owner. It can be interrupted and started again at any time. With `--dry-run`
//! it reads and checks every undrained byte, and writes nothing, not even to the store.

use crate::args::RecoverArgs;
use crate::checks;
use crate::daemon::joining::{Joining, join};
use crate::daemon::{privileges, wiring};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::progress::DrainBar;
use crate::output::{self, Style, plain};
use crate::settings::{INDEX_MEMORY, LEASE};
use crate::units;
use flusher::ost::{OstSettings, Provider, Targets};
use flusher::{Flusher, Opener, Osts, Selection, Settings, Verdict};
use layout_index::policy::{Drain, Subfiles};
use layout_index::sharing::shared_dir::Standing;
use layout_index::store::superblock::Superblock;
use layout_index::{
    File, FileId, FileSettings, NodeId, Peers, Publisher, RealDisk, RecoveryReport, SpaceOptions,
    Store, StoreError, StoreOptions,
};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, Default, Serialize)]
struct Report {
    store: PathBuf,
    backing: PathBuf,
    node: String,
    dry_run: bool,
    recovery: RecoveryReport,
    /// Files and bytes that are now in the canonical files; with --dry-run: that would be.
    salvaged_files: usize,
    salvaged_bytes: u64,
    /// Files and bytes that are still in the store, or published, and not in the canonical files.
    left_files: usize,
    left_bytes: u64,
    /// Some of the data that is left does not match its checksums.
    damaged: bool,
    /// Nothing is left in the store: it can be used for another backing.
    released: bool,
    /// It is not certain that all data is in the files below: the store cannot record it, or the publications
    /// of this node cannot be read.
    #[serde(skip)]
    unconfirmed: bool,
    problems: Vec<String>,
}

pub fn run(args: &RecoverArgs) -> Result<Code> {
    privileges::trim()?;
    let backing_path = checks::bare_backing(&args.backing)?;
    let dir = checks::existing_dir(&args.store, "the store")?;
    let failed = |e: StoreError| Failure::failed(e.to_string());
    let superblock = Superblock::load(&RealDisk, &dir)
        .map_err(failed)?
        .ok_or_else(|| Failure::usage(format!("{} is not a Forebay store", dir.display())))?;
    if superblock.backing != backing_path {
        return Err(Failure::usage(format!(
            "store {} belongs to {}, not to {}",
            dir.display(),
            superblock.backing.display(),
            backing_path.display()
        )));
    }
    let backing = wiring::open_backing(&backing_path)?;
    let provider = wiring::provider(args.ost_provider, &backing, &checks::osts(&args.ost)?)?;
    if args.dry_run {
        let report = verify(&dir, backing_path, provider)?;
        output::report(&report, args.json, render)?;
        return Ok(code(&report));
    }
    // It is already decided where the data goes: the targets are only needed to find existing subfiles.
    let target_settings = OstSettings {
        probing: false,
        ..OstSettings::default()
    };
    let targets = provider.map(|provider| Targets::start(provider, target_settings.clone()));
    let options = StoreOptions {
        dir: dir.clone(),
        node: superblock.node.clone(),
        backing: backing_path.clone(),
        index_memory: INDEX_MEMORY,
        space: SpaceOptions::default(),
    };
    let (store, recovery) = Store::open(options, Arc::new(RealDisk)).map_err(failed)?;
    let mut report = Report {
        store: dir,
        backing: backing_path,
        node: superblock.node,
        dry_run: false,
        damaged: !recovery.damaged.is_empty(),
        problems: recovery.damaged.clone(),
        recovery,
        ..Report::default()
    };
    let standing = Standing {
        home: store.home(),
        ..Standing::default()
    };
    store.set_file_settings(FileSettings {
        drain: Drain::Never,
        subfiles: Subfiles::Never,
        visibility_timeout: LEASE,
        ..FileSettings::default()
    });
    let (peers, pending) = join(&backing, &store, Joining::alone(LEASE, standing))?;
    let osts = Osts::new(
        targets.as_ref(),
        Some(peers.clone()),
        &report.backing,
        &target_settings,
    );
    let left = drain(&store, backing, osts, &pending, &mut report)?;
    count_published(&peers, store.id(), &left, &mut report);
    let clean = code(&report) == Code::Ok;
    report.released = clean && store.release().map_err(failed)?;
    store.close().map_err(failed)?;
    if let Err(error) = peers.leave() {
        report
            .problems
            .push(format!("other nodes wait for this one's lease: {error}"));
    }
    output::report(&report, args.json, render)?;
    Ok(code(&report))
}

fn files(store: &Store) -> Vec<Arc<File>> {
    let mut files = store.dirty_files();
    files.retain(|f| !f.is_unlinked());
    files
}

fn drain(
    store: &Arc<Store>,
    backing: forebay_fs::Backing,
    osts: Option<Osts>,
    pending: &[Arc<File>],
    report: &mut Report,
) -> Result<Vec<FileId>> {
    store
        .start_maintenance()
        .map_err(|e| Failure::failed(e.to_string()))?;
    let settings = Settings {
        verify: true,
        ..Settings::default()
    };
    let flusher = Flusher::start(store.clone(), Arc::new(backing), settings, osts)
        .map_err(|e| Failure::failed(format!("the drain could not be started: {e}")))?;
    pending
        .iter()
        .for_each(|file| flusher.request_publish(file));
    let before = flusher.files().len();
    let bar = DrainBar::new();
    let handle = flusher.drain(Selection::All);
    let verdict = handle.wait_with(None, |progress| {
        bar.show(progress);
        true
    });
    bar.clear();
    flusher.shutdown(false);
    // This includes files that the store does not list: data that this node has published has left the store.
    let left: Vec<FileId> = flusher.files().iter().map(|f| f.id()).collect();
    let end = handle.progress();
    report.left_files = left.len();
    report.left_bytes = end.total - end.done;
    report.salvaged_files = before - left.len().min(before);
    report.salvaged_bytes = end.done;
    report.damaged |= files(store).iter().any(|f| !f.damage().is_empty());
    let messages = end.errors.into_iter().map(|e| e.error.message);
    report.problems.extend(messages);
    report.unconfirmed = verdict != Verdict::Drained;
    if report.unconfirmed && left.is_empty() {
        report.problems.push(
            "everything is in the files below, but the store cannot record that it is".to_owned(),
        );
    }
    Ok(left)
}

/// Counts publications that the drain does not know because they could not be taken up at the start.
fn count_published(peers: &Peers, node: NodeId, known: &[FileId], report: &mut Report) {
    match layout_index::sharing::peers::published_by(peers.shared_dir(), node) {
        Ok(files) => {
            for file in files.into_iter().filter(|f| !known.contains(&f.id)) {
                report.left_files += 1;
                report.left_bytes += file.layouts.iter().map(|l| l.undrained).sum::<u64>();
                report.problems.extend(file.problems);
            }
        }
        Err(error) => {
            report.unconfirmed = true;
            report.problems.push(format!(
                "what this node has published cannot be looked at: {error}"
            ));
        }
    }
}

/// Reports what would be salvaged, without changing the store.
fn verify(dir: &Path, backing: PathBuf, provider: Option<Arc<dyn Provider>>) -> Result<Report> {
    let subfiles = provider.map(|p| Arc::new(Opener::new(p)) as Arc<dyn layout_index::Subfiles>);
    let seen = Store::inspect(dir, true, subfiles).map_err(|e| Failure::failed(e.to_string()))?;
    let mut report = Report {
        store: dir.to_path_buf(),
        backing,
        node: seen.node,
        dry_run: true,
        damaged: !seen.report.damaged.is_empty(),
        problems: seen.report.damaged.clone(),
        recovery: seen.report,
        ..Report::default()
    };
    for file in seen.files.into_iter().filter(|f| !f.unlinked) {
        if file.damage.is_empty() {
            report.salvaged_files += 1;
            report.salvaged_bytes += file.undrained;
        } else {
            report.damaged = true;
            report.left_files += 1;
            report.left_bytes += file.undrained;
            report.problems.extend(file.damage);
        }
    }
    Ok(report)
}

fn code(report: &Report) -> Code {
    match (report.damaged, report.left_files) {
        (true, _) => Code::Damaged,
        (false, 0) if !report.unconfirmed => Code::Ok,
        (false, _) => Code::Failed,
    }
}

fn render(r: &Report, style: Style) -> String {
    let path = |p: &Path| plain(&p.display().to_string());
    let amount =
        |files: usize, bytes: u64| format!("{} in {}", units::bytes(bytes), units::files(files));
    let mut out = format!(
        "{}  (node {})\n",
        style.bold(&path(&r.store)),
        plain(&r.node)
    );
    let (good, bad) = match r.dry_run {
        true => ("sound", "damaged"),
        false => ("salvaged", "left"),
    };
    out.push_str(&output::pairs(&[
        ("backing", path(&r.backing)),
        (
            "replayed",
            format!(
                "{} records, {} torn by a power failure, in {:.1} s",
                r.recovery.replayed, r.recovery.torn, r.recovery.seconds
            ),
        ),
        (
            good,
            style.green(&amount(r.salvaged_files, r.salvaged_bytes)),
        ),
        (
            bad,
            match r.left_files {
                0 => "nothing".to_owned(),
                n => style.red(&amount(n, r.left_bytes)),
            },
        ),
    ]));
    for problem in &r.problems {
        out.push_str(&format!("  {} {}\n", style.red("!"), plain(problem)));
    }
    if r.released {
        out.push_str("  Nothing is left in the store; it may be mounted over any backing.\n");
    }
    if r.dry_run {
        out.push_str("  Nothing was moved (--dry-run).\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_tells_damage_from_failure() {
        let mut report = Report::default();
        assert_eq!(code(&report), Code::Ok);
        report.unconfirmed = true;
        assert_eq!(code(&report), Code::Failed);
        (report.unconfirmed, report.left_files) = (false, 1);
        assert_eq!(code(&report), Code::Failed);
        report.damaged = true;
        assert_eq!(code(&report), Code::Damaged);
    }

    #[test]
    fn the_report_says_what_was_salvaged_and_what_not() {
        let report = Report {
            store: "/s".into(),
            node: "n0".into(),
            salvaged_files: 2,
            salvaged_bytes: 2048,
            left_files: 1,
            left_bytes: 10,
            problems: vec!["draining f: no space".into()],
            ..Report::default()
        };
        let text = render(&report, Style::forced(false));
        assert!(text.contains("2.00 KiB in 2 files"), "{text}");
        assert!(text.contains("10 B in 1 file"), "{text}");
        assert!(text.contains("! draining f"), "{text}");
    }
}
