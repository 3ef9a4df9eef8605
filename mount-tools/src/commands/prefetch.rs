//! `forebay prefetch`: reads files into the node's store, so that later reads are served from there.
//!
//! The command itself opens every file through the mount, as the user who runs it, and holds it open while
//! the daemon reads it: that is how the daemon knows that the caller may read it. Directories are walked here
//! too, so the daemon never walks a path that a client gave it.

use crate::args::PrefetchArgs;
use crate::control::client::{self, Client};
use crate::control::protocol::{PrefetchResult, PrefetchState, Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::progress::DrainBar;
use crate::output::{self, plain};
use crate::units;
use flusher::Progress;
use serde::Serialize;
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A file to be read.
struct Wanted {
    path: PathBuf,
    mount: PathBuf,
    size: u64,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Report {
    /// Files that now have a complete local copy.
    files: usize,
    /// Bytes of these files.
    bytes: u64,
    /// Bytes that were read from the files below.
    read: u64,
    /// Files that were left out because they have undrained data or are open for writing.
    dirty: Vec<PathBuf>,
    /// One sentence for each file that should have a local copy and has none.
    errors: Vec<String>,
    /// The store has no room for the remaining files.
    full: bool,
}

pub fn run(args: &PrefetchArgs) -> Result<Code> {
    let began = Instant::now();
    let mut report = Report::default();
    let mut wanted = Vec::new();
    for path in &args.paths {
        let (mount, _) = client::mount_of(path)?;
        // Connect before the path is accessed: a mount without its daemon does not answer.
        drop(Client::connect(&mount)?);
        let meta = std::fs::metadata(path).map_err(|e| cannot_look(path, &e))?;
        if !meta.is_file() && !meta.is_dir() {
            return Err(Failure::usage(format!(
                "{} is neither a file nor a directory, so there is nothing to read",
                path.display()
            )));
        }
        walk(path, &meta, &mount, &mut wanted, &mut report);
    }
    let total = wanted.iter().map(|w| w.size).sum();
    let bar = DrainBar::labelled("prefetch");
    let mut done = 0;
    for (n, file) in wanted.iter().enumerate() {
        let show = |part: u64| {
            let rate = (done + part) as f64 / began.elapsed().as_secs_f64().max(0.001);
            bar.show(&Progress {
                total,
                done: done + part,
                files: wanted.len() - n,
                rate,
                eta: Some((total - done.min(total)) as f64 / rate.max(1.0)),
                ..Progress::default()
            });
        };
        let ended = fetch(file, began, show);
        done += file.size;
        if !note(&mut report, file, ended) {
            break;
        }
    }
    bar.clear();
    tell(args, &report)
}

/// Collects the files below `path`. Links are not followed: the file that a link names is read by its own
/// name, if the user asks for it.
fn walk(path: &Path, meta: &Metadata, mount: &Path, wanted: &mut Vec<Wanted>, report: &mut Report) {
    if meta.is_file() {
        wanted.push(Wanted {
            path: path.into(),
            mount: mount.into(),
            size: meta.len(),
        });
        return;
    }
    if !meta.is_dir() {
        return;
    }
    let mut complain = |path: &Path, e: std::io::Error| {
        report.errors.push(cannot_look(path, &e).message);
    };
    let mut names = match std::fs::read_dir(path) {
        Ok(entries) => entries
            .filter_map(|e| e.map_err(|e| complain(path, e)).ok())
            .map(|e| e.path())
            .collect::<Vec<_>>(),
        Err(e) => return complain(path, e),
    };
    names.sort();
    for path in names {
        match std::fs::symlink_metadata(&path) {
            Ok(meta) => walk(&path, &meta, mount, wanted, report),
            // It was removed after the directory was listed.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => report.errors.push(cannot_look(&path, &e).message),
        }
    }
}

fn cannot_look(path: &Path, e: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot look at {}: {e}", path.display()))
}

/// Has the daemon read one file, while this process has it open.
fn fetch(file: &Wanted, began: Instant, show: impl Fn(u64)) -> Result<PrefetchResult> {
    let path = file.path.display();
    let opened: File = OpenOptions::new()
        .read(true)
        // The open must not block if a FIFO has taken the file's name meanwhile.
        .custom_flags(libc::O_NONBLOCK)
        .open(&file.path)
        .map_err(|e| Failure::failed(format!("cannot read {path}: {e}")))?;
    let meta = opened.metadata().map_err(|e| cannot_look(&file.path, &e))?;
    let request = Request::Prefetch {
        ino: meta.ino(),
        since_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    };
    let asked = Client::connect(&file.mount)?.ask(&request, |p| show(p.done));
    drop(opened);
    match asked {
        Ok(Reply::Prefetch(result)) => Ok(result),
        Ok(other) => Err(client::unexpected(&other)),
        Err(failure) => Err(Failure::new(
            failure.code,
            format!("{path}: {}", failure.message),
        )),
    }
}

/// Adds the result for one file to the report. Returns false if there is no point in going on.
fn note(report: &mut Report, file: &Wanted, ended: Result<PrefetchResult>) -> bool {
    let path = file.path.display();
    let result = match ended {
        Ok(result) => result,
        Err(failure) => {
            report.errors.push(failure.message);
            return failure.code != Code::NoDaemon;
        }
    };
    report.read += result.read;
    match result.state {
        PrefetchState::Kept | PrefetchState::Already => {
            report.files += 1;
            report.bytes += file.size;
        }
        PrefetchState::Dirty => report.dirty.push(file.path.clone()),
        PrefetchState::Changed => report.errors.push(format!(
            "{path} changed while it was read; try again when no program writes it"
        )),
        PrefetchState::Unusable => {
            report.errors.push(format!(
                "the store takes no copy of {path}; forebay.log in the store says why"
            ));
            return false;
        }
        PrefetchState::NoRoom => {
            report.full = true;
            report.errors.push(format!(
                "the store has no room for {path} ({}); name fewer files, or mount with a larger --store-size",
                units::bytes(file.size)
            ));
            return false;
        }
    }
    true
}

fn tell(args: &PrefetchArgs, report: &Report) -> Result<Code> {
    output::report(report, args.json, |r, _| sentence(r))?;
    if !args.json {
        for path in &report.dirty {
            let path = path.display();
            let line = format!(
                "{path} is left out: it has undrained data or is open for writing, so its newest bytes are here already"
            );
            eprintln!("forebay: {}", plain(&line));
        }
        for error in &report.errors {
            eprintln!("forebay: {}", plain(error));
        }
    }
    Ok(match report.errors.is_empty() {
        true => Code::Ok,
        false => Code::Failed,
    })
}

fn sentence(report: &Report) -> String {
    format!(
        "{} kept on this node, {} ({} read)\n",
        units::files(report.files),
        units::bytes(report.bytes),
        units::bytes(report.read)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str, size: u64) -> Wanted {
        Wanted {
            path: name.into(),
            mount: "/m".into(),
            size,
        }
    }

    fn ended(state: PrefetchState, read: u64) -> Result<PrefetchResult> {
        Ok(PrefetchResult { state, read })
    }

    #[test]
    fn a_full_store_and_a_lost_daemon_end_it_and_a_bad_file_does_not() {
        let mut report = Report::default();
        let file = wanted("/m/f", 5);
        assert!(note(&mut report, &file, ended(PrefetchState::Kept, 5)));
        assert!(note(&mut report, &file, ended(PrefetchState::Already, 0)));
        assert!(note(&mut report, &file, ended(PrefetchState::Dirty, 0)));
        let denied = Failure::new(Code::Denied, "/m/f: no");
        assert!(note(&mut report, &file, Err(denied)));
        assert!(!note(&mut report, &file, ended(PrefetchState::NoRoom, 1)));
        let lost = Failure::new(Code::NoDaemon, "gone");
        assert!(!note(&mut report, &file, Err(lost)));
        assert_eq!((report.files, report.bytes, report.read), (2, 10, 6));
        assert_eq!(report.dirty, [PathBuf::from("/m/f")]);
        assert_eq!(report.errors.len(), 3);
        assert!(report.full && report.errors[1].contains("--store-size"));
        assert_eq!(
            sentence(&report),
            "2 files kept on this node, 10 B (6 B read)\n"
        );
    }

    #[test]
    fn files_are_found_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::write(at("a/b/two"), "22").unwrap();
        std::fs::write(at("a/one"), "1").unwrap();
        std::os::unix::fs::symlink(at("a"), at("a/b/loop")).unwrap();
        let (mut found, mut report) = (Vec::new(), Report::default());
        let meta = std::fs::metadata(dir.path()).unwrap();
        walk(dir.path(), &meta, Path::new("/m"), &mut found, &mut report);
        let names: Vec<_> = found.iter().map(|w| (w.path.clone(), w.size)).collect();
        assert_eq!(names, [(at("a/b/two"), 2), (at("a/one"), 1)]);
        assert_eq!(report, Report::default());
    }
}
