//! The operations on a file and their times, and the contents that these allow after a crash.
//!
//! An operation is *required* when it was acknowledged (and, after a power failure, synced too) and *possible* when
//! it had begun. A byte may have the value of the last required operation that covers it, or the value that any
//! possible operation after that one gave it. Truncates in the log are not taken apart: whether one happened is
//! decided once for the size and all bytes together, so that "old size, but zeros" is no outcome. (A truncate of a
//! clean file goes to the canonical file at once, while the log may still forget that the file was clean: there it
//! is an outcome.)

use std::collections::BTreeSet;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub enum Effect {
    Write {
        offset: u64,
        data: Arc<[u8]>,
    },
    /// `whole` is true when the truncate went to the log.
    Truncate {
        size: u64,
        whole: bool,
    },
    Zero {
        start: u64,
        end: u64,
        grow: bool,
    },
    /// The last name was removed.
    Unlink,
    /// The data was dropped.
    Discard,
}

impl Effect {
    /// Returns the value that the effect gives the byte at `at`, if it touches it.
    fn value(&self, at: u64) -> Option<u8> {
        match self {
            Effect::Write { offset, data } => data.get(at.checked_sub(*offset)? as usize).copied(),
            Effect::Truncate { size, .. } => (at >= *size).then_some(0),
            Effect::Zero { start, end, .. } => (at >= *start && at < *end).then_some(0),
            Effect::Unlink | Effect::Discard => None,
        }
    }

    /// Returns the sizes that the effect can make of `size`: of a write, each page may be there or not.
    fn sizes(&self, size: u64) -> Vec<u64> {
        match self {
            Effect::Write { offset, data } => {
                let end = offset + data.len() as u64;
                let pages = (offset / PAGE + 1..end.div_ceil(PAGE)).map(|page| page * PAGE);
                let unit = layout_index::extent::UNIT_MAX as usize;
                let records = (*offset..end).step_by(unit).skip(1);
                // A failing disk may leave the first half.
                let half = offset + data.len() as u64 / 2;
                let parts = pages.chain(records).chain([half, end]);
                parts.map(|part| size.max(part)).collect()
            }
            Effect::Truncate { size, .. } => vec![*size],
            Effect::Zero {
                end, grow: true, ..
            } => vec![size.max(*end)],
            _ => vec![size],
        }
    }

    fn final_size(&self, size: u64) -> u64 {
        self.sizes(size).last().copied().unwrap_or(size)
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        let size = self.final_size(bytes.len() as u64) as usize;
        bytes.resize(size, 0);
        match self {
            Effect::Write { offset, data } => {
                bytes[*offset as usize..][..data.len()].copy_from_slice(data);
            }
            Effect::Zero { start, end, .. } => {
                let end = (*end as usize).min(size);
                bytes[(*start as usize).min(end)..end].fill(0);
            }
            _ => {}
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    effect: Effect,
    begun: usize,
    /// When the operation was acknowledged; `None` for an operation that failed.
    done: Option<usize>,
}

/// Everything that was done to one file, in order.
#[derive(Clone, Debug, Default)]
pub struct History {
    base: Vec<u8>,
    entries: Vec<Entry>,
    /// From each of these moments on, so many entries survive a power failure.
    durable: Vec<(usize, usize)>,
    /// The modification time that was shown from each of these moments on.
    mtimes: Vec<(usize, Option<u64>)>,
}

/// Identifies an operation that has begun.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Begun(usize);

/// The states of one file that a crash at some moment may leave.
#[derive(Clone, Debug)]
pub struct Expected<'a> {
    base: &'a [u8],
    /// The effects, each with whether it is required.
    effects: Vec<(&'a Effect, bool)>,
    /// Known only where nothing is in doubt.
    pub mtime: Option<u64>,
}

impl History {
    pub fn new(base: Vec<u8>) -> History {
        History {
            base,
            ..History::default()
        }
    }

    pub fn begin(&mut self, now: usize, effect: Effect) -> Begun {
        self.entries.push(Entry {
            effect,
            begun: now,
            done: None,
        });
        Begun(self.entries.len() - 1)
    }

    pub fn done(&mut self, begun: Begun, now: usize) {
        self.entries[begun.0].done = Some(now);
    }

    /// Notes that everything acknowledged so far has been synced.
    pub fn synced(&mut self, now: usize) {
        self.durable.push((now, self.entries.len()));
    }

    pub fn note_mtime(&mut self, now: usize, mtime: Option<u64>) {
        if self.mtimes.last().is_none_or(|(_, last)| *last != mtime) {
            self.mtimes.push((now, mtime));
        }
    }

    /// Returns the states allowed after a kill when only `now` events had happened; everything that was acknowledged
    /// counts.
    pub fn killed(&self, now: usize) -> Expected<'_> {
        self.expected(now, usize::MAX)
    }

    /// Returns the states allowed after a power failure then; only what was synced must be there.
    pub fn power_lost(&self, now: usize) -> Expected<'_> {
        let durable = self.durable.iter().rev().find(|(at, _)| *at <= now);
        self.expected(now, durable.map_or(0, |(_, entries)| *entries))
    }

