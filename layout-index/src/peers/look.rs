//! Refreshing: one look at a stamp, and if it changed, everything that changed.

use super::{AskCanonical, Canonical, Peers, Seen, failed};
use crate::commons::{Intent, Listing, Stamp};
use crate::error::{Result, StoreError};
use crate::file::{File, Intro};
use crate::layout::{self, Base, LayoutId, Plan, Tail, View};
use crate::types::NodeId;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A file that changes this often while it is looked at is looked at again later.
const LOOKS: usize = 200;

/// After so many looks there is a pause before each, of some length: nodes that change the file in
/// step with each other would go on doing so.
const HASTY_LOOKS: usize = 20;
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Looks before something that makes no sense counts as damaged.
const PATIENT_LOOKS: usize = 40;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What is read of a layout at once.
const CHUNK: usize = 4 << 20;

/// How often a node is asked again to hurry.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Whether to wait for what other nodes have announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    ForOthers,
    No,
}

impl Seen {
    /// What is announced stays so until the stamp changes: only who waits for it looks again.
    fn is_current(&self, stamp: Option<Stamp>, wait: Wait) -> bool {
        let enough = !self.awaited || wait == Wait::No;
        self.looked && enough && self.stamp == stamp
    }
}

impl Peers {
    /// Makes what others have published until now visible here. One call to the file system if
    /// nothing has changed and this node has nothing unpublished, two if it has. True if something
    /// has changed.
    pub fn refresh(&self, file: &File, ask: AskCanonical<'_>, wait: Wait) -> Result<bool> {
        let changed = self.look_until(file, ask, wait)?;
        if wait == Wait::ForOthers {
            file.sync_point();
        }
        Ok(changed)
    }

