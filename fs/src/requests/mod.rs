//! The one entry for requests, whichever transport received them.
//!
//! A transport unpacks a request, passes it to [`Requests::begin`] and says which operation of [`Overlay`] carries it
//! out; its [`Reply`] packs the answer. What requests have in common happens here, by the row that the operation
//! has in [`table`]: the tracing span, the choice of thread, the bounds, panics, and the count of requests, errors,
//! bytes and latency ([`metrics`]).
//!
//! # Threads
//! A transport has few threads that receive requests. A handler that waits there stops a share of the whole mount, so
//! only work that cannot wait runs on them: operations of class [`Class::NeverWaits`], and attempts
//! ([`Call::at_once`]) that give up rather than wait (a write that the log takes at once, a read that needs nothing
//! but the log or a local copy, a flush that has no locks to give up and nothing to publish). Every other request
//! takes its reply and an owned copy of its arguments to the threads of the [`executor`], which may wait (and may
//! take another identity, which is per thread): each class has slots there, and each user a share of them. A request that waits for another
//! owner's lock does so on a thread of its own.
//!
//! # Panics
//! A handler that panics is answered with EIO and counts as failed; its thread continues.
//!
//! # Tracing
//! A request is a span at level `debug`, which the store's events within it carry, and one event at level `trace`
//! when it is answered. Where these are not enabled they cost the check for that.

pub mod caller_thread;
pub mod executor;
mod metrics;
mod table;

pub use metrics::OpStats;
pub use table::{Class, Op};

use crate::errno::{FsError, Result};
use crate::ops::{Attempt, Conflict, Opened, Overlay, Xattr};
use crate::types::{Attr, Caller, Entry, StatFs, Written};
use executor::{Executor, NO_CALLER, Origin};
use metrics::{Metrics, Thread};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

/// Sends the answer to a request: the operation's result, or an error number.
pub trait Reply<T>: Send {
    fn send(self, overlay: &Overlay, answer: Result<T, i32>);
}

/// The result of an operation, as a transport sends it.
pub trait Answer {
    /// Number of bytes of data that were read, written or copied.
    fn bytes(&self) -> u64 {
        0
    }
}

impl Answer for () {}
impl Answer for Infallible {}
impl Answer for u64 {}
impl Answer for Attr {}
impl Answer for Entry {}
impl Answer for Opened {}
impl Answer for (Entry, Opened) {}
impl Answer for StatFs {}
impl Answer for Xattr {}
impl Answer for Option<Conflict> {}

impl Answer for &[u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

impl Answer for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

impl Answer for Written {
    fn bytes(&self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy)]
struct Request {
    op: Op,
    ino: u64,
    offset: u64,
    len: u64,
    caller: Option<Caller>,
    began: Instant,
}

impl Request {
    fn span(&self) -> tracing::Span {
        let (uid, tid) = self.caller.map(|caller| (caller.uid, caller.pid)).unzip();
        tracing::debug_span!(
            "request",
            op = self.op.name(),
            ino = self.ino,
            offset = self.offset,
            len = self.len,
            uid,
            tid
        )
    }

    fn origin(&self) -> Origin {
        self.caller.map_or(NO_CALLER, |caller| Origin {
            uid: caller.uid,
            tid: caller.pid,
        })
    }
}

pub struct Requests {
    overlay: Arc<Overlay>,
    executor: Arc<Executor>,
    metrics: Metrics,
}

impl Requests {
    pub fn new(overlay: Arc<Overlay>) -> Arc<Self> {
        Arc::new(Self {
            overlay,
            executor: Arc::default(),
            metrics: Metrics::default(),
        })
    }

    pub fn overlay(&self) -> &Arc<Overlay> {
        &self.overlay
    }

    /// What the operations that were called have done so far.
    pub fn stats(&self) -> Vec<OpStats> {
        self.metrics.stats()
    }

    /// A request has arrived. The caller's user is the one in whose share it counts; without a caller it counts in a
    /// share that no user has.
    pub fn begin(self: &Arc<Self>, op: Op, ino: u64, caller: Option<Caller>) -> Call<'_> {
        Call {
            requests: self,
            request: Request {
                op,
                ino,
                offset: 0,
                len: 0,
                caller,
                began: Instant::now(),
            },
        }
    }

    /// Runs work that no caller waits for, where it may wait.
    pub fn background(self: &Arc<Self>, task: impl FnOnce(&Overlay) + Send + 'static) {
        let overlay = self.overlay.clone();
        self.executor
            .run(Class::Disk, NO_CALLER, move || task(&overlay));
    }

    /// The session has ended and no answer is read any more: requests that wait give up.
    pub fn end(&self) {
        self.executor.end();
    }

    fn perform<T>(&self, request: &Request, work: impl FnOnce(&Overlay) -> T) -> Result<T> {
        let work = AssertUnwindSafe(|| work(&self.overlay));
        let done = request.span().in_scope(|| catch_unwind(work));
        done.map_err(|_| FsError::Panicked)
    }

    /// Counts the request and sends the answer. It is counted first, so that the counters include what a caller
    /// knows to be done. Faults of the node itself are logged here, once.
    fn answer<T: Answer>(
        &self,
        thread: Thread,
        request: &Request,
        reply: impl Reply<T>,
        result: Result<T>,
    ) {
        let latency = request.began.elapsed();
        let (op, ino) = (request.op.name(), request.ino);
        let bytes = result.as_ref().ok().map(Answer::bytes);
        self.metrics.count(thread, request.op, latency, bytes);
        if let Err(error) = &result
            && error.is_fault()
        {
            tracing::error!(op, ino, %error, "operation failed");
        }
        let answer = result.map_err(|error| error.errno());
        tracing::trace!(
            op,
            ino,
            offset = request.offset,
            len = request.len,
            uid = request.caller.map(|caller| caller.uid),
            errno = answer.as_ref().err(),
            ?latency,
            "answered"
        );
        reply.send(&self.overlay, answer);
    }
}

