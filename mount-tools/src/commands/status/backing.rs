//! `forebay status --backing`: reports what all nodes have written to the shared directory.

use crate::checks;
use crate::daemon::wiring;
use crate::exit_codes::{Code, Failure, Result};
use crate::output::table::{Align, Table};
use crate::output::{self, Style, plain};
use crate::units;
use forebay_fs::Backing;
use layout_index::sharing::peers::{self, SurveyedFile};
use layout_index::sharing::shared_dir::{NodeRecord, SharedDir};
use layout_index::{Intro, NodeId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[derive(Debug, Serialize)]
pub struct Report {
    pub backing: PathBuf,
    pub nodes: Vec<Node>,
    pub files: Vec<Shared>,
}

#[derive(Debug, Serialize)]
pub struct Node {
    pub id: String,
    pub name: Option<String>,
    /// `mounted`, `left`, or what is wrong with its record.
    pub state: String,
    pub lease_seconds: Option<f64>,
    /// Time since the last heartbeat, by the clock of the file system, which need not be this machine's.
    pub heard_seconds_ago: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Shared {
    pub id: String,
    /// Path below the backing, if the file was found.
    pub path: Option<PathBuf>,
    pub epoch: u64,
    pub published: Vec<Published>,
    /// Nodes with a pending announcement: they have closed the file and not published what they wrote.
    pub announced: Vec<String>,
    pub drained_by: Option<String>,
    pub domains_done: Option<usize>,
    pub domains: Option<u32>,
    pub problems: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Published {
    pub node: String,
    pub batches: usize,
    pub bytes: u64,
}

pub fn show(dir: &Path, json: bool, line: bool) -> Result<()> {
    let path = checks::bare_backing(dir)?;
    let backing = wiring::open_backing(&path)?;
    let report = match open_shared_dir(&backing)? {
        Some(shared_dir) => report(path, &backing, &shared_dir)?,
        None => Report {
            backing: path,
            nodes: Vec::new(),
            files: Vec::new(),
        },
    };
    match json && line {
        true => output::print_json(&report, false),
        false => output::report(&report, json, render),
    }
}

/// Opens the shared directory of a backing for reading only; `None` if there is none.
pub fn open_shared_dir(backing: &Backing) -> Result<Option<SharedDir>> {
    let root = backing.root().try_clone_to_owned();
    root.and_then(SharedDir::open_for_inspection)
        .map_err(|e| match e.raw_os_error() {
            Some(libc::EACCES) => Failure::new(
                Code::Denied,
                "only root and the user whom the daemons run as may look at the directory that nodes share",
            ),
            _ => Failure::failed(format!(
                "the directory that nodes share below the backing: {e}"
            )),
        })
}

fn report(path: PathBuf, backing: &Backing, shared_dir: &SharedDir) -> Result<Report> {
    let failed = |e: std::io::Error| Failure::failed(format!("the shared directory: {e}"));
    let survey = peers::survey(shared_dir).map_err(failed)?;
    let names = names(&survey.nodes);
    Ok(Report {
        backing: path,
        nodes: survey.nodes.iter().map(node).collect(),
        files: survey
            .files
            .iter()
            .map(|file| shared(backing, &names, file))
            .collect(),
    })
}

/// Returns the names of the nodes, by their ids.
pub fn names(nodes: &[NodeRecord]) -> BTreeMap<NodeId, String> {
    let named = |n: &NodeRecord| Some((n.id, n.state.as_ref().ok()?.name.clone()));
    nodes.iter().filter_map(named).collect()
}

pub fn name(names: &BTreeMap<NodeId, String>, id: NodeId) -> String {
    names.get(&id).cloned().unwrap_or_else(|| id.to_string())
}

fn node(node: &NodeRecord) -> Node {
    let state = node.state.as_ref().ok();
    let heard = state.and_then(|s| SystemTime::now().duration_since(s.last_heartbeat).ok());
    Node {
        id: node.id.to_string(),
        name: state.map(|s| s.name.clone()),
        state: match &node.state {
            Ok(state) if state.left => "left".to_owned(),
            Ok(_) => "mounted".to_owned(),
            Err(why) => why.clone(),
        },
        lease_seconds: state.map(|s| s.lease.as_secs_f64()),
        heard_seconds_ago: heard.map(|d| d.as_secs_f64()),
    }
}

/// Returns the current path of the canonical file below the backing, if it can be found.
pub fn path_of(backing: &Backing, file: &SurveyedFile) -> Option<PathBuf> {
    let hint = Intro {
        handle: file.handle.clone(),
        ..Intro::default()
    };
    if hint.handle.is_empty() {
        // Without a handle, only a search through the whole backing would find the file.
        return None;
    }
    let found = backing.find(file.id, &hint).ok()??;
    backing.relative_path(found.as_fd()).ok().flatten()
}

fn shared(backing: &Backing, names: &BTreeMap<NodeId, String>, file: &SurveyedFile) -> Shared {
    let mut published: Vec<Published> = Vec::new();
    for layout in file.layouts.iter().filter(|l| l.batches > 0) {
        let node = name(names, layout.node);
        match published.iter_mut().find(|p| p.node == node) {
            Some(known) => {
                known.batches += layout.batches;
                known.bytes += layout.undrained;
            }
            None => published.push(Published {
                node,
                batches: layout.batches,
                bytes: layout.undrained,
            }),
        }
    }
    Shared {
        id: file.id.to_string(),
        path: path_of(backing, file),
        epoch: file.epoch.0,
        published,
        announced: file.announced.iter().map(|id| name(names, *id)).collect(),
        drained_by: file.holder.map(|id| name(names, id)),
        domains_done: file.round.map(|(done, _)| done),
        domains: file.round.map(|(_, all)| all),
        problems: file.problems.clone(),
    }
}

fn render(report: &Report, style: Style) -> String {
    let mut out = format!(
        "{}\n",
        style.bold(&plain(&report.backing.display().to_string()))
    );
    if report.nodes.is_empty() {
        out.push_str("  No node has ever mounted it.\n");
        return out;
    }
    let mut nodes = Table::new(&[
        ("node", Align::Left),
        ("id", Align::Left),
        ("state", Align::Left),
        ("lease", Align::Right),
        ("heard of", Align::Right),
    ]);
    let seconds = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{s:.1} s"));
    for node in &report.nodes {
        nodes.row([
            plain(node.name.as_deref().unwrap_or("?")),
            node.id.clone(),
            plain(&node.state),
            seconds(node.lease_seconds),
            node.heard_seconds_ago
                .map_or("-".to_owned(), |s| format!("{s:.1} s ago")),
        ]);
    }
    out.push_str(&nodes.render());
    if report.files.is_empty() {
        out.push_str("  Nothing is published that the files below do not have.\n");
        return out;
    }
    let mut files = Table::new(&[
        ("file", Align::Left),
        ("epoch", Align::Right),
        ("published", Align::Left),
        ("announced by", Align::Left),
        ("drained by", Align::Left),
    ]);
    for file in &report.files {
        let published = file.published.iter().map(|p| {
            let bytes = units::bytes(p.bytes);
            format!("{} {bytes}", p.node)
        });
        let published: Vec<String> = published.collect();
        let by = match (&file.drained_by, file.domains_done, file.domains) {
            (Some(by), Some(done), Some(all)) => format!("{by} ({done} of {all} domains)"),
            (Some(by), ..) => by.clone(),
            (None, Some(done), Some(all)) => format!("no node ({done} of {all} domains)"),
            _ => "-".to_owned(),
        };
        let path = file.path.as_ref().map(|p| p.display().to_string());
        files.row([
            plain(path.as_deref().unwrap_or(&file.id)),
            file.epoch.to_string(),
            plain(&published.join(", ")),
            plain(&file.announced.join(", ")),
            plain(&by),
        ]);
        for problem in &file.problems {
            files.note(style.red(&plain(problem)));
        }
    }
    out.push_str(&files.render());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_files_and_what_is_wrong_are_all_said() {
        let report = Report {
            backing: "/scratch".into(),
            nodes: vec![Node {
                id: "00".into(),
                name: Some("n0".into()),
                state: "mounted".into(),
                lease_seconds: Some(30.0),
                heard_seconds_ago: Some(2.0),
            }],
            files: vec![Shared {
                id: "7.1".into(),
                path: Some("run/out".into()),
                epoch: 12,
                published: vec![Published {
                    node: "n0".into(),
                    batches: 1,
                    bytes: 2048,
                }],
                announced: vec!["n1".into()],
                drained_by: Some("n0".into()),
                domains_done: Some(1),
                domains: Some(4),
                problems: vec!["a layout is damaged".into()],
            }],
        };
        let text = render(&report, Style::forced(false));
        for part in [
            "n0",
            "2.0 s ago",
            "run/out",
            "12",
            "2.00 KiB",
            "n1",
            "1 of 4",
            "damaged",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
