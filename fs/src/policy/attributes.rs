//! `user.forebay.*`: what the attributes of a file or directory in the backing say.
//!
//! They are input from outside: anybody who may write the file can put anything there, past the
//! mount too. What makes no sense is told and counts as not there. All of it is bounded, and a file
//! without any costs one call.
//!
//! Reading is done as the daemon, and as the owner where the backing does not let the daemon
//! (root squash).

use crate::backing::{Creds, creds, sys};
use crate::types::RESERVED_XATTR;
use layout_index::FilePolicy;
use layout_index::policy::Key;
use std::ffi::{CStr, CString};
use std::fmt::Write;
use std::io;
use std::os::fd::BorrowedFd;

#[cfg(test)]
mod tests;

/// What all names begin with.
pub const PREFIX: &[u8] = b"user.forebay.";

/// What a file took over from the directories above it when it was made: a line for each key,
/// `KEY=VALUE DIRECTORY`. Not to be seen through the mount.
pub const INHERITED: &CStr = c"user.forebay.internal.inherited";

/// Names of one file; most have none, and then this is all that is needed.
const NAMES: usize = 1024;
/// Longer lists of names are the backing's largest.
const MOST_NAMES: usize = 65536;
/// Bytes of one value.
const VALUE: usize = 256;
/// Bytes of the record of what was taken over.
const RECORD: usize = 3072;
/// Bytes of a directory's path in that record: it is there to be read by people.
const SHOWN: usize = 300;
/// Lines of a record that makes no sense that are looked at.
const MOST_BAD: usize = 8;

/// What the attributes of one file or directory say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub own: FilePolicy,
    pub inherited: FilePolicy,
    /// Where each inherited key is from.
    pub(super) from: Vec<(Key, String)>,
    /// Sentences about attributes that make no sense.
    pub bad: Vec<String>,
}

impl Attributes {
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.inherited.is_empty()
    }

    /// The directory that an inherited key came from.
    pub fn from(&self, key: Key) -> &str {
        let found = self.from.iter().find(|(k, _)| *k == key);
        found.map_or("", |(_, dir)| dir)
    }

    /// Takes over `key` of a directory, unless a nearer one has spoken.
    pub fn inherit(&mut self, key: Key, policy: &FilePolicy, dir: &str) {
        if policy.has(key) && !self.inherited.has(key) {
            self.inherited.copy(key, policy);
            self.from.push((key, dir.to_owned()));
        }
    }

    /// The record for [`INHERITED`].
    pub fn record(&self) -> String {
        let mut record = String::new();
        for (key, dir) in &self.from {
            let value = self.inherited.text(*key).unwrap_or_default();
            writeln!(record, "{key}={value} {dir}").expect("a string takes everything");
        }
        record
    }

    fn read_record(&mut self, record: &[u8]) {
        let Ok(record) = std::str::from_utf8(record) else {
            self.bad
                .push("the record of what it inherited is no text".into());
            return;
        };
        for line in record.lines() {
            if self.bad.len() >= MOST_BAD {
                return;
            }
            let entry = line.split_once(' ').and_then(|(said, dir)| {
                let (key, value) = said.split_once('=')?;
                Some((Key::parse(key)?, value, dir))
            });
            let mut policy = FilePolicy::default();
            match entry {
                Some((key, value, dir)) if policy.set(key, value).is_ok() => {
                    self.inherit(key, &policy, dir);
                }
                _ => self.bad.push(format!(
                    "the record of what it inherited has a line that makes no sense: \"{}\"",
                    shown(line, SHOWN)
                )),
            }
        }
    }
}

/// A text that may hold anything, for one line of a log or a table.
pub fn shown(text: &str, most: usize) -> String {
    let cut: String = text.chars().take(most).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", cut.escape_debug())
}

/// The name of a directory for [`Attributes::inherit`]; its end says more than its beginning.
pub fn directory(path: &std::path::Path) -> String {
    let text = path.to_string_lossy();
    if text.is_empty() {
        return ".".to_owned();
    }
    let whole = text.escape_debug().to_string();
    let dots = "…";
    match whole.len() > SHOWN {
        true => {
            let mut cut = whole.len() - (SHOWN - dots.len());
            while !whole.is_char_boundary(cut) {
                cut += 1;
            }
            format!("{dots}{}", &whole[cut..])
        }
        false => whole,
    }
}

