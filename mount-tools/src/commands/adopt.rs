//! `forebay drain --adopt`: finishes what dead nodes have published, from any machine that sees the
//! backing.
//!
//! It takes part like a node: with a store of its own, which stays empty, an id, and a lease for as long
//! as it runs. So it cannot harm nodes that live, and if it is killed, its terms end with its lease.
//! Files are drained as their owners.
//!
//! Layouts of dead nodes stay: such a node needs them when it comes back, to know what it published.
//! Their subfiles go once the files below have everything.

use super::status::backing::{look, name, names, path_of};
use crate::args::DrainArgs;
use crate::checks;
use crate::daemon::{privileges, wiring};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::{self, Style, plain};
use crate::settings::LEASE;
use crate::units;
use flusher::ost::{Fleet, OstSettings};
use flusher::{Flusher, Policy, Settings};
use forebay_fs::Backing;
use indicatif::{ProgressBar, ProgressStyle};
use layout_index::commons::{Commons, Owner};
use layout_index::peers::{self, SurveyedFile};
use layout_index::{NodeId, RealDisk, SpaceOptions, Store, StoreError, StoreOptions};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Default, Serialize)]
struct Report {
    backing: PathBuf,
    dead: Vec<String>,
    /// Files whose canonical file is complete now.
    adopted: Vec<String>,
    /// Files that could not be drained.
    left: Vec<String>,
    /// What only the store of a dead node holds.
    only_in_stores: Vec<Held>,
    removed_subfiles: usize,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Held {
    node: String,
    file: String,
}

/// How long one file may take, unless a time was given.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

pub fn run(args: &DrainArgs) -> Result<Code> {
    privileges::trim()?;
    let path = checks::bare_backing(&args.path)?;
    let backing = wiring::open_backing(&path)?;
    let mut report = Report {
        backing: path.clone(),
        ..Report::default()
    };
    if let Some(commons) = look(&backing)? {
        adopt(args, &path, backing, &commons, &mut report)?;
    }
    show(args, &report)?;
    Ok(match () {
        () if !report.left.is_empty() => Code::Failed,
        () if !report.only_in_stores.is_empty() => Code::StillDirty,
        () => Code::Ok,
    })
}

fn adopt(
    args: &DrainArgs,
    path: &Path,
    backing: Backing,
    commons: &Commons,
    report: &mut Report,
) -> Result<()> {
    let failed = |e: std::io::Error| Failure::failed(format!("the shared directory: {e}"));
    let survey = peers::survey(commons).map_err(failed)?;
    let names = names(&survey.nodes);
    let dead = dead_nodes(commons, &survey.nodes).map_err(failed)?;
    report.dead = dead.iter().map(|id| name(&names, *id)).collect();
    let theirs = |file: &&SurveyedFile| file.layouts.iter().any(|l| dead.contains(&l.node));
    let files: Vec<&SurveyedFile> = survey.files.iter().filter(theirs).collect();
    let called = |file: &SurveyedFile| {
        path_of(&backing, file).map_or(file.id.to_string(), |p| p.display().to_string())
    };
    for file in &survey.files {
        for node in file.promised.iter().filter(|id| dead.contains(id)) {
            report.only_in_stores.push(Held {
                node: name(&names, *node),
                file: called(file),
            });
        }
        report.problems.extend(file.problems.iter().cloned());
    }
    let names: BTreeMap<_, _> = files.iter().map(|f| (f.id, called(f))).collect();
    let ids: Vec<_> = files.iter().map(|f| f.id).collect();
    if !ids.is_empty() {
        drain(args, path, backing, &ids, &names, &dead, report)?;
    }
    Ok(())
}

/// Who is not heard of for a whole lease. That takes as long to find out.
fn dead_nodes(
    commons: &Commons,
    nodes: &[layout_index::commons::NodeRecord],
) -> std::io::Result<BTreeSet<NodeId>> {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} seeing which nodes live {elapsed}") {
        bar.set_style(style);
    }
    let known: Vec<(Owner, Duration)> = nodes
        .iter()
        .filter_map(|n| {
            let state = n.state.as_ref().ok()?;
            let owner = Owner {
                id: n.id,
                run: state.run,
            };
            Some((owner, state.lease))
        })
        .collect();
    let longest = known.iter().map(|(_, lease)| *lease).max();
    let deadline = Instant::now() + longest.unwrap_or_default() + Duration::from_secs(1);
    loop {
        let mut dead = BTreeSet::new();
        for (owner, _) in &known {
            if commons.is_dead(*owner)? {
                dead.insert(owner.id);
            }
        }
        if dead.len() == known.len() || Instant::now() >= deadline {
            bar.finish_and_clear();
            return Ok(dead);
        }
        bar.tick();
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn drain(
    args: &DrainArgs,
    path: &Path,
    backing: Backing,
    ids: &[layout_index::FileId],
    names: &BTreeMap<layout_index::FileId, String>,
    dead: &BTreeSet<NodeId>,
    report: &mut Report,
) -> Result<()> {
    let failed = |e: std::io::Error| Failure::failed(format!("a store to adopt with: {e}"));
    let dir = tempfile::Builder::new()
        .prefix("forebay-adopt-")
        .tempdir()
        .map_err(failed)?;
    let options = StoreOptions {
        dir: dir.path().join("store"),
        node: format!("adopt-{}", std::process::id()),
        backing: path.to_path_buf(),
        index_memory: 16 << 20,
        space: SpaceOptions {
            capacity: Some(64 << 20),
            ..SpaceOptions::default()
        },
    };
    let (store, _) = Store::open(options, Arc::new(RealDisk))
        .map_err(|e| Failure::failed(format!("a store to adopt with: {e}")))?;
    let provider = wiring::provider(args.ost_provider, &backing, &checks::osts(&args.ost)?)?;
    let targets = OstSettings {
        probing: false,
        ..OstSettings::default()
    };
    let fleet = provider.map(|provider| Fleet::start(provider, targets.clone()));
    let (peers, _) = wiring::join(&backing, &store, LEASE, LEASE)?;
    let osts = wiring::osts(fleet.as_ref(), Some(peers.clone()), path, &targets);
    let provider = osts.as_ref().map(|o| o.fleet.provider().clone());
    let settings = Settings {
        policy: Policy::Never,
        ..Settings::default()
    };
    let bare = Arc::new(wiring::Bare(backing));
    let flusher = Flusher::start(store.clone(), bare.clone(), settings, osts)
        .map_err(|e| Failure::failed(format!("the drain could not be started: {e}")))?;
    let bar = ProgressBar::new(ids.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} files  {msg}") {
        bar.set_style(style);
    }
    let deadline = Instant::now() + args.timeout.map_or(PATIENCE, |span| span.0);
    for id in ids {
        let called = names.get(id).cloned().unwrap_or_else(|| id.to_string());
        bar.set_message(plain(&called));
        let file = store.file(*id);
        let ask = || flusher::Canonicals::look(&*bare, &file);
        match peers.look_at(&file, &ask) {
            Ok(()) if flusher.settle(&file, deadline) => report.adopted.push(called),
            Ok(()) => {
                report.problems.extend(file.error().map(|e| e.message));
                report.left.push(called);
            }
            // Its last name is gone: there is nothing to drain into.
            Err(StoreError::Gone(_)) => {}
            Err(e) => {
                report.problems.push(e.to_string());
                report.left.push(called);
            }
        }
        if let (Some(provider), Ok(Some(file))) =
            (&provider, peers::survey_file(peers.commons(), *id))
        {
            remove_idle(&**provider, &file, dead, report);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    flusher.shutdown(false);
    drop(flusher);
    if let Err(error) = store.close() {
        report.problems.push(error.to_string());
    }
    if let Err(error) = peers.leave() {
        report
            .problems
            .push(format!("other nodes wait for this one's lease: {error}"));
    }
    Ok(())
}

/// Subfiles of dead nodes that the canonical file has everything of.
fn remove_idle(
    provider: &dyn flusher::ost::Provider,
    file: &SurveyedFile,
    dead: &BTreeSet<NodeId>,
    report: &mut Report,
) {
    let Ok(osts) = provider.osts() else { return };
    let idle = file.layouts.iter().filter(|l| dead.contains(&l.node));
    for (ost, subfile) in idle.flat_map(|l| &l.idle) {
        let Some(ost) = osts.iter().find(|known| known.name == *ost) else {
            continue;
        };
        match provider.remove(ost, subfile) {
            Ok(()) => report.removed_subfiles += 1,
            Err(error) => report.problems.push(error.to_string()),
        }
    }
}

fn show(args: &DrainArgs, report: &Report) -> Result<()> {
    let shown = if args.json {
        output::print_json(report, true)
    } else {
        output::print(&render(report, Style::for_stdout()))
    };
    shown.map_err(super::output_failed)
}

fn render(r: &Report, style: Style) -> String {
    let list = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => plain(&names.join(", ")),
    };
    let mut out = format!("{}\n", style.bold(&plain(&r.backing.display().to_string())));
    out.push_str(&output::pairs(&[
        ("dead nodes", list(&r.dead)),
        ("drained", units::files(r.adopted.len())),
        ("left", list(&r.left)),
    ]));
    for held in &r.only_in_stores {
        out.push_str(&format!(
            "  {} {}: only in the store of node {}; bring that node back, or run `forebay recover` on its store\n",
            style.yellow("!"),
            plain(&held.file),
            plain(&held.node)
        ));
    }
    for problem in &r.problems {
        out.push_str(&format!("  {} {}\n", style.red("!"), plain(problem)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_what_was_drained_and_what_only_a_store_has() {
        let report = Report {
            backing: "/scratch".into(),
            dead: vec!["n3".into()],
            adopted: vec!["a".into(), "b".into()],
            only_in_stores: vec![Held {
                node: "n3".into(),
                file: "run/c".into(),
            }],
            ..Report::default()
        };
        let text = render(&report, Style::forced(false));
        for part in ["n3", "2 files", "run/c", "forebay recover"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