    fn look_until(&self, file: &File, ask: AskCanonical<'_>, wait: Wait) -> Result<bool> {
        let patience = self.patience(file);
        let deadline = Instant::now() + patience;
        let mut asked: Option<Instant> = None;
        let mut pause = Duration::from_millis(1);
        let mut changed = false;
        loop {
            let stamp = self.stamp(file)?;
            if file.seen().is_current(stamp, wait) {
                // Others may have drained into the canonical file without a word.
                if !file.is_clean() {
                    self.rebase(file, ask)?;
                }
                return Ok(changed);
            }
            let awaited = {
                let _one = file.looking.lock();
                self.look(file, ask)?
            };
            changed = true;
            if awaited.is_empty() || wait == Wait::No {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Err(self.not_published(file, &awaited, patience));
            }
            if asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN) {
                asked = Some(Instant::now());
                let nodes: HashSet<NodeId> = awaited.iter().map(|i| i.owner.id).collect();
                for node in nodes {
                    match self.commons.ask(node, file.id()) {
                        Ok(()) => {}
                        // It never joined, so nobody hears; the error at the end names it.
                        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                        Err(e) => return Err(failed("asking for", file, e)),
                    }
                }
            }
            self.pause(pause)?;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    fn not_published(&self, file: &File, awaited: &[Intent], patience: Duration) -> StoreError {
        let mut nodes: Vec<String> = awaited
            .iter()
            .map(|i| self.commons.name_of(i.owner.id))
            .collect();
        nodes.sort();
        nodes.dedup();
        StoreError::Awaited {
            file: file.id(),
            nodes: nodes.join(", "),
            seconds: patience.as_secs_f64(),
        }
    }

    pub(super) fn stamp(&self, file: &File) -> Result<Option<Stamp>> {
        self.commons
            .stamp(file.id())
            .map_err(|e| failed("looking at", file, e))
    }

    fn rebase(&self, file: &File, ask: AskCanonical<'_>) -> Result<()> {
        file.rebase(|| {
            let canonical = asked(file, ask)?;
            let mut seen = file.seen();
            seen.canonical = canonical;
            Ok(seen.view.size(canonical.size))
        })
    }

    /// A look at everything: the same stamp before and after. Gives the intents of others.
    pub(super) fn look(&self, file: &File, ask: AskCanonical<'_>) -> Result<Vec<Intent>> {
        for look in 0..LOOKS {
            if look >= HASTY_LOOKS {
                std::thread::sleep(LONGEST_PAUSE.mul_f64(rand::random()));
            }
            let stamp = self.stamp(file)?;
            let listing = match stamp {
                None => None,
                Some(_) => match self.list(file)? {
                    // It went between the two calls.
                    None => continue,
                    listing => listing,
                },
            };
            let view = match self.read(file, stamp, listing.as_ref()) {
                Ok(Some(view)) => view,
                Ok(None) => continue,
                // A batch that is being appended can be seen in parts, and looks like this then.
                Err(StoreError::Layout { .. }) if look < PATIENT_LOOKS => {
                    std::thread::sleep(BETWEEN_LOOKS);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if self.stamp(file)? != stamp {
                continue;
            }
            let me = self.me();
            let intents = listing.map_or(Vec::new(), |listing| listing.intents);
            let awaited: Vec<Intent> = intents.into_iter().filter(|i| i.owner.id != me).collect();
            // The first look after a start finds what an earlier run may have seen before it wrote.
            let before = {
                let seen = file.seen();
                seen.looked.then(|| seen.view.clone())
            };
            if let Some(before) = before {
                self.note_overlaps(file, &view, &before)?;
            }
            // After the base was read: the canonical file has at least what that says.
            let published = !view.is_empty();
            let canonical = match published {
                true => Some(asked(file, ask)?),
                false => None,
            };
            {
                let mut seen = file.seen();
                if let Some(canonical) = canonical {
                    seen.canonical = canonical;
                }
                if view.is_empty() {
                    seen.subfiles.clear();
                }
                if view.has_news_since(&seen.view, me) {
                    seen.news = self.news.fetch_add(1, Ordering::Relaxed);
                }
                seen.view = Arc::new(view);
                seen.stamp = stamp;
                seen.looked = true;
                seen.awaited = !awaited.is_empty();
            }
            if published {
                self.shared.kept.forget_valid(file.id());
            }
            self.rebase(file, ask)?;
            return Ok(awaited);
        }
        Err(StoreError::Restless(file.id()))
    }

    fn list(&self, file: &File) -> Result<Option<Listing>> {
        self.commons
            .list(file.id())
            .map_err(|e| failed("listing what nodes say of", file, e))
    }

    /// The view that a listing leads to; `None` if something of it is gone by now.
    fn read(
        &self,
        file: &File,
        stamp: Option<Stamp>,
        listing: Option<&Listing>,
    ) -> Result<Option<View>> {
        let (mut known, before) = {
            let seen = file.seen();
            (seen.view.clone(), seen.stamp)
        };
        let Some(listing) = listing else {
            return Ok(Some(known.afresh()));
        };
        // A base stays until a newer one is there: without one this is another directory, whatever
        // its number.
        let same = before.zip(stamp).is_some_and(|(a, b)| a.same_directory(&b));
        let based = listing.bases.last().copied().unwrap_or(0) >= known.base_term();
        if !same || !based {
            known = Arc::new(known.afresh());
        }
        let mut view = (*known).clone();
        for gone in known.layouts() {
            if !listing.layouts.contains(&gone) {
                view.forget_layout(gone.0, gone.1);
            }
        }
        if let Some(term) = listing.bases.last().filter(|t| **t > view.base_term()) {
            let Some(bytes) = self
                .commons
                .read_base(file.id(), *term)
                .map_err(|e| failed("reading a base of", file, e))?
            else {
                return Ok(None);
            };
            let base = Base::decode(&bytes, file.id()).map_err(|why| damaged(file, "base", why))?;
            view.set_base(base);
        }
        let open = listing.plans.last().filter(|t| **t > view.base_term());
        match open {
            None => view.set_plan(None),
            Some(term) if view.plan().is_some_and(|plan| plan.term == *term) => {}
            Some(term) => {
                let Some(bytes) = self
                    .commons
                    .read_plan(file.id(), *term)
                    .map_err(|e| failed("reading a plan of", file, e))?
                else {
                    return Ok(None);
                };
                let plan =
                    Plan::decode(&bytes, file.id()).map_err(|why| damaged(file, "plan", why))?;
                view.set_plan(Some(plan));
            }
        }
        for (node, gen_no) in &listing.layouts {
            let seal = listing.seal_of((*node, *gen_no));
            if let Some(seal) = seal
                && *node == self.me()
                && !file.heed_seal(*gen_no, seal)
            {
                let why = format!("this node's own was sealed at byte {seal} by somebody else");
                return Err(damaged(file, "layout", why));
            }
            if let Some(seal) = seal
                && !view.end_layout(*node, *gen_no, seal)
            {
                let (name, why) = (self.commons.name_of(*node), layout::no_batch_ends_at(seal));
                let why = format!("that of node {name} {why}");
                return Err(damaged(file, "layout", why));
            }
            if !self.read_tail(file, &mut view, (*node, *gen_no), seal)? {
                return Ok(None);
            }
        }
        Ok(Some(view))
    }

    /// Where the canonical file is, for a node that never had it open.
    pub(super) fn remember(&self, file: &File, handle: &[u8]) {
        let mut seen = file.seen();
        if seen.hint.is_none() && !handle.is_empty() {
            seen.hint = Some(Intro {
                handle: handle.to_vec(),
                ..Intro::default()
            });
        }
    }

    /// Adds what a layout has got since the last look, up to its seal. False if it is gone.
    fn read_tail(
        &self,
        file: &File,
        view: &mut View,
        (node, gen_no): (NodeId, u32),
        seal: Option<u64>,
    ) -> Result<bool> {
        if node == self.me() && file.own_len(gen_no) == Some(view.read_upto(node, gen_no)) {
            // Nobody else appends to it, and its target may not answer.
            return Ok(true);
        }
        let id = LayoutId {
            file: file.id(),
            node,
            generation: gen_no,
        };
        let mut want = CHUNK;
        loop {
            let from = view.read_upto(node, gen_no);
            let rest = seal.map_or(u64::MAX, |end| end.saturating_sub(from));
            let most = want.min(usize::try_from(rest).unwrap_or(want));
            if most == 0 {
                return Ok(true);
            }
            let bytes = self
                .commons
                .read_layout(file.id(), node, gen_no, from, most)
                .map_err(|e| failed("reading a layout of", file, e))?;
            let Some(bytes) = bytes else {
                return Ok(false);
            };
            let whole = bytes.len() < want || most < want;
            let parsed = layout::parse(&bytes, from, &id);
            self.remember(file, &parsed.handle);
            let got = !parsed.batches.is_empty();
            let wrong = |why: String| {
                let name = self.commons.name_of(node);
                damaged(file, "layout", format!("that of node {name}{why}"))
            };
            if let Some(seal) = seal
                && whole
                && let Some(why) = parsed.against_seal(from, seal)
            {
                return Err(wrong(format!(" {why}")));
            }
            if got && node != self.me() {
                file.seen().unstamped = true;
            }
            for (end, batch) in parsed.batches {
                view.add(node, gen_no, end, batch);
            }
            match parsed.tail {
                Tail::Damaged { at, why } => return Err(wrong(format!(", byte {at}: {why}"))),
                _ if whole => return Ok(true),
                // A batch may be longer than what was read.
                _ if !got => want *= 2,
                _ => {}
            }
        }
    }
}

fn asked(file: &File, ask: AskCanonical<'_>) -> Result<Canonical> {
    ask().map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT) => StoreError::Gone(file.id()),
        _ => failed("asking the size of", file, e),
    })
}

fn damaged(file: &File, what: &'static str, why: impl ToString) -> StoreError {
    StoreError::Layout {
        file: file.id(),
        what,
        why: why.to_string(),
    }
}
