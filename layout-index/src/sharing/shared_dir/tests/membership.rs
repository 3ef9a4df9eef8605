use super::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn who_joins_is_seen_by_the_others_and_by_those_who_only_look() {
    let bench = Bench::new();
    assert!(
        SharedDir::open_for_inspection(bench.backing())
            .unwrap()
            .is_none()
    );
    assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 0);
    let a = bench.node(1);
    let _b = bench.node(2);
    let mode = |name: &str| {
        std::fs::metadata(bench.path(name))
            .unwrap()
            .permissions()
            .mode()
    };
    for dir in ["", NODES, NOTES, FILES] {
        assert_eq!(mode(dir) & 0o7777, 0o700, "{dir}");
    }
    for shared_dir in [
        &a,
        &SharedDir::open_for_inspection(bench.backing())
            .unwrap()
            .unwrap(),
    ] {
        let nodes = shared_dir.membership.nodes().unwrap();
        assert_eq!(nodes.iter().map(|n| n.id.0).collect::<Vec<_>>(), [1, 2]);
        let state = nodes[1].state.clone().unwrap();
        assert_eq!((&*state.name, state.run, state.lease), ("node2", 1, LEASE));
        assert!(!state.left);
        assert_eq!(shared_dir.membership.name_of(NodeId(2)), "node2");
        assert_eq!(shared_dir.membership.name_of(NodeId(3)), "0000000000000003");
    }
    assert_eq!((a.me(), a.membership.lease_length()), (owner(1, 1), LEASE));
}

#[test]
fn a_name_or_a_lease_that_cannot_be_is_refused() {
    let bench = Bench::new();
    for (name, lease) in [
        ("", LEASE),
        ("two\nlines", LEASE),
        ("n", Duration::ZERO),
        ("n", LONGEST_LEASE * 2),
    ] {
        let refused = SharedDir::join(bench.backing(), owner(1, 1), name, lease).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 0);
}

/// S9.10: if two nodes with different targets begin at the same moment, and neither has a record
/// yet when the other looks, at least one is refused. It leaves, and the other can begin.
#[test]
fn nodes_that_begin_together_with_other_targets_do_not_both_stay() {
    let bench = Bench::new();
    let prepare = |id, targets: [&str; 2]| {
        let standing = Standing::new(String::new(), "directories", targets.map(String::from));
        let (me, name) = (owner(id, 1), format!("node{id}"));
        SharedDir::prepare(
            bench.backing(),
            me,
            &name,
            LEASE,
            standing,
            bench.hand.clock(),
        )
        .unwrap()
    };
    let (a, b) = (prepare(1, ["/x", "/y"]), prepare(2, ["/y", "/x"]));
    for node in [&a, &b] {
        assert!(node.membership.compare_targets().unwrap().is_empty());
    }
    a.membership.first_heartbeat().unwrap();
    b.membership.first_heartbeat().unwrap();
    let refused = a.membership.compare_targets_again(&[]).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("node node2 has other storage targets")
    );
    assert!(
        a.membership.nodes().unwrap()[0]
            .state
            .as_ref()
            .unwrap()
            .left
    );
    b.membership.compare_targets_again(&[]).unwrap();
}

