//! The configuration file: the keys of the command line in TOML, and rules for files by path.
//!
//! Relative paths in the file count from the directory that holds it, so that the file means the same
//! wherever the program is started.

use crate::args::{Keys, RuleKeys};
use crate::exit_codes::{Failure, Result};
use forebay_fs::{Policies, Rule, Rules};
use layout_index::policy::Key;
use std::path::{Path, PathBuf};

/// A configuration file, read and checked.
pub struct Loaded {
    pub keys: Keys,
    pub rules: Rules,
    pub path: PathBuf,
}

pub fn load(path: &Path) -> Result<Loaded> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        Failure::usage(format!(
            "cannot read the configuration file {}: {e}",
            path.display()
        ))
    })?;
    let wrong = |e| Failure::usage(format!("configuration file {}: {e}", path.display()));
    let mut keys = parse(&text).map_err(wrong)?;
    let rules = rules(&mut keys, &text).map_err(wrong)?;
    let whole = std::path::absolute(path)
        .map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
    let base = whole.parent().unwrap_or(Path::new("/"));
    let rebase = |p: &mut PathBuf| *p = base.join(&*p);
    keys.store.iter_mut().for_each(rebase);
    keys.backing.iter_mut().for_each(rebase);
    keys.ost.iter_mut().for_each(rebase);
    Ok(Loaded {
        keys,
        rules,
        path: whole.clone(),
    })
}

/// Collects the policies for files that come from the command line and the configuration file. Attributes of
/// the files are not part of them.
pub fn policies(command_line: &Keys, file: Option<Loaded>) -> (Policies, Option<Keys>) {
    let mut policies = Policies {
        command_line: command_line.of_files(),
        ..Policies::default()
    };
    let keys = file.map(|loaded| {
        policies.config = loaded.keys.of_files();
        policies.rules = loaded.rules;
        policies.config_file = Some(loaded.path);
        loaded.keys
    });
    (policies, keys)
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

/// Moves the rules out of `keys` and checks them.
fn rules(keys: &mut Keys, text: &str) -> Result<Rules, String> {
    let mut rules = Vec::new();
    for (n, rule) in std::mem::take(&mut keys.policy).into_iter().enumerate() {
        let line = line_of(text, rule.span().start);
        let rule = one_rule(n + 1, line, rule.into_inner())
            .map_err(|why| format!("line {line}: rule {} {why}", n + 1))?;
        rules.push(rule);
    }
    Rules::new(rules)
}

fn one_rule(number: usize, line: usize, keys: RuleKeys) -> Result<Rule, String> {
    let names = || Key::ALL.map(Key::name).join(", ");
    if let Some(other) = keys.others.keys().next() {
        let why = match is_mount_key(other) {
            true => "which is for the whole mount",
            false => "which is not a key",
        };
        return Err(format!(
            "has {other}, {why}; a rule has match and any of {}",
            names()
        ));
    }
    let Some(glob) = keys.glob.clone() else {
        return Err("does not say which files; add for example match = \"ckpt/**\"".into());
    };
    let policy = keys.of_files();
    if let Some((key, flaw)) = policy.flaw() {
        return Err(format!("has a {key} that is {flaw}"));
    }
    if policy.is_empty() {
        return Err(format!("says nothing; a rule has any of {}", names()));
    }
    Ok(Rule {
        number,
        line,
        glob,
        policy,
    })
}

/// Whether there is such a key for the whole mount. The keys of the file are the options of the command line.
fn is_mount_key(name: &str) -> bool {
    let options = <Keys as clap::Args>::augment_args(clap::Command::new("keys"));
    options
        .get_arguments()
        .any(|arg| arg.get_long() == Some(name))
}

fn parse(text: &str) -> Result<Keys, String> {
    toml::from_str(text).map_err(|e| {
        let line = e
            .span()
            .map(|span| line_of(text, span.start))
            .map_or(String::new(), |n| format!("line {n}: "));
        format!("{line}{}", e.message())
    })
}

#[cfg(test)]
mod tests;
