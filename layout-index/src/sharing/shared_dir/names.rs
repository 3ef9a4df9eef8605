//! The names in the shared directory. Numbers in names are hexadecimal, and each number is written
//! in exactly one way: a name that this module would not write itself is not used, whatever it
//! looks like.

use crate::types::{FileId, NodeId, NotAName};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Returns the group of a file's directory below `files`, and the directory's name there.
pub fn names_of(id: FileId) -> [String; 2] {
    [format!("{:02x}", group_of(id)), id.to_string()]
}

pub(super) fn group_of(id: FileId) -> u8 {
    ((id.ino ^ id.birth) & 0xff) as u8
}

/// One opening of one store: the node and its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub id: NodeId,
    pub run: u32,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:08x}", self.id, self.run)
    }
}

impl FromStr for Owner {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let (id, run) = text.split_once('.').ok_or(NotAName)?;
        let owner = Owner {
            id: NodeId(hex(id)?),
            run: hex_u32(run)?,
        };
        (owner.to_string() == text).then_some(owner).ok_or(NotAName)
    }
}

/// An announcement: `owner` has data of the file that it is yet to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Announcement {
    pub owner: Owner,
    pub number: u64,
}

/// A name in a file's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Name {
    Layout(NodeId, u32),
    /// Seal: the layout ends at this byte, whatever may still be written to it.
    Seal(NodeId, u32, u64),
    Announcement(Announcement),
    Term(u64),
    Ended(u64),
    Plan(u64),
    Domain {
        term: u64,
        domain: u32,
        attempt: u32,
    },
    Done {
        term: u64,
        domain: u32,
    },
    Base(u64),
    Temporary(NodeId, u64),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Layout(id, number) => write!(f, "l.{id}.{number:x}"),
            Name::Seal(id, number, end) => write!(f, "s.{id}.{number:x}.{end:x}"),
            Name::Announcement(Announcement { owner, number }) => write!(f, "i.{owner}.{number:x}"),
            Name::Term(term) => write!(f, "c.{term:x}"),
            Name::Ended(term) => write!(f, "x.{term:x}"),
            Name::Plan(term) => write!(f, "p.{term:x}"),
            Name::Domain {
                term,
                domain,
                attempt,
            } => write!(f, "d.{term:x}.{domain:x}.{attempt:x}"),
            Name::Done { term, domain } => write!(f, "f.{term:x}.{domain:x}"),
            Name::Base(term) => write!(f, "b.{term:x}"),
            Name::Temporary(id, number) => write!(f, "t.{id}.{number:x}"),
        }
    }
}

impl FromStr for Name {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        // The longest names have four parts, so a fifth part holds the rest of the text and makes
        // the name invalid.
        let parts: Vec<&str> = text.splitn(5, '.').collect();
        let name = match parts[..] {
            ["l", id, number] => Name::Layout(NodeId(hex(id)?), hex_u32(number)?),
            ["s", id, number, end] => Name::Seal(NodeId(hex(id)?), hex_u32(number)?, hex(end)?),
            ["i", id, run, number] => Name::Announcement(Announcement {
                owner: Owner {
                    id: NodeId(hex(id)?),
                    run: hex_u32(run)?,
                },
                number: hex(number)?,
            }),
            ["c", term] => Name::Term(hex(term)?),
            ["x", term] => Name::Ended(hex(term)?),
            ["p", term] => Name::Plan(hex(term)?),
            ["d", term, domain, attempt] => Name::Domain {
                term: hex(term)?,
                domain: hex_u32(domain)?,
                attempt: hex_u32(attempt)?,
            },
            ["f", term, domain] => Name::Done {
                term: hex(term)?,
                domain: hex_u32(domain)?,
            },
            ["b", term] => Name::Base(hex(term)?),
            ["t", id, number] => Name::Temporary(NodeId(hex(id)?), hex(number)?),
            _ => return Err(NotAName),
        };
        (name.to_string() == text).then_some(name).ok_or(NotAName)
    }
}

fn hex(text: &str) -> Result<u64, NotAName> {
    u64::from_str_radix(text, 16).map_err(|_| NotAName)
}

fn hex_u32(text: &str) -> Result<u32, NotAName> {
    u32::from_str_radix(text, 16).map_err(|_| NotAName)
}

/// Everything in a file's directory. Entries that were added or removed while it was listed may be
/// included or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub layouts: Vec<(NodeId, u32)>,
    /// Layouts that end before their files do.
    pub seals: Vec<((NodeId, u32), u64)>,
    pub announcements: Vec<Announcement>,
    pub terms: BTreeMap<u64, Owner>,
    pub ended: BTreeSet<u64>,
    pub plans: BTreeSet<u64>,
    pub bases: BTreeSet<u64>,
    /// Term, domain and attempt.
    pub domains: BTreeSet<(u64, u32, u32)>,
    /// Term and domain.
    pub done: BTreeSet<(u64, u32)>,
    pub temporary: Vec<(NodeId, u64)>,
    /// Names that no node gives: to be reported, never touched.
    pub strange: Vec<String>,
}

impl Listing {
    /// Adds a name. Terms are not added here: the caller inserts them with the owner read from
    /// their link.
    pub(super) fn add(&mut self, name: Name) {
        match name {
            Name::Layout(id, number) => self.layouts.push((id, number)),
            Name::Seal(id, number, end) => self.seals.push(((id, number), end)),
            Name::Announcement(announcement) => self.announcements.push(announcement),
            Name::Term(_) => {}
            Name::Ended(term) => drop(self.ended.insert(term)),
            Name::Plan(term) => drop(self.plans.insert(term)),
            Name::Base(term) => drop(self.bases.insert(term)),
            Name::Domain {
                term,
                domain,
                attempt,
            } => drop(self.domains.insert((term, domain, attempt))),
            Name::Done { term, domain } => drop(self.done.insert((term, domain))),
            Name::Temporary(id, number) => self.temporary.push((id, number)),
        }
    }

    /// Where a layout was sealed, if it was.
    pub fn seal_of(&self, layout: (NodeId, u32)) -> Option<u64> {
        let seals = self.seals.iter().filter(|(of, _)| *of == layout);
        seals.map(|(_, end)| *end).min()
    }

    /// The newest plan, unless there is a base as new as it.
    pub fn unfinished_plan(&self) -> Option<u64> {
        let plan = *self.plans.last()?;
        (self.bases.last().is_none_or(|base| *base < plan)).then_some(plan)
    }

    /// Whether a term is over whatever its holder does: it was ended, or followed by a term whose
    /// taker had seen that the holder was dead.
    pub(super) fn is_over(&self, term: u64) -> bool {
        self.ended.contains(&term)
            || term
                .checked_add(1)
                .is_some_and(|next| self.terms.contains_key(&next))
    }
}
