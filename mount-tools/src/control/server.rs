//! The server side of the control socket: one thread accepts connections, and each connection has a thread,
//! at most [`MOST`] of them.
//!
//! The peer's user is known before a connection gets one of these places. An ordinary user has at most
//! [`EACH`] places, and all ordinary users together leave [`KEPT`] places to root and the daemon's user. So
//! ordinary users cannot lock out root or the daemon's user, who have to drain and unmount.
//!
//! A peer that sends nothing is dropped after [`PATIENCE`]. The one request of a connection may take any time
//! (as a drain does), but if the peer does not take a reply within [`PATIENCE`], the connection ends.

use super::codec;
use super::peer::Peer;
use super::protocol::{Reason, Refusal, Reply, Request};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MOST: usize = 32;
const EACH: usize = 4;
const KEPT: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);

pub trait Handler: Send + Sync + 'static {
    /// `progress` fails when the peer is gone.
    fn handle(
        &self,
        request: Request,
        peer: Peer,
        progress: &mut dyn FnMut(Reply) -> io::Result<()>,
    ) -> Reply;
}

#[derive(Default)]
struct Active {
    places: Mutex<Places>,
    ended: Condvar,
}

#[derive(Default)]
struct Places {
    taken: usize,
    /// Places that ordinary users have, by user.
    by_user: HashMap<u32, usize>,
}

impl Places {
    /// Takes a place, or returns why there is none.
    fn take(&mut self, peer: &Peer) -> Result<(), String> {
        if peer.is_privileged() {
            if self.taken >= MOST {
                return Err("the daemon has too many connections; try later".into());
            }
        } else {
            let ordinary: usize = self.by_user.values().sum();
            if self.taken >= MOST || ordinary >= MOST - KEPT {
                return Err("the daemon has too many connections; try later".into());
            }
            let own = self.by_user.entry(peer.uid).or_default();
            if *own >= EACH {
                return Err(format!(
                    "you have {EACH} requests at the daemon already; try again when one has ended"
                ));
            }
            *own += 1;
        }
        self.taken += 1;
        Ok(())
    }

    fn leave(&mut self, peer: &Peer) {
        self.taken -= 1;
        if let Entry::Occupied(mut own) = self.by_user.entry(peer.uid) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

pub struct Server {
    wake: UnixStream,
    thread: JoinHandle<()>,
    active: Arc<Active>,
}

impl Server {
    pub fn start(listener: UnixListener, handler: Arc<dyn Handler>) -> io::Result<Server> {
        listener.set_nonblocking(true)?;
        let (wake, woken) = UnixStream::pair()?;
        let active = Arc::new(Active::default());
        let shared = active.clone();
        let thread = std::thread::Builder::new()
            .name("forebay-control".into())
            .spawn(move || accept(&listener, &woken, &handler, &shared))?;
        Ok(Server {
            wake,
            thread,
            active,
        })
    }

    /// Accepts no more connections, and gives the open ones up to `patience` to end.
    pub fn stop(self, patience: Duration) {
        drop(self.wake);
        if self.thread.join().is_err() {
            tracing::error!("the control thread broke off");
        }
        let deadline = Instant::now() + patience;
        let mut places = self.active.places.lock();
        while places.taken > 0 {
            if self
                .active
                .ended
                .wait_until(&mut places, deadline)
                .timed_out()
            {
                break;
            }
        }
    }
}

fn accept(
    listener: &UnixListener,
    woken: &UnixStream,
    handler: &Arc<dyn Handler>,
    active: &Arc<Active>,
) {
    loop {
        let mut fds = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(woken.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(error) => {
                tracing::error!(%error, "the control socket cannot be waited for; it is closed");
                return;
            }
        }
        if fds[1].any().unwrap_or(true) {
            return;
        }
        match listener.accept() {
            Ok((stream, _)) => spawn(stream, handler, active),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // Most likely there are no more descriptors. The pause keeps this loop from spinning.
                tracing::warn!(%error, "a control connection could not be accepted");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn spawn(stream: UnixStream, handler: &Arc<dyn Handler>, active: &Arc<Active>) {
    let peer = match Peer::of(&stream) {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%error, "a control connection without credentials was closed");
            return;
        }
    };
    let place = active.places.lock().take(&peer);
    if let Err(why) = place {
        report(refuse(stream, Refusal::new(Reason::Busy, why)));
        return;
    }
    let (handler, leave) = (handler.clone(), Leave(active.clone(), peer));
    let spawned = std::thread::Builder::new()
        .name("forebay-control-peer".into())
        .spawn(move || {
            let _leave = leave;
            report(serve(stream, peer, &*handler));
        });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for a control connection");
    }
}

struct Leave(Arc<Active>, Peer);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.places.lock().leave(&self.1);
        self.0.ended.notify_all();
    }
}

fn refuse(mut stream: UnixStream, refusal: Refusal) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(Duration::from_millis(100)))?;
    codec::send(&mut stream, &Reply::Refused(refusal))
}

fn serve(mut stream: UnixStream, peer: Peer, handler: &dyn Handler) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = match codec::receive::<Request>(&mut stream) {
        Ok(Some(request)) => request,
        Ok(None) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => {
            return refuse(
                stream,
                Refusal::new(Reason::Failed, format!("the request: {e}")),
            );
        }
        Err(e) => return Err(e),
    };
    tracing::debug!(?request, uid = peer.uid, pid = peer.pid, "control request");
    let reply = handler.handle(request, peer, &mut |reply| codec::send(&mut stream, &reply));
    codec::send(&mut stream, &reply)
}

/// Logs errors at debug level only: a peer may go away at any time.
fn report(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a control connection ended early");
    }
}

#[cfg(test)]
mod tests;
