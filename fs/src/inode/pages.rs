//! Keeps track of the pages that the kernel has cached for mappings of a file.
//!
//! Files here are read past the page cache. Only mappings bring pages into it, and the kernel requests those
//! without naming a lock owner. Pages that this node changes the kernel drops or updates itself. It does not
//! know about changes of other nodes: at a sync point the pages must go if anything may have changed below
//! them since they were read.
//!
//! # Which sync point needs to drop pages
//! Each sync point that drops pages notes the state of the file ([`State`]) before it does. If the next sync
//! point finds the same state, nothing has changed between the two, and every page that was read meanwhile is
//! as it would be read now.
//!
//! A requested page is marked before its read is planned, and marks are removed before pages are dropped. So a sync
//! point that finds no mark came before the plan, and the plan sees what the sync point saw. A page whose mark was
//! removed is still in the kernel's hands, and the drop waits for it there. A request that comes to a sync point
//! while another one drops pages finds no mark, but still waits until that drop has ended.

use layout_index::Version;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two checks whether the caller of a waiting request is still there.
const WAIT_STEP: Duration = Duration::from_millis(20);

/// Everything that can change what a mapping of the file shows, except changes of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Version of the canonical file.
    pub version: Version,
    /// Changes each time this node learns something new about other nodes' data of the file.
    pub news: u64,
    /// True if every later change of the canonical file will change its version.
    pub is_final: bool,
}

#[derive(Debug, Default)]
pub struct Pages {
    some: AtomicBool,
    last: Mutex<Option<State>>,
}

impl Pages {
    /// Must be called when a page is about to be read.
    pub fn mark(&self) {
        if !self.some.load(Ordering::SeqCst) {
            self.some.store(true, Ordering::SeqCst);
        }
    }

    /// True if the kernel has no pages, and no request is dropping any. Never waits.
    pub fn are_none(&self) -> bool {
        let last = self.last.try_lock();
        last.is_some_and(|_| !self.some.load(Ordering::SeqCst))
    }

    /// Called after the file was refreshed. When it returns the kernel has no page that is older than
    /// that. `drop_pages` may wait, and so may each request that comes to this sync point meanwhile, as
    /// long as `goes_on` is true.
    pub fn sync_point<E>(
        &self,
        state: impl FnOnce() -> Result<State, E>,
        drop_pages: impl FnOnce() -> Result<(), E>,
        goes_on: impl Fn() -> bool,
        gave_up: impl FnOnce() -> E,
    ) -> Result<(), E> {
        let mut last = loop {
            match self.last.try_lock_for(WAIT_STEP) {
                Some(last) => break last,
                None if goes_on() => {}
                None => return Err(gave_up()),
            }
        };
        if !self.some.load(Ordering::SeqCst) {
            return Ok(());
        }
        let now = state()?;
        if *last == Some(now) {
            return Ok(());
        }
        *last = None;
        self.some.store(false, Ordering::SeqCst);
        drop_pages().inspect_err(|_| self.mark())?;
        *last = now.is_final.then_some(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn state(news: u64, is_final: bool) -> State {
        State {
            version: Version::default(),
            news,
            is_final,
        }
    }

    /// How often pages are dropped at a sync point that finds `state`.
    fn drops(pages: &Pages, state: State) -> usize {
        let dropped = Cell::new(0);
        let drop_pages = || {
            dropped.set(dropped.get() + 1);
            Ok::<(), ()>(())
        };
        let end = || unreachable!("it goes on");
        let done = pages.sync_point(|| Ok(state), drop_pages, || true, end);
        done.unwrap();
        dropped.get()
    }

    /// S2.14: pages that may be older than the sync point are dropped, others stay.
    #[test]
    fn pages_go_when_something_may_have_changed_below_them() {
        let pages = Pages::default();
        assert_eq!(drops(&pages, state(0, true)), 0, "there are none");
        pages.mark();
        assert_eq!(drops(&pages, state(0, true)), 1, "of unknown age");
        pages.mark();
        assert_eq!(drops(&pages, state(0, true)), 0, "nothing has changed");
        assert_eq!(drops(&pages, state(1, true)), 1, "news");
        assert_eq!(drops(&pages, state(2, true)), 0, "none were read since");
        pages.mark();
        assert_eq!(drops(&pages, state(2, false)), 1);
        pages.mark();
        assert_eq!(drops(&pages, state(2, false)), 1, "a change may not show");
        pages.mark();
        assert_eq!(drops(&pages, state(2, true)), 1);
    }

    /// S2.14 also holds for a request that comes to a sync point while another one drops the pages.
    #[test]
    fn no_caller_passes_while_pages_are_being_dropped() {
        let pages = Pages::default();
        pages.mark();
        let dropped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (begun, begins) = std::sync::mpsc::channel();
            let (end, ends) = std::sync::mpsc::channel();
            let (pages, dropped) = (&pages, &dropped);
            scope.spawn(move || {
                let drop_pages = || {
                    begun.send(()).unwrap();
                    ends.recv().unwrap();
                    dropped.store(true, Ordering::SeqCst);
                    Ok::<(), ()>(())
                };
                pages.sync_point(|| Ok(state(0, true)), drop_pages, || true, || ())
            });
            begins.recv().unwrap();
            assert!(!pages.are_none());
            end.send(()).unwrap();
            drops(pages, state(0, true));
            assert!(dropped.load(Ordering::SeqCst));
            assert!(pages.are_none());
        });
    }

    #[test]
    fn pages_that_could_not_be_dropped_are_still_there() {
        let pages = Pages::default();
        pages.mark();
        let state = || Ok(state(0, true));
        let failed = pages.sync_point(state, || Err("no"), || true, || "end");
        assert_eq!(failed, Err("no"));
        assert_eq!(drops(&pages, self::state(0, true)), 1);
    }
}
