//! The protocol holds: explores every configuration exhaustively and prints the counts.
//!
//! One test explores all of them, so that they do not compete for cores. The counts are written directly to standard
//! output, because the test runner captures what passing tests print.

use forebay_protocol::{Config, Op, all, check, named, property};
use std::io::Write;

/// Promise: no read is stale after a sync point, no published byte is lost, the canonical file ends as the newest, a
/// domain has one live writer, nothing is written past a lease, sizes are as the last sync point left them, fsynced
/// bytes are back after a power failure, and no node waits for ever; with two nodes and with three.
#[test]
fn every_configuration_holds() {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut broken = Vec::new();
    for config in all() {
        let report = check(&config, threads);
        writeln!(std::io::stdout(), "{report}").expect("stdout");
        report.failures.iter().for_each(|trace| print!("{trace}"));
        report
            .missing
            .iter()
            .for_each(|name| println!("never reached: {name}"));
        if !report.passed() {
            broken.push(config.name);
        }
    }
    assert!(broken.is_empty(), "broken: {broken:?}");
}

type Kind = fn(&Op) -> bool;

fn has(config: &Config, op: Op) -> bool {
    config.programs.iter().flatten().flatten().any(|o| *o == op)
}

/// The configurations together have every operation, with two nodes and with three, and every fault.
#[test]
fn every_operation_is_there() {
    let kinds: [(&str, Kind); 8] = [
        ("open", |op| *op == Op::Open),
        ("write", |op| matches!(op, Op::Write(_))),
        ("truncate", |op| matches!(op, Op::Truncate(_))),
        ("close", |op| *op == Op::Close),
        ("defer", |op| *op == Op::Defer),
        ("lock", |op| *op == Op::Lock),
        ("unlock", |op| *op == Op::Unlock),
        ("unlink", |op| *op == Op::Unlink),
    ];
    for nodes in [2, 3] {
        let configs: Vec<_> = all().into_iter().filter(|c| c.nodes() == nodes).collect();
        for (name, kind) in kinds {
            let there = configs
                .iter()
                .any(|c| c.programs.iter().flatten().flatten().any(kind));
            assert!(there, "{name} is in no configuration with {nodes} nodes");
        }
        assert!(
            configs.iter().any(|c| c.crashes > 0),
            "no crash with {nodes} nodes"
        );
        assert!(
            configs
                .iter()
                .any(|c| c.crashes > 0 && c.restarts && c.terms > 0),
            "no restart beside a drain with {nodes} nodes"
        );
        let writes = |c: &&Config, together: fn(u8, u8) -> bool| {
            let cells = |n: usize| {
                let ops = c.programs[n].iter().flatten();
                ops.filter_map(|op| match op {
                    Op::Write(cells) => Some(*cells),
                    _ => None,
                })
            };
            cells(0).any(|a| cells(1).any(|b| together(a, b)))
        };
        assert!(
            configs.iter().any(|c| writes(&c, |a, b| a & b != 0)),
            "no overlapping writes with {nodes} nodes"
        );
        assert!(
            configs.iter().any(|c| writes(&c, |a, b| a & b == 0)),
            "no disjoint writes with {nodes} nodes"
        );
        assert!(
            configs.iter().any(|c| c.terms > 0 && has(c, Op::Defer)),
            "no deferred close beside a drain with {nodes} nodes"
        );
        assert!(
            configs.iter().any(|c| c.power > 0),
            "no power failure with {nodes} nodes"
        );
        assert!(
            configs.iter().any(|c| c.pauses > 0),
            "no pause with {nodes} nodes"
        );
        assert!(
            configs.iter().any(|c| c.terms > 0),
            "no drain with {nodes} nodes"
        );
        assert!(
            configs.iter().any(|c| c.alone),
            "no drain alone with {nodes} nodes"
        );
    }
}

/// Limit of the order of batches, which is arbitrary and the same for all nodes: a plan that covers one of two
/// concurrent batches puts it below the other, whatever a reader saw before. Batches whose nodes had synchronised
/// (here by a lock) never change their order.
#[test]
fn only_concurrent_batches_change_their_order() {
    let mut concurrent = named("round-2").expect("a configuration");
    concurrent.stable = true;
    let report = check(&concurrent, 1);
    let flip = report
        .failures
        .iter()
        .find(|trace| trace.property == property::FLIP);
    println!("{}", flip.expect("a plan between two concurrent batches"));

    let mut ordered = named("lock-3").expect("a configuration");
    ordered.stable = true;
    let report = check(&ordered, 1);
    println!("{report}");
    assert!(report.passed());
}
