//! Formats a status report as text for people.

use super::{targets, units};
use crate::holders::user_name;
use crate::output::table::{Align, Table};
use crate::output::{Style, bar, pairs, plain};
use crate::report::{Source, StatusReport};
use std::path::Path;

/// Maximum number of files that are shown by name. JSON has more.
const MOST_FILES: usize = 20;

const LEFT: &str = "not mounted any more: it drains what is left, then ends";

pub fn report(r: &StatusReport, style: Style) -> String {
    let mut out = heading(r, style);
    out.push_str(&pairs(&facts(r, style)));
    if let Some(failure) = &r.store.failure {
        out.push_str(&format!("  {} {}\n", style.red("!"), plain(failure)));
    }
    if let Some(why) = &r.unknown {
        out.push_str(&format!(
            "  {} what this node has published and is not drained cannot be known: {}\n",
            style.red("!"),
            plain(why)
        ));
    }
    for damage in r.recovery.iter().flat_map(|rec| &rec.damaged) {
        out.push_str(&format!("  {} {}\n", style.red("!"), plain(damage)));
    }
    if let Some(targets) = &r.targets {
        out.push_str(&targets::table(targets, style));
    }
    if !r.files.is_empty() || r.more_files > 0 {
        out.push_str(&files(r, style));
    }
    for error in &r.errors {
        out.push_str(&format!("  {} {}\n", style.red("!"), plain(&error.message)));
    }
    for overlap in &r.overlapped {
        out.push_str(&format!(
            "  {} {}: {} wrote the same bytes without a sync point in between ({} to {}, {} times): what was published last counts\n",
            style.yellow("!"),
            plain(&overlap.path),
            plain(&overlap.nodes.join(", ")),
            overlap.start,
            overlap.end,
            overlap.count
        ));
    }
    out
}

fn path(p: &Path) -> String {
    plain(&p.display().to_string())
}

fn heading(r: &StatusReport, style: Style) -> String {
    let place = r.mount.as_deref().unwrap_or(&r.store.path);
    match r.source {
        Source::Daemon => format!(
            "{}  node {}, pid {}, up {}{}\n",
            style.bold(&path(place)),
            plain(&r.node),
            r.pid.unwrap_or(0),
            units::seconds(r.uptime.unwrap_or(0.0)),
            match r.mounted {
                Some(false) => format!(", {}", style.yellow(LEFT)),
                _ => String::new(),
            }
        ),
        Source::Store => format!(
            "{}  node {}, {}\n",
            style.bold(&path(place)),
            plain(&r.node),
            style.yellow("no daemon runs: this is from the store alone")
        ),
    }
}

fn facts(r: &StatusReport, style: Style) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("backing", path(&r.backing)),
        ("store", path(&r.store.path)),
    ];
    if let Some(targets) = &r.targets {
        rows.push(("targets", targets::summary(targets, style)));
    }
    rows.push(("space", space(r, style)));
    let b = &r.bytes;
    for (name, bytes) in [
        ("appended", b.appended),
        ("durable", b.durable),
        ("published", b.published),
        ("canonical", b.canonical),
        ("superseded", b.superseded),
        ("through", b.through),
    ] {
        if let Some(bytes) = bytes {
            rows.push((name, units::bytes(bytes)));
        }
    }
    rows.push(("undrained", undrained(r, style)));
    if let Some(kept) = r.kept.filter(|kept| kept.files > 0) {
        let of = units::files(kept.files);
        rows.push((
            "kept",
            format!("{} of {of}, to be read here", units::bytes(kept.bytes)),
        ));
    }
    if let Some(d) = &r.drain {
        let limit = match d.rate_limit {
            Some(limit) => format!(" of at most {}", units::rate(limit as f64)),
            None => String::new(),
        };
        let eta = match d.eta {
            Some(s) if b.undrained > 0 => format!(", {} to go", units::seconds(s.ceil())),
            _ => String::new(),
        };
        rows.push((
            "drain",
            format!("{}, {}{limit}{eta}", d.policy, units::rate(d.rate)),
        ));
    }
    if let Some(handles) = r.open_handles {
        rows.push(("open", format!("{handles} handles")));
    }
    if let Some(rec) = r
        .recovery
        .as_ref()
        .filter(|rec| rec.replayed > 0 || rec.files > 0)
    {
        rows.push((
            "recovered",
            format!(
                "{} in {}, {} records replayed, {} torn, in {:.1} s",
                units::bytes(rec.undrained),
                units::files(rec.files),
                rec.replayed,
                rec.torn,
                rec.seconds
            ),
        ));
    }
    rows
}

