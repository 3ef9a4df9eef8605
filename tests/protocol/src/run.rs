//! Runs the checker and reports its findings.

use crate::config::Config;
use crate::model::{Action, Step};
use crate::state::{ScanPhase, State, Wait};
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// What the checker needs of states and steps.
pub trait Steady: Clone + fmt::Debug + PartialEq + Hash + Send + Sync {}

impl<T: Clone + fmt::Debug + PartialEq + Hash + Send + Sync> Steady for T {}

/// A model that is explored, and whose steps can be described in words.
pub trait Explored:
    Model<State: Steady, Action: Steady + Copy> + Clone + Send + Sync + 'static
{
    fn name(&self) -> &'static str;
    fn describe(&self, state: &Self::State, action: &Self::Action) -> String;
}

/// The steps by which a property failed, or by which an example of it was reached.
pub struct Trace {
    pub property: &'static str,
    pub steps: Vec<String>,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({} steps)", self.property, self.steps.len())?;
        for (i, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {:3} {step}", i + 1)?;
        }
        Ok(())
    }
}

/// The result of one configuration.
pub struct Report {
    pub name: &'static str,
    pub unique: usize,
    pub generated: usize,
    pub depth: usize,
    pub time: Duration,
    /// Broken properties.
    pub failures: Vec<Trace>,
    /// Examples that were required and not found.
    pub missing: Vec<&'static str>,
}

impl Report {
    pub fn passed(&self) -> bool {
        self.failures.is_empty() && self.missing.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:24} {:>10} states {:>11} steps  depth {:>3} {:>6.1} s  {}",
            self.name,
            self.unique,
            self.generated,
            self.depth,
            self.time.as_secs_f64(),
            if self.passed() { "holds" } else { "BROKEN" }
        )
    }
}

/// Explores a configuration to its end, or to the first broken property.
pub fn check(config: &impl Explored, threads: usize) -> Report {
    check_until(config, threads, None)
}

/// Does the same with a limit of states, which bounds a search that is expected to fail early.
pub fn check_until(config: &impl Explored, threads: usize, limit: Option<usize>) -> Report {
    let begin = Instant::now();
    let mut builder = config
        .clone()
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures);
    if let Some(limit) = limit {
        builder = builder.target_state_count(limit);
    }
    let checker = builder.spawn_bfs().join();
    let found = checker.discoveries();
    let properties = config.properties();
    let mut failures = Vec::new();
    let mut missing = Vec::new();
    for property in &properties {
        match (&property.expectation, found.get(property.name)) {
            (Expectation::Sometimes, None) => missing.push(property.name),
            (Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => failures.push(trace(config, property.name, path.clone().into_vec())),
        }
    }
    Report {
        name: config.name(),
        unique: checker.unique_state_count(),
        generated: checker.state_count(),
        depth: checker.max_depth(),
        time: begin.elapsed(),
        failures,
        missing,
    }
}

fn trace<M: Explored>(
    config: &M,
    property: &'static str,
    path: Vec<(M::State, Option<M::Action>)>,
) -> Trace {
    let steps = path
        .iter()
        .filter_map(|(state, action)| Some(config.describe(state, action.as_ref()?)))
        .collect();
    Trace { property, steps }
}

impl Explored for Config {
    fn name(&self) -> &'static str {
        self.name
    }

    fn describe(&self, state: &State, action: &Action) -> String {
        label(self, state, *action)
    }
}

fn scan(phase: ScanPhase) -> String {
    match phase {
        ScanPhase::Read(m) => format!("read layout of {m}"),
        phase => format!("{phase:?}").to_lowercase(),
    }
}

/// Describes a step in words.
fn label(config: &Config, s: &State, action: Action) -> String {
    let n = action.node as usize;
    let node = &s.nodes[n];
    let what = match action.step {
        Step::Program => match (node.wait, config.op(s, n)) {
            (Wait::Refresh, _) => format!("refresh: {}", scan(node.refresh_scan.phase)),
            (Wait::TouchAnnouncement, _) => "defer: touch, return".to_owned(),
            (_, Some(op)) => format!("{op:?}"),
            (_, None) => "nothing".to_owned(),
        },
        Step::Background => "publish: choose bytes".to_owned(),
        Step::Publish if node.publish_scan.phase != ScanPhase::Idle => {
            format!("publish: refresh, {}", scan(node.publish_scan.phase))
        }
        Step::Publish => format!("publish: {:?}", node.publish).to_lowercase(),
        Step::Drain if node.drain_scan.phase != ScanPhase::Idle => {
            format!(
                "term {}: refresh, {}",
                node.term,
                scan(node.drain_scan.phase)
            )
        }
        Step::Drain => format!("term {}: {:?}", node.term, node.drain).to_lowercase(),
        Step::BeginWork(domain) => format!("domain {domain}: list"),
        Step::Work => format!("domain {}: {:?}", node.work.domain, node.work.phase).to_lowercase(),
        Step::Reclaim(m) => format!("removes the layout of {m}"),
        step => format!("{step:?}").to_lowercase(),
    };
    format!("node {n}: {what}")
}
