//! Decides when each file is drained, and how much of it. There is no I/O and no clock here: the
//! engine passes in events and the time, and so do tests.
//!
//! A file has at most one job at a time. Events that arrive meanwhile are remembered (`again`), so
//! that none is lost between a job's last check of the file and its end.
//!
//! Nothing here is durable: after a crash the store's dirty files are the schedule.

use crate::retry::backoff;
use crate::settings::{Policy, Settings};
use layout_index::FileId;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// After this many failures in a row, a drain that a caller waits for counts as failed. The file is
/// tried again all the same.
const FAILURES_UNTIL_GIVEN_UP: u32 = 3;

/// A file that is published again and again is not left undrained for longer than this.
const LONGEST_STREAK: Duration = Duration::from_secs(10);

/// How much of a file a job may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Stripes that are dirty from end to end: waiting would gain nothing for them.
    FullStripes,
    /// Everything, and then the end of the dirty period.
    Everything,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub writers: usize,
    /// A caller asked for a drain of this file.
    pub requested: bool,
    /// The store is above its high watermark.
    pub pressure: bool,
    /// Partial stripes have waited long enough for more bytes.
    pub lingered: bool,
    /// A caller waited for a publication just now and is likely to wait for the next one, for
    /// example because an application writes under locks. A drain would write the same bytes to the
    /// same targets at the same time.
    pub published_often: bool,
}

