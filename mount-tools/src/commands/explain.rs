//! `forebay explain`: shows how a file is treated, and why.
//!
//! The command asks the daemon of the mount, because only the daemon knows its command line. If the file is
//! on no mount, the answer comes from its attributes and a configuration file: it is what a mount with that
//! configuration would do.

use crate::args::{ExplainArgs, Keys};
use crate::control::client::{self, Client};
use crate::control::protocol::{Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::table::{Align, Table};
use crate::output::{self, Style, plain};
use crate::report::{Asked, DecidedBy, ExplainReport};
use crate::{checks, config};
use forebay_fs::Explained;
use forebay_fs::policy::attributes;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub fn run(args: &ExplainArgs) -> Result<Code> {
    let cannot =
        |e: io::Error| Failure::failed(format!("cannot look at {}: {e}", args.file.display()));
    let mount = match client::mount_of(&args.file) {
        Ok((mount, _)) => Some(mount),
        Err(failure) if failure.code == Code::NoDaemon => None,
        Err(failure) => return Err(failure),
    };
    // Connect before the file is accessed: a mount without its daemon does not answer.
    let daemon = mount.as_deref().map(Client::connect).transpose()?;
    // Keep the file open while the daemon is asked, so that its inode number cannot go to another file.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(&args.file)
        .map_err(cannot)?;
    let meta = file.metadata().map_err(cannot)?;
    if !meta.is_file() {
        return Err(Failure::usage(format!(
            "{} is not a regular file; policies are of files (a directory's attributes are taken over by files that are made below it)",
            args.file.display()
        )));
    }
    let report = match daemon {
        Some(daemon) => match daemon.ask(&Request::Explain { ino: meta.ino() }, |_| {})? {
            Reply::Explained(report) => report,
            other => return Err(client::unexpected(&other)),
        },
        None => alone(args, &file, meta.uid())?,
    };
    let name = plain(&args.file.display().to_string());
    output::report(&report, args.json, |r, style| render(&name, r, style))?;
    Ok(Code::Ok)
}

/// Answers without a daemon, from the file's attributes and the configuration file.
fn alone(args: &ExplainArgs, file: &File, uid: u32) -> Result<ExplainReport> {
    let loaded = args.config.as_deref().map(config::load).transpose()?;
    let (policies, keys) = config::policies(&Keys::default(), loaded);
    let backing = args.backing.clone().or(keys.and_then(|keys| keys.backing));
    let path = match backing {
        Some(backing) => Some(below(&args.file, &backing)?),
        None if policies.rules.is_empty() => None,
        None => {
            return Err(Failure::usage(
                "the configuration file has rules by path, but which directory it is for is not known; say --backing DIR",
            ));
        }
    };
    let attributes = attributes::read(file.as_fd())
        .map_err(|e| Failure::failed(format!("the attributes of {}: {e}", args.file.display())))?;
    let explained = Explained {
        uid,
        decisions: policies.decide(path.as_deref(), &attributes),
        path,
        bad: attributes.bad,
    };
    let config = policies.config_file.as_deref();
    Ok(ExplainReport::new(Asked::Files, config, &explained))
}

fn below(file: &Path, backing: &Path) -> Result<PathBuf> {
    let backing = checks::existing_dir(backing, "the backing")?;
    let real = file
        .canonicalize()
        .map_err(|e| Failure::failed(format!("cannot look at {}: {e}", file.display())))?;
    match real.strip_prefix(&backing) {
        Ok(below) => Ok(below.to_path_buf()),
        Err(_) => Err(Failure::usage(format!(
            "{} is not below the backing {}; say --backing DIR",
            file.display(),
            backing.display()
        ))),
    }
}

fn render(name: &str, report: &ExplainReport, style: Style) -> String {
    let mut out = format!("{}\n\n", style.bold(name));
    let mut table = Table::new(&[
        ("key", Align::Left),
        ("value", Align::Left),
        ("decided by", Align::Left),
    ]);
    let config = report.config.as_ref();
    let config = config.map_or("the configuration file".to_owned(), |path| {
        plain(&path.display().to_string())
    });
    for key in &report.keys {
        let by = decided_by(&key.from, &config);
        let by = match key.from {
            DecidedBy::Default => style.dim(&by),
            _ => by,
        };
        table.row([plain(&key.key), plain(&key.value), by]);
    }
    out.push_str(&table.render());
    for ignored in &report.ignored {
        let line = format!("\n  ignored: {}\n", plain(ignored));
        out.push_str(&style.yellow(&line));
    }
    if report.asked == Asked::Files {
        out.push_str(
            "\n  No daemon was asked: this is what a mount would do whose command line says nothing of it.\n",
        );
    }
    out
}

fn decided_by(from: &DecidedBy, config: &str) -> String {
    match from {
        DecidedBy::CommandLine => "the command line".into(),
        DecidedBy::File { attribute } => format!("attribute {} of the file", plain(attribute)),
        DecidedBy::Directory {
            attribute,
            directory,
        } => format!(
            "attribute {} of directory {}, when the file was made",
            plain(attribute),
            plain(directory)
        ),
        DecidedBy::Rule { rule, line, glob } => format!(
            "rule {rule} (line {line}) of {config}, match = \"{}\"",
            plain(glob)
        ),
        DecidedBy::Config => format!("{config}, for the whole mount"),
        DecidedBy::Default => "the default".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::explain::ExplainedKey;

    #[test]
    fn every_way_to_decide_has_its_words() {
        let from = [
            DecidedBy::CommandLine,
            DecidedBy::File {
                attribute: "user.forebay.drain".into(),
            },
            DecidedBy::Directory {
                attribute: "user.forebay.keep".into(),
                directory: "run\x1b[31m7".into(),
            },
            DecidedBy::Rule {
                rule: 2,
                line: 14,
                glob: "ckpt/**".into(),
            },
            DecidedBy::Config,
            DecidedBy::Default,
        ];
        let report = ExplainReport {
            asked: Asked::Files,
            path: Some("run7/f".into()),
            config: Some("/etc/forebay.toml".into()),
            keys: from
                .into_iter()
                .map(|from| ExplainedKey {
                    key: "k".into(),
                    value: "v".into(),
                    from,
                })
                .collect(),
            ignored: vec!["drain makes no sense".into()],
        };
        let text = render("f", &report, Style::forced(false));
        for words in [
            "the command line",
            "attribute user.forebay.drain of the file",
            "of directory run\\u{1b}[31m7, when the file was made",
            "rule 2 (line 14) of /etc/forebay.toml, match = \"ckpt/**\"",
            "/etc/forebay.toml, for the whole mount",
            "the default",
            "ignored: drain makes no sense",
            "No daemon was asked",
        ] {
            assert!(text.contains(words), "\"{words}\" is not in:\n{text}");
        }
        let json = serde_json::to_string(&report).unwrap();
        assert!(
            json.contains(r#""from":"rule","rule":2,"line":14,"match":"ckpt/**""#),
            "{json}"
        );
        assert_eq!(
            serde_json::from_str::<ExplainReport>(&json).unwrap(),
            report
        );
    }
}
