//! Policies of files: who sets them, and which setting applies.
//!
//! For each key, the first of these that sets it applies:
//!
//! 1. the command line: a setting there is meant for this run, and for all files
//! 2. an attribute of the file (`user.forebay.KEY`)
//! 3. an attribute of a directory above it, the nearest first, as it was when the file was made
//! 4. the first rule of the configuration file that matches the file's path and has the key
//! 5. the configuration file's setting for the whole mount
//! 6. the default
//!
//! Users (2, 3) come before the administrator's rules (4), which know files by name only; keys that users
//! must not decide about have no attribute. One function decides ([`Policies::decide`]): what is done and
//! what `forebay explain` shows both come from it.
//!
//! # When
//!
//! Attributes of directories are taken over when a file is made, and recorded with the file
//! ([`attributes::INHERITED`]): a rename or link does not change a file's policy, every node sees the same
//! policy, and an open looks at the file alone, and only if it may have changed (`learned`). Rules are
//! matched against the path at each open.

pub(crate) mod above;
pub mod attributes;
pub(crate) mod learned;
pub mod rules;

pub use attributes::Attributes;
pub use rules::{Rule, Rules};

use layout_index::policy::Key;
use layout_index::{FilePolicy, FileSettings};
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// All settings of a mount that decide about files, except attributes.
#[derive(Debug, Default)]
pub struct Policies {
    pub command_line: FilePolicy,
    pub rules: Rules,
    /// The configuration file's settings for the whole mount. The next field is its path.
    pub config: FilePolicy,
    pub config_file: Option<PathBuf>,
}

/// Which setting decided about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    CommandLine,
    /// An attribute of the file itself.
    File,
    /// An attribute of this directory, when the file was made.
    Directory(String),
    Rule {
        /// The rule's number, from 1.
        number: usize,
        line: usize,
        glob: String,
    },
    Config,
    Default,
}

/// The decision about one key of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub key: Key,
    pub value: String,
    pub source: Source,
}

/// The setting that decides about a key, and its source.
struct Word<'a> {
    said: &'a FilePolicy,
    source: Source,
}

impl Policies {
    /// Finds the setting that decides about `key`, given the `matching` rules and the attributes.
    fn word<'a>(
        &'a self,
        key: Key,
        matching: &[&'a Rule],
        attributes: &'a Attributes,
        defaults: &'a FilePolicy,
    ) -> Word<'a> {
        let from = || attributes.from(key).to_owned();
        let rule = matching.iter().find(|rule| rule.policy.has(key));
        let (said, source) = if self.command_line.has(key) {
            (&self.command_line, Source::CommandLine)
        } else if attributes.own.has(key) {
            (&attributes.own, Source::File)
        } else if attributes.inherited.has(key) {
            (&attributes.inherited, Source::Directory(from()))
        } else if let Some(rule) = rule {
            let source = Source::Rule {
                number: rule.number,
                line: rule.line,
                glob: rule.glob.clone(),
            };
            (&rule.policy, source)
        } else if self.config.has(key) {
            (&self.config, Source::Config)
        } else {
            (defaults, Source::Default)
        };
        Word { said, source }
    }

    /// What holds for files that neither rules nor attributes say anything of.
    pub fn of_mount(&self) -> FileSettings {
        FileSettings::default()
            .with(&self.config)
            .with(&self.command_line)
    }

    fn matching(&self, path: Option<&Path>) -> Vec<&Rule> {
        path.map_or(Vec::new(), |path| self.rules.matching(path))
    }

    /// Decides about every key of a file at `path` below the mount, and says why.
    pub fn decide(&self, path: Option<&Path>, attributes: &Attributes) -> Vec<Decision> {
        let matching = self.matching(path);
        let defaults = FilePolicy::defaults();
        let decide = |key| {
            let word = self.word(key, &matching, attributes, &defaults);
            Decision {
                key,
                value: word.said.text(key).unwrap_or_default(),
                source: word.source,
            }
        };
        Key::ALL.into_iter().map(decide).collect()
    }

    /// The keys for which the file is treated differently from the mount as a whole.
    pub fn differs(&self, path: Option<&Path>, attributes: &Attributes) -> FilePolicy {
        let matching = self.matching(path);
        let mut policy = FilePolicy::default();
        if matching.is_empty() && attributes.is_empty() {
            return policy;
        }
        let defaults = FilePolicy::defaults();
        for key in Key::ALL {
            let word = self.word(key, &matching, attributes, &defaults);
            match word.source {
                Source::CommandLine | Source::Config | Source::Default => {}
                Source::File | Source::Directory(_) | Source::Rule { .. } => {
                    policy.copy(key, word.said);
                }
            }
        }
        policy
    }
}
