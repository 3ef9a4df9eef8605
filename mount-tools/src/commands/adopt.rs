//! `forebay drain --adopt`: finishes what dead nodes have published, from any machine that sees the backing.
//!
//! The command takes part like a node: it has a store of its own, which stays empty, an id, and a lease for
//! as long as it runs. So it cannot harm nodes that are alive, and if it is killed, its terms end with its
//! lease. Files are drained as their owners.
//!
//! Layouts of dead nodes stay: a node that comes back needs them to know what it published. Subfiles of dead
//! nodes are removed once the canonical files have everything, unless a subfile holds more than was
//! published: it may then be the only copy of data in the node's store ([`peers::idle_subfiles`]).

use super::status::backing::{name, names, open_shared_dir, path_of};
use crate::args::DrainArgs;
use crate::checks;
use crate::daemon::joining::{Joining, join};
use crate::daemon::{privileges, wiring};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::{self, Style, plain};
use crate::settings::LEASE;
use crate::units;
use flusher::ost::{OstSettings, Targets};
use flusher::{Flusher, Osts, Settings};
use forebay_fs::Backing;
use indicatif::{ProgressBar, ProgressStyle};
use layout_index::policy::Drain;
use layout_index::sharing::peers::{self, Survey, SurveyedFile};
use layout_index::sharing::shared_dir::{SharedDir, Standing};
use layout_index::{
    CanonicalFiles, FileId, FileSettings, NodeId, RealDisk, SpaceOptions, Store, StoreError,
    StoreOptions,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(Debug, Default, Serialize)]
