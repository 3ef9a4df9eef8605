//! What may be chosen for one file and not only for a whole mount.
//!
//! Who decides (the file system: it sees names and attributes, at open) and who acts (the drain, long
//! after, by the file's identity) meet in one object, [`crate::File`]. So the decision lies there:
//! [`crate::File::policy`]. It holds only what differs from the mount's own settings, so that
//! those can be changed without a look at each file.
//!
//! # Crash behaviour
//!
//! The log does not have it. After a start the drain asks for it again before it acts on a file,
//! because what decides is in the backing (attributes, names) and in the configuration of this
//! start, not of the last one. `docs/decisions/0010-policies.md`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

#[cfg(test)]
mod tests;

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident for $key:literal {
        $($(#[$of:meta])* $variant:ident = $text:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            pub const CHOICES: &'static [&'static str] = &[$($text),+];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
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

fn unknown(key: &str, value: &str, choices: &[&str]) -> String {
    let (last, rest) = choices.split_last().map_or(("", &[][..]), |(l, r)| (*l, r));
    format!(
        "{key} = \"{}\" is not known; use {} or {last}",
        value.escape_default(),
        rest.join(", ")
    )
}

choice! {
    /// Where writes go.
    Absorb for "absorb" {
        /// Into the store.
        #[default]
        On = "on",
        /// Through to the canonical file.
        Off = "off",
        /// Into the store, and each to where other nodes read it before it is answered.
        Coherent = "coherent",
    }
}

choice! {
    /// When undrained data moves to the canonical file by itself.
    ///
    /// A request, and a store above its high watermark, drain whatever this says: keeping data
    /// back for ever would turn a full store into slow writers for every user of the node.
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
    /// What a close waits for.
    Close for "close" {
        /// An announcement; the data follows.
        #[default]
        Defer = "defer",
        /// The same, and the next open of a file of the same base name waits for the data.
        DeferNext = "defer-next",
        /// The data is where other nodes see it.
        Publish = "publish",
    }
}

choice! {
    /// What an fsync waits for.
    Fsync for "fsync" {
        /// The data is where other nodes see it, and durable.
        #[default]
        Publish = "publish",
        /// The data is durable in this node's store.
        Local = "local",
    }
}

choice! {
    /// Whether data goes to subfiles before it goes to the canonical file.
    Subfiles for "subfiles" {
        /// Where another node writes the same file.
        #[default]
        Auto = "auto",
        Always = "always",
        /// Always straight to the canonical file.
        Never = "never",
    }
}

/// A key that may be set for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    Absorb,
    Drain,
    Close,
    Fsync,
    Subfiles,
    Keep,
    VisibilityTimeout,
}

impl Key {
    pub const ALL: [Key; 7] = [
        Key::Absorb,
        Key::Drain,
        Key::Close,
        Key::Fsync,
        Key::Subfiles,
        Key::Keep,
        Key::VisibilityTimeout,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Key::Absorb => "absorb",
            Key::Drain => "drain",
            Key::Close => "close",
            Key::Fsync => "fsync",
            Key::Subfiles => "subfiles",
            Key::Keep => "keep",
            Key::VisibilityTimeout => "visibility-timeout",
        }
    }

    pub fn parse(name: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.name() == name)
    }

    /// May be an attribute of a file or directory. How long others wait in an open is not for the
    /// file's owner to say.
    pub fn is_attribute(self) -> bool {
        self != Key::VisibilityTimeout
    }

    /// Empty where any time will do.
    pub fn choices(self) -> &'static [&'static str] {
        match self {
            Key::Absorb => Absorb::CHOICES,
            Key::Drain => Drain::CHOICES,
            Key::Close => Close::CHOICES,
            Key::Fsync => Fsync::CHOICES,
            Key::Subfiles => Subfiles::CHOICES,
            Key::Keep => &["true", "false"],
            Key::VisibilityTimeout => &[],
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What somebody has said of a file: a rule, an attribute, the command line. `None` leaves it to whoever
/// speaks next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePolicy {
    pub absorb: Option<Absorb>,
    pub drain: Option<Drain>,
    pub close: Option<Close>,
    pub fsync: Option<Fsync>,
    pub subfiles: Option<Subfiles>,
    /// The store keeps its copy when the canonical file has it, for reading.
    pub keep: Option<bool>,
    pub visibility_timeout: Option<Duration>,
}

/// How long others are waited for where nobody says anything.
pub const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(60);

impl FilePolicy {
    /// What holds where nobody has said anything.
    pub fn defaults() -> FilePolicy {
        FilePolicy {
            absorb: Some(Absorb::default()),
            drain: Some(Drain::default()),
            close: Some(Close::default()),
            fsync: Some(Fsync::default()),
            subfiles: Some(Subfiles::default()),
            keep: Some(false),
            visibility_timeout: Some(VISIBILITY_TIMEOUT),
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == FilePolicy::default()
    }

    pub fn has(&self, key: Key) -> bool {
        match key {
            Key::Absorb => self.absorb.is_some(),
            Key::Drain => self.drain.is_some(),
            Key::Close => self.close.is_some(),
            Key::Fsync => self.fsync.is_some(),
            Key::Subfiles => self.subfiles.is_some(),
            Key::Keep => self.keep.is_some(),
            Key::VisibilityTimeout => self.visibility_timeout.is_some(),
        }
    }

    /// Takes over what `other` says of `key`.
    pub fn copy(&mut self, key: Key, other: &FilePolicy) {
        match key {
            Key::Absorb => self.absorb = other.absorb,
            Key::Drain => self.drain = other.drain,
            Key::Close => self.close = other.close,
            Key::Fsync => self.fsync = other.fsync,
            Key::Subfiles => self.subfiles = other.subfiles,
            Key::Keep => self.keep = other.keep,
            Key::VisibilityTimeout => self.visibility_timeout = other.visibility_timeout,
        }
    }

    /// The value as it is written in a configuration file.
    pub fn text(&self, key: Key) -> Option<String> {
        match key {
            Key::Absorb => self.absorb.map(|v| v.to_string()),
            Key::Drain => self.drain.map(|v| v.to_string()),
            Key::Close => self.close.map(|v| v.to_string()),
            Key::Fsync => self.fsync.map(|v| v.to_string()),
            Key::Subfiles => self.subfiles.map(|v| v.to_string()),
            Key::Keep => self.keep.map(|v| v.to_string()),
            Key::VisibilityTimeout => self.visibility_timeout.map(|v| format!("{v:?}")),
        }
    }

    /// Sets `key` to what an attribute says, or says why not.
    pub fn set(&mut self, key: Key, text: &str) -> Result<(), String> {
        match key {
            Key::Absorb => self.absorb = Some(text.parse()?),
            Key::Drain => self.drain = Some(text.parse()?),
            Key::Close => self.close = Some(text.parse()?),
            Key::Fsync => self.fsync = Some(text.parse()?),
            Key::Subfiles => self.subfiles = Some(text.parse()?),
            Key::Keep => {
                let value = text.parse();
                self.keep = Some(value.map_err(|_| unknown("keep", text, key.choices()))?);
            }
            Key::VisibilityTimeout => {
                return Err(format!(
                    "{key} cannot be an attribute; it is for the configuration file"
                ));
            }
        }
        Ok(())
    }
}
