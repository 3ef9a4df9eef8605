//! Output of `status` and `logs`.

use crate::failure::{Failure, Result};
use crate::network;
use crate::node::{FOREVER, OnNode};
use crate::state::{Network, Place, State};
use crate::wait;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Serialize)]
struct Report {
    dir: PathBuf,
    mount: PathBuf,
    backing: PathBuf,
    network: Network,
    /// False if `up` was killed half way.
    complete: bool,
    nodes: Vec<NodeReport>,
}

#[derive(Serialize)]
struct NodeReport {
    name: String,
    /// `up`, `dead` (its daemon does not run) or `gone` (its namespaces do not exist either).
    state: &'static str,
    daemon: Option<i32>,
    keeper: Option<i32>,
    address: Option<String>,
    undrained: Option<u64>,
    /// Why one of the values above is unknown.
    problem: Option<String>,
    /// `forebay status --json` of its mount.
    report: Option<Value>,
}

pub fn status(place: &Place, json: bool) -> Result<()> {
    let state = State::load(place)?;
    let nodes = OnNode::all(place, &state).enumerate();
    let report = Report {
        dir: place.0.clone(),
        mount: state.mount.clone(),
        backing: state.backing.clone(),
        network: state.network,
        complete: state.complete,
        nodes: nodes.map(|(index, on)| of_node(index, &on)).collect(),
    };
    if json {
        let text = serde_json::to_string_pretty(&report)
            .map_err(|e| Failure::failed(format!("no report: {e}")))?;
        return super::say(&text);
    }
    super::say(render(&report).trim_end())
}

fn of_node(index: usize, on: &OnNode) -> NodeReport {
    let keeper = on.node.keeper().ok().map(|keeper| keeper.process.pid);
    let daemon = on.node.daemon().map(|daemon| daemon.pid);
    let (report, undrained) = match (keeper, daemon) {
        (Some(_), Some(_)) => match on.status() {
            Ok(report) => {
                let undrained = report["bytes"]["undrained"].as_u64();
                (Ok(Some(report)), Ok(undrained))
            }
            Err(failure) => (Err(failure), Ok(None)),
        },
        _ => (Ok(None), on.left_in_store().map(Some)),
    };
    let problem = match (&report, &undrained) {
        (Err(failure), _) | (_, Err(failure)) => Some(failure.message.clone()),
        _ => None,
    };
    NodeReport {
        name: on.name().to_owned(),
        state: match (keeper, daemon) {
            (None, _) => "gone",
            (Some(_), None) => "dead",
            (Some(_), Some(_)) => "up",
        },
        daemon,
        keeper,
        address: (on.state.network == Network::Own).then(|| network::address(index)),
        undrained: undrained.as_ref().ok().copied().flatten(),
        problem,
        report: report.unwrap_or_default(),
    }
}

fn render(report: &Report) -> String {
    let mut text = format!(
        "{}: {} at {} over {}\n",
        report.dir.display(),
        match report.nodes.len() {
            1 => "1 node".to_owned(),
            n => format!("{n} nodes"),
        },
        report.mount.display(),
        report.backing.display()
    );
    if !report.complete {
        text.push_str("  it was never finished: take it down\n");
    }
    let dash = || "-".to_owned();
    let number = |pid: Option<i32>| pid.map_or_else(dash, |pid| pid.to_string());
    let mut rows =
        vec![["node", "state", "daemon", "keeper", "address", "undrained"].map(str::to_owned)];
    for node in &report.nodes {
        rows.push([
            node.name.clone(),
            node.state.to_owned(),
            number(node.daemon),
            number(node.keeper),
            node.address.clone().unwrap_or_else(dash),
            node.undrained.map_or_else(dash, bytes),
        ]);
    }
    let widths: [usize; 6] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    for row in &rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(widths) {
            line.push_str(&format!(" {cell:<width$} "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    for node in &report.nodes {
        if let Some(problem) = &node.problem {
            text.push_str(&format!("  {problem}\n"));
        }
    }
    text
}

/// Formats a size with three digits and a unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{count} B"),
        (_, v) if v < 10.0 => format!("{v:.2} {}", UNITS[unit]),
        (_, v) if v < 100.0 => format!("{v:.1} {}", UNITS[unit]),
        (_, v) => format!("{v:.0} {}", UNITS[unit]),
    }
}

/// Rewrites one line on the terminal until nothing is left to drain or the time is up.
pub fn watch(place: &Place, limit: Option<Duration>) -> Result<()> {
    let state = State::load(place)?;
    let mut problem = None;
    let look = || -> Result<bool> {
        let mut line = String::new();
        let mut left = 0;
        for on in OnNode::all(place, &state) {
            let undrained = on.status()?["bytes"]["undrained"].as_u64().unwrap_or(0);
            line.push_str(&format!("  {} {}", on.name(), bytes(undrained)));
            left += undrained;
        }
        eprint!("\r\x1b[K{line} to drain");
        Ok(left == 0)
    };
    wait::poll(limit.unwrap_or(FOREVER), || match look() {
        Ok(done) => done.then_some(()),
        Err(failure) => {
            problem = Some(failure);
            Some(())
        }
    });
    eprint!("\r\x1b[K");
    problem.map_or(Ok(()), Err)
}

pub fn logs(place: &Place, node: Option<usize>, lines: Option<usize>) -> Result<()> {
    let state = State::load(place)?;
    let mut text = String::new();
    match node {
        Some(index) => {
            let log = OnNode::new(place, &state, index)?.log()?;
            for line in tail(&log, lines) {
                text.push_str(line);
                text.push('\n');
            }
        }
        None => {
            for on in OnNode::all(place, &state) {
                for line in tail(&on.log()?, lines) {
                    writeln!(text, "{}: {line}", on.name())
                        .map_err(|e| Failure::failed(e.to_string()))?;
                }
            }
        }
    }
    super::say(text.trim_end())
}

fn tail(log: &str, lines: Option<usize>) -> Vec<&str> {
    let all: Vec<&str> = log.lines().collect();
    let from = lines.map_or(0, |lines| all.len().saturating_sub(lines));
    all[from..].to_vec()
}