struct Report {
    backing: PathBuf,
    /// Number of nodes that are known to have mounted the backing.
    nodes: usize,
    dead: Vec<String>,
    /// Files whose canonical file is now complete.
    adopted: Vec<String>,
    /// Files that could not be drained.
    left: Vec<String>,
    /// Files with data that only the store of a dead node holds.
    only_in_stores: Vec<Held>,
    removed_subfiles: usize,
    /// Subfiles of drained files that were left because they hold bytes that were never published: they may
    /// be the store's only copy.
    kept_subfiles: usize,
    problems: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Held {
    node: String,
    /// The file's path, or its id if nothing that is published leads to the path.
    file: String,
    inode: u64,
}

/// Time limit for draining all files together, unless `--timeout` is given.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Prefix of the node names under which this command joins. Its store is gone when it ends.
const ADOPTER: &str = "adopt-";

/// Which nodes are dead.
#[derive(Debug, Default)]
struct Census {
    dead: BTreeSet<NodeId>,
    /// Nodes of which this cannot be told, and why.
    unknown: BTreeMap<NodeId, String>,
    /// The longest lease of any node.
    lease: Option<Duration>,
}

pub fn run(args: &DrainArgs) -> Result<Code> {
    privileges::trim()?;
    let path = checks::bare_backing(&args.path)?;
    let backing = wiring::open_backing(&path)?;
    let mut report = Report {
        backing: path.clone(),
        ..Report::default()
    };
    if let Some(shared_dir) = open_shared_dir(&backing)? {
        adopt(args, &path, backing, &shared_dir, &mut report)?;
    }
    output::report(&report, args.json, render)?;
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
    shared_dir: &SharedDir,
    report: &mut Report,
) -> Result<()> {
    let failed = |e: io::Error| Failure::failed(format!("the shared directory: {e}"));
    let survey = peers::survey(shared_dir).map_err(failed)?;
    let names = names(&survey.nodes);
    let census = census(shared_dir, &survey).map_err(failed)?;
    let dead = &census.dead;
    let adopters = adopters(&survey, dead);
    report.nodes = survey.nodes.len();
    let meant = |id: &&NodeId| !adopters.contains(id) && is_missed(&survey, **id);
    report.dead = dead
        .iter()
        .filter(meant)
        .map(|id| name(&names, *id))
        .collect();
    let called = |file: &SurveyedFile| {
        path_of(&backing, file).map_or(file.id.to_string(), |p| p.display().to_string())
    };
    let mut files = BTreeMap::new();
    for file in &survey.files {
        for node in file.announced.iter().filter(|id| dead.contains(id)) {
            report.only_in_stores.push(Held {
                node: name(&names, *node),
                file: called(file),
                inode: file.id.ino,
            });
        }
        report.problems.extend(file.problems.iter().cloned());
        let unknown = |node: &NodeId| census.unknown.get(node);
        if file.layouts.iter().any(|l| dead.contains(&l.node)) {
            files.insert(file.id, called(file));
        } else if let Some(layout) = file.layouts.iter().find(|l| l.batches > 0)
            && let Some(why) = unknown(&layout.node)
        {
            report.left.push(called(file));
            if !report.problems.contains(why) {
                report.problems.push(why.clone());
            }
        }
    }
    if !files.is_empty() {
        drain(args, path, backing, shared_dir, &files, &census, report)?;
    }
    for id in adopters {
        shared_dir.membership().forget_node(id).map_err(failed)?;
    }
    Ok(())
}

/// Whether the report should name this dead node. A node that ended in good order and has nothing here is
/// left out.
fn is_missed(survey: &Survey, id: NodeId) -> bool {
    let record = survey.nodes.iter().find(|n| n.id == id);
    let left = record.is_some_and(|n| n.state.as_ref().is_ok_and(|s| s.left));
    !left || survey.files.iter().any(|file| has_part(file, id))
}

fn has_part(file: &SurveyedFile, id: NodeId) -> bool {
    file.layouts.iter().any(|l| l.node == id) || file.announced.contains(&id)
}

/// Earlier runs of this command that were killed. They never published or announced anything.
fn adopters(survey: &Survey, dead: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let is = |node: &&layout_index::sharing::shared_dir::NodeRecord| {
        let named = |s: &layout_index::sharing::shared_dir::NodeState| s.name.starts_with(ADOPTER);
        dead.contains(&node.id)
            && node.state.as_ref().is_ok_and(named)
            && !survey.files.iter().any(|file| has_part(file, node.id))
    };
    survey.nodes.iter().filter(is).map(|n| n.id).collect()
}

/// Finds the dead nodes: those that are not heard of for a whole lease, which is how long this may take.
fn census(shared_dir: &SharedDir, survey: &Survey) -> io::Result<Census> {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} seeing which nodes live {elapsed}") {
        bar.set_style(style);
    }
    let mut found = Census::default();
    let mut open = BTreeSet::new();
    for node in &survey.nodes {
        match &node.state {
            Ok(state) => {
                open.insert(node.id);
                found.lease = found.lease.max(Some(state.lease));
            }
            Err(why) => drop(found.unknown.insert(node.id, why.clone())),
        }
    }
    // A node whose record is gone counts as dead. It may have published before.
    for file in &survey.files {
        let parts = file.layouts.iter().map(|l| l.node);
        let parts = parts.chain(file.announced.iter().copied());
        open.extend(parts.filter(|id| !found.unknown.contains_key(id)));
    }
    let deadline = Instant::now() + found.lease.unwrap_or_default() + Duration::from_secs(1);
    loop {
        found.dead.clear();
        for id in &open {
            if shared_dir.membership().is_gone(*id)? {
                found.dead.insert(*id);
            }
        }
        if found.dead.len() == open.len() || Instant::now() >= deadline {
            bar.finish_and_clear();
            return Ok(found);
        }
        bar.tick();
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn drain(
    args: &DrainArgs,
    path: &Path,
    backing: Backing,
    watching: &SharedDir,
    files: &BTreeMap<FileId, String>,
    census: &Census,
    report: &mut Report,
) -> Result<()> {
    let failed = |e: io::Error| Failure::failed(format!("a store to adopt with: {e}"));
    let dir = tempfile::Builder::new()
        .prefix("forebay-adopt-")
        .tempdir()
        .map_err(failed)?;
    let options = StoreOptions {
        dir: dir.path().join("store"),
        node: format!("{ADOPTER}{}", std::process::id()),
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
    let target_settings = OstSettings {
        probing: false,
        ..OstSettings::default()
    };
    let targets = provider.map(|provider| Targets::start(provider, target_settings.clone()));
    // Use the same lease as the nodes: if this command is killed, the next run need not wait longer for it
    // than for them.
    let lease = census.lease.unwrap_or(LEASE);
    store.set_file_settings(FileSettings {
        drain: Drain::Never,
        visibility_timeout: lease,
        ..FileSettings::default()
    });
    let (peers, _) = join(&backing, &store, Joining::alone(lease, Standing::default()))?;
    let osts = Osts::new(
        targets.as_ref(),
        Some(peers.clone()),
        path,
        &target_settings,
    );
    let provider = osts.as_ref().map(|o| o.targets.provider().clone());
    let backing = Arc::new(backing);
    let flusher = Flusher::start(store.clone(), backing.clone(), Settings::default(), osts)
        .map_err(|e| Failure::failed(format!("the drain could not be started: {e}")))?;
    let bar = ProgressBar::new(files.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} files  {msg}") {
        bar.set_style(style);
    }
    let deadline = Instant::now() + args.timeout.map_or(PATIENCE, |span| span.0);
    for (id, called) in files {
        bar.set_message(plain(called));
        let file = store.file(*id);
        let ask = || backing.stat_canonical(&file);
        match peers.refresh_now(&file, &ask) {
            Ok(()) if flusher.drain_published_until(&file, Some(deadline), &|| true) => {
                report.adopted.push(called.clone())
            }
            Ok(()) => {
                report.problems.extend(file.error().map(|e| e.message));
                report.left.push(called.clone());
            }
            // The file's last name is gone: there is nothing to drain into.
            Err(StoreError::Gone(_)) => {}
            Err(e) => {
                report.problems.push(e.to_string());
                report.left.push(called.clone());
            }
        }
        if let Some(provider) = &provider {
            remove_idle(&**provider, watching, *id, &census.dead, report);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    flusher.shutdown(false);
    drop(flusher);
    if let Err(error) = store.close() {
        report.problems.push(error.to_string());
    }
    if let Err(error) = peers.vanish() {
        report
            .problems
            .push(format!("other nodes wait for this one's lease: {error}"));
    }
    Ok(())
}

/// Removes subfiles of dead nodes that are no longer needed. Subfiles of a node that has come back meanwhile
/// are left to that node.
fn remove_idle(
    provider: &dyn flusher::ost::Provider,
    shared_dir: &SharedDir,
    file: FileId,
    dead: &BTreeSet<NodeId>,
    report: &mut Report,
) {
    let Ok(osts) = provider.osts() else { return };
    for node in dead {
        let idle = match peers::idle_subfiles(shared_dir, file, *node) {
            Ok(idle) if idle.is_empty() => continue,
            idle => idle.and_then(|idle| Ok((idle, shared_dir.membership().is_gone(*node)?))),
        };
        let idle = match idle {
            Ok((idle, true)) => idle,
            Ok((_, false)) => continue,
            Err(error) => {
                report.problems.push(error.to_string());
                continue;
            }
        };
        for subfile in idle {
            let Some(ost) = osts.iter().find(|known| known.name == subfile.ost) else {
                continue;
            };
            let len = match provider.open(ost, &subfile.name) {
                Ok(open) => open.metadata().map(|meta| meta.len()),
                // An earlier run has removed it.
                Err(error) if error.errno() == Some(libc::ENOENT) => continue,
                Err(error) => Err(io::Error::other(error.to_string())),
            };
            let removed = match len {
                Ok(len) if subfile.is_all(len) => provider
                    .remove(ost, &subfile.name)
                    .map(|()| report.removed_subfiles += 1)
                    .map_err(|e| e.to_string()),
                Ok(_) => {
                    report.kept_subfiles += 1;
                    Ok(())
                }
                Err(error) => Err(error.to_string()),
            };
            report.problems.extend(removed.err());
        }
    }
}

fn render(r: &Report, style: Style) -> String {
    let list = |names: &[String]| match names {
        [] => "none".to_owned(),
        names => plain(&names.join(", ")),
    };
    let mut out = format!("{}\n", style.bold(&plain(&r.backing.display().to_string())));
    if r.nodes == 0 && r.problems.is_empty() && r.dead.is_empty() {
        out.push_str("  No node has ever mounted it.\n");
        return out;
    }
    let mut subfiles = format!("{} removed", r.removed_subfiles);
    if r.kept_subfiles > 0 {
        subfiles.push_str(&format!(
            ", {} kept: it may be that only their nodes' stores know of bytes in them",
            r.kept_subfiles
        ));
    }
    out.push_str(&output::pairs(&[
        ("dead nodes", list(&r.dead)),
        ("drained", units::files(r.adopted.len())),
        ("left", list(&r.left)),
        ("subfiles", subfiles),
    ]));
    for held in &r.only_in_stores {
        out.push_str(&format!(
            "  {} {} (inode {}): only in the store of node {}; bring that node back, or run `forebay recover` on its store\n",
            style.yellow("!"),
            plain(&held.file),
            held.inode,
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
                inode: 4711,
            }],
            nodes: 1,
            ..Report::default()
        };
        let text = render(&report, Style::forced(false));
        for part in ["n3", "2 files", "run/c", "4711", "forebay recover"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
