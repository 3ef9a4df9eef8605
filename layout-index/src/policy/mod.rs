//! Settings that may be chosen for a single file and not only for a whole mount.
//!
//! The file system decides them (it sees names and attributes, at open), and the drain acts on them
//! (much later, by the file's identity). Both use the same object, [`crate::File`], so the decision
//! is stored there: [`crate::File::policy`]. It holds only what differs from the mount's own
//! settings, so that those can be changed without visiting each file. [`crate::File::settings`] is both together.
//!
//! # Crash behaviour
//!
//! The log does not contain policies. After a start the drain asks for a file's policy again before
//! it acts on the file, because the policy follows from the backing (attributes, names) and from
//! the configuration of this start, not of the last one. See `docs/decisions/0010-policies.md`.
//!
//! # Declarations
//!
//! A key is declared once, in [`policy_keys!`](crate::policy_keys). Its type, the texts and all conversions here
//! follow from that, as do the options, the configuration file and `docs/CONFIGURATION.md` in `mount-tools`.

use std::fmt;
use std::time::Duration;

mod keys;
pub use keys::{Absorb, Close, Drain, Fsync, Subfiles};

#[cfg(test)]
mod tests;

/// A type that a key may have.
pub trait Value {
    /// What stands for a value in the help of the command line.
    const NAME: &'static str;
    /// All values as texts; empty if they cannot be listed.
    const CHOICES: &'static [&'static str] = &[];

    /// The value as it is written in a configuration file.
    fn text(&self) -> String;

    /// Why the value makes no sense, if it does not.
    fn flaw(&self) -> Option<&'static str> {
        None
    }
}

impl Value for bool {
    const NAME: &'static str = "true|false";
    const CHOICES: &'static [&'static str] = &["true", "false"];

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for Duration {
    const NAME: &'static str = "TIME";

    fn text(&self) -> String {
        format!("{self:?}")
    }

    fn flaw(&self) -> Option<&'static str> {
        (*self < Duration::from_millis(10)).then_some("too short; the least is 10ms")
    }
}

fn unknown(key: &str, value: &str, choices: &[&str]) -> String {
    let (last, rest) = choices.split_last().map_or(("", &[][..]), |(l, r)| (*l, r));
    format!(
        "{key} = \"{}\" is not known; use {} or {last}",
        value.escape_default(),
        rest.join(", ")
    )
}

macro_rules! define {
    ({} $(
        $(#[doc = $doc:literal])*
        Key::$key:ident = $field:ident: $type:ty {
            name: $name:literal, default: $default:expr, attribute: $attribute:tt
        }
    )*) => {
        /// A key that may be set for one file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Key {
            $($(#[doc = $doc])* $key,)*
        }

        impl Key {
            pub const ALL: [Key; [$(Key::$key),*].len()] = [$(Key::$key),*];

            pub fn name(self) -> &'static str {
                [$($name),*][self as usize]
            }

            pub fn value_name(self) -> &'static str {
                [$(<$type>::NAME),*][self as usize]
            }

            /// The text of the declaration, line by line.
            pub fn help(self) -> &'static str {
                [$(concat!($($doc, "\n"),*)),*][self as usize]
            }

            /// Whether the key may be an attribute of a file or directory.
            pub fn is_attribute(self) -> bool {
                [$($attribute),*][self as usize]
            }

            /// All values as texts; empty if they cannot be listed.
            pub fn choices(self) -> &'static [&'static str] {
                [$(<$type>::CHOICES),*][self as usize]
            }
        }

        /// What holds for a file, or for files of which nothing else is known.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct FileSettings {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        /// The settings that apply if no source sets any.
        impl Default for FileSettings {
            fn default() -> Self {
                FileSettings {
                    $($field: $default,)*
                }
            }
        }

        impl FileSettings {
            /// These settings, except those that `policy` has.
            pub fn with(self, policy: &FilePolicy) -> FileSettings {
                FileSettings {
                    $($field: policy.$field.unwrap_or(self.$field),)*
                }
            }
        }

        /// Settings for a file from one source: a rule, an attribute, or the command line. `None` leaves the
        /// setting to the next source.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct FilePolicy {
            $($(#[doc = $doc])* pub $field: Option<$type>,)*
        }

        impl FilePolicy {
            /// The settings that apply if no source sets any.
            pub fn defaults() -> FilePolicy {
                FilePolicy {
                    $($field: Some($default),)*
                }
            }

            pub fn has(&self, key: Key) -> bool {
                match key {
                    $(Key::$key => self.$field.is_some(),)*
                }
            }

            /// Takes over `other`'s setting of `key`.
            pub fn copy(&mut self, key: Key, other: &FilePolicy) {
                match key {
                    $(Key::$key => self.$field = other.$field,)*
                }
            }

            /// The value as it is written in a configuration file.
            pub fn text(&self, key: Key) -> Option<String> {
                match key {
                    $(Key::$key => self.$field.as_ref().map(Value::text),)*
                }
            }

            /// The first key whose value makes no sense, and why.
            pub fn flaw(&self) -> Option<(Key, &'static str)> {
                let flaws = [$((Key::$key, self.$field.as_ref().and_then(Value::flaw)),)*];
                flaws.into_iter().find_map(|(key, flaw)| Some((key, flaw?)))
            }

            /// Sets `key` to the value of an attribute; returns the reason if that is not possible.
            pub fn set(&mut self, key: Key, text: &str) -> Result<(), String> {
                match key {
                    $(Key::$key => set!($attribute, self.$field, key, text),)*
                }
                Ok(())
            }
        }
    };
}

/// Sets a field from text if its key may be an attribute.
macro_rules! set {
    (true, $field:expr, $key:expr, $text:expr) => {{
        let value = $text.parse();
        $field = Some(value.map_err(|_| unknown($key.name(), $text, $key.choices()))?);
    }};
    (false, $field:expr, $key:expr, $text:expr) => {
        return Err(format!(
            "{} cannot be an attribute; it is for the configuration file",
            $key
        ))
    };
}

crate::policy_keys!(define! {});

impl Key {
    pub fn parse(name: &str) -> Option<Key> {
        Key::ALL.into_iter().find(|key| key.name() == name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FilePolicy {
    pub fn is_empty(&self) -> bool {
        *self == FilePolicy::default()
    }
}
