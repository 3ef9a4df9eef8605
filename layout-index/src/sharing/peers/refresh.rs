//! Refreshing: compares the change token, and if it differs reads everything that has changed.

use super::shared_file::{KnownState, shared};
use super::{AskCanonical, Canonical, End, Peers, failed};
use crate::error::{Result, StoreError};
use crate::sharing::layout::{self, Base, LayoutId, Plan, Tail, View};
use crate::sharing::shared_dir::{Announcement, ChangeToken, Listing};
use crate::store::file::File;
use crate::types::NodeId;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A refresh gives up after this many attempts at a file that keeps changing meanwhile.
const MAX_ATTEMPTS: usize = 200;

/// After this many attempts there is a pause of random length before each: nodes that change the
/// file in step with each other would otherwise go on doing so.
const ATTEMPTS_WITHOUT_PAUSE: usize = 20;
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Attempts before inconsistent data counts as damaged.
const ATTEMPTS_AT_DAMAGE: usize = 40;
const PAUSE_AT_DAMAGE: Duration = Duration::from_millis(5);

/// How many bytes of a layout are read at once.
const CHUNK: usize = 4 << 20;

/// How often another node is asked again to publish.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Whether to wait for data that other nodes have announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    ForOthers,
    No,
}

impl KnownState {
    /// Announcements stay until the change token changes, so only a caller that waits for them must
    /// refresh again.
    fn is_current(&self, token: Option<ChangeToken>, wait: Wait) -> bool {
        let enough = !self.others_pending || wait == Wait::No;
        self.refreshed && enough && self.token == token
    }

    /// Length of this node's layout `gen_no`; `None` if it has no such layout.
    fn own_len(&self, gen_no: u32) -> Option<u64> {
        self.own.get(&gen_no).map(|own| own.len)
    }

    /// Takes note that a layout of this node is sealed at byte `seal`: nothing more is appended to
    /// it, even if this node did not know about the seal (because sealing failed half way). Returns
    /// false if the seal hides bytes that this node has published: then this node did not make the
    /// seal.
    fn heed_seal(&mut self, gen_no: u32, seal: u64) -> bool {
        let Some(own) = self.own.get_mut(&gen_no) else {
            return true;
        };
        if seal < own.len {
            return false;
        }
        // An abandoned layout is sealed again, because this seal may not be durable.
        if own.end == End::Open {
            own.end = End::Sealed;
        }
        self.current.take_if(|current| *current == gen_no);
        true
    }
}

impl Peers {
    /// Makes everything that other nodes have published until now visible here. Costs one call to
    /// the file system if nothing has changed and this node has nothing unpublished, two if it has.
    /// Returns true if something has changed.
    pub fn refresh(&self, file: &File, ask: AskCanonical<'_>, wait: Wait) -> Result<bool> {
        let changed = self.refresh_until(file, ask, wait)?;
        if wait == Wait::ForOthers {
            file.count_sync_point();
        }
        Ok(changed)
    }

