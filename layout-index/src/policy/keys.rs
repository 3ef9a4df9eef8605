//! The declarations: a key that may be set for a single file is added here, and in the code that acts on it.

use super::{Value, unknown};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Calls the macro `$then` with `$given` and all keys. The store makes [`Key`](super::Key),
/// [`FilePolicy`](super::FilePolicy) and [`FileSettings`](super::FileSettings) of them, the program
/// its options and the keys of its configuration file.
///
/// The first paragraph of a key's text is its short help. The whole text is its long help, and its line in
/// `docs/CONFIGURATION.md`.
#[macro_export]
macro_rules! policy_keys {
    ($then:ident! $given:tt) => {
        $then! { $given
            /// Take writes into the store (`on`), pass them all through to the files below (`off`), or take them
            /// and show each to all nodes before it is acknowledged (`coherent`)
            ///
            /// `coherent` is slow, for jobs that need it ([S2.9](SEMANTICS.md#s2-across-nodes)); with `nodes = one`
            /// it is the same as `on`. For a single file the setting holds from the next open on, and `coherent`
            /// keeps its promise only if all nodes that use the file have the same setting, as they do with an
            /// attribute.
            Key::Absorb = absorb: Absorb { name: "absorb", default: Absorb::default(), attribute: true }
            /// When data drains: `immediate` (soon after the write), `on-close` (when the last writer has closed
            /// the file), or `never` (only on request, when unmounting, or when the store is above its high
            /// watermark)
            Key::Drain = drain: Drain { name: "drain", default: Drain::default(), attribute: true }
            /// What a close of a file that was written waits for: `defer` (the data is announced, and other nodes
            /// that open the file wait for it), `defer-next` (the same, and the next open for writing of a file
            /// with the same path except for digits waits for the data of the last one), or `publish` (the data is
            /// where other nodes see it)
            Key::Close = close: Close { name: "close", default: Close::default(), attribute: true }
            /// What an fsync waits for: `publish` (the data is durable, and other nodes see it) or `local` (the
            /// data is durable in this node's store)
            Key::Fsync = fsync: Fsync { name: "fsync", default: Fsync::default(), attribute: true }
            /// Whether data goes to subfiles on the fastest targets before it goes to the file below: `auto` (when
            /// another node has published data of the same file), `always`, `never`
            ///
            /// `never` is the same as `auto` for a file of which another node has published data. With `nodes =
            /// many`, data that a close, fsync, unlock or another node waits for goes to subfiles with any of these
            /// values (up to 32 KiB at a time goes into the node's layout itself).
            Key::Subfiles = subfiles: Subfiles { name: "subfiles", default: Subfiles::default(), attribute: true }
            /// Keep a copy of drained data on this node and read it there, as far as the log leaves room
            ///
            /// What holds for such copies is in [S11](SEMANTICS.md#s11-local-copies).
            Key::Keep = keep: bool { name: "keep", default: false, attribute: true }
            /// How long a request waits for other nodes before it fails: for example an open, for data of a file
            /// that another node has closed but not published
            ///
            /// The error is ETIMEDOUT. These wait: an open, fsync, lock or append for data that another node has
            /// announced; an append, or a read or write with `absorb = coherent`, for its turn; any of them for the
            /// drain of a file that this node must read past its store. The key cannot be an attribute, because it
            /// decides how long other users wait.
            Key::VisibilityTimeout = visibility_timeout: Duration {
                name: "visibility-timeout", default: Duration::from_secs(60), attribute: false
            }
        }
    };
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident for $key:literal {
        $($(#[$of:meta])* $variant:ident = $text:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $text)] $variant,)+
        }

        impl Value for $name {
            const NAME: &'static str = concat!($("|", $text),+).split_at(1).1;
            const CHOICES: &'static [&'static str] = &[$($text),+];

            fn text(&self) -> String {
                self.to_string()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)+
                })
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                match s {
                    $($text => Ok(Self::$variant),)+
                    other => Err(unknown($key, other, Self::CHOICES)),
                }
            }
        }
    };
}

choice! {
    /// Where writes go.
    Absorb for "absorb" {
        /// Into the store.
        #[default]
        On = "on",
        /// Through to the canonical file.
        Off = "off",
        /// Into the store, and each write is published to other nodes before it is answered.
        Coherent = "coherent",
    }
}

choice! {
    /// When undrained data moves to the canonical file by itself.
    ///
    /// An explicit request, and a store above its high watermark, drain regardless of this setting:
    /// keeping data back for ever would turn a full store into slow writers for every user of the
    /// node.
    Drain for "drain" {
        /// Shortly after it was written.
        #[default]
        Immediate = "immediate",
        /// When the last writer has closed the file.
        OnClose = "on-close",
        /// When asked to, or when the store is above its high watermark.
        Never = "never",
    }
}

choice! {
    /// The state that a close waits for.
    Close for "close" {
        /// An announcement; the data follows.
        #[default]
        Defer = "defer",
        /// Like `defer`, and the next open of a file of the same base name waits for the data.
        DeferNext = "defer-next",
        /// The data is visible to other nodes.
        Publish = "publish",
    }
}

choice! {
    /// The state that an fsync waits for.
    Fsync for "fsync" {
        /// The data is visible to other nodes, and durable.
        #[default]
        Publish = "publish",
        /// The data is durable in this node's store.
        Local = "local",
    }
}

choice! {
    /// Whether data goes to subfiles before it goes to the canonical file.
    Subfiles for "subfiles" {
        /// Only if another node writes the same file.
        #[default]
        Auto = "auto",
        Always = "always",
        /// Always straight to the canonical file.
        Never = "never",
    }
}
