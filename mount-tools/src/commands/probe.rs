//! `forebay probe`.
//!
//! The work is done by a separate process (this program once more, with `--worker`): a thread that hangs in a
//! file system keeps its process from ending, whatever signal it gets, and the user must not have to wait for
//! that. The worker prints its whole report in one line.
//!
//! On a Forebay mount the command asks the daemon instead, unless targets are named.

use crate::args::ProbeArgs;
use crate::control::client::{self, Client};
use crate::control::protocol::{ProbeResult, Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::table::{Align, Table};
use crate::output::{self, Style, plain, plot};
use crate::{mountinfo, units};
use flusher::ost::{
    self, Directories, Kind, OstState, OstStatus, ProbeOptions, Probed, Provider, ProviderError,
};
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Values that are used if the command line gives none.
const SIZE: u64 = 16 << 20;
const DEADLINE: Duration = Duration::from_secs(10);
const DELTA: f64 = 0.02;
/// Width of the longest bar, in characters.
const BAR: usize = 24;
/// Position of the farthest point of the curve, in characters.
const CURVE: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    kind: String,
    /// Bytes written to each OST.
    size: u64,
    seconds: f64,
    delta: f64,
    /// How long ago the daemon of a mount measured. Since then it has adjusted the figures to the bandwidth
    /// of its own I/O.
    measured_seconds_ago: Option<f64>,
    /// Why the list of targets could not be obtained.
    error: Option<String>,
    /// Number of chosen targets: the first ones of `osts`.
    chosen: usize,
    /// Sorted: the fastest first, failed ones last.
    osts: Vec<OstReport>,
}

#[derive(Debug, Serialize, Deserialize)]
struct OstReport {
    index: u32,
    name: String,
    chosen: bool,
    /// Bytes per second. `aggregate` is that of a file over this OST and all before it.
    bandwidth: Option<f64>,
    aggregate: Option<f64>,
    latency_ms: Option<f64>,
    /// False if the writes went through the page cache.
    direct: Option<bool>,
    error: Option<String>,
}

pub fn run(args: &ProbeArgs) -> Result<Code> {
    // A mount whose daemon is gone is not seen as a directory. The error must then name the missing daemon.
    let mount = match std::fs::metadata(&args.dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        _ => mount_of(args)?,
    };
    if mount.is_none() && !args.dir.is_dir() {
        return Err(Failure::usage(format!(
            "{} is not a directory; give a directory of the file system to probe",
            args.dir.display()
        )));
    }
    ost::check(args.ost_provider, &args.ost).map_err(|e| Failure::usage(e.to_string()))?;
    match &mount {
        Some(mount) => check_asked(mount, args)?,
        None => check_written(args)?,
    }
    if args.worker {
        let outcome = measure(args).map_err(|e| e.to_string());
        output::print_json(&outcome, false)?;
        return Ok(Code::Ok);
    }
    let report = match mount {
        Some(mount) => ask_daemon(&mount, args)?,
        None if args.fresh => {
            return Err(Failure::usage(format!(
                "{} is not on a Forebay mount: there every probe is a fresh one; leave --fresh out",
                args.dir.display()
            )));
        }
        None => ask_worker()?,
    };
    if let Some(path) = &args.svg {
        let bandwidths: Vec<f64> = report.osts.iter().filter_map(|o| o.bandwidth).collect();
        let aggregate: Vec<f64> = report.osts.iter().filter_map(|o| o.aggregate).collect();
        plot::probe(path, &bandwidths, &aggregate, report.chosen)
            .map_err(|e| Failure::failed(format!("cannot draw {}: {e}", path.display())))?;
    }
    output::report(&report, args.json, render)?;
    Ok(match report.chosen {
        0 => Code::Failed,
        _ => Code::Ok,
    })
}

