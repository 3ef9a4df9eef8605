//! The configuration file: the keys of the command line in TOML, and rules for files by path.
//!
//! Relative paths in it count from the directory that holds it, so that a file means the same
//! from wherever the program is started.

use crate::args::{Keys, RuleKeys};
use crate::exit_codes::{Failure, Result};
use forebay_fs::{Policies, Rule, Rules};
use layout_index::FilePolicy;
use layout_index::policy::Key;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// Who decides about files, besides their attributes.
pub fn policies(command_line: &Keys, file: Option<Loaded>) -> (Policies, Option<Keys>) {
    let mut policies = Policies {
        command_line: of_mount(command_line),
        ..Policies::default()
    };
    let keys = file.map(|loaded| {
        policies.config = of_mount(&loaded.keys);
        policies.rules = loaded.rules;
        policies.config_file = Some(loaded.path);
        loaded.keys
    });
    (policies, keys)
}

/// What is said for all files of a mount and could be said for each.
fn of_mount(keys: &Keys) -> FilePolicy {
    FilePolicy {
        absorb: keys.absorb,
        drain: keys.drain,
        close: keys.close,
        fsync: keys.fsync,
        subfiles: keys.subfiles,
        keep: keys.keep,
        visibility_timeout: keys.visibility_timeout.map(|span| span.0),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at.min(text.len())].matches('\n').count() + 1
}

/// Takes the rules out of `keys`.
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
    let Some(glob) = keys.glob else {
        return Err("does not say which files; add for example match = \"ckpt/**\"".into());
    };
    let timeout = keys.visibility_timeout.map(|span| span.0);
    if timeout.is_some_and(|time| time < Duration::from_millis(10)) {
        return Err("has a visibility-timeout that is too short; the least is 10ms".into());
    }
    let policy = FilePolicy {
        absorb: keys.absorb,
        drain: keys.drain,
        close: keys.close,
        fsync: keys.fsync,
        subfiles: keys.subfiles,
        keep: keys.keep,
        visibility_timeout: timeout,
    };
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

/// The keys of the file are the options of the command line.
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

/// The command line's word counts where both speak.
pub fn merge(command_line: Keys, file: Keys) -> Keys {
    let (c, f) = (command_line, file);
    Keys {
        store: c.store.or(f.store),
        backing: c.backing.or(f.backing),
        ost: if c.ost.is_empty() { f.ost } else { c.ost },
        ost_provider: c.ost_provider.or(f.ost_provider),
        subfiles: c.subfiles.or(f.subfiles),
        subfile_width: c.subfile_width.or(f.subfile_width),
        probe: c.probe.or(f.probe),
        probe_age: c.probe_age.or(f.probe_age),
        probe_size: c.probe_size.or(f.probe_size),
        ost_deadline: c.ost_deadline.or(f.ost_deadline),
        ost_retry: c.ost_retry.or(f.ost_retry),
        node: c.node.or(f.node),
        nodes: c.nodes.or(f.nodes),
        close: c.close.or(f.close),
        fsync: c.fsync.or(f.fsync),
        visibility_timeout: c.visibility_timeout.or(f.visibility_timeout),
        lease: c.lease.or(f.lease),
        absorb: c.absorb.or(f.absorb),
        drain: c.drain.or(f.drain),
        drain_rate: c.drain_rate.or(f.drain_rate),
        drain_concurrency: c.drain_concurrency.or(f.drain_concurrency),
        stripe: c.stripe.or(f.stripe),
        index_memory: c.index_memory.or(f.index_memory),
        store_size: c.store_size.or(f.store_size),
        segment_size: c.segment_size.or(f.segment_size),
        high_watermark: c.high_watermark.or(f.high_watermark),
        user_share: c.user_share.or(f.user_share),
        locks: c.locks.or(f.locks),
        attr_timeout: c.attr_timeout.or(f.attr_timeout),
        threads: c.threads.or(f.threads),
        verify: c.verify.or(f.verify),
        keep: c.keep.or(f.keep),
        policy: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
