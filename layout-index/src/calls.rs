//! Counts the system calls that may cost a round trip to a server, per thread, in tests. The
//! documented cost of operations on the shared directory is checked with it.

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn note(_call: &'static str) {}

#[cfg(test)]
pub(crate) use counted::{note, of};

#[cfg(test)]
mod counted {
    use std::cell::RefCell;

    thread_local! {
        static MADE: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    pub(crate) fn note(call: &'static str) {
        MADE.with_borrow_mut(|made| made.push(call));
    }

    /// Returns the calls that `act` makes on this thread, in order.
    pub(crate) fn of<T>(act: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
        MADE.take();
        let done = act();
        (done, MADE.take())
    }
}