/// Half of a lease after the last heartbeat began, nothing may be written; and a heartbeat that
/// comes too late does not give back what was held before.
#[test]
fn a_paused_node_loses_its_lease_and_what_it_held() {
    let bench = Bench::new();
    let a = bench.node(1);
    let tenure = a.membership.lease.tenure().unwrap();
    let term = mine(a.terms.take_term(FILE).unwrap());
    bench.hand.forward(LEASE / 4);
    a.membership.heartbeat().unwrap();
    bench.hand.forward(LEASE / 4);
    assert!(a.membership.lease.is_held_since(tenure) && a.terms.holds_term(FILE, term));
    bench.hand.forward(LEASE / 4);
    assert!(!a.membership.lease.is_held() && !a.terms.holds_term(FILE, term));
    for refused in [
        a.terms.take_term(FILE).map(drop),
        a.put_plan(FILE, term, b"late"),
        a.domains.take_domain(FILE, term, 0).map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
    a.membership.heartbeat().unwrap();
    assert!(a.membership.lease.is_held());
    assert!(!a.membership.lease.is_held_since(tenure) && !a.terms.holds_term(FILE, term));
    // The node's own old term does not stand in its way.
    assert_eq!(mine(a.terms.take_term(FILE).unwrap()), term + 1);
    assert_eq!(a.list(FILE).unwrap().unwrap().ended, [term].into());
}

/// A heartbeat counts from when it began: other nodes may have seen it at once, even if the answer
/// came late.
#[test]
fn a_heartbeat_counts_from_when_it_began() {
    let bench = Bench::new();
    let slow = Hand::default();
    let ticking = slow.clone();
    let clock: Clock = Arc::new(move || {
        let now = *ticking.0.lock();
        ticking.forward(LEASE / 8);
        now
    });
    let a = bench.join(owner(1, 1), "a", LEASE, clock);
    // The heartbeat began at 0 and succeeded at 1/8; the lease is checked at 2/8 and 3/8, and is
    // over at 4/8.
    assert!(a.membership.lease.is_held() && a.membership.lease.is_held());
    assert!(!a.membership.lease.is_held());
}

/// No two clocks are compared, and reading the record once is not enough.
#[test]
fn a_silent_node_is_dead_after_a_lease_of_watching() {
    let bench = Bench::new();
    let theirs = Hand::default();
    let (a, b) = (bench.node(1), bench.by(2, 1, &theirs));
    assert!(!a.membership.is_dead(b.me()).unwrap());
    bench.hand.forward(LEASE - Duration::from_nanos(1));
    assert!(!a.membership.is_dead(b.me()).unwrap());
    b.membership.heartbeat().unwrap();
    bench.hand.forward(LEASE);
    assert!(
        !a.membership.is_dead(b.me()).unwrap(),
        "it was heard of meanwhile"
    );
    bench.hand.forward(LEASE);
    assert!(a.membership.is_dead(b.me()).unwrap());
    b.membership.heartbeat().unwrap();
    assert!(!a.membership.is_dead(b.me()).unwrap(), "it lives again");
}

/// A node is taken for dead only after the longer of the two leases.
#[test]
fn a_node_with_a_long_lease_is_waited_for() {
    let bench = Bench::new();
    let long = LEASE * 10;
    let clock = Hand::default().clock();
    let b = bench.join(owner(2, 1), "b", long, clock);
    let a = bench.node(1);
    assert!(!a.membership.is_dead(b.me()).unwrap());
    bench.hand.forward(long - Duration::from_nanos(1));
    assert!(!a.membership.is_dead(b.me()).unwrap());
    bench.hand.forward(Duration::from_nanos(1));
    assert!(a.membership.is_dead(b.me()).unwrap());
}

#[test]
fn another_run_no_record_and_one_that_left_are_dead_at_once() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.run(2, 1));
    assert!(!a.membership.is_dead(b.me()).unwrap());
    assert!(a.membership.is_dead(owner(2, 7)).unwrap());
    assert!(a.membership.is_dead(owner(9, 1)).unwrap());
    assert!(a.membership.is_dead(owner(1, 7)).unwrap());
    assert!(!a.membership.is_dead(a.me()).unwrap());
    let again = bench.run(2, 2);
    assert!(a.membership.is_dead(b.me()).unwrap() && !a.membership.is_dead(again.me()).unwrap());
    again.membership.leave().unwrap();
    assert!(a.membership.is_dead(again.me()).unwrap());
    assert!(!again.membership.lease.is_held());
    again.membership.heartbeat().unwrap_err();
    assert!(a.membership.nodes().unwrap()[1].state.clone().unwrap().left);
}

/// With a copied store, the older daemon must not go on as if it were alone.
#[test]
fn a_node_whose_place_was_taken_learns_it() {
    let bench = Bench::new();
    let old = bench.run(1, 1);
    let new = bench.run(1, 2);
    assert_eq!(
        old.membership.heartbeat().unwrap_err().kind(),
        io::ErrorKind::AlreadyExists
    );
    new.membership.heartbeat().unwrap();
    bench.hand.forward(LEASE);
    assert!(!old.membership.lease.is_held());
    old.membership.heartbeat().unwrap_err();
    assert!(!old.membership.lease.is_held());
}

/// Other nodes take a node without a record for dead, so its lease must end before it begins again.
#[test]
fn a_removed_record_comes_back_only_after_the_lease() {
    let bench = Bench::new();
    let a = bench.node(1);
    let tenure = a.membership.lease.tenure().unwrap();
    std::fs::remove_file(bench.path("nodes/0000000000000001")).unwrap();
    assert_eq!(
        a.membership.heartbeat().unwrap_err().kind(),
        io::ErrorKind::NotFound
    );
    bench.hand.forward(LEASE / 2);
    a.membership.heartbeat().unwrap();
    assert!(a.membership.lease.is_held() && !a.membership.lease.is_held_since(tenure));
    assert!(!bench.node(2).membership.is_dead(a.me()).unwrap());
}

/// If the directory was replaced, other nodes do not look into the old one.
#[test]
fn a_replaced_shared_directory_ends_the_lease() {
    let bench = Bench::new();
    let a = bench.node(1);
    std::fs::rename(bench.path(""), bench.dir.path().join("away")).unwrap();
    let said = a.membership.heartbeat().unwrap_err().to_string();
    assert!(said.contains(TOP), "{said}");
    bench.node(2);
    a.membership.heartbeat().unwrap_err();
    bench.hand.forward(LEASE / 2);
    assert!(!a.membership.lease.is_held());
}

/// If a daemon is killed while it writes its record, the next start removes the temporary name, and
/// only its own.
#[test]
fn a_new_start_removes_temporary_names_of_its_own() {
    let bench = Bench::new();
    drop(bench.node(1));
    let own = bench.path("nodes/t.0000000000000001.5");
    let other = bench.path("nodes/t.0000000000000002.5");
    std::fs::write(&own, "").unwrap();
    std::fs::write(&other, "").unwrap();
    bench.run(1, 2);
    assert!(!own.exists() && other.exists());
    let left = std::fs::read_dir(bench.path(NODES)).unwrap().count();
    assert_eq!(left, 2);
}

#[test]
fn notes_reach_the_node_they_are_for_once() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    a.leave_note(NodeId(2), FILE).unwrap();
    a.leave_note(NodeId(2), FILE).unwrap();
    assert_eq!(a.take_notes().unwrap(), []);
    assert_eq!(b.take_notes().unwrap(), [FILE]);
    assert_eq!(b.take_notes().unwrap(), []);
    let said = a.leave_note(NodeId(9), FILE).unwrap_err();
    assert_eq!(said.kind(), io::ErrorKind::NotFound);
}