/// The key that an attribute's name stands for, or a sentence that says why it stands for none.
pub fn key(name: &[u8]) -> Result<Key, String> {
    let text = String::from_utf8_lossy(name.strip_prefix(PREFIX).unwrap_or(name));
    let keys = || {
        let names = Key::ALL.into_iter().filter(|key| key.is_attribute());
        names.map(Key::name).collect::<Vec<_>>().join(", ")
    };
    match Key::parse(&text) {
        Some(key) if key.is_attribute() => Ok(key),
        Some(key) => Err(format!(
            "{key} cannot be an attribute, only in the configuration file; those that can are {}",
            keys()
        )),
        None => Err(format!(
            "\"{}\" is not a key of files; those are {}",
            shown(&text, 64),
            keys()
        )),
    }
}

/// Adds what the attribute says to `policy`, or says why it makes no sense.
pub fn parse(policy: &mut FilePolicy, name: &[u8], value: &[u8]) -> Result<(), String> {
    let key = key(name)?;
    let text = String::from_utf8_lossy(value);
    if value.len() > VALUE || matches!(text, std::borrow::Cow::Owned(_)) {
        let choices = key.choices().join(", ");
        return Err(format!(
            "{key} has a value of {} bytes that is none of {choices}",
            value.len()
        ));
    }
    policy.set(key, &text)
}

/// What the attributes of the file or directory behind `fd` say. One call where there are none.
pub fn read(fd: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut buffer = [0; NAMES];
    let mut more = Vec::new();
    let names = match sys::listxattr(fd, &mut buffer) {
        Ok(len) => &buffer[..len],
        Err(e) if e.raw_os_error() == Some(libc::ERANGE) => {
            more.resize(MOST_NAMES, 0);
            let len = sys::listxattr(fd, &mut more)?;
            &more[..len]
        }
        // A file system without attributes.
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Attributes::default()),
        Err(e) => return Err(e),
    };
    let mut attributes = Attributes::default();
    let ours = names.split(|b| *b == 0).filter(|n| n.starts_with(PREFIX));
    for name in ours {
        read_one(fd, name, &mut attributes)?;
    }
    Ok(attributes)
}

fn read_one(fd: BorrowedFd<'_>, name: &[u8], attributes: &mut Attributes) -> io::Result<()> {
    let is_record = name == INHERITED.to_bytes();
    if name.starts_with(RESERVED_XATTR) && !is_record {
        return Ok(());
    }
    let Ok(name) = CString::new(name) else {
        return Ok(());
    };
    let mut value = [0; RECORD];
    let value = match get(fd, &name, &mut value) {
        Ok(len) => &value[..len],
        Err(e) => match e.raw_os_error() {
            // It went meanwhile.
            Some(libc::ENODATA) => return Ok(()),
            Some(libc::ERANGE) => {
                let name = String::from_utf8_lossy(name.to_bytes()).into_owned();
                attributes
                    .bad
                    .push(format!("{} is too long", shown(&name, 64)));
                return Ok(());
            }
            _ => return Err(e),
        },
    };
    if is_record {
        attributes.read_record(value);
    } else if let Err(why) = parse(&mut attributes.own, name.to_bytes(), value) {
        attributes.bad.push(why);
    }
    Ok(())
}

fn get(fd: BorrowedFd<'_>, name: &CStr, value: &mut [u8]) -> io::Result<usize> {
    match sys::getxattr(fd, name, value) {
        Err(e) if refused(&e) && creds::switches() => {
            let _as_owner = owner(fd)?.enter()?;
            sys::getxattr(fd, name, value)
        }
        other => other,
    }
}

/// Records what a new file has taken over.
pub fn write_record(fd: BorrowedFd<'_>, attributes: &Attributes) -> io::Result<()> {
    let record = attributes.record();
    match sys::setxattr(fd, INHERITED, record.as_bytes(), 0) {
        Err(e) if refused(&e) && creds::switches() => {
            let _as_owner = owner(fd)?.enter()?;
            sys::setxattr(fd, INHERITED, record.as_bytes(), 0)
        }
        other => other,
    }
}

fn refused(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

fn owner(fd: BorrowedFd<'_>) -> io::Result<Creds> {
    let stat = sys::stat(fd)?;
    Ok(Creds::owner(stat.uid, stat.gid))
}
