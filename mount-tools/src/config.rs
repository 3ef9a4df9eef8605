//! The configuration file: the keys of the command line in TOML.
//!
//! Relative paths in it count from the directory that holds it, so that a file means the same
//! from wherever the program is started.

use crate::args::Keys;
use crate::exit_codes::{Failure, Result};
use std::path::{Path, PathBuf};

pub fn load(path: &Path) -> Result<Keys> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        Failure::usage(format!(
            "cannot read the configuration file {}: {e}",
            path.display()
        ))
    })?;
    let mut keys = parse(&text)
        .map_err(|e| Failure::usage(format!("configuration file {}: {e}", path.display())))?;
    let base = std::path::absolute(path)
        .map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
    let base = base.parent().unwrap_or(Path::new("/"));
    let rebase = |p: &mut PathBuf| *p = base.join(&*p);
    keys.store.iter_mut().for_each(rebase);
    keys.backing.iter_mut().for_each(rebase);
    keys.ost.iter_mut().for_each(rebase);
    Ok(keys)
}

fn parse(text: &str) -> Result<Keys, String> {
    toml::from_str(text).map_err(|e| {
        let line = e
            .span()
            .map(|span| text[..span.start].matches('\n').count() + 1)
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Locks;
    use crate::units::{Fraction, Size, Span};
    use flusher::Policy;
    use std::time::Duration;

    #[test]
    fn every_key_in_every_spelling() {
        let keys = parse(
            r#"
            store = "/nvme/forebay"
            backing = "/scratch"
            ost = ["/ost0", "/ost1"]
            ost-provider = "directories"
            subfiles = "always"
            subfile-width = 4
            probe = "on"
            probe-age = "10m"
            probe-size = "4MiB"
            ost-deadline = "5s"
            ost-retry = "30s"
            node = "n7"
            nodes = "one"
            close = "defer-next"
            fsync = "local"
            visibility-timeout = "30s"
            lease = "10s"
            absorb = "off"
            drain = "on-close"
            drain-rate = 0
            drain-concurrency = 8
            stripe = "4MiB"
            index-memory = 268435456
            store-size = "100GiB"
            segment-size = "16MiB"
            high-watermark = "80%"
            user-share = 0.5
            locks = "local"
            attr-timeout = "500ms"
            threads = 3
            verify = true
            keep = true
            "#,
        )
        .unwrap();
        assert_eq!(keys.ost.len(), 2);
        assert_eq!(keys.ost_provider, Some(flusher::ost::Kind::Directories));
        assert_eq!(keys.subfiles, Some(flusher::Subfiles::Always));
        assert_eq!(keys.absorb, Some(crate::args::Absorb::Off));
        assert_eq!(keys.drain, Some(Policy::OnClose));
        assert_eq!(keys.drain_rate, Some(Size(0)));
        assert_eq!(keys.stripe, Some(Size(4 << 20)));
        assert_eq!(keys.high_watermark, Some(Fraction(0.8)));
        assert_eq!(keys.user_share, Some(Fraction(0.5)));
        assert_eq!(keys.locks, Some(Locks::Local));
        assert_eq!(keys.attr_timeout, Some(Span(Duration::from_millis(500))));
        assert_eq!(keys.verify, Some(true));
        assert_eq!(keys.keep, Some(true));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_known_ones() {
        let message = parse("node = \"a\"\ndrain-rat = 3\n").unwrap_err();
        assert!(message.contains("line 2"), "{message}");
        assert!(message.contains("drain-rat"), "{message}");
        assert!(message.contains("drain-rate"), "{message}");
    }

    #[test]
    fn a_wrong_value_is_named() {
        let message = parse("stripe = \"big\"").unwrap_err();
        assert!(
            message.contains("big") && message.contains("64MiB"),
            "{message}"
        );
        assert!(parse("drain = \"later\"").unwrap_err().contains("later"));
    }

    #[test]
    fn the_command_line_overrides_and_the_file_fills_in() {
        let command_line = Keys {
            node: Some("a".into()),
            ..Keys::default()
        };
        let file = parse("node = \"b\"\nthreads = 9\nost = [\"/o\"]").unwrap();
        let merged = merge(command_line, file);
        assert_eq!(merged.node.as_deref(), Some("a"));
        assert_eq!(merged.threads, Some(9));
        assert_eq!(merged.ost, [PathBuf::from("/o")]);
    }

    #[test]
    fn relative_paths_count_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        std::fs::write(&path, "store = \"s\"\nost = [\"/abs\"]").unwrap();
        let keys = load(&path).unwrap();
        assert_eq!(keys.store, Some(dir.path().join("s")));
        assert_eq!(keys.ost, [PathBuf::from("/abs")]);
        assert!(
            load(&dir.path().join("none"))
                .unwrap_err()
                .message
                .contains("none")
        );
    }
}
