use super::*;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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
    // The server closed the connection with bytes of this test unread, which the kernel may report as a
    // reset.
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
    while server.active.places.lock().taken < MOST && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut late = UnixStream::connect(&path).unwrap();
    let reply: Reply = codec::receive(&mut late).unwrap().unwrap();
    assert!(matches!(reply, Reply::Refused(r) if r.reason == Reason::Busy));
    drop(crowd);
    server.stop(Duration::from_secs(5));
}

fn user(uid: u32) -> Peer {
    Peer::new(uid, 1, 1000)
}

#[test]
fn ordinary_users_have_a_few_places_each_and_not_all_of_them() {
    let mut places = Places::default();
    for _ in 0..EACH {
        places.take(&user(7)).unwrap();
    }
    assert!(places.take(&user(7)).unwrap_err().contains("you have"));
    let mut uid = 8;
    while places.take(&user(uid)).is_ok() {
        uid += 1;
    }
    assert_eq!(places.taken, MOST - KEPT);
    // Root and the daemon's user still get the places that are left.
    for n in 0..KEPT {
        places
            .take(&user(if n % 2 == 0 { 0 } else { 1000 }))
            .unwrap();
    }
    assert!(places.take(&user(0)).is_err());
    places.leave(&user(0));
    places.leave(&user(7));
    places.take(&user(7)).unwrap();
    places.take(&user(0)).unwrap();
    assert_eq!(places.taken, MOST);
}

/// Connections of another user, made on a thread that ends as that user.
fn connect_as(uid: u32, path: &Path, count: usize) -> Vec<UnixStream> {
    std::thread::scope(|s| {
        let connecting = s.spawn(|| {
            // SAFETY: plain numbers. The raw system call changes this thread alone, and the thread ends soon.
            let rc = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
            assert_eq!(rc, 0, "run as root: this test acts as another user");
            (0..count)
                .map(|_| UnixStream::connect(path).unwrap())
                .collect()
        });
        connecting.join().unwrap()
    })
}

#[test]
fn an_idle_crowd_does_not_lock_root_out() {
    let (dir, path, server) = server();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
    let mut crowd = connect_as(4001, &path, MOST);
    let reply: Reply = codec::receive(&mut crowd[EACH]).unwrap().unwrap();
    assert!(matches!(reply, Reply::Refused(r) if r.reason == Reason::Busy));
    let mut root = UnixStream::connect(&path).unwrap();
    codec::send(&mut root, &Request::Ping).unwrap();
    let reply: Reply = codec::receive(&mut root).unwrap().unwrap();
    assert!(matches!(reply, Reply::Progress(_)), "{reply:?}");
    drop((crowd, root));
    server.stop(Duration::from_secs(5));
}
