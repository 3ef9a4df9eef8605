//! Nodes that die, sleep or come back at the worst moment: no data for which a close returned is lost, the other
//! nodes go on, and a node that was asleep for too long writes nothing more.
//!
//! The tests check what `docs/decisions/0008-many-nodes.md` says: its two tables of what a kill leaves, and its
//! lease.

mod nodes_pair;

use forebay_tests::cli::{OK, STILL_DIRTY, code};
use forebay_tests::rng::Rng;
use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::wait::{in_background, in_time, within};
use nix::sys::signal::Signal;
use nodes_pair::{GRACE, MIB, Shared, list, name_of, until, until_logged};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Makes a node whose death is reported.
fn mortal(shared: &Shared, name: &str, drain: Drain) -> TestMount {
    let mut mount = shared.mortal(name, drain);
    expects_deaths(&mut mount);
    mount
}

/// Allows the log lines that a test provokes by killing a node: other nodes report that they noticed.
fn expects_deaths(mount: &mut TestMount) {
    for said in [
        "lease",
        "has closed it and not published",
        "the shared directory",
        "took over",
    ] {
        mount.allow_log(said);
    }
}

fn data(seed: u64, size: usize) -> Vec<u8> {
    Rng::new(seed).bytes(size)
}

fn read_on(mount: &TestMount, name: &str) -> Vec<u8> {
    let path = mount.path(name);
    in_time(
        "reading through the mount",
        in_background(move || get(path)),
    )
}

/// Runs `forebay drain` on everything, without waiting for it.
fn ask_to_drain(mount: &TestMount) {
    let out = mount.run(["drain".as_ref(), mount.mnt().as_os_str()]);
    assert!([OK, STILL_DIRTY].contains(&code(&out)), "{}", text(&out));
}

fn layouts_of(shared: &Shared, id: &str) -> Vec<String> {
    let mut own = shared.names('l');
    own.retain(|name| name.split('.').nth(1) == Some(id));
    own
}

/// A node is killed after a close that only announced its bytes. As after steps 1, 2 and 3 of a publication
/// (decision 0008), the store has the bytes and publishes them later: the node comes back, and nothing is lost. A
/// reader that opened the file meanwhile gets the bytes.
#[test]
fn killed_after_a_deferred_close_and_back_again() {
    let shared = Shared::plain();
    let (mut a, mut b) = (
        shared.node("a", Drain::Never),
        shared.node("b", Drain::Never),
    );
    expects_deaths(&mut a);
    expects_deaths(&mut b);
    a.start();
    b.start();
    // One file is published in a subfile, and one is small enough for the layout itself.
    let (large, small) = (data(1, 5 * MIB + 123), data(2, 1234));
    put(a.path("large"), &large);
    put(a.path("small"), &small);
    assert_eq!(shared.names('i').len(), 2, "announced");
    assert_eq!(shared.names('l').len(), 0, "and not published");
    a.kill();
    let path = b.path("large");
    let waits = in_background(move || get(path));
    a.start();
    assert_same("large, on b", &in_time("the reader", waits), &large);
    assert_same("small, on b", &read_on(&b, "small"), &small);
    assert_same("large, on a", &read_on(&a, "large"), &large);
    assert_same("small, on a", &read_on(&a, "small"), &small);
    a.drain();
    assert_same("canonical", &get(shared.canonical("large")), &large);
    assert_same("canonical", &get(shared.canonical("small")), &small);
    b.finish();
    a.finish();
}

/// A node is killed for good after it published: the other node drains what it left after its lease, without being
/// asked. Its files in the shared directory go when it comes back.
#[test]
fn killed_for_good_after_it_published() {
    let shared = Shared::plain();
    let mut a = mortal(&shared, "a", Drain::Never);
    let mut b = mortal(&shared, "b", Drain::Immediate);
    a.set("close", "publish").start();
    b.start();
    let id = shared.id_of("a");
    let (large, small) = (data(3, 6 * MIB + 77), data(4, 999));
    put(a.path("large"), &large);
    put(a.path("small"), &small);
    assert_eq!(layouts_of(&shared, &id).len(), 2, "published");
    a.kill();
    let is =
        |name: &str, want: &[u8]| fs::read(shared.canonical(name)).is_ok_and(|got| got == want);
    until("the other node has drained it all", || {
        is("large", &large) && is("small", &small)
    });
    assert_same("on b", &read_on(&b, "large"), &large);

    a.start();
    until("its layouts are gone", || {
        layouts_of(&shared, &id).is_empty()
    });
    until("its subfiles are gone", || shared.subfiles().is_empty());
    assert_same("on a", &read_on(&a, "large"), &large);
    assert_eq!(a.status().undrained(), 0);
    b.finish();
    a.finish();
}