/// Returns the mount whose daemon is to be asked, if there is one.
fn mount_of(args: &ProbeArgs) -> Result<Option<PathBuf>> {
    if args.ost_provider != Kind::Auto || !args.ost.is_empty() {
        return Ok(None);
    }
    match client::mount_of(&args.dir) {
        Ok((mount, _)) => Ok(Some(mount)),
        Err(failure) if failure.code == Code::NoDaemon => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Refuses options that a daemon would ignore: it measures with its own settings.
fn check_asked(mount: &Path, args: &ProbeArgs) -> Result<()> {
    let given = [
        ("--size", args.size.is_some()),
        ("--deadline", args.deadline.is_some()),
        ("--delta", args.delta.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => Err(Failure::usage(format!(
            "{0} is a Forebay mount, whose daemon measures with the settings of the mount: leave {option} out, or give it with a directory of the backing itself where that is not mounted over",
            mount.display()
        ))),
    }
}

/// Refuses directories on a Forebay mount: what is written there goes to its store, which is not a
/// measurement of a target.
fn check_written(args: &ProbeArgs) -> Result<()> {
    let cannot =
        |e: std::io::Error| Failure::failed(format!("cannot read the list of mounts: {e}"));
    let written = match &args.ost[..] {
        [] => std::slice::from_ref(&args.dir),
        osts => osts,
    };
    for dir in written {
        // A named target may hang, so only its path is used and its links are not resolved. DIR was accessed
        // above already.
        let path = match args.ost[..] {
            [] => std::fs::canonicalize(dir),
            _ => std::path::absolute(dir),
        };
        let on = mountinfo::mount_of(&path.map_err(cannot)?).map_err(cannot)?;
        if let Some(mount) = on.filter(mountinfo::Mount::is_forebay) {
            return Err(Failure::usage(format!(
                "{} is on the Forebay mount {1}, whose store would be measured: give a directory of the backing itself, or ask the mount with forebay probe {1}",
                dir.display(),
                mount.point.display()
            )));
        }
    }
    Ok(())
}

fn ask_daemon(mount: &Path, args: &ProbeArgs) -> Result<Report> {
    let request = Request::Probe { fresh: args.fresh };
    match Client::connect(mount)?.ask(&request, |_| {})? {
        Reply::Probed(probed) => Ok(of_daemon(probed)),
        other => Err(client::unexpected(&other)),
    }
}

/// Sorts the targets by the daemon's preference: chosen ones, those left out, dropped ones, each group with
/// the fastest first.
fn of_daemon(ProbeResult { targets, size }: ProbeResult) -> Report {
    let mut osts = targets.osts;
    osts.sort_by(|a, b| {
        let key = |o: &OstStatus| (o.state != OstState::Chosen, o.state.is_dropped());
        let speed = |o: &OstStatus| o.bandwidth.unwrap_or(0.0);
        key(a).cmp(&key(b)).then(speed(b).total_cmp(&speed(a)))
    });
    Report {
        kind: targets.provider,
        size,
        seconds: targets.probe_seconds,
        measured_seconds_ago: targets.probed_seconds_ago,
        delta: 0.0,
        chosen: osts.iter().filter(|o| o.state == OstState::Chosen).count(),
        error: targets.error,
        osts: (osts.into_iter().zip(1..))
            .map(|(ost, place)| OstReport {
                index: ost.index,
                name: ost.name,
                chosen: ost.state == OstState::Chosen,
                bandwidth: ost.bandwidth,
                aggregate: ost.bandwidth.map(|b| b * f64::from(place)),
                latency_ms: ost.latency_ms,
                direct: None,
                error: ost.error,
            })
            .collect(),
    }
}

fn ask_worker() -> Result<Report> {
    let cannot = |e: std::io::Error| Failure::failed(format!("cannot start the probe: {e}"));
    let program = std::env::current_exe().map_err(cannot)?;
    let mut worker = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--worker")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(cannot)?;
    let mut line = String::new();
    if let Some(said) = worker.stdout.take() {
        BufReader::new(said).read_line(&mut line).map_err(cannot)?;
    }
    serde_json::from_str::<std::result::Result<Report, String>>(&line)
        .map_err(|e| Failure::failed(format!("the probe broke off: {e}")))?
        .map_err(Failure::failed)
}

fn measure(args: &ProbeArgs) -> std::result::Result<Report, ProviderError> {
    let provider = provider(args)?;
    let osts = provider.osts()?;
    let options = ProbeOptions {
        size: args.size.map_or(SIZE, |size| size.0),
        deadline: args.deadline.map_or(DEADLINE, |span| span.0),
    };
    let began = Instant::now();
    let probed = ost::probe(&provider, &osts, options);
    Ok(Report {
        seconds: began.elapsed().as_secs_f64(),
        ..report(provider.kind(), probed, args)
    })
}

fn provider(args: &ProbeArgs) -> std::result::Result<Arc<dyn Provider>, ProviderError> {
    let dir = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(&args.dir)
        .map_err(|e| ProviderError::Io(args.dir.display().to_string(), e))?;
    // A user who probes wants to know why a file system's targets cannot be obtained, so that is an error
    // here.
    let found = match (args.ost_provider, &args.ost[..]) {
        (Kind::Auto, []) => ost::recognise(dir.as_fd())?,
        (kind, named) => ost::provider(kind, dir.as_fd(), named)?,
    };
    Ok(found.unwrap_or_else(|| Arc::new(Directories::new(vec![args.dir.clone()]))))
}

fn report(kind: &str, probed: Vec<Probed>, args: &ProbeArgs) -> Report {
    let delta = args.delta.map_or(DELTA, |delta| delta.0);
    let bandwidth = |p: &Probed| p.result.as_ref().ok().map(|m| m.bandwidth);
    let bandwidths: Vec<Option<f64>> = probed.iter().map(bandwidth).collect();
    let choice = ost::select(&bandwidths, delta);
    let failed = (0..probed.len()).filter(|n| !choice.order.contains(n));
    let order: Vec<usize> = choice.order.iter().copied().chain(failed).collect();
    let mut probed: Vec<Option<Probed>> = probed.into_iter().map(Some).collect();
    let osts = order
        .iter()
        .enumerate()
        .filter_map(|(place, n)| Some((place, probed[*n].take()?)))
        .map(|(place, Probed { ost, result })| OstReport {
            index: ost.index,
            name: ost.name,
            chosen: place < choice.chosen,
            bandwidth: result.as_ref().ok().map(|m| m.bandwidth),
            aggregate: choice.aggregate.get(place).copied(),
            latency_ms: result.as_ref().ok().map(|m| m.latency.as_secs_f64() * 1e3),
            direct: result.as_ref().ok().map(|m| m.direct),
            error: result.err().map(|e| e.to_string()),
        })
        .collect();
    Report {
        kind: kind.into(),
        size: args.size.map_or(SIZE, |size| size.0),
        seconds: 0.0,
        delta,
        measured_seconds_ago: None,
        error: None,
        chosen: choice.chosen,
        osts,
    }
}

fn render(report: &Report, style: Style) -> String {
    let how = match report.measured_seconds_ago {
        Some(ago) => format!("measured {} ago by the daemon", units::seconds(ago)),
        None if report.seconds == 0.0 => "not measured by the daemon (--fresh)".into(),
        None => format!(
            "{} to each in {:.1} s",
            units::bytes(report.size),
            report.seconds
        ),
    };
    let mut out = format!(
        "{} of {} chosen, {how}\n\n",
        style.bold(&units::count(report.chosen, "OST")),
        report.osts.len(),
    );
    let most = |of: fn(&OstReport) -> Option<f64>| {
        let all = report.osts.iter().filter_map(of);
        all.fold(f64::MIN_POSITIVE, f64::max)
    };
    let (fastest, highest) = (most(|o| o.bandwidth), most(|o| o.aggregate));
    let rate = |b: Option<f64>| b.map_or_else(|| "-".into(), units::rate);
    let mut table = Table::new(&[
        ("", Align::Left),
        ("OST", Align::Right),
        ("bandwidth", Align::Right),
        ("", Align::Left),
        ("first", Align::Right),
        ("together", Align::Right),
        ("", Align::Left),
        ("name", Align::Left),
    ]);
    for (place, ost) in report.osts.iter().enumerate() {
        if place == report.chosen && place > 0 {
            table.row(
                [
                    "",
                    "",
                    "",
                    &"╌".repeat(BAR),
                    "",
                    "cut",
                    &"╌".repeat(CURVE),
                    "",
                ]
                .map(Into::into),
            );
        }
        let paint = |text: &str| match ost.chosen {
            true => style.green(text),
            false => style.yellow(text),
        };
        let bar = "█".repeat(cells(ost.bandwidth.unwrap_or(0.0) / fastest, BAR));
        let point = |sum: f64| format!("{}●", " ".repeat(cells(sum / highest, CURVE - 1)));
        let cached = if ost.direct == Some(false) {
            " (cached)"
        } else {
            ""
        };
        table.row([
            if ost.chosen {
                "*".into()
            } else {
                String::new()
            },
            ost.index.to_string(),
            rate(ost.bandwidth),
            paint(&bar),
            ost.latency_ms
                .map_or_else(|| "-".into(), |ms| format!("{ms:.1} ms")),
            rate(ost.aggregate),
            paint(&ost.aggregate.map(point).unwrap_or_default()),
            format!("{}{cached}", plain(&ost.name)),
        ]);
    }
    out.push_str(&table.render());
    out.push_str("\n  * chosen; together: a file over this OST and all faster ones\n");
    let errors = report.osts.iter().filter_map(|o| o.error.as_ref());
    for error in errors.chain(&report.error) {
        out.push_str(&format!("  {}\n", style.red(&plain(error))));
    }
    if report.chosen == 0 {
        out.push_str("  no OST can be used\n");
    }
    out
}

fn cells(share: f64, all: usize) -> usize {
    ((share * all as f64).round() as usize).min(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use flusher::ost::{Measured, Ost, OstError};
    use std::time::Duration;

    fn probed(index: u32, megabytes: Option<f64>) -> Probed {
        let ost = Ost {
            index,
            name: format!("/osts/{index}"),
        };
        let result = match megabytes {
            Some(megabytes) => Ok(Measured {
                bandwidth: megabytes * 1e6,
                latency: Duration::from_millis(3),
                bytes: 16 << 20,
                direct: true,
            }),
            None => {
                let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
                Err(OstError::new(&ost, "making a file", full))
            }
        };
        Probed { ost, result }
    }

    #[test]
    fn the_chosen_come_first_and_the_broken_last_with_a_sentence() {
        let words = ["forebay", "probe", "/"];
        let Command::Probe(args) = Cli::parse_from(words).command else {
            panic!("it is a probe");
        };
        let all = vec![
            probed(0, Some(70.0)),
            probed(1, None),
            probed(2, Some(100.0)),
            probed(3, Some(10.0)),
        ];
        let report = report("directories", all, &args);
        let order: Vec<u32> = report.osts.iter().map(|o| o.index).collect();
        assert_eq!((report.chosen, order), (2, vec![2, 0, 3, 1]));
        let text = render(&report, Style::forced(false));
        assert!(text.contains("OST 1 (/osts/1): making a file"), "{text}");
        assert!(text.contains("free space on it"), "{text}");
        assert!(text.starts_with("2 OSTs of 4 chosen"), "{text}");
    }

    /// The chart shows bandwidths as bars, their aggregate as a curve, and the cut where the curve is
    /// highest.
    #[test]
    fn the_chart_is_cut_where_the_curve_is_farthest() {
        let words = ["forebay", "probe", "/"];
        let Command::Probe(args) = Cli::parse_from(words).command else {
            panic!("it is a probe");
        };
        let all = [120.0, 110.0, 100.0, 90.0, 70.0].map(Some);
        let all = all.into_iter().zip(0..).map(|(mb, n)| probed(n, mb));
        let text = render(
            &report("directories", all.collect(), &args),
            Style::forced(false),
        );
        let rows: Vec<&str> = text.lines().skip(3).take(6).collect();
        let bars = rows.iter().map(|row| row.matches('█').count());
        assert_eq!(bars.collect::<Vec<_>>(), [24, 22, 20, 18, 0, 14], "{text}");
        let points = rows
            .iter()
            .map(|row| row.find('●').map(|at| row[..at].chars().count()));
        let points: Vec<Option<usize>> = points.collect();
        assert!(points[..4].is_sorted() && points[5] <= points[3], "{text}");
        assert!(rows[4].contains(" cut ") && points[4].is_none(), "{text}");
    }
}
