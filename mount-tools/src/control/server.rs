//! The answering side: one thread accepts, one thread per connection, at most [`MOST`] of them.
//!
//! A peer that says nothing is dropped after [`PATIENCE`]. The one request of a connection may
//! take as long as it likes (a drain does), but a reply that the peer does not take within
//! [`PATIENCE`] ends it.

use super::codec;
use super::peer::Peer;
use super::protocol::{Reason, Refusal, Reply, Request};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MOST: usize = 32;
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
    count: Mutex<usize>,
    ended: Condvar,
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

    /// Takes no more connections and lets those there are end, for a while.
    pub fn stop(self, patience: Duration) {
        drop(self.wake);
        if self.thread.join().is_err() {
            tracing::error!("the control thread broke off");
        }
        let deadline = Instant::now() + patience;
        let mut count = self.active.count.lock();
        while *count > 0 {
            if self
                .active
                .ended
                .wait_until(&mut count, deadline)
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
                // Out of descriptors, most likely: the pause keeps this from spinning.
                tracing::warn!(%error, "a control connection could not be accepted");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn spawn(stream: UnixStream, handler: &Arc<dyn Handler>, active: &Arc<Active>) {
    let full = {
        let mut count = active.count.lock();
        let full = *count >= MOST;
        *count += usize::from(!full);
        full
    };
    if full {
        let refusal = Refusal::new(
            Reason::Busy,
            "the daemon has too many connections; try later",
        );
        report(refuse(stream, refusal));
        return;
    }
    let (handler, leave) = (handler.clone(), Leave(active.clone()));
    let spawned = std::thread::Builder::new()
        .name("forebay-control-peer".into())
        .spawn(move || {
            let _leave = leave;
            report(serve(stream, &*handler));
        });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for a control connection");
    }
}

struct Leave(Arc<Active>);

impl Drop for Leave {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.ended.notify_all();
    }
}

fn refuse(mut stream: UnixStream, refusal: Refusal) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(Duration::from_millis(100)))?;
    codec::send(&mut stream, &Reply::Refused(refusal))
}

fn serve(mut stream: UnixStream, handler: &dyn Handler) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = Peer::of(&stream)?;
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

/// A peer that went away is its own business.
fn report(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a control connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    struct Echo;

    impl Handler for Echo {
        fn handle(
            &self,
            _: Request,
            peer: Peer,
            progress: &mut dyn FnMut(Reply) -> io::Result<()>,
        ) -> Reply {
            progress(Reply::Progress(Default::default())).unwrap();
            Reply::Pong {
                pid: peer.pid as u32,
            }
        }
    }

    fn server() -> (tempfile::TempDir, std::path::PathBuf, Server) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let server = Server::start(UnixListener::bind(&path).unwrap(), Arc::new(Echo)).unwrap();
        (dir, path, server)
    }

    #[test]
    fn progress_and_then_the_answer() {
        let (_dir, path, server) = server();
        let mut stream = UnixStream::connect(&path).unwrap();
        codec::send(&mut stream, &Request::Ping).unwrap();
        let first: Reply = codec::receive(&mut stream).unwrap().unwrap();
        assert!(matches!(first, Reply::Progress(_)), "{first:?}");
        let second: Reply = codec::receive(&mut stream).unwrap().unwrap();
        assert!(matches!(second, Reply::Pong { pid } if pid == std::process::id()));
        server.stop(Duration::from_secs(5));
    }

    #[test]
    fn garbage_gets_a_sentence_and_a_closed_connection() {
        let (_dir, path, server) = server();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let reply: Reply = codec::receive(&mut stream).unwrap().unwrap();
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
        let mut rest = Vec::new();
        // The server closed with our bytes unread, which the kernel may report as a reset.
        if let Err(e) = stream.read_to_end(&mut rest) {
            assert_eq!(e.kind(), io::ErrorKind::ConnectionReset);
        }
        assert!(rest.is_empty());
        server.stop(Duration::from_secs(5));
    }

    #[test]
    fn a_silent_crowd_does_not_take_every_place_for_ever() {
        let (_dir, path, server) = server();
        let crowd: Vec<_> = (0..MOST)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        let deadline = Instant::now() + Duration::from_secs(5);
        while *server.active.count.lock() < MOST && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut late = UnixStream::connect(&path).unwrap();
        let reply: Reply = codec::receive(&mut late).unwrap().unwrap();
        assert!(matches!(reply, Reply::Refused(r) if r.reason == Reason::Busy));
        drop(crowd);
        server.stop(Duration::from_secs(5));
    }
}
