//! Rules of the configuration file, which select files by path.
//!
//! Globs are compiled once, into one automaton for all rules. It reads a path once, in time proportional to
//! the path's length, whatever the globs are: neither stars nor nesting make it backtrack. Paths are bytes
//! and are relative to the mount point.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use layout_index::FilePolicy;
use std::path::Path;

#[cfg(test)]
mod tests;

/// Maximum number of rules in one file; each costs memory and a little time at every open.
pub const MOST_RULES: usize = 1000;
/// Maximum length of a glob in bytes.
pub const LONGEST_GLOB: usize = 1024;
/// How deep `{` may be nested in a glob.
const DEEPEST: usize = 8;

/// A `[[policy]]` section of the configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The rule's position among the rules, from 1.
    pub number: usize,
    /// The rule's line in the configuration file, from 1.
    pub line: usize,
    pub glob: String,
    pub policy: FilePolicy,
}

/// All rules, in the order of the configuration file.
#[derive(Default)]
pub struct Rules {
    rules: Vec<Rule>,
    set: GlobSet,
}

/// Prints the rules as they were given: the same rules look the same in every process.
impl std::fmt::Debug for Rules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.rules).finish()
    }
}

impl Rules {
    /// Compiles the rules. The error is a message that says which rule is wrong and why.
    pub fn new(rules: Vec<Rule>) -> Result<Rules, String> {
        if rules.len() > MOST_RULES {
            return Err(format!(
                "{} rules are too many; the most is {MOST_RULES}",
                rules.len()
            ));
        }
        let mut set = GlobSetBuilder::new();
        for rule in &rules {
            let wrong = |why: &str| {
                let start: String = rule.glob.chars().take(80).collect();
                format!(
                    "line {}: match = \"{}\" {why}",
                    rule.line,
                    start.escape_debug()
                )
            };
            check(&rule.glob).map_err(|why| wrong(&why))?;
            let glob = GlobBuilder::new(&rule.glob)
                .literal_separator(true)
                .backslash_escape(true)
                .build()
                .map_err(|e| wrong(&format!("is not a glob: {}", e.kind())))?;
            set.add(glob);
        }
        let set = set.build().map_err(|e| {
            format!(
                "the globs of the rules are too large together: {}",
                e.kind()
            )
        })?;
        Ok(Rules { rules, set })
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules that match a path below the mount, in the order of the configuration file.
    pub fn matching(&self, path: &Path) -> Vec<&Rule> {
        let numbers = self.set.matches(path);
        numbers.into_iter().map(|n| &self.rules[n]).collect()
    }
}

/// A glob that can never match, or does not mean what it seems to, is an error and not a rule without effect.
fn check(glob: &str) -> Result<(), String> {
    if glob.is_empty() {
        return Err("matches nothing; use \"**\" for all files".into());
    }
    if glob.len() > LONGEST_GLOB {
        return Err(format!(
            "… has {} bytes; the most is {LONGEST_GLOB}",
            glob.len()
        ));
    }
    if glob.starts_with('/') {
        return Err(
            "begins with a slash; paths count from the mount point, so leave it out".into(),
        );
    }
    if glob.ends_with('/') {
        return Err("ends with a slash; say DIR/** for all files below DIR".into());
    }
    let is_dots = |part: &str| part == "." || part == "..";
    if glob.split('/').any(is_dots) || glob.contains("//") {
        return Err("has \"//\", \".\" or \"..\" in it, which no path below the mount has".into());
    }
    if glob.contains('\0') {
        return Err("has a zero byte, which no path has".into());
    }
    let mut depth = 0_usize;
    for byte in glob.bytes() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return Err(format!("nests braces deeper than {DEEPEST}"));
        }
    }
    Ok(())
}
