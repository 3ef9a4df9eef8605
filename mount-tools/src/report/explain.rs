//! What `explain` reports.

use forebay_fs::Explained;
use forebay_fs::policy::{Decision, Source};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainReport {
    pub asked: Asked,
    /// Below the mount; `None` if the file has no name.
    pub path: Option<String>,
    /// The configuration file that rules and lines are of.
    pub config: Option<PathBuf>,
    pub keys: Vec<ExplainedKey>,
    /// Attributes of the file that make no sense and do not count.
    pub ignored: Vec<String>,
}

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    Daemon,
    /// Attributes and configuration, without a daemon: a command line is not known.
    Files,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedKey {
    pub key: String,
    pub value: String,
    #[serde(flatten)]
    pub from: DecidedBy,
}

/// Who decided, from the one whose word counts most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "kebab-case")]
pub enum DecidedBy {
    CommandLine,
    File {
        attribute: String,
    },
    Directory {
        attribute: String,
        directory: String,
    },
    Rule {
        rule: usize,
        line: usize,
        #[serde(rename = "match")]
        glob: String,
    },
    Config,
    Default,
}

impl ExplainReport {
    pub fn new(asked: Asked, config: Option<&Path>, explained: &Explained) -> ExplainReport {
        let path = explained.path.as_ref();
        ExplainReport {
            asked,
            path: path.map(|path| path.display().to_string()),
            config: config.map(Path::to_path_buf),
            keys: explained.decisions.iter().map(key).collect(),
            ignored: explained.bad.clone(),
        }
    }
}

fn key(decision: &Decision) -> ExplainedKey {
    let attribute = || format!("user.forebay.{}", decision.key);
    ExplainedKey {
        key: decision.key.name().into(),
        value: decision.value.clone(),
        from: match &decision.source {
            Source::CommandLine => DecidedBy::CommandLine,
            Source::File => DecidedBy::File {
                attribute: attribute(),
            },
            Source::Directory(directory) => DecidedBy::Directory {
                attribute: attribute(),
                directory: directory.clone(),
            },
            Source::Rule { number, line, glob } => DecidedBy::Rule {
                rule: *number,
                line: *line,
                glob: glob.clone(),
            },
            Source::Config => DecidedBy::Config,
            Source::Default => DecidedBy::Default,
        },
    }
}
