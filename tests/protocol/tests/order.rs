//! Order by the time of writing (decision 0017): the model holds, and each of its rules, broken, is found.

use forebay_protocol::order::{Rules, all, named};
use forebay_protocol::{Explored, check};
use std::io::Write;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// A read through a handle that also writes sees every write that had returned, on any node; a read-only open sees
/// every close that had returned; overlapping writes end in the order in which they were made, in the canonical
/// file too, whatever the order of publications, and also when writers die, sleep past their lease or have clocks
/// that stand still (then: in the order that is known through Forebay).
#[test]
fn every_configuration_of_order_holds() {
    let mut broken = Vec::new();
    for config in all() {
        let report = check(&config, threads());
        writeln!(std::io::stdout(), "{report}").expect("stdout");
        report.failures.iter().for_each(|trace| print!("{trace}"));
        report
            .missing
            .iter()
            .for_each(|name| println!("never reached: {name}"));
        if !report.passed() {
            broken.push(config.name());
        }
    }
    assert!(broken.is_empty(), "broken: {broken:?}");
}

/// Each rule, and a configuration in which it matters.
const TABLE: &[(&str, &str)] = &[
    ("order_by_time", "order-read-2"),
    ("clock_follows_reads", "order-clock-2"),
    ("link_before_list", "order-2"),
    ("hello_acknowledged", "order-2"),
    ("hello_carries_time", "order-hello-2"),
    ("hello_stops_alone", "order-2"),
    ("alone_among_registered", "order-clock-crash-2"),
    ("alone_stops_at_published", "order-2"),
    ("reads_ask", "order-read-2"),
    ("ask_before_refresh", "order-read-2"),
    ("drained_answers_void", "order-read-2"),
    ("intent_before_list", "order-2"),
    ("clock_follows_intent", "order-clock-2"),
    ("plan_waits_for_marks", "order-clock-crash-2"),
    ("plan_ends_at_cut", "order-2"),
    ("base_covers_what_was_taken", "order-clock-crash-2"),
    ("drained_times_kept", "order-clock-crash-2"),
    ("view_heeds_drained", "order-clock-crash-2"),
    ("drain_heeds_drained", "order-clock-crash-2"),
    ("leaves_when_published", "order-2"),
    ("announcement_until_published", "order-only-2"),
    ("read_only_asks_announcers", "order-only-2"),
    ("reads_under_lease", "order-sleep-2"),
    ("wake_says_hello", "order-sleep-2"),
    ("restart_says_hello", "order-clock-crash-2"),
];

/// A model that finds nothing wrong is worth something only if it finds what is wrong.
#[test]
fn every_broken_rule_of_order_is_found() {
    let mut unseen = Vec::new();
    for (rule, name) in TABLE {
        let mut config = named(name).unwrap_or_else(|| panic!("no configuration {name}"));
        config.rules = Rules::without(rule).unwrap_or_else(|| panic!("no rule {rule}"));
        let report = check(&config, threads());
        match report.failures.first() {
            Some(trace) => println!("{rule}: found in {name}: {trace}"),
            None => unseen.push(*rule),
        }
    }
    assert!(unseen.is_empty(), "broken and not found: {unseen:?}");
}

/// Every rule is in the table.
#[test]
fn every_rule_of_order_is_in_the_table() {
    for rule in Rules::NAMES {
        assert!(
            TABLE.iter().any(|(name, _)| name == rule),
            "{rule} is never broken"
        );
    }
}
