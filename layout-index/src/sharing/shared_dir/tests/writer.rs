//! "A late write counts for nothing: by then the file is sealed, or it is removed by the node that
//! wrote it."

use super::*;
use crate::sharing::shared_dir::Patience::{Forever, UntilDeadline};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

/// Places that are all alike.
struct Places {
    placed: AtomicUsize,
    deadline: Duration,
}

impl Places {
    fn within(deadline: Duration) -> Arc<Places> {
        let placed = AtomicUsize::new(0);
        Arc::new(Places { placed, deadline })
    }
}

impl Placement for Places {
    fn create_flags(&self) -> i32 {
        0
    }

    fn stripe(&self, _file: std::os::fd::BorrowedFd<'_>) {}

    fn place_on_one(&self, _file: std::os::fd::BorrowedFd<'_>) -> Option<u32> {
        Some(self.placed.fetch_add(1, Ordering::Relaxed) as u32)
    }

    fn begin_write(&self, place: u32) -> Box<dyn Send> {
        assert!(self.answers(place), "it was told so");
        Box::new(())
    }

    /// The first place does not answer once there are others.
    fn answers(&self, place: u32) -> bool {
        place > 0 || self.placed.load(Ordering::Relaxed) < 2
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }
}

#[test]
fn what_does_not_come_back_is_not_waited_for_and_followed_up_when_it_does() {
    let bench = Bench::new();
    let a = bench.node(1);
    a.writer
        .set_placement(Some(Places::within(Duration::from_secs(1))));
    let ((hold, held), (tell, told)) = (channel::<()>(), channel());
    let act = move || {
        held.recv().expect("let go");
        Ok(())
    };
    let late = a
        .writer
        .run_with_deadline(None, UntilDeadline, act, move || {
            tell.send(()).expect("heard")
        });
    assert_eq!(late.unwrap(), None);
    assert!(told.try_recv().is_err(), "it has not come back yet");
    // Other writes are not held up.
    let other = a
        .writer
        .run_with_deadline(None, UntilDeadline, || Ok(7), || panic!("in time"));
    assert_eq!(other.unwrap(), Some(7));
    hold.send(()).unwrap();
    told.recv_timeout(Duration::from_secs(20))
        .expect("followed up");
    let last = a
        .writer
        .run_with_deadline(None, Forever, || Ok(8), || panic!("waited for"));
    assert_eq!(last.unwrap(), Some(8));
}

#[test]
fn new_files_are_placed_and_appends_stay_where_they_are() {
    let bench = Bench::new();
    let a = bench.node(1);
    let places = Places::within(Duration::from_secs(60));
    a.writer.set_placement(Some(places.clone()));
    let placed = || places.placed.load(Ordering::Relaxed);
    a.append_layout(FILE, 0, 0, b"first", Forever).unwrap();
    a.append_layout(FILE, 0, 5, b"second", Forever).unwrap();
    assert_eq!(placed(), 1);
    a.put_base(FILE, 6, b"base").unwrap();
    assert_eq!(placed(), 2);
    assert!(!a.writer.is_being_written(FILE, 0));
    assert!(
        !a.writer.accepts_appends(FILE, 0),
        "its place does not answer"
    );
    assert!(a.writer.accepts_appends(FILE, 1), "nothing is known of it");
    a.remove_layout(FILE, NodeId(1), 0, None).unwrap();
    assert!(a.writer.accepts_appends(FILE, 0), "it is forgotten");
}

/// A layout that is drained while an append to it is still under way is removed when that append
/// comes back.
#[test]
fn a_layout_that_is_still_written_to_is_left_to_its_writer() {
    let bench = Bench::new();
    let a = bench.node(1);
    a.append_layout(FILE, 0, 0, b"first", Forever).unwrap();
    a.seal_layout(FILE, 0, 5).unwrap();
    assert!(!a.writer.leave_to_writer(FILE, 0), "no thread writes");
    let dir = std::fs::File::open(bench.of_file("")).unwrap();
    for wanted in [true, false] {
        let writing = a.writer.begin_write((FILE, 0));
        let late = a
            .writer
            .after_late_append(dir.as_fd(), 5, &writing)
            .unwrap();
        assert!(a.writer.is_being_written(FILE, 0));
        assert!(wanted || a.writer.leave_to_writer(FILE, 0));
        drop(writing);
        assert!(!a.writer.is_being_written(FILE, 0));
        late();
        let there = bench.names().len();
        assert_eq!(there, if wanted { 2 } else { 0 }, "{:?}", bench.names());
    }
}

#[test]
fn a_sealed_layout_ends_where_its_seal_says() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    a.append_layout(FILE, 0, 0, b"first", Forever).unwrap();
    let before = b.change_token(FILE).unwrap();
    a.seal_layout(FILE, 0, 5).unwrap();
    a.seal_layout(FILE, 0, 5).unwrap();
    assert_ne!(
        b.change_token(FILE).unwrap(),
        before,
        "everybody looks again"
    );
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
    let term = mine(b.terms.take_term(FILE).unwrap());
    assert!(!b.terms.tidy(FILE, term).unwrap(), "there is a layout");
    assert!(bench.names().iter().any(|name| name.starts_with("s.")));
    a.remove_layout(FILE, NodeId(1), 0, None).unwrap();
    assert!(b.terms.tidy(FILE, term).unwrap());
    assert!(!bench.of_file("").exists(), "{:?}", bench.names());
}
