//! Policies of files: who says what, and whose word counts.
//!
//! For each key, the first of these that says something:
//!
//! 1. the command line: whoever starts the daemon means this run, and all of it
//! 2. an attribute of the file (`user.forebay.KEY`)
//! 3. an attribute of a directory above it, the nearest first, as it was when the file was made
//! 4. the first rule of the configuration file that matches the file's path and has the key
//! 5. the configuration file's word for the whole mount
//! 6. the default
//!
//! Users (2, 3) come before the administrator's rules (4), which know files by name only; what users
//! must not decide has no attribute. One function decides ([`Policies::decide`]); what is done and what
//! `forebay explain` says come from it both.
//!
//! # When
//!
//! Attributes of directories are taken over when a file is made, and recorded with the file
//! ([`attributes::INHERITED`]): a rename or link does not change what a file is, every node
//! sees the same, and an open looks at the file alone, and only if it may have changed (`learned`).
//! Rules go by the path at each open.

pub(crate) mod above;
pub mod attributes;
pub(crate) mod learned;
pub mod rules;

pub use attributes::Attributes;
pub use rules::{Rule, Rules};

use layout_index::FilePolicy;
use layout_index::policy::Key;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// All that a mount was told, besides what attributes say.
#[derive(Debug, Default)]
pub struct Policies {
    pub command_line: FilePolicy,
    pub rules: Rules,
    /// The configuration file for the whole mount, and where it is.
    pub config: FilePolicy,
    pub config_file: Option<PathBuf>,
}

/// Whose word it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    CommandLine,
    /// An attribute of the file itself.
    File,
    /// An attribute of this directory, when the file was made.
    Directory(String),
    Rule {
        /// From 1.
        number: usize,
        line: usize,
        glob: String,
    },
    Config,
    Default,
}

/// One key of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub key: Key,
    pub value: String,
    pub source: Source,
}

/// The layer that decides about a key.
struct Word<'a> {
    said: &'a FilePolicy,
    source: Source,
}

impl Policies {
    /// Who decides about `key`, among `matching` rules and what the attributes say.
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

    fn matching(&self, path: Option<&Path>) -> Vec<&Rule> {
        path.map_or(Vec::new(), |path| self.rules.matching(path))
    }

    /// Every key of a file at `path` below the mount, and why.
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

    /// Where a file is not to be treated as the whole mount is.
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