/// A request that has arrived and is not answered yet.
#[must_use]
pub struct Call<'a> {
    requests: &'a Arc<Requests>,
    request: Request,
}

impl Call<'_> {
    /// Names the bytes that the request is about.
    pub fn over(mut self, offset: u64, len: u64) -> Self {
        self.request.offset = offset;
        self.request.len = len;
        self
    }

    /// Answers the request on this thread if `attempt` has an answer. It must not wait, and returns `None` if it
    /// would have to: then the reply comes back, and the request must be [run](Self::run).
    pub fn at_once<T: Answer, R: Reply<T>>(
        &self,
        reply: R,
        attempt: impl FnOnce(&Overlay) -> Option<Result<T>>,
    ) -> Option<R> {
        let result = match self.requests.perform(&self.request, attempt) {
            Ok(None) => return Some(reply),
            Ok(Some(result)) => result,
            Err(e) => Err(e),
        };
        self.requests
            .answer(Thread::EventLoop, &self.request, reply, result);
        None
    }

    /// Answers the request on this thread.
    pub fn answer<T: Answer>(self, reply: impl Reply<T>, result: Result<T>) {
        self.requests
            .answer(Thread::EventLoop, &self.request, reply, result);
    }

    /// Runs `handler` where it may wait, as soon as the caller's user has a slot there, and sends what it returns.
    pub fn run<T: Answer + Send + 'static, R: Reply<T> + 'static>(
        self,
        reply: R,
        handler: impl FnOnce(&Overlay, &mut R) -> Result<T> + Send + 'static,
    ) {
        self.run_in_steps(reply, |overlay, reply| {
            Attempt::Done(handler(overlay, reply))
        });
    }

    /// The same for a handler that may have to wait for another owner's lock. It then waits on a thread of its own,
    /// of which each user has a share.
    pub fn run_in_steps<T: Answer + Send + 'static, R: Reply<T> + 'static>(
        self,
        mut reply: R,
        handler: impl FnOnce(&Overlay, &mut R) -> Attempt<T> + Send + 'static,
    ) {
        let Call { requests, request } = self;
        let requests = requests.clone();
        let executor = requests.executor.clone();
        let origin = request.origin();
        executor.run(request.op.class(), origin, move || {
            let attempt = requests.perform(&request, |overlay| handler(overlay, &mut reply));
            let wait = match attempt {
                Ok(Attempt::Wait(wait)) => wait,
                Ok(Attempt::Done(result)) => {
                    return requests.answer(Thread::Worker, &request, reply, result);
                }
                Err(e) => return requests.answer(Thread::Worker, &request, reply, Err(e)),
            };
            let (executor, waiting) = (requests.executor.clone(), requests.clone());
            let wait = move |admitted| match admitted {
                true => waiting.perform(&request, wait).flatten(),
                false => Err(FsError::NoLocks),
            };
            executor.run_apart(origin, wait, move |waited| {
                requests.answer(Thread::Worker, &request, reply, waited);
            });
        });
    }
}

#[cfg(test)]
mod tests;
