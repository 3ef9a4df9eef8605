//! The settings of a mount: options of the command line and keys of the configuration file, declared once.
//!
//! The first paragraph of a key's text is its short help. The whole text is its long help, and its line in
//! `docs/CONFIGURATION.md`, which a test compares with the declaration. So it is written in Markdown.

use crate::units::{Fraction, Size, Span};
use clap::builder::StyledStr;
use clap::{Arg, Args, ValueEnum};
use flusher::ost::Kind;
use layout_index::FilePolicy;
use layout_index::policy::Key;
use serde::Deserialize;
use std::path::PathBuf;

#[cfg(test)]
mod tests;

/// The section of the keys that may also be set for single files.
const FILES: &str = "How files are treated";

/// The type in which a key of files is given on the command line and in the configuration file.
macro_rules! given {
    (bool) => {
        bool
    };
    (Duration) => {
        Span
    };
    ($type:ident) => {
        layout_index::policy::$type
    };
}

macro_rules! keys {
    (
        { $($section:literal { $($(#[$doc:meta])* $name:ident: $type:ty = $value:literal,)* })* }
        $($(#[$_doc:meta])* Key::$_key:ident = $file:ident: $of:ident { $($_rest:tt)* })*
    ) => {
        /// Settings that may be in the configuration file as well as on the command line.
        #[derive(Clone, Debug, Default, Args, Deserialize)]
        #[command(mut_args = complete)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct Keys {
            $($(
                $(#[$doc])*
                #[arg(long, value_name = $value, help_heading = $section)]
                pub $name: $type,
            )*)*
            $(
                #[arg(long, help_heading = FILES)]
                pub $file: Option<given!($of)>,
            )*
            /// Rules for files by path: in the configuration file only
            #[arg(skip)]
            pub policy: Vec<toml::Spanned<RuleKeys>>,
        }

        /// A `[[policy]]` of the configuration file: the settings that can be made for single files.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "kebab-case", default)]
        pub struct RuleKeys {
            #[serde(rename = "match")]
            pub glob: Option<String>,
            $(pub $file: Option<given!($of)>,)*
            /// Unknown keys, so that an error can name them.
            #[serde(flatten)]
            pub others: std::collections::BTreeMap<String, toml::Value>,
        }

        impl Keys {
            /// Both sources as one; `self` wins where both set a key. Without the rules.
            pub fn or(self, other: Keys) -> Keys {
                Keys {
                    $($($name: self.$name.or(other.$name),)*)*
                    $($file: self.$file.or(other.$file),)*
                    policy: Vec::new(),
                }
            }

            /// Settings for all files of a mount that can also be set for single files.
            pub fn of_files(&self) -> FilePolicy {
                FilePolicy {
                    $($file: self.$file.map(Into::into),)*
                }
            }
        }

        impl RuleKeys {
            pub fn of_files(&self) -> FilePolicy {
                FilePolicy {
                    $($file: self.$file.map(Into::into),)*
                }
            }
        }
    };
}

layout_index::policy_keys!(keys! {
    "Places" {
        /// Directory on node-local storage that takes the writes (created with mode 0700 if missing)
        ///
        /// It holds the log and the index. The directory above it must exist, and it is neither the backing nor
        /// below it.
        store: Option<PathBuf> = "DIR",
        /// Directory to overlay [default: the mount point itself]
        backing: Option<PathBuf> = "DIR",
        /// Name of this node in the store and in `status` [default: the host name]
        ///
        /// 1 to 64 letters, digits, dots, dashes or underscores, the first one no dot.
        node: Option<String> = "NAME",
    }
    "Store" {
        /// Bytes that the store may take [default: 80 % of the free space and of what the store already takes,
        /// at each mount]
        ///
        /// Local copies use what the log leaves of them. At least 6.75 MiB, and no more than the disk has.
        store_size: Option<Size> = "SIZE",
        /// Size of one log segment, the unit of reclaim [default: store size / 32, 1 to 64 MiB]
        segment_size: Option<Size> = "SIZE",
        /// Fill level above which writers are slowed down and everything drains [default: 0.75]
        ///
        /// Users with less than an equal part of the store are not slowed while another user has more
        /// ([S7.8](SEMANTICS.md#s7-a-full-or-broken-store)).
        high_watermark: Option<Fraction> = "FRACTION",
        /// Fraction of the store that one user's undrained data may take [default: 0.8]
        ///
        /// Beyond it that user is written through.
        user_share: Option<Fraction> = "FRACTION",
        /// Upper limit on the extent index's memory, whatever the number of extents [default: 256MiB]
        index_memory: Option<Size> = "SIZE",
    }
    "Draining" {
        /// Bytes per second that the drain may write over all files; 0 means no limit [default: 0]
        ///
        /// Data that a close, fsync, unlock or another node waits for is not limited.
        drain_rate: Option<Size> = "SIZE",
        /// Number of stripes written at the same time, and of files drained at the same time [default: 4]
        ///
        /// 1 to 256.
        drain_concurrency: Option<usize> = "N",
        /// Unit of drain writes, a multiple of 4KiB [default: 1MiB]
        ///
        /// Aligned to itself, up to 1 GiB. Set it to the backing's stripe size.
        stripe: Option<Size> = "SIZE",
        /// Read every drained stripe back and compare checksums [default: false]
        verify: Option<bool> = "true|false",
    }
    "Storage targets" {
        /// A directory on a storage target (one mount per target); repeat the option for each target [default:
        /// none]
        ///
        /// In the configuration file, a list. The same targets in the same order on all nodes
        /// ([S9.10](SEMANTICS.md#s9-storage-targets)).
        ost: Vec<PathBuf> = "DIR",
        /// What places files on storage targets: `directories` (those given with `ost`), `lustre`, `moosefs`,
        /// `none`, or `auto`: directories if any are given, else what the backing is on [default: auto]
        ost_provider: Option<Kind> = "KIND",
        /// Number of targets to spread this node's subfiles over [default: all that the probe chose]
        ///
        /// New canonical files are striped over as many.
        subfile_width: Option<usize> = "N",
        /// Measure the targets and use only the fastest; `off` uses all of them alike [default: on]
        ///
        /// Both drop targets that stall, fail or fill.
        probe: Option<Switch> = "on|off",
        /// Measure again when the last measurement is this old [default: 1h]
        probe_age: Option<Span> = "TIME",
        /// How much a probe writes to each target, at least 1 MiB [default: 16MiB]
        probe_size: Option<Size> = "SIZE",
        /// Drop a target that has not answered for this long, and leave a file below that has not answered for
        /// this long alone until it does [default: 10s]
        ost_deadline: Option<Span> = "TIME",
        /// Try a dropped target again after this long [default: 1m]
        ///
        /// Twice as long each time, up to 16 times as long.
        ost_retry: Option<Span> = "TIME",
    }
    "Other nodes" {
        /// Whether other nodes may use the same backing: `many`, or `one` (then nothing is shared) [default:
        /// many]
        ///
        /// With `one`, no shared directory is made.
        nodes: Option<Nodes> = "many|one",
        /// A node that has not been heard from for this long counts as dead to other nodes [default: 30s]
        ///
        /// Other nodes then drain what it published. At most 1 h, and the same on all nodes.
        lease: Option<Span> = "TIME",
    }
    "Serving" {
        /// Where fcntl and flock locks exclude other processes: `shared` (on all nodes, through the locks of
        /// the file system below), `local` (only on this node) [default: shared]
        ///
        /// With `shared` the file system below must support locks (Lustre: mount with `flock`); with `local`
        /// they are in the kernel's own tables.
        locks: Option<Locks> = "shared|local",
        /// How long the kernel may cache names and attributes [default: 1s]
        ///
        /// With `nodes = many`, attributes of files that are open on this node are not cached at all.
        attr_timeout: Option<Span> = "TIME",
        /// Number of threads that take requests from the kernel, 1 to 64 [default: 2 to 4, depending on the
        /// number of cores]
        threads: Option<usize> = "N",
    }
});

/// Makes that `or` can be called on every type of a key.
trait Or {
    fn or(self, other: Self) -> Self;
}

impl<T> Or for Vec<T> {
    fn or(self, other: Self) -> Self {
        if self.is_empty() { other } else { self }
    }
}

/// Adds what the declaration of a key does not say of its option.
fn complete(arg: Arg) -> Arg {
    let arg = match arg.get_long().and_then(Key::parse) {
        Some(key) => described(arg, key),
        None => arg,
    };
    match arg.get_value_names() {
        Some([name]) if name == "true|false" => arg
            .num_args(0..=1)
            .default_missing_value("true")
            .require_equals(true),
        _ => arg,
    }
}

fn described(arg: Arg, key: Key) -> Arg {
    let paragraphs: Vec<_> = key.help().split("\n\n").map(one_line).collect();
    let default = FilePolicy::defaults().text(key).unwrap_or_default();
    let short = format!("{} [default: {default}]", paragraphs[0]);
    let arg = arg.value_name(key.value_name());
    match &paragraphs[1..] {
        [] => arg.help(short),
        more => arg
            .long_help(format!("{short}\n\n{}", more.join("\n\n")))
            .help(short),
    }
}

fn one_line(paragraph: &str) -> String {
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Takes the Markdown out of an option's help.
pub(super) fn plain(arg: Arg) -> Arg {
    let text = |help: &StyledStr| {
        let mut text = String::new();
        let help = help.to_string().replace('`', "");
        let mut rest = help.as_str();
        while let Some((before, link)) = rest.split_once("](") {
            let (before, name) = before.rsplit_once('[').unwrap_or((before, ""));
            text.extend([before, name]);
            rest = link.split_once(')').map_or("", |(_, after)| after);
        }
        text + rest
    };
    let (short, long) = (arg.get_help().map(text), arg.get_long_help().map(text));
    let arg = arg.help(short.unwrap_or_default());
    match long {
        Some(long) => arg.long_help(long),
        None => arg,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nodes {
    Many,
    One,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Locks {
    Shared,
    Local,
}