/// A node is killed for good before it published: after `visibility-timeout` the open fails and the log names the
/// node, and `forebay recover` on its store brings the data back.
#[test]
fn killed_for_good_before_it_published() {
    let shared = Shared::plain();
    let mut a = shared.node("gone-for-good", Drain::Never);
    let mut b = shared.node("b", Drain::Immediate);
    expects_deaths(&mut a);
    expects_deaths(&mut b);
    a.start();
    b.set("visibility-timeout", "2s").start();
    let want = data(5, 4 * MIB + 5);
    put(a.path("f"), &want);
    a.kill();
    let limit = Duration::from_secs(2) + GRACE;
    for _ in 0..2 {
        let path = b.path("f");
        let opened = within("the open", limit, in_background(move || File::open(path)));
        assert_eq!(errno(opened, "the open"), libc::ETIMEDOUT);
    }
    let said = until_logged(&b, &["gone-for-good", "has closed it and not published"]);
    assert!(said.contains("forebay recover"), "what to do: {said}");
    // No other file is affected.
    put(b.path("g"), b"fine");
    assert_eq!(read_on(&b, "g"), b"fine");

    let out = a.run([
        "recover".as_ref(),
        "--store".as_ref(),
        a.store().as_os_str(),
        "--backing".as_ref(),
        shared.backing().as_os_str(),
    ]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert_same("on b", &read_on(&b, "f"), &want);
    b.drain();
    assert_same("canonical", &get(shared.canonical("f")), &want);
    assert_eq!(shared.names('i'), Vec::<String>::new());
    b.finish();
}

/// Two nodes that have each published every other MiB of one file, and now drain it together, slowly.
struct Round {
    nodes: Vec<TestMount>,
    shared: Shared,
    want: Vec<u8>,
}

const PART: usize = 6;

impl Round {
    fn begin() -> Round {
        let shared = Shared::plain();
        let mut nodes: Vec<TestMount> = ["a", "b"]
            .iter()
            .map(|name| {
                let mut node = mortal(&shared, name, Drain::Never);
                // Each drains one domain at a time, so that both nodes get one.
                node.set("close", "publish")
                    .set("drain-rate", "1MiB")
                    .set("subfiles", "always")
                    .set_number("drain-concurrency", 1.0);
                node
            })
            .collect();
        let want = data(6, 2 * PART * MIB);
        nodes[0].start();
        put(nodes[0].path("f"), b"");
        nodes[1].start();
        for (n, node) in nodes.iter().enumerate() {
            let file = open_rw(node.path("f"));
            for part in 0..PART {
                let at = (2 * part + n) * MIB;
                sys::write_all_at(&file, &want[at..at + MIB], at as u64).expect("write");
            }
        }
        let round = Round {
            shared,
            nodes,
            want,
        };
        assert_eq!(round.shared.names('l').len(), 2, "both have published");
        round.nodes.iter().for_each(ask_to_drain);
        until("each has taken a domain", || {
            let mut by = round.shared.made_by('d');
            by.sort();
            by.dedup();
            by.len() == 2 && round.shared.names('f').is_empty()
        });
        round
    }

    /// Returns which of the two nodes may make the plan and the base.
    fn holder(&self) -> usize {
        let ended = self.shared.names('x');
        let dir = self.shared.file_dir();
        let mut terms = list(&dir);
        terms.retain(|path| {
            let name = name_of(path);
            name.strip_prefix("c.")
                .is_some_and(|term| !ended.contains(&format!("x.{term}")))
        });
        let last = terms.last().expect("a term is held");
        let by = fs::read_link(last).expect("a link");
        let is = |name: &str| by.to_string_lossy().starts_with(&self.shared.id_of(name));
        usize::from(is("b"))
    }

    fn killed(mut self, which: usize) {
        self.nodes[which].kill();
        let (shared, want) = (&self.shared, &self.want);
        let canonical = shared.canonical("f");
        assert_ne!(&get(&canonical), want, "it was in the middle");
        until("the other one has finished the round", || {
            get(&canonical) == *want && !shared.names('b').is_empty()
                || shared.file_dirs().is_empty()
        });
        let other = &self.nodes[1 - which];
        assert_same("on the other one", &read_on(other, "f"), want);
        assert_same("canonical", &get(&canonical), want);

        self.nodes[which].start();
        assert_same("when it is back", &read_on(&self.nodes[which], "f"), want);
        for node in self.nodes {
            node.drain();
            node.finish();
        }
        assert_same("in the end", &get(&canonical), &self.want);
        assert_eq!(self.shared.subfiles(), Vec::<std::path::PathBuf>::new());
    }
}

/// Decision 0008: a term whose holder died is followed by one that finds the plan, and finishes it.
#[test]
fn the_holder_of_a_term_is_killed_in_the_middle_of_a_round() {
    let round = Round::begin();
    let holder = round.holder();
    round.killed(holder);
}

/// Decision 0008: a domain of a dead node is taken with the next try.
#[test]
fn the_owner_of_a_domain_is_killed_in_the_middle_of_a_round() {
    let round = Round::begin();
    let holder = round.holder();
    round.killed(1 - holder);
}

/// Decision 0008: a holder stops writing when half of the lease has passed since it last began a heartbeat that
/// succeeded. Here it sleeps in a round for longer than that. When it wakes, another node has finished its round and
/// drained newer bytes, and it writes nothing more.
#[test]
fn asleep_in_a_round_for_longer_than_its_lease() {
    let shared = Shared::plain();
    let mut a = mortal(&shared, "a", Drain::Never);
    let mut b = mortal(&shared, "b", Drain::Immediate);
    for node in [&mut a, &mut b] {
        node.set("close", "publish").set("subfiles", "always");
    }
    a.set("drain-rate", "1MiB").start();
    b.start();
    let id = shared.id_of("a");
    let old = data(7, 8 * MIB);
    put(a.path("f"), &old);
    ask_to_drain(&a);
    let canonical = shared.canonical("f");
    until("it is in the middle of its round", || {
        let len = fs::metadata(&canonical).expect("stat").len();
        len > 0 && !shared.made_by('d').is_empty()
    });
    a.signal(Signal::SIGSTOP);
    assert_ne!(get(&canonical), old, "it was in the middle");
    until("the other one has taken over", || get(&canonical) == old);
    let new = data(8, 8 * MIB);
    put(b.path("f"), &new);
    until("newer bytes are drained", || get(&canonical) == new);
    a.signal(Signal::SIGCONT);
    until("it has woken, and has nothing more to do", || {
        layouts_of(&shared, &id).is_empty()
    });
    a.drain();
    assert_same("canonical", &get(&canonical), &new);
    assert_same("on a", &read_on(&a, "f"), &new);
    assert_same("on b", &read_on(&b, "f"), &new);
    a.finish();
    b.finish();
    assert_same("in the end", &get(&canonical), &new);
}

/// The same for a node that drains alone, straight from its log: what other nodes have drained meanwhile stays, and
/// its own bytes are added.
#[test]
fn asleep_while_it_drains_alone_for_longer_than_its_lease() {
    let shared = Shared::plain();
    let mut a = mortal(&shared, "a", Drain::Immediate);
    let mut b = mortal(&shared, "b", Drain::Immediate);
    for node in [&mut a, &mut b] {
        node.set("close", "publish");
    }
    a.set("drain-rate", "1MiB").start();
    b.start();
    let half = 8 * MIB;
    let mut want = data(9, 2 * half);
    let file = open_rw(a.path("f"));
    // No process may be started while the file is open: that would close a copy of its descriptor, which publishes.
    sys::write_all_at(&file, &want[..half], 0).expect("write");
    let canonical = shared.canonical("f");
    until("it is in the middle of its drain", || {
        fs::metadata(&canonical).expect("stat").len() > 0
    });
    a.signal(Signal::SIGSTOP);
    let there = open_rw(b.path("f"));
    sys::write_all_at(&there, &want[half..], half as u64).expect("write");
    drop(there);
    until("the other one has drained its half", || {
        get(&canonical).get(half..) == Some(&want[half..])
    });
    a.signal(Signal::SIGCONT);
    // Data that is written now is the newest of all.
    let last = data(10, MIB);
    sys::write_all_at(&file, &last, 0).expect("write");
    want[..MIB].copy_from_slice(&last);
    drop(file);
    a.drain();
    b.drain();
    assert_same("canonical", &get(&canonical), &want);
    assert_same("on a", &read_on(&a, "f"), &want);
    assert_same("on b", &read_on(&b, "f"), &want);
    a.finish();
    b.finish();
}

fn copy_tree(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("start cp").success(), "copy the store");
}

