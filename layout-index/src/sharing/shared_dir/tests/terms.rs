use super::*;
use std::os::unix::fs::symlink;
use std::sync::Barrier;
use std::time::Instant;

#[test]
fn a_term_is_held_until_it_ends_and_the_next_follows() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    let first = mine(a.terms.take_term(FILE).unwrap());
    assert!(a.terms.holds_term(FILE, first) && !b.terms.holds_term(FILE, first));
    assert_eq!(b.terms.take_term(FILE).unwrap(), TermAttempt::Held(a.me()));
    assert_eq!(a.terms.take_term(FILE).unwrap(), TermAttempt::Held(a.me()));
    assert_eq!(b.terms.highest_term(FILE).unwrap(), Some((first, a.me())));
    b.terms.end_term(FILE, first).unwrap();
    assert_eq!(b.terms.take_term(FILE).unwrap(), TermAttempt::Held(a.me()));
    a.terms.end_term(FILE, first).unwrap();
    a.terms.end_term(FILE, first).unwrap();
    assert!(!a.terms.holds_term(FILE, first));
    assert_eq!(mine(b.terms.take_term(FILE).unwrap()), first + 1);
}

/// Of several nodes that try to take a term at the same time, exactly one may write.
#[test]
fn of_two_who_race_one_wins() {
    let bench = Bench::new();
    let nodes = [bench.node(1), bench.node(2)];
    for round in 0..1000 {
        let barrier = Barrier::new(nodes.len());
        let won: Vec<Option<u64>> = std::thread::scope(|scope| {
            let racers: Vec<_> = nodes
                .iter()
                .map(|node| {
                    scope.spawn(|| {
                        barrier.wait();
                        match node.terms.take_term(FILE).unwrap() {
                            TermAttempt::Mine(term) => Some(term.number),
                            TermAttempt::Held(_) => None,
                        }
                    })
                })
                .collect();
            racers.into_iter().map(|r| r.join().unwrap()).collect()
        });
        let [winner] = won.iter().flatten().collect::<Vec<_>>()[..] else {
            panic!("round {round}: {won:?}");
        };
        let node = nodes
            .iter()
            .find(|n| n.terms.holds_term(FILE, *winner))
            .unwrap();
        if round % 2 == 0 {
            node.terms.tidy(FILE, *winner).unwrap();
        }
        node.terms.end_term(FILE, *winner).unwrap();
    }
}

/// At most one node holds a term at any moment, while terms end, directories are removed, and
/// listings are old.
#[test]
fn never_two_at_once() {
    let bench = Bench::new();
    let nodes: Vec<SharedDir> = (1..=4).map(|id| bench.node(id)).collect();
    let holders = std::sync::atomic::AtomicU32::new(0);
    let taken = std::sync::atomic::AtomicU32::new(0);
    use std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        for node in &nodes {
            scope.spawn(|| {
                let deadline = Instant::now() + Duration::from_secs(60);
                while taken.load(SeqCst) < 2000 {
                    assert!(Instant::now() < deadline, "no progress");
                    let term = match node.terms.take_term(FILE) {
                        Ok(TermAttempt::Mine(term)) => term.number,
                        Ok(TermAttempt::Held(_)) => continue,
                        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => continue,
                        Err(e) => panic!("{e}"),
                    };
                    assert_eq!(holders.fetch_add(1, SeqCst), 0, "two hold a term");
                    let count = taken.fetch_add(1, SeqCst);
                    holders.fetch_sub(1, SeqCst);
                    // The term is ended, or tidied and ended, or removed with everything else.
                    let (tidy, end) =
                        [(false, true), (true, true), (true, false)][count as usize % 3];
                    let is_gone = tidy && node.terms.tidy(FILE, term).unwrap();
                    if end || !is_gone {
                        node.terms.end_term(FILE, term).unwrap();
                    }
                }
            });
        }
    });
}