/// Returns what a job may do with the file now. `None`: nothing; an event will come.
pub(crate) fn choose(policy: Policy, facts: Facts) -> Option<Scope> {
    if facts.requested || facts.pressure {
        return Some(Scope::Everything);
    }
    match policy {
        Policy::Never => None,
        _ if facts.writers == 0 => Some(Scope::Everything),
        Policy::OnClose => None,
        Policy::Immediate if facts.published_often => None,
        Policy::Immediate if facts.lingered => Some(Scope::Everything),
        Policy::Immediate => Some(Scope::FullStripes),
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing of the file is undrained, or what is undrained is not for the drain.
    Clean,
    /// Everything went well, and there is more to drain.
    Dirty,
    /// As `Dirty`, and everything that was undrained when the job began is drained.
    Passed,
    /// Damaged stripes stay where they are; the rest was drained.
    Damaged,
    /// Something failed that may work later.
    Failed,
    /// The flusher is stopping.
    Stopped,
}

#[derive(Debug)]
struct Entry {
    due: Option<Instant>,
    running: bool,
    again: bool,
    requested: bool,
    failures: u32,
    damaged: bool,
    /// When its partial stripes were last drained, or when this entry was made.
    swept: Instant,
    streak: Option<Streak>,
    made: Instant,
    /// When its last job began.
    began: Instant,
    /// Everything that was undrained at this time is drained.
    passed: Option<Instant>,
}

/// Publications one after the other, without a job between them.
#[derive(Clone, Copy, Debug)]
struct Streak {
    since: Instant,
    last: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: HashMap<FileId, Entry>,
    queue: BTreeSet<(Instant, FileId)>,
}

impl Schedule {
    fn entry(&mut self, id: FileId, now: Instant) -> &mut Entry {
        self.entries.entry(id).or_insert(Entry {
            due: None,
            running: false,
            again: false,
            requested: false,
            failures: 0,
            damaged: false,
            swept: now,
            streak: None,
            made: now,
            began: now,
            passed: None,
        })
    }

    fn set_due(&mut self, id: FileId, due: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut entry.due, due) {
            self.queue.remove(&(old, id));
        }
        if let Some(new) = due {
            self.queue.insert((new, id));
        }
    }

    /// Notes that something happened to the file: it is due at `at`, or earlier if that was planned
    /// already. A file that failed keeps its pause.
    pub fn wake(&mut self, id: FileId, at: Instant, now: Instant) {
        let entry = self.entry(id, now);
        if entry.running {
            entry.again = true;
        } else if entry.failures == 0 || entry.due.is_none() {
            let at = entry.due.map_or(at, |due| due.min(at));
            self.set_due(id, Some(at));
        }
    }

    /// Notes that a publication which a caller waited for is complete.
    pub fn published(&mut self, id: FileId, linger: Duration, now: Instant) {
        let entry = self.entry(id, now);
        let goes_on = |streak: &Streak| now.saturating_duration_since(streak.last) < linger;
        let since = entry.streak.filter(goes_on).map_or(now, |s| s.since);
        entry.streak = Some(Streak { since, last: now });
        self.wake(id, now, now);
    }

    /// Returns until when the drain of the file waits because it is published again and again;
    /// `None` if it is not.
    pub fn published_often_until(
        &self,
        id: FileId,
        linger: Duration,
        now: Instant,
    ) -> Option<Instant> {
        let streak = self.entries.get(&id)?.streak?;
        let until = (streak.last + linger).min(streak.since + LONGEST_STREAK);
        (until > now).then_some(until)
    }

    /// Called when what kept the file from being drained is over: earlier failures no longer count.
    pub fn relieve(&mut self, id: FileId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.failures = 0;
        }
    }

    /// Requests a drain of this file now, whatever the policy and the pauses say.
    pub fn request(&mut self, id: FileId, now: Instant) {
        let entry = self.entry(id, now);
        entry.requested = true;
        entry.failures = 0;
        entry.damaged = false;
        if entry.running {
            entry.again = true;
        } else {
            self.set_due(id, Some(now));
        }
    }

    pub fn is_requested(&self, id: FileId) -> bool {
        self.entries.get(&id).is_some_and(|e| e.requested)
    }

    /// Returns the next file that is due, and removes its due time.
    pub fn pop(&mut self, now: Instant) -> Option<FileId> {
        let (due, id) = *self.queue.first()?;
        if due > now {
            return None;
        }
        self.set_due(id, None);
        Some(id)
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    pub fn facts(&self, id: FileId, linger: Duration, now: Instant) -> Facts {
        let entry = self.entries.get(&id);
        Facts {
            requested: entry.is_some_and(|e| e.requested),
            lingered: entry.is_some_and(|e| now.saturating_duration_since(e.swept) >= linger),
            published_often: self.published_often_until(id, linger, now).is_some(),
            ..Facts::default()
        }
    }

    pub fn start(&mut self, id: FileId, scope: Scope, now: Instant) {
        let entry = self.entry(id, now);
        entry.running = true;
        entry.again = false;
        entry.streak = None;
        entry.began = now;
        if scope == Scope::Everything {
            entry.swept = now;
        }
    }

    pub fn forget(&mut self, id: FileId) {
        self.set_due(id, None);
        self.entries.remove(&id);
    }

    pub fn finish(&mut self, id: FileId, outcome: Outcome, settings: &Settings, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.running = false;
        let again = std::mem::take(&mut entry.again);
        let due = match outcome {
            Outcome::Clean if !again => {
                self.forget(id);
                return;
            }
            Outcome::Clean => {
                // A new dirty period began while the old one ended; no caller has asked for that
                // one yet.
                entry.requested = false;
                entry.failures = 0;
                entry.passed = Some(entry.began);
                now + settings.batch
            }
            Outcome::Dirty | Outcome::Passed => {
                if outcome == Outcome::Passed {
                    entry.passed = Some(entry.began);
                }
                entry.failures = 0;
                entry.damaged = false;
                now + settings.batch
            }
            Outcome::Damaged => {
                entry.failures = 0;
                entry.damaged = true;
                now + if again {
                    settings.batch
                } else {
                    settings.retry_max
                }
            }
            Outcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                now + backoff(settings.retry_min, settings.retry_max, entry.failures)
            }
            Outcome::Stopped => return,
        };
        self.set_due(id, Some(due));
    }

    pub fn running(&self) -> usize {
        self.entries.values().filter(|e| e.running).count()
    }

    pub fn active(&self) -> Vec<FileId> {
        let mut ids: Vec<FileId> = self
            .entries
            .iter()
            .filter(|(_, e)| e.running)
            .map(|(id, _)| *id)
            .collect();
        ids.sort();
        ids
    }

    /// True if everything that was undrained of this file at `then`, when it was requested, has
    /// been drained since: a job that began later drained all of it, or found the file clean. What
    /// was written since may be undrained.
    pub fn is_drained_since(&self, id: FileId, then: Instant) -> bool {
        self.entries.get(&id).is_none_or(|entry| {
            entry.made > then || entry.passed.is_some_and(|passed| passed > then)
        })
    }

    /// True if waiting for this file is pointless for now.
    pub fn given_up(&self, id: FileId) -> bool {
        self.entries
            .get(&id)
            .is_some_and(|e| !e.running && (e.damaged || e.failures >= FAILURES_UNTIL_GIVEN_UP))
    }
}