    fn expected(&self, now: usize, counted: usize) -> Expected<'_> {
        let effects: Vec<_> = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, e)| e.begun < now || e.done.is_some_and(|at| at <= now))
            .map(|(n, e)| (&e.effect, n < counted && e.done.is_some_and(|at| at <= now)))
            .collect();
        let certain = effects.iter().all(|(_, required)| *required);
        let mtime = self
            .mtimes
            .iter()
            .rev()
            .find(|(at, _)| *at <= now)
            .and_then(|(_, t)| *t);
        Expected {
            base: &self.base,
            effects,
            mtime: mtime.filter(|_| certain),
        }
    }

    /// Returns the contents when nothing crashed, as far as nothing is in doubt.
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = self.base.clone();
        for entry in self.entries.iter().filter(|e| e.done.is_some()) {
            entry.effect.apply(&mut bytes);
        }
        bytes
    }
}

/// If more truncates than this are in doubt, bytes and size are judged apart.
const TRUNCATES: u32 = 6;
const BLOCK: usize = 1024;
const PAGE: u64 = 4096;

impl Expected<'_> {
    pub fn unlinked(&self) -> Option<bool> {
        self.find(|e| matches!(e, Effect::Unlink))
    }

    pub fn discarded(&self) -> Option<bool> {
        self.find(|e| matches!(e, Effect::Discard))
    }

    /// Returns whether the effect happened for certain, or `None` if it never began.
    fn find(&self, what: impl Fn(&Effect) -> bool) -> Option<bool> {
        let found = self.effects.iter().filter(|(effect, _)| what(effect));
        found.map(|(_, required)| *required).max()
    }

    /// Checks `actual`. The error says in one sentence why it is none of the contents that are allowed.
    pub fn check(&self, actual: &[u8]) -> Result<(), String> {
        let in_doubt: Vec<usize> = (0..self.effects.len())
            .filter(|n| {
                matches!(
                    self.effects[*n],
                    (Effect::Truncate { whole: true, .. }, false)
                )
            })
            .collect();
        if in_doubt.len() as u32 > TRUNCATES {
            return check_with(self.base, &self.effects, actual);
        }
        let mut first = None;
        for choice in (0..1u32 << in_doubt.len()).rev() {
            let mut effects = Vec::with_capacity(self.effects.len());
            for (n, (effect, required)) in self.effects.iter().enumerate() {
                match in_doubt.iter().position(|d| *d == n) {
                    None => effects.push((*effect, *required)),
                    Some(bit) if choice >> bit & 1 == 1 => effects.push((*effect, true)),
                    Some(_) => {}
                }
            }
            match check_with(self.base, &effects, actual) {
                Ok(()) => return Ok(()),
                Err(why) => first = first.or(Some(why)),
            }
        }
        let doubt = in_doubt.len();
        Err(format!(
            "{} ({doubt} truncates in doubt)",
            first.unwrap_or_default()
        ))
    }
}

fn check_with(base: &[u8], effects: &[(&Effect, bool)], actual: &[u8]) -> Result<(), String> {
    let mut sizes = BTreeSet::from([base.len() as u64]);
    for (effect, required) in effects {
        let mut after: BTreeSet<u64> = if *required {
            sizes.iter().map(|s| effect.final_size(*s)).collect()
        } else {
            sizes.iter().flat_map(|s| effect.sizes(*s)).collect()
        };
        if !required {
            after.extend(&sizes);
        }
        sizes = after;
    }
    if !sizes.contains(&(actual.len() as u64)) {
        return Err(format!("size {} is none of {sizes:?}", actual.len()));
    }
    let mut likely = base.to_vec();
    for (effect, _) in effects {
        effect.apply(&mut likely);
    }
    likely.resize(actual.len(), 0);
    for start in (0..actual.len()).step_by(BLOCK) {
        let end = (start + BLOCK).min(actual.len());
        if actual[start..end] == likely[start..end] {
            continue;
        }
        for (at, got) in (start..end).zip(&actual[start..end]) {
            check_byte(base, effects, at as u64, *got)?;
        }
    }
    Ok(())
}

fn check_byte(base: &[u8], effects: &[(&Effect, bool)], at: u64, got: u8) -> Result<(), String> {
    let mut allowed = Vec::new();
    let mut settled = false;
    for (effect, required) in effects.iter().rev() {
        let Some(value) = effect.value(at) else {
            continue;
        };
        if value == got {
            return Ok(());
        }
        allowed.push(value);
        if *required {
            settled = true;
            break;
        }
    }
    if !settled {
        let value = base.get(at as usize).copied().unwrap_or(0);
        if value == got {
            return Ok(());
        }
        allowed.push(value);
    }
    Err(format!("byte {at} is {got:#04x} and may be {allowed:02x?}"))
}

#[cfg(test)]
mod tests;
