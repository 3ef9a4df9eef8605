//! The report of `explain`.

use forebay_fs::Explained;
use forebay_fs::policy::{Decision, Source};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainReport {
    pub asked: Asked,
    /// Path below the mount; `None` if the file has no name.
    pub path: Option<String>,
    /// The configuration file that rules and line numbers refer to.
    pub config: Option<PathBuf>,
    pub keys: Vec<ExplainedKey>,
    /// Invalid attributes of the file, which do not count.
    pub ignored: Vec<String>,
}

/// Source of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    Daemon,
    /// Attributes and configuration file, without a daemon: the mount's command line is not known.
    Files,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedKey {
    pub key: String,
    pub value: String,
    #[serde(flatten)]
    pub from: DecidedBy,
}

/// Source of a value, from the highest precedence to the lowest.
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