/// Killed after step 4 of a publication (decision 0008): the next start of the store finds in its own layout up to
/// which record of which dirty period it has published, and goes on with step 5. Without step 5 a restart would
/// publish the same bytes again, over newer ones of other nodes. For this the store is put back as it was before it
/// published.
fn killed_between_the_layout_and_the_store(drained: bool) {
    let shared = Shared::plain();
    // A store that was copied is taken up when the lease of its dead daemon is over (S6.6).
    let mut a = mortal(&shared, "a", Drain::Never);
    let mut b = mortal(&shared, "b", Drain::Never);
    a.start();
    b.set("close", "publish").start();
    let id = shared.id_of("a");
    let (mut large, mut small) = (data(11, 4 * MIB + 9), data(12, 5000));
    put(a.path("large"), &large);
    put(a.path("small"), &small);
    a.kill();
    let before = a.root().join("store-before");
    copy_tree(a.store(), &before);
    a.start();
    assert_same("large, on b", &read_on(&b, "large"), &large);
    assert_same("small, on b", &read_on(&b, "small"), &small);
    assert_eq!(layouts_of(&shared, &id).len(), 2, "published");
    a.kill();

    let newer = data(13, MIB);
    for (name, want, at, len) in [
        ("large", &mut large, MIB + 3, MIB),
        ("small", &mut small, 100, 2000),
    ] {
        let file = open_rw(b.path(name));
        sys::write_all_at(&file, &newer[..len], at as u64).expect("write");
        want[at..at + len].copy_from_slice(&newer[..len]);
    }
    if drained {
        b.drain();
        assert_same("canonical", &get(shared.canonical("large")), &large);
    }
    let sizes = || -> Vec<u64> {
        let dirs = shared.file_dirs();
        let all = dirs.iter().flat_map(|dir| list(dir));
        let own = all.filter(|path| name_of(path).starts_with(&format!("l.{id}.")));
        own.map(|path| fs::metadata(path).map_or(0, |meta| meta.len()))
            .collect()
    };
    let published = sizes();
    fs::remove_dir_all(a.store()).expect("remove the store");
    fs::rename(&before, a.store()).expect("put the old store back");
    a.start();
    assert_same("large, on a", &read_on(&a, "large"), &large);
    assert_same("small, on a", &read_on(&a, "small"), &small);
    assert_same("large, on b", &read_on(&b, "large"), &large);
    assert_same("small, on b", &read_on(&b, "small"), &small);
    if !drained {
        assert_eq!(sizes(), published, "it published again");
    }
    a.drain();
    b.drain();
    assert_same("canonical", &get(shared.canonical("large")), &large);
    assert_same("canonical", &get(shared.canonical("small")), &small);
    assert_same("large, on b", &read_on(&b, "large"), &large);
    a.finish();
    b.finish();
}

#[test]
fn killed_between_the_layout_and_the_stores_own_record() {
    killed_between_the_layout_and_the_store(false);
}

#[test]
fn killed_between_the_two_and_others_have_drained_newer_bytes() {
    killed_between_the_layout_and_the_store(true);
}