/// A listing from before other nodes took, ended and tidied terms must not make a holder.
#[test]
fn a_stale_listing_is_given_up() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    let claim = |seen: &Listing| {
        let dir = b.dirs.open(FILE, true).unwrap().unwrap();
        b.terms
            .claim(
                FILE,
                dir.as_fd(),
                seen,
                b.membership.lease.tenure().unwrap(),
            )
            .unwrap()
    };
    let first = mine(a.terms.take_term(FILE).unwrap());
    a.terms.end_term(FILE, first).unwrap();
    a.announce(FILE).unwrap();
    let stale = b.list(FILE).unwrap().unwrap();

    // First the next term exists; then there is another one, and links are removed and made again
    // where the old ones were.
    let second = mine(a.terms.take_term(FILE).unwrap());
    assert_eq!(claim(&stale), Some(TermAttempt::Held(a.me())));
    a.terms.end_term(FILE, second).unwrap();
    let third = mine(a.terms.take_term(FILE).unwrap());
    // As if the second term had been given up.
    std::fs::remove_file(bench.of_file(&format!("c.{second:x}"))).unwrap();
    assert_eq!(claim(&stale), None);
    let terms = b.list(FILE).unwrap().unwrap().terms;
    assert_eq!(terms.into_keys().collect::<Vec<_>>(), [first, third]);
    a.terms.tidy(FILE, third).unwrap();
    assert_eq!(b.list(FILE).unwrap().unwrap().terms.len(), 1);
    assert_eq!(claim(&stale), None);
    // The claim is given up even when that term has ended too: its number is higher.
    a.terms.end_term(FILE, third).unwrap();
    assert_eq!(claim(&stale), None);
    symlink(a.me().to_string(), bench.of_file(&format!("c.{first:x}"))).unwrap();
    assert_eq!(claim(&stale), None);
    std::fs::remove_file(bench.of_file(&format!("c.{first:x}"))).unwrap();
    assert_eq!(b.terms.highest_term(FILE).unwrap(), Some((third, a.me())));
    assert!(!b.terms.holds_term(FILE, first + 1));

    // The directory was removed and made again.
    let fourth = mine(a.terms.take_term(FILE).unwrap());
    let announcements = a.list(FILE).unwrap().unwrap().announcements;
    a.fulfil(FILE, &announcements).unwrap();
    assert!(a.terms.tidy(FILE, fourth).unwrap());
    assert_eq!(a.change_token(FILE).unwrap(), None);
    assert_eq!(claim(&stale), None);
    let fifth = mine(a.terms.take_term(FILE).unwrap());
    assert!(fifth != fourth && fifth != fourth + 1);
    assert_eq!(claim(&stale), None);
    assert_eq!(b.terms.take_term(FILE).unwrap(), TermAttempt::Held(a.me()));
}

/// A node that died between making its link and listing the directory again must not make room for
/// a second holder beside a living one.
#[test]
fn a_link_of_a_dead_claimant_does_not_hide_a_live_holder() {
    let bench = Bench::new();
    let a = bench.node(1);
    let held = mine(a.terms.take_term(FILE).unwrap());
    let dead = owner(9, 9).to_string();
    symlink(&dead, bench.of_file(&format!("c.{:x}", held + 50))).unwrap();
    let b = bench.node(2);
    assert_eq!(b.terms.take_term(FILE).unwrap(), TermAttempt::Held(a.me()));
    a.terms.end_term(FILE, held).unwrap();
    assert_eq!(mine(b.terms.take_term(FILE).unwrap()), held + 51);
}

/// A silent holder is replaced after its lease and not before; its term is not resumed.
#[test]
fn a_dead_holder_is_replaced_after_its_lease() {
    let bench = Bench::new();
    let theirs = Hand::default();
    let (a, b) = (bench.by(1, 1, &theirs), bench.node(2));
    let held = mine(a.terms.take_term(FILE).unwrap());
    let beat = |by: Duration| {
        bench.hand.forward(by);
        b.membership.heartbeat().unwrap();
    };
    assert_eq!(b.terms.take_term(FILE).unwrap(), TermAttempt::Held(a.me()));
    beat(LEASE - Duration::from_millis(1));
    assert_eq!(b.terms.take_term(FILE).unwrap(), TermAttempt::Held(a.me()));
    // By its own clock the old holder stopped long ago.
    theirs.forward(LEASE / 2);
    assert!(!a.terms.holds_term(FILE, held));
    beat(Duration::from_millis(1));
    assert_eq!(mine(b.terms.take_term(FILE).unwrap()), held + 1);
    a.membership.heartbeat().unwrap();
    assert!(!a.terms.holds_term(FILE, held));
    assert_eq!(a.terms.take_term(FILE).unwrap(), TermAttempt::Held(b.me()));
    // A late action of the old holder does not harm its successor.
    a.terms.end_term(FILE, held).unwrap();
    assert!(b.terms.holds_term(FILE, held + 1));
    assert_eq!(a.terms.take_term(FILE).unwrap(), TermAttempt::Held(b.me()));
}