fn space(r: &StatusReport, style: Style) -> String {
    let s = &r.store;
    let Some(capacity) = s.capacity.filter(|c| *c > 0) else {
        return format!("{} in {} segments", units::bytes(s.used), s.segments);
    };
    let part = |n: u64| n as f64 / capacity as f64;
    let drawn = bar(part(s.used), s.high_watermark.map(part), 30);
    let above = s.high_watermark.is_some_and(|mark| s.used > mark);
    let drawn = if above {
        style.red(&drawn)
    } else {
        style.green(&drawn)
    };
    let mark = match s.high_watermark {
        Some(mark) if above => format!(", above the high watermark of {}", units::bytes(mark)),
        Some(mark) => format!(", writers are slowed from {}", units::bytes(mark)),
        None => String::new(),
    };
    format!(
        "[{drawn}] {} of {}{mark}",
        units::bytes(s.used),
        units::bytes(capacity)
    )
}

fn undrained(r: &StatusReport, style: Style) -> String {
    let files = r.files.len() + r.more_files;
    if r.bytes.undrained == 0 && files == 0 {
        return style.green("nothing");
    }
    let text = format!(
        "{} in {}",
        units::bytes(r.bytes.undrained),
        units::files(files)
    );
    style.yellow(&text)
}

fn files(r: &StatusReport, style: Style) -> String {
    let mut out = String::from("\n");
    if !r.files.is_empty() {
        let mut table = Table::new(&[
            ("undrained", Align::Right),
            ("size", Align::Right),
            ("owner", Align::Left),
            ("file", Align::Left),
        ]);
        for f in r.files.iter().take(MOST_FILES) {
            let name = plain(&f.path);
            table.row([
                units::bytes(f.undrained),
                units::bytes(f.size),
                plain(&user_name(f.uid)),
                match f.error {
                    Some(_) => style.red(&format!("{name} (failing)")),
                    None => name,
                },
            ]);
        }
        out.push_str(&table.render());
    }
    let cut = &r.files[r.files.len().min(MOST_FILES)..];
    let more = cut.len() + r.more_files;
    if more > 0 {
        let bytes = cut.iter().map(|f| f.undrained).sum::<u64>() + r.more_undrained;
        let text = format!(
            "  and {} more with {}\n",
            units::files(more),
            units::bytes(bytes)
        );
        out.push_str(&style.dim(&text));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{
        Bytes, DrainStatus, ErrorStatus, FileStatus, OperationStatus, OverlapStatus, StoreStatus,
    };
    use flusher::ost::OstState;
    use layout_index::{RecoveryReport, Totals};

    fn sample() -> StatusReport {
        let written = OperationStatus {
            class: "nodes".into(),
            count: 2,
            errors: 1,
            bytes: 4096,
            p50: 0.001,
            p99: 0.002,
        };
        StatusReport {
            source: Source::Daemon,
            version: "0".into(),
            node: "n0".into(),
            pid: Some(42),
            uptime: Some(3725.0),
            mount: Some("/scratch".into()),
            mounted: Some(true),
            backing: "/scratch".into(),
            targets: Some(targets::tests::targets(&[
                OstState::LeftOut,
                OstState::Stalled,
            ])),
            store: StoreStatus {
                path: "/nvme".into(),
                capacity: Some(1000 << 20),
                used: 500 << 20,
                live: Some(400 << 20),
                high_watermark: Some(750 << 20),
                segment: Some(1 << 20),
                segments: 500,
                failure: None,
            },
            bytes: Totals {
                appended: 5 << 20,
                undrained: 1 << 20,
                ..Totals::default()
            }
            .into(),
            files: vec![FileStatus {
                path: "a\x1bb".into(),
                id: "1.2".into(),
                size: 2 << 20,
                undrained: 1 << 20,
                uid: 0,
                writers: Some(1),
                error: Some("no space".into()),
            }],
            kept: None,
            unknown: None,
            more_files: 3,
            more_undrained: 7 << 20,
            open_handles: Some(2),
            operations: [("write".into(), written)].into(),
            drain: Some(DrainStatus {
                policy: flusher::Policy::OnClose,
                rate: 1048576.0,
                rate_limit: Some(2 << 20),
                eta: Some(1.0),
                concurrency: 4,
                active_files: 1,
            }),
            errors: vec![ErrorStatus {
                path: "a".into(),
                message: "draining a: no space".into(),
            }],
            overlaps: 3,
            overlapped: vec![OverlapStatus {
                path: "b".into(),
                nodes: vec!["n1".into(), "n2".into()],
                start: 10,
                end: 20,
                count: 3,
            }],
            recovery: Some(RecoveryReport::default()),
        }
    }

    #[test]
    fn everything_is_there_and_nothing_controls_the_terminal() {
        let text = report(&sample(), Style::forced(false));
        for part in [
            "/scratch  node n0, pid 42, up 1h 2m",
            "[###############........|......] 500 MiB of 0.98 GiB, writers are slowed from 750 MiB",
            "appended    5.00 MiB",
            "published   0 B",
            "1.00 MiB in 4 files",
            "on-close, 1.00 MiB/s of at most 2.00 MiB/s, 1s to go",
            "a\\u{1b}b (failing)",
            "and 3 files more with 7.00 MiB",
            "! draining a: no space",
            "! b: n1, n2 wrote the same bytes",
            "targets     2 OSTs (directories), 0 chosen, 1 left out, 1 stalled, probed",
            "/ost0  left out",
            "OST 1 (/ost1): b\\u{1b}ad; tried again in 31s",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn without_a_daemon_it_says_so() {
        let mut r = sample();
        r.source = Source::Store;
        r.bytes = Bytes::default();
        (r.files, r.more_files, r.drain) = (vec![], 0, None);
        r.targets = None;
        r.store.capacity = None;
        let text = report(&r, Style::forced(false));
        assert!(text.contains("from the store alone"), "{text}");
        assert!(text.contains("500 MiB in 500 segments"), "{text}");
        assert!(text.contains("undrained  nothing"), "{text}");
    }

    #[test]
    fn the_json_has_the_names_that_scripts_use() {
        let value = serde_json::to_value(sample()).unwrap();
        for pointer in [
            "/pid",
            "/node",
            "/uptime",
            "/store/capacity",
            "/store/used",
            "/store/high_watermark",
            "/bytes/undrained",
            "/bytes/appended",
            "/bytes/durable",
            "/bytes/published",
            "/bytes/canonical",
            "/files/0/path",
            "/files/0/undrained",
            "/errors/0/message",
            "/overlaps",
            "/overlapped/0/nodes/0",
            "/operations/write/count",
            "/operations/write/errors",
            "/operations/write/bytes",
            "/operations/write/p50",
            "/operations/write/p99",
            "/drain/rate",
            "/drain/eta",
            "/targets/provider",
            "/targets/probed_seconds_ago",
            "/targets/probe_seconds",
            "/targets/osts/1/index",
            "/targets/osts/1/error",
            "/targets/osts/1/retry_in",
            "/targets/osts/0/bandwidth",
        ] {
            assert!(
                value.pointer(pointer).is_some_and(|v| !v.is_null()),
                "{pointer}"
            );
        }
        let state = |n: usize| &value["targets"]["osts"][n]["state"];
        assert_eq!([state(0), state(1)], ["left-out", "stalled"]);
        let back: StatusReport = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(back, sample());
    }
}
