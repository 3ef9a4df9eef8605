use super::*;
use crate::sharing::shared_dir::Patience::Forever;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Runs a round, and leaves everything behind that a round leaves.
fn round(node: &SharedDir) -> u64 {
    let term = mine(node.terms.take_term(FILE).unwrap());
    node.put_plan(FILE, term, b"plan").unwrap();
    for domain in 0..3 {
        assert_eq!(
            node.domains.take_domain(FILE, term, domain).unwrap(),
            Some(0)
        );
        node.domains.mark_domain_done(FILE, term, domain).unwrap();
    }
    node.put_base(FILE, term, b"base").unwrap();
    term
}

#[test]
fn only_what_counts_is_left_of_older_terms() {
    let bench = Bench::new();
    let a = bench.node(1);
    a.append_layout(FILE, 0, 0, b"x", Forever).unwrap();
    for _ in 0..3 {
        let term = round(&a);
        a.terms.end_term(FILE, term).unwrap();
    }
    std::fs::write(bench.of_file("t.0000000000000009.5"), "").unwrap();
    std::fs::write(bench.of_file("t.0000000000000001.100000000"), "").unwrap();
    let term = round(&a);
    assert!(!a.terms.tidy(FILE, term).unwrap());
    let expected = [
        format!("b.{term:x}"),
        format!("c.{term:x}"),
        "l.0000000000000001.0".into(),
        // A temporary name of this very run: another thread may be about to rename it.
        "t.0000000000000001.100000000".into(),
    ];
    assert_eq!(bench.names(), expected);
    assert!(a.terms.holds_term(FILE, term));
    std::fs::remove_file(bench.of_file("t.0000000000000001.100000000")).unwrap();
    a.remove_layout(FILE, NodeId(1), 0, None).unwrap();
    assert!(a.terms.tidy(FILE, term).unwrap());
    assert!(!bench.of_file("").exists() && !a.terms.holds_term(FILE, term));
    a.terms.end_term(FILE, term).unwrap();
    assert!(!bench.of_file("").exists());
}

/// The holder of the next term must find the plan, and which of its domains are done.
#[test]
fn an_unfinished_plan_stays() {
    let bench = Bench::new();
    let (a, b) = (bench.run(1, 1), bench.node(2));
    let first = mine(a.terms.take_term(FILE).unwrap());
    a.put_plan(FILE, first, b"plan").unwrap();
    a.domains.take_domain(FILE, first, 0).unwrap();
    a.domains.mark_domain_done(FILE, first, 0).unwrap();
    a.domains.take_domain(FILE, first, 1).unwrap();
    bench.run(1, 2);
    let second = mine(b.terms.take_term(FILE).unwrap());
    assert!(!b.terms.tidy(FILE, second).unwrap());
    let listing = b.list(FILE).unwrap().unwrap();
    assert_eq!(listing.unfinished_plan(), Some(first));
    assert_eq!(listing.done, [(first, 0)].into());
    assert_eq!(listing.domains.len(), 2);
    assert_eq!(b.domains.take_domain(FILE, first, 1).unwrap(), Some(1));
    b.domains.mark_domain_done(FILE, first, 1).unwrap();
    b.put_base(FILE, second, b"base").unwrap();
    assert!(b.terms.tidy(FILE, second).unwrap());
    assert!(!bench.of_file("").exists());
}

/// Data that other nodes are about to publish keeps the directory.
#[test]
fn layouts_announcements_and_strange_names_keep_the_directory() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    let term = round(&a);
    let announcement = b.announce(FILE).unwrap();
    assert!(!a.terms.tidy(FILE, term).unwrap());
    b.append_layout(FILE, 0, 0, b"x", Forever).unwrap();
    b.fulfil(FILE, &[announcement]).unwrap();
    assert!(!a.terms.tidy(FILE, term).unwrap());
    b.remove_layout(FILE, NodeId(2), 0, None).unwrap();
    std::fs::write(bench.of_file("strange"), "kept").unwrap();
    assert!(!a.terms.tidy(FILE, term).unwrap());
    assert_eq!(a.list(FILE).unwrap().unwrap().strange, ["strange"]);
    std::fs::remove_file(bench.of_file("strange")).unwrap();
    assert!(a.terms.tidy(FILE, term).unwrap());
}

#[test]
fn who_does_not_hold_the_term_removes_nothing() {
    let bench = Bench::new();
    let (a, b) = (bench.run(1, 1), bench.node(2));
    let first = round(&a);
    a.terms.tidy(FILE, first + 1).unwrap_err();
    b.terms.tidy(FILE, first).unwrap_err();
    bench.run(1, 2);
    let second = mine(b.terms.take_term(FILE).unwrap());
    // The old holder has not noticed; its clock stands still.
    assert!(a.terms.holds_term(FILE, first));
    let before = bench.names();
    a.terms.tidy(FILE, first).unwrap_err();
    assert_eq!(bench.names(), before);
    assert!(b.terms.holds_term(FILE, second));
}

/// One node keeps removing the directory while another puts things there: nothing of that is lost,
/// and nothing is ever seen in part.
#[test]
fn a_newcomer_loses_nothing() {
    let bench = Bench::new();
    let (a, b) = (bench.node(1), bench.node(2));
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    let removed = std::thread::scope(|scope| {
        let tidier = scope.spawn(|| {
            let mut removed = 0;
            while !stop.load(Ordering::Relaxed) {
                let term = mine(a.terms.take_term(FILE).unwrap());
                removed += u32::from(a.terms.tidy(FILE, term).unwrap());
                a.terms.end_term(FILE, term).unwrap();
            }
            removed
        });
        for number in 0..500 {
            assert!(Instant::now() < deadline, "stuck at {number}");
            let before = b.change_token(FILE).unwrap();
            let announcement = b.announce(FILE).unwrap();
            assert_ne!(b.change_token(FILE).unwrap(), before);
            let announcements = b.list(FILE).unwrap().unwrap().announcements;
            assert_eq!(announcements, [announcement]);
            b.append_layout(FILE, number, 0, b"bytes", Forever).unwrap();
            b.touch(FILE).unwrap();
            b.fulfil(FILE, &[announcement]).unwrap();
            let layouts = b.list(FILE).unwrap().unwrap().layouts;
            assert_eq!(layouts, [(NodeId(2), number)]);
            let read = b.read_layout(FILE, NodeId(2), number, 0, 9).unwrap();
            assert_eq!(read.unwrap(), b"bytes");
            b.remove_layout(FILE, NodeId(2), number, None).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        tidier.join().unwrap()
    });
    assert!(removed > 0, "the directory was never removed");
}