/// Uses the real clock, in real time. A busy machine does not stand still for half of this lease.
#[test]
fn a_dead_holder_is_replaced_in_time() {
    let bench = Bench::new();
    let lease = Duration::from_secs(3);
    let join = |id| SharedDir::join(bench.backing(), owner(id, 1), "n", lease).unwrap();
    let a = join(1);
    let held = mine(a.terms.take_term(FILE).unwrap());
    let begin = Instant::now();
    let b = join(2);
    loop {
        b.membership.heartbeat().unwrap();
        if let TermAttempt::Mine(term) = b.terms.take_term(FILE).unwrap() {
            assert_eq!(term.number, held + 1);
            assert!(!a.membership.lease.is_held());
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "never replaced");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(begin.elapsed() >= lease);
}

#[test]
fn a_term_of_an_earlier_run_is_followed_at_once() {
    let bench = Bench::new();
    let (a, b) = (bench.run(1, 1), bench.node(2));
    let held = mine(a.terms.take_term(FILE).unwrap());
    assert_eq!(b.terms.take_term(FILE).unwrap(), TermAttempt::Held(a.me()));
    let again = bench.run(1, 2);
    assert_eq!(mine(again.terms.take_term(FILE).unwrap()), held + 1);
    let third = bench.run(1, 3);
    drop(third);
    assert_eq!(mine(b.terms.take_term(FILE).unwrap()), held + 2);
}

/// A thread that takes a term is not disturbed by another thread that ends forgotten terms.
#[test]
fn threads_of_one_node_take_a_term_once() {
    let bench = Bench::new();
    let a = bench.node(1);
    for _ in 0..300 {
        let barrier = Barrier::new(3);
        let won: Vec<u64> = std::thread::scope(|scope| {
            let take = || {
                barrier.wait();
                match a.terms.take_term(FILE).unwrap() {
                    TermAttempt::Mine(term) => Some(term.number),
                    TermAttempt::Held(_) => None,
                }
            };
            let racers: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
            racers
                .into_iter()
                .filter_map(|r| r.join().unwrap())
                .collect()
        });
        assert_eq!(won.len(), 1);
        assert!(
            a.list(FILE)
                .unwrap()
                .unwrap()
                .ended
                .range(won[0]..)
                .next()
                .is_none()
        );
        a.terms.end_term(FILE, won[0]).unwrap();
    }
}

#[test]
fn a_domain_is_done_by_one_and_taken_again_from_the_dead() {
    let bench = Bench::new();
    let theirs = Hand::default();
    let (a, b) = (bench.by(1, 1, &theirs), bench.node(2));
    assert_eq!(a.domains.take_domain(FILE, 5, 0).unwrap(), None, "no plan");
    let term = mine(a.terms.take_term(FILE).unwrap());
    assert_eq!(
        a.domains.take_domain(FILE, term, 0).unwrap(),
        None,
        "no plan yet"
    );
    assert!(a.list(FILE).unwrap().unwrap().domains.is_empty());
    a.put_plan(FILE, term, b"plan").unwrap();
    assert_eq!(a.domains.take_domain(FILE, term, 0).unwrap(), Some(0));
    assert!(a.domains.holds_domain(FILE, term, 0) && !b.domains.holds_domain(FILE, term, 0));
    assert_eq!(a.domains.take_domain(FILE, term, 0).unwrap(), None);
    assert_eq!(b.domains.take_domain(FILE, term, 0).unwrap(), None);
    assert_eq!(b.domains.take_domain(FILE, term, 1).unwrap(), Some(0));
    b.domains.mark_domain_done(FILE, term, 1).unwrap();
    assert_eq!(a.domains.take_domain(FILE, term, 1).unwrap(), None);
    // It failed on that node.
    assert_eq!(b.domains.take_domain(FILE, term, 2).unwrap(), Some(0));
    b.domains.give_up_domain(FILE, term, 2, 0).unwrap();
    assert_eq!(a.domains.take_domain(FILE, term, 2).unwrap(), Some(0));
    // The other node is dead.
    bench.hand.forward(LEASE);
    b.membership.heartbeat().unwrap();
    assert_eq!(b.domains.take_domain(FILE, term, 0).unwrap(), Some(1));
    assert_eq!(b.domains.take_domain(FILE, term, 0).unwrap(), None);
    theirs.forward(LEASE);
    a.membership.heartbeat().unwrap();
    assert!(
        !a.domains.holds_domain(FILE, term, 0),
        "it does not go on when it wakes"
    );
    // Giving the domain up late does not take it from its successor.
    a.domains.give_up_domain(FILE, term, 0, 0).unwrap();
    assert_eq!(a.domains.take_domain(FILE, term, 0).unwrap(), None);
    let listing = a.list(FILE).unwrap().unwrap();
    assert_eq!(listing.done, [(term, 1)].into());
    assert!(listing.domains.contains(&(term, 0, 0)));
}
