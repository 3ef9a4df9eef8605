//! Several [`SharedDir`] over one directory stand for several nodes; the tests set their clocks by
//! hand.

mod files;
mod hostile;
mod membership;
mod terms;
mod tidy;
mod writer;

use super::lease::{Clock, LONGEST_LEASE};
use super::roots::{FILES, NODES, NOTES, TOP};
use super::*;
use crate::calls;
use crate::types::{FileId, NodeId};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

const LEASE: Duration = Duration::from_millis(200);

const FILE: FileId = FileId {
    ino: 0x1234,
    birth: 0xabcdef,
};

/// A clock that stands still until it is set forward.
#[derive(Clone, Default)]
struct Hand(Arc<Mutex<Duration>>);

impl Hand {
    fn forward(&self, by: Duration) {
        *self.0.lock() += by;
    }

    fn clock(&self) -> Clock {
        let now = self.0.clone();
        Arc::new(move || *now.lock())
    }
}

struct Bench {
    dir: tempfile::TempDir,
    hand: Hand,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            dir: tempfile::tempdir().unwrap(),
            hand: Hand::default(),
        }
    }

    fn backing(&self) -> OwnedFd {
        std::fs::File::open(self.dir.path()).unwrap().into()
    }

    /// A node that uses the bench's clock.
    fn node(&self, id: u64) -> SharedDir {
        self.run(id, 1)
    }

    fn run(&self, id: u64, run: u32) -> SharedDir {
        self.by(id, run, &self.hand)
    }

    fn by(&self, id: u64, run: u32, hand: &Hand) -> SharedDir {
        let me = owner(id, run);
        self.join(me, &format!("node{id}"), LEASE, hand.clock())
    }

    /// Joins with a clock that stands for one that also counts time that the machine sleeps.
    fn join(&self, me: Owner, name: &str, lease: Duration, clock: Clock) -> SharedDir {
        let standing = Standing::default();
        let joined = SharedDir::prepare(self.backing(), me, name, lease, standing, clock).unwrap();
        joined.membership.join().unwrap();
        joined
    }

    fn path(&self, below: &str) -> PathBuf {
        let top = self.dir.path().join(TOP);
        match below {
            "" => top,
            below => top.join(below),
        }
    }

    fn of_file(&self, name: &str) -> PathBuf {
        self.path(FILES).join(names_of(FILE).join("/")).join(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.of_file(""))
            .map(|dir| {
                dir.map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }
}

fn owner(id: u64, run: u32) -> Owner {
    Owner {
        id: NodeId(id),
        run,
    }
}

fn mine(attempt: TermAttempt) -> u64 {
    match attempt {
        TermAttempt::Mine(term) => term.number,
        TermAttempt::Held(owner) => panic!("held by {owner}"),
    }
}

/// Every file, node and announcement has exactly one name; anything else is refused.
#[test]
fn names_are_read_as_they_are_written_and_no_others() {
    use names::Name;
    let own = owner(0xfedc, 0x12);
    for name in [
        Name::Layout(NodeId(1), 0xff),
        Name::Announcement(Announcement {
            owner: own,
            number: 10,
        }),
        Name::Term(u64::MAX),
        Name::Ended(0),
        Name::Plan(16),
        Name::Domain {
            term: 1,
            domain: 2,
            attempt: 3,
        },
        Name::Done { term: 1, domain: 2 },
        Name::Base(7),
        Name::Temporary(NodeId(5), 9),
    ] {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    for wrong in [
        "",
        "l",
        "c.",
        "c.01",
        "c.+1",
        "c.A",
        "c.1.",
        "c.1.2",
        "c.10000000000000000",
        "l.1.1",
        "i.000000000000fedc.12.a",
        "d.1.2.3.4",
        "f.1.100000000",
        "../x",
    ] {
        assert!(wrong.parse::<Name>().is_err(), "{wrong:?}");
    }
    assert_eq!(own.to_string(), "000000000000fedc.00000012");
    assert_eq!(own.to_string().parse(), Ok(own));
    assert!("fedc.12".parse::<Owner>().is_err());
    assert_eq!(FILE.to_string().parse(), Ok(FILE));
    for wrong in [
        "1", "1.", ".1", "01.1", "1.1.1", "1.G", "-1.1", "1.A", "1/1", "",
    ] {
        assert!(wrong.parse::<FileId>().is_err(), "{wrong:?}");
    }
}
