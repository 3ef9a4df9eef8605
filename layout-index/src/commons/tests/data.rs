//! "What is written late is never seen: the file was sealed or has lost its name by then."

use super::*;
use crate::commons::Patience::{Forever, UntilDeadline};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

/// All places are alike, and have a moment.
#[derive(Default)]
struct Places(AtomicUsize);

impl Placing for Places {
    fn create_flags(&self) -> i32 {
        0
    }

    fn place(&self, _file: std::os::fd::BorrowedFd<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn deadline(&self) -> Duration {
        Duration::from_millis(20)
    }
}

#[test]
fn what_does_not_come_back_is_not_waited_for_and_followed_up_when_it_does() {
    let bench = Bench::new();
    let a = bench.node(1);
    a.set_placing(Arc::new(Places::default()));
    let ((hold, held), (tell, told)) = (channel::<()>(), channel());
    let act = move || {
        held.recv().expect("let go");
        Ok(())
    };
    let late = a.in_time(UntilDeadline, act, move || tell.send(()).expect("heard"));
    assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(told.try_recv().is_err(), "it has not come back yet");
    // Others are not held up.
    let other = a.in_time(UntilDeadline, || Ok(7), || panic!("in time"));
    assert_eq!(other.unwrap(), 7);
    hold.send(()).unwrap();
    told.recv_timeout(Duration::from_secs(20))
        .expect("followed up");
    let last = a.in_time(Forever, || Ok(8), || panic!("waited for"));
    assert_eq!(last.unwrap(), 8);
}

#[test]
fn new_files_are_placed_and_appends_stay_where_they_are() {
    let bench = Bench::new();
    let a = bench.node(1);
    let places = Arc::new(Places::default());
    a.set_placing(places.clone());
    let placed = || places.0.load(Ordering::Relaxed);
    a.append_layout(FILE, 0, 0, b"first", Forever).unwrap();
    a.append_layout(FILE, 0, 5, b"second", Forever).unwrap();
    assert_eq!(placed(), 1);
    a.put_base(FILE, 6, b"base").unwrap();
    assert_eq!(placed(), 2);
    assert!(!a.is_written(FILE, 0));
}

#[test]
fn a_sealed_layout_ends_where_its_seal_says() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    a.append_layout(FILE, 0, 0, b"first", Forever).unwrap();
    let before = b.stamp(FILE).unwrap();
    a.seal_layout(FILE, 0, 5).unwrap();
    a.seal_layout(FILE, 0, 5).unwrap();
    assert_ne!(b.stamp(FILE).unwrap(), before, "everybody looks again");
    let listing = b.list(FILE).unwrap().unwrap();
    assert_eq!(listing.seal_of((NodeId(1), 0)), Some(5));
    assert_eq!(listing.seal_of((NodeId(1), 1)), None);
    assert!(listing.strange.is_empty());
    a.remove_layout(FILE, NodeId(1), 0, Some(5)).unwrap();
    assert!(bench.names().is_empty(), "{:?}", bench.names());
}

/// The node died between removing a layout and its seal.
#[test]
fn a_seal_without_a_layout_is_tidied_away() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    a.append_layout(FILE, 0, 0, b"first", Forever).unwrap();
    a.seal_layout(FILE, 0, 5).unwrap();
    let term = mine(b.take_term(FILE).unwrap());
    assert!(!b.tidy(FILE, term).unwrap(), "there is a layout");
    assert!(bench.names().iter().any(|name| name.starts_with("s.")));
    a.remove_layout(FILE, NodeId(1), 0, None).unwrap();
    assert!(b.tidy(FILE, term).unwrap());
    assert!(!bench.of_file("").exists(), "{:?}", bench.names());
}
