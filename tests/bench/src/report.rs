//! Prints the same numbers as a table for people, as JSON for programs, and as the table in a page.

use crate::cases::{Case, Unit, Variant};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// The machine that the numbers were measured on.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Machine {
    pub kernel: String,
    pub processors: usize,
    pub memory_gib: u64,
    pub file_system: String,
    pub rounds: usize,
    pub scale: f64,
}

impl Machine {
    pub fn look(dir: &Path, rounds: usize, scale: f64) -> io::Result<Self> {
        let memory = std::fs::read_to_string("/proc/meminfo")?
            .lines()
            .find_map(|l| {
                l.strip_prefix("MemTotal:")?
                    .trim()
                    .split(' ')
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
            .unwrap_or(0);
        Ok(Self {
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .to_string(),
            processors: std::thread::available_parallelism()?.get(),
            memory_gib: memory.div_ceil(1 << 20),
            file_system: file_system(dir)?,
            rounds,
            scale,
        })
    }

    /// Describes the number of cores and the current load. Figures of a busy machine are
    /// provisional.
    pub fn busy(&self) -> io::Result<String> {
        let load = std::fs::read_to_string("/proc/loadavg")?;
        let load = load.split(' ').next().unwrap_or_default();
        let busy = load
            .parse::<f64>()
            .is_ok_and(|load| load > self.processors as f64 / 2.0);
        Ok(format!(
            "{} cores, load average {load} before the run{}",
            self.processors,
            if busy { " (busy: **provisional**)" } else { "" }
        ))
    }

    pub fn sentence(&self) -> String {
        let mut version = self.kernel.splitn(3, '.');
        let (major, minor) = (version.next().unwrap_or("?"), version.next().unwrap_or("?"));
        format!(
            "Linux {major}.{minor}, {} cores, {} GiB, store and backing on {}; medians of {} rounds, variants \
             interleaved, page cache only (nothing synced).",
            self.processors, self.memory_gib, self.file_system, self.rounds
        )
    }
}

/// Returns the type of the file system that holds `dir`, found by the longest mount point that is a
/// prefix of `dir`.
fn file_system(dir: &Path) -> io::Result<String> {
    let dir = dir.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    Ok(mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.nth(1)?, words.next()?))
        })
        .filter(|(at, _)| dir.starts_with(at))
        .max_by_key(|(at, _)| at.len())
        .map_or_else(
            || "an unknown file system".to_string(),
            |(_, kind)| kind.to_string(),
        ))
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_string(), |v| format!("{v:.0}"))
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_string(), |v| format!("{v:.2}"))
}

/// One row: case, unit, three medians, two ratios, target, verdict.
fn row(case: &Case) -> [String; 9] {
    let unit = match case.unit {
        Unit::Megabytes => "MB/s",
        Unit::Operations => "ops/s",
    };
    let target = case.target.map_or_else(String::new, |t| {
        let against = match t.against {
            Variant::Minimal => "minimal",
            _ => "plain",
        };
        format!(">= {} of {against}", t.ratio)
    });
    let verdict = match case.met() {
        Some(true) => "met",
        Some(false) => "missed",
        None => "",
    };
    [
        format!("{} {}", case.group, case.name),
        unit.to_string(),
        number(case.median(Variant::Plain)),
        number(case.median(Variant::Minimal)),
        number(case.median(Variant::Forebay)),
        ratio(case.ratio(Variant::Minimal)),
        ratio(case.ratio(Variant::Plain)),
        target,
        verdict.to_string(),
    ]
}

const HEAD: [&str; 9] = [
    "case", "unit", "plain", "minimal", "forebay", "/minimal", "/plain", "target", "",
];
/// The columns that hold numbers.
const RIGHT: std::ops::RangeInclusive<usize> = 2..=6;

pub fn table(cases: &[Case]) -> String {
    let mut rows = vec![HEAD.map(String::from)];
    rows.extend(cases.iter().map(row));
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|i| rows.iter().map(|r| r[i].len()).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for cells in &rows {
        let line: Vec<String> = cells
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, width))| {
                if RIGHT.contains(&i) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            })
            .collect();
        out.push_str(line.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// Writes one line for each group of cases that share a target; the worst case decides.
pub fn verdicts(cases: &[Case]) -> String {
    let mut out = String::new();
    let mut seen: Vec<String> = Vec::new();
    for case in cases {
        let Some(target) = case.target else { continue };
        let key = target_key(case);
        if seen.contains(&key) {
            continue;
        }
        let ratios: Vec<f64> = cases
            .iter()
            .filter(|c| target_key(c) == key)
            .filter_map(|c| c.ratio(target.against))
            .collect();
        let worst = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let met = ratios.iter().filter(|r| **r >= target.ratio).count();
        let verdict = if met == ratios.len() { "met" } else { "MISSED" };
        writeln!(
            out,
            "target {verdict}: {key} at least {}: {met} of {} cases, worst {worst:.2}",
            target.ratio,
            ratios.len()
        )
        .expect("a String takes every write");
        seen.push(key);
    }
    out
}

/// Names the target that cases share: the same group against the same baseline and, for writes, the
/// same block size.
fn target_key(case: &Case) -> String {
    let block = case.name.split(',').next().unwrap_or_default();
    match case.target.map(|t| t.against) {
        Some(Variant::Minimal) => format!("{} {block} against minimal", case.group),
        Some(_) => format!("{} through the mount against native", case.group),
        None => String::new(),
    }
}

pub fn markdown(machine: &Machine, cases: &[Case]) -> String {
    let mut out = format!("{}\n\n", machine.sentence());
    out.push_str("| case | unit | plain | minimal | forebay | /minimal | /plain | target | |\n");
    out.push_str("|---|---|--:|--:|--:|--:|--:|---|---|\n");
    for case in cases {
        out.push_str(&format!("| {} |\n", row(case).join(" | ")));
    }
    out
}

pub fn json(machine: &Machine, cases: &[Case]) -> serde_json::Value {
    let cases: Vec<_> = cases
        .iter()
        .map(|case| {
            serde_json::json!({
                "case": case,
                "ratio_to_minimal": case.ratio(Variant::Minimal),
                "ratio_to_plain": case.ratio(Variant::Plain),
                "met": case.met(),
            })
        })
        .collect();
    serde_json::json!({ "machine": machine, "cases": cases })
}

/// Replaces the text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` in a page.
pub fn replace_section(page: &str, name: &str, body: &str) -> Result<String, String> {
    let (begin, end) = (
        format!("<!-- {name}:begin -->"),
        format!("<!-- {name}:end -->"),
    );
    let start = page.find(&begin).map(|at| at + begin.len());
    let stop = page.find(&end);
    match (start, stop) {
        (Some(start), Some(stop)) if start <= stop => Ok(format!(
            "{}\n{}\n{}",
            &page[..start],
            body.trim(),
            &page[stop..]
        )),
        _ => Err(format!(
            "the page has no lines '{begin}' and '{end}' in this order"
        )),
    }
}

/// Applies [`replace_section`] to a file.
pub fn rewrite_page(path: &Path, name: &str, body: &str) -> io::Result<()> {
    let named = |e: String| io::Error::other(format!("{}: {e}", path.display()));
    let page = std::fs::read_to_string(path).map_err(|e| named(e.to_string()))?;
    std::fs::write(path, replace_section(&page, name, body).map_err(named)?)
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
