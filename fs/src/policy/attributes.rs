//! `user.forebay.*`: the policy that the attributes of a file or directory in the backing set.
//!
//! They are input from outside: a user who may write the file can put anything there, also without the mount.
//! An attribute that makes no sense is reported and counts as absent. Everything has a size limit, and a file
//! without such attributes costs one call.
//!
//! Attributes are read as the daemon, or as the owner where the backing does not let the daemon
//! read them (root squash).

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

/// Prefix of all names.
pub const PREFIX: &[u8] = b"user.forebay.";

/// The attributes that a file took over from the directories above it when it was made: a line for each key,
/// `KEY=VALUE DIRECTORY`. Not visible through the mount.
pub const INHERITED: &CStr = c"user.forebay.internal.inherited";

/// Length of the first buffer for a file's list of names. Most files have no names, and this is all that they need.
const NAMES: usize = 1024;
/// The longest list of names that a backing has.
const MOST_NAMES: usize = 65536;
/// Maximum length of a value in bytes.
const VALUE: usize = 256;
/// Maximum length of the record of inherited attributes in bytes.
const RECORD: usize = 3072;
/// Maximum length of a directory's path in that record, which is only shown to people.
const SHOWN: usize = 300;
/// How many bad lines of a record are reported before the rest of it is ignored.
const MOST_BAD: usize = 8;

/// The policy that the attributes of one file or directory set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub own: FilePolicy,
    pub inherited: FilePolicy,
    /// The directory that each inherited key is from.
    pub(super) from: Vec<(Key, String)>,
    /// Messages about attributes that make no sense.
    pub bad: Vec<String>,
}

impl Attributes {
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.inherited.is_empty()
    }

    /// The directory that an inherited key is from.
    pub fn from(&self, key: Key) -> &str {
        let found = self.from.iter().find(|(k, _)| *k == key);
        found.map_or("", |(_, dir)| dir)
    }

    /// Takes over `key` of a directory, unless a nearer directory has set it.
    pub fn inherit(&mut self, key: Key, policy: &FilePolicy, dir: &str) {
        if policy.has(key) && !self.inherited.has(key) {
            self.inherited.copy(key, policy);
            self.from.push((key, dir.to_owned()));
        }
    }

    /// Formats the record for [`INHERITED`].
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

/// Makes arbitrary text fit for one line of a log or a table.
pub fn shown(text: &str, most: usize) -> String {
    let cut: String = text.chars().take(most).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", cut.escape_debug())
}

/// The name of a directory for [`Attributes::inherit`]. A long name is cut at its beginning,
/// because its end says more.
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

/// The key that an attribute's name stands for, or a message that says why it stands for none.
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

/// Adds the attribute's value to `policy`, or returns a message that says why it makes no sense.
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

/// Reads the attributes of the file or directory behind `fd`. Takes one call if there are none.
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
        // The file system has no attributes.
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
            // The attribute was removed meanwhile.
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

/// Records the attributes that a new file has taken over.
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