    fn refresh_until(&self, file: &File, ask: AskCanonical<'_>, wait: Wait) -> Result<bool> {
        let patience = self.patience(file);
        let deadline = Instant::now() + patience;
        let mut asked: Option<Instant> = None;
        let mut pause = Duration::from_millis(1);
        let mut changed = false;
        loop {
            let token = self.change_token(file)?;
            if shared(file).known_state().is_current(token, wait) {
                // Other nodes may have drained into the canonical file without a new change token.
                if !file.is_clean() {
                    self.rebase(file, ask)?;
                }
                return Ok(changed);
            }
            let pending = {
                let _one = shared(file).refresh_lock.lock();
                self.refresh_view(file, ask)?
            };
            changed = true;
            if pending.is_empty() || wait == Wait::No {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Err(self.not_published(file, &pending, patience));
            }
            if asked.is_none_or(|at| at.elapsed() >= ASK_AGAIN) {
                asked = Some(Instant::now());
                let nodes: HashSet<NodeId> = pending.iter().map(|i| i.owner.id).collect();
                for node in nodes {
                    match self.shared_dir.leave_note(node, file.id()) {
                        Ok(()) => {}
                        // That node never joined, so it cannot be asked; the error at the end names
                        // it.
                        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                        Err(e) => return Err(failed("asking for", file, e)),
                    }
                }
            }
            (self.pause)(pause)?;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    fn not_published(
        &self,
        file: &File,
        pending: &[Announcement],
        patience: Duration,
    ) -> StoreError {
        let mut nodes: Vec<String> = pending
            .iter()
            .map(|i| self.shared_dir.membership().name_of(i.owner.id))
            .collect();
        nodes.sort();
        nodes.dedup();
        StoreError::AnnouncementPending {
            file: file.id(),
            nodes: nodes.join(", "),
            seconds: patience.as_secs_f64(),
        }
    }

    pub(super) fn change_token(&self, file: &File) -> Result<Option<ChangeToken>> {
        self.shared_dir
            .change_token(file.id())
            .map_err(|e| failed("looking at", file, e))
    }

    fn rebase(&self, file: &File, ask: AskCanonical<'_>) -> Result<()> {
        file.rebase(|| {
            let canonical = ask_canonical(file, ask)?;
            let mut seen = shared(file).known_state();
            seen.set_canonical(file, canonical);
            Ok(seen.view().size(canonical.size))
        })
    }

    /// Reads everything, again and again until the change token is the same before and after.
    /// Returns the announcements of other nodes.
    pub(super) fn refresh_view(
        &self,
        file: &File,
        ask: AskCanonical<'_>,
    ) -> Result<Vec<Announcement>> {
        for attempt in 0..MAX_ATTEMPTS {
            if attempt >= ATTEMPTS_WITHOUT_PAUSE {
                std::thread::sleep(LONGEST_PAUSE.mul_f64(rand::random()));
            }
            let token = self.change_token(file)?;
            let listing = match token {
                None => None,
                Some(_) => match self.list(file)? {
                    // The directory was removed between the two calls.
                    None => continue,
                    listing => listing,
                },
            };
            let view = match self.read(file, token, listing.as_ref()) {
                Ok(Some(view)) => view,
                Ok(None) => continue,
                // A batch that is being appended can be seen in part, and then looks damaged.
                Err(StoreError::Layout { .. }) if attempt < ATTEMPTS_AT_DAMAGE => {
                    std::thread::sleep(PAUSE_AT_DAMAGE);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if self.change_token(file)? != token {
                continue;
            }
            let me = self.me();
            let announcements = listing.map_or(Vec::new(), |listing| listing.announcements);
            let pending: Vec<Announcement> = announcements
                .into_iter()
                .filter(|i| i.owner.id != me)
                .collect();
            // The first refresh after a start also finds batches that an earlier run may have seen
            // before it wrote, so overlaps with them are not noted.
            let before = {
                let seen = shared(file).known_state();
                seen.refreshed.then(|| seen.view().clone())
            };
            if let Some(before) = before {
                self.note_overlaps(file, &view, &before)?;
            }
            // Must be asked after the base was read: then the canonical file has at least what the
            // base says.
            let published = !view.is_empty();
            let canonical = match published {
                true => Some(ask_canonical(file, ask)?),
                false => None,
            };
            {
                let mut seen = shared(file).known_state();
                if view.has_news_since(seen.view(), me) {
                    seen.news = self.news.fetch_add(1, Ordering::Relaxed);
                }
                seen.set_view(file, view, canonical);
                seen.token = token;
                seen.refreshed = true;
                seen.others_pending = !pending.is_empty();
            }
            if published {
                self.state.local_copies.forget_valid(file.id());
            }
            self.rebase(file, ask)?;
            return Ok(pending);
        }
        Err(StoreError::KeepsChanging(file.id()))
    }

    fn list(&self, file: &File) -> Result<Option<Listing>> {
        self.shared_dir
            .list(file.id())
            .map_err(|e| failed("listing what nodes say of", file, e))
    }

    /// Builds the view from a listing; `None` if something in the listing is gone by now.
    fn read(
        &self,
        file: &File,
        token: Option<ChangeToken>,
        listing: Option<&Listing>,
    ) -> Result<Option<View>> {
        let (mut known, before) = {
            let seen = shared(file).known_state();
            (seen.view().clone(), seen.token)
        };
        let Some(listing) = listing else {
            return Ok(Some(known.afresh()));
        };
        // A base stays until a newer one is there. If the known base is missing, this is another
        // directory, even with the same inode number.
        let same = before.zip(token).is_some_and(|(a, b)| a.same_directory(&b));
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
                .shared_dir
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
                    .shared_dir
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
                && !shared(file).known_state().heed_seal(*gen_no, seal)
            {
                let why = format!("this node's own was sealed at byte {seal} by another program");
                return Err(damaged(file, "layout", why));
            }
            if let Some(seal) = seal
                && !view.end_layout(*node, *gen_no, seal)
            {
                let (name, why) = (
                    self.shared_dir.membership().name_of(*node),
                    layout::no_batch_ends_at(seal),
                );
                let why = format!("that of node {name} {why}");
                return Err(damaged(file, "layout", why));
            }
            if !self.read_tail(file, &mut view, (*node, *gen_no), seal)? {
                return Ok(None);
            }
        }
        Ok(Some(view))
    }

    /// Adds the batches that a layout has got since the last refresh, up to its seal. Returns false
    /// if the layout is gone.
    fn read_tail(
        &self,
        file: &File,
        view: &mut View,
        (node, gen_no): (NodeId, u32),
        seal: Option<u64>,
    ) -> Result<bool> {
        if node == self.me()
            && shared(file).known_state().own_len(gen_no) == Some(view.read_upto(node, gen_no))
        {
            // Only this node appends to it, so there is nothing to read, and its target may not
            // answer.
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
                .shared_dir
                .read_layout(file.id(), node, gen_no, from, most)
                .map_err(|e| failed("reading a layout of", file, e))?;
            let Some(bytes) = bytes else {
                return Ok(false);
            };
            let whole = bytes.len() < want || most < want;
            let parsed = layout::parse(&bytes, from, &id);
            file.learn_handle(&parsed.handle);
            let got = !parsed.batches.is_empty();
            let wrong = |why: String| {
                let name = self.shared_dir.membership().name_of(node);
                damaged(file, "layout", format!("that of node {name}{why}"))
            };
            if let Some(seal) = seal
                && whole
                && let Some(why) = parsed.against_seal(from, seal)
            {
                return Err(wrong(format!(" {why}")));
            }
            if got && node != self.me() {
                shared(file).known_state().needs_touch = true;
            }
            for (end, batch) in parsed.batches {
                view.add(node, gen_no, end, batch);
            }
            match parsed.tail {
                Tail::Damaged { at, why } => return Err(wrong(format!(", byte {at}: {why}"))),
                _ if whole => return Ok(true),
                // A batch may be longer than the chunk that was read.
                _ if !got => want *= 2,
                _ => {}
            }
        }
    }
}

fn ask_canonical(file: &File, ask: AskCanonical<'_>) -> Result<Canonical> {
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
