//! The configurations. Together they have every operation, with two nodes and with three.

mod power;
mod seals;

use crate::config::{Config, Op};

use Op::{Close, Defer, Lock, Open, Truncate, Unlink, Unlock, Write};

const BOTH: u8 = 0b11;

/// Returns every configuration.
pub fn all() -> Vec<Config> {
    vec![
        publish2(),
        publish3(),
        torn3(),
        torn_again3(),
        crash2(),
        crash3(),
        lock2(),
        lock3(),
        round2(),
        round_both2(),
        round_crash2(),
        round_pause2(),
        round3(),
        round_torn3(),
        round_crash3(),
        round_defer3(),
        round_pause3(),
        truncate2(),
        alone2(),
        alone_defer2(),
        alone_pause2(),
        alone_crash2(),
        adopt2(),
        unlink2(),
        mixed3(),
        seals::seal2(),
        seals::seal_crash2(),
        seals::seal3(),
        power::grow2(),
        power::grow3(),
        power::power2(),
        power::power_round2(),
        power::power_grow2(),
        power::power_round3(),
        power::power_alone2(),
        power::power_reclaim2(),
    ]
}

/// Returns the configuration of that name.
pub fn named(name: &str) -> Option<Config> {
    all().into_iter().find(|config| config.name == name)
}

fn publish2() -> Config {
    let writers = vec![
        vec![Open, Write(1), Close, Open],
        vec![Open, Write(BOTH), Close, Write(2), Close],
        vec![Write(2), Defer, Open, Write(1), Close],
    ];
    Config::new(
        "publish-2",
        "overlapping and disjoint writes, close, defer, open",
        vec![writers.clone(), writers],
    )
}

fn publish3() -> Config {
    Config::new(
        "publish-3",
        "the same with three nodes",
        vec![
            vec![
                vec![Open, Write(1), Close, Open],
                vec![Write(1), Defer, Open],
            ],
            vec![vec![Open, Write(BOTH), Close, Open]],
            vec![vec![Open, Open], vec![Open, Write(1), Close]],
        ],
    )
}

fn torn3() -> Config {
    Config {
        setup: vec![(0, vec![Write(1), Close]), (1, vec![Write(2), Close])],
        ..Config::new(
            "torn-3",
            "a reader between two writers, one of which has seen the other",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(2), Close], vec![Open, Write(1), Defer]],
                vec![vec![Open, Open]],
            ],
        )
    }
}

fn torn_again3() -> Config {
    Config {
        setup: vec![(0, vec![Write(2), Close]), (1, vec![Write(1), Close])],
        ..Config::new(
            "torn-again-3",
            "the same where the other's batch has an epoch below the writer's own",
            vec![
                vec![vec![Write(BOTH), Close]],
                vec![vec![Write(1), Close, Open, Write(1), Close]],
                vec![vec![Open, Open]],
            ],
        )
    }
}

fn crash2() -> Config {
    Config {
        crashes: 2,
        ..Config::new(
            "crash-2",
            "publish and defer, two crashes and restarts",
            vec![
                vec![
                    vec![Open, Write(1), Close, Write(2), Close],
                    vec![Write(1), Defer, Close, Open],
                ],
                vec![
                    vec![Open, Write(1), Close, Open],
                    vec![Open, Write(BOTH), Defer, Open],
                ],
            ],
        )
    }
}

fn crash3() -> Config {
    Config {
        crashes: 1,
        ..Config::new(
            "crash-3",
            "three nodes, one crash and restart",
            vec![
                vec![vec![Write(1), Close, Close]],
                vec![
                    vec![Open, Write(1), Close, Open],
                    vec![Open, Write(1), Defer],
                ],
                vec![vec![Open, Open]],
            ],
        )
    }
}

fn lock2() -> Config {
    let program = vec![Lock, Write(1), Unlock, Lock, Write(BOTH), Unlock];
    Config {
        crashes: 1,
        ..Config::new(
            "lock-2",
            "writes under the lock, one crash",
            vec![vec![program.clone()], vec![program]],
        )
    }
}

fn lock3() -> Config {
    let program = vec![Lock, Write(1), Unlock];
    Config {
        terms: 1,
        drainers: 0b100,
        ..Config::new(
            "lock-3",
            "writes under the lock while the third node drains",
            vec![vec![program.clone()], vec![program.clone()], vec![program]],
        )
    }
}

/// Returns a setup with two overlapping batches, the second by a node that had seen the first, and nothing drained.
fn published() -> Vec<(usize, Vec<Op>)> {
    vec![
        (0, vec![Write(BOTH), Close]),
        (1, vec![Open, Write(1), Close]),
    ]
}

fn round2() -> Config {
    Config {
        terms: 2,
        drainers: 0b01,
        ..Config::new(
            "round-2",
            "two rounds while both nodes go on writing",
            vec![
                vec![vec![Write(1), Close, Write(BOTH), Close]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}

fn round_both2() -> Config {
    Config {
        terms: 2,
        ..Config::new(
            "round-both-2",
            "both nodes take terms and domains",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(1), Close], vec![Write(BOTH), Close]],
            ],
        )
    }
}

fn round_crash2() -> Config {
    Config {
        setup: published(),
        terms: 2,
        crashes: 1,
        frail: 0b01,
        ..Config::new(
            "round-crash-2",
            "a holder and worker dies and comes back",
            vec![vec![vec![]], vec![vec![Write(1), Close]]],
        )
    }
}

fn round_pause2() -> Config {
    Config {
        setup: published(),
        terms: 2,
        pauses: 1,
        frail: 0b01,
        ..Config::new(
            "round-pause-2",
            "a holder or worker sleeps past its lease",
            vec![vec![vec![]], vec![vec![Write(1), Close]]],
        )
    }
}

fn round3() -> Config {
    Config {
        terms: 1,
        drainers: 0b100,
        ..Config::new(
            "round-3",
            "the third node drains while two write",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(1), Close]],
                vec![vec![Open, Write(2), Close]],
            ],
        )
    }
}

fn round_torn3() -> Config {
    Config {
        setup: vec![(0, vec![Write(1), Close]), (1, vec![Write(2), Close])],
        terms: 1,
        drainers: 0b100,
        reclaimers: 0,
        ..Config::new(
            "round-torn-3",
            "a plan is made between two writers, one of which has seen the other",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(1), Close]],
                vec![vec![Write(2), Close]],
            ],
        )
    }
}

fn round_crash3() -> Config {
    Config {
        setup: vec![(1, vec![Write(1), Close])],
        terms: 2,
        crashes: 1,
        frail: 0b001,
        drainers: 0b001,
        ..Config::new(
            "round-crash-3",
            "one of three nodes drains, publishes, dies and comes back",
            vec![
                vec![vec![Open, Write(1), Close]],
                vec![vec![]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}

fn round_defer3() -> Config {
    Config {
        setup: vec![(2, vec![Write(2), Close])],
        terms: 1,
        drainers: 0b100,
        ..Config::new(
            "round-defer-3",
            "deferred closes while the third node drains",
            vec![
                vec![vec![Write(1), Defer]],
                vec![vec![Open, Write(BOTH), Defer]],
                vec![vec![Open]],
            ],
        )
    }
}

fn round_pause3() -> Config {
    Config {
        setup: vec![(0, vec![Write(1), Close]), (1, vec![Open, Write(1), Close])],
        terms: 2,
        pauses: 1,
        frail: 0b001,
        drainers: 0b011,
        ..Config::new(
            "round-pause-3",
            "two nodes drain, one sleeps past its lease, the third reads",
            vec![
                vec![vec![]],
                vec![vec![]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}

fn truncate2() -> Config {
    Config {
        setup: vec![(0, vec![Write(BOTH), Close])],
        terms: 2,
        crashes: 1,
        frail: 0b01,
        restarts: false,
        ..Config::new(
            "truncate-2",
            "truncate and a round whose holder dies",
            vec![
                vec![vec![]],
                vec![
                    vec![Open, Truncate(0), Write(1), Close],
                    vec![Open, Truncate(1), Close],
                ],
            ],
        )
    }
}

fn alone2() -> Config {
    Config {
        terms: 2,
        alone: true,
        drainers: 0b01,
        ..Config::new(
            "alone-2",
            "one node drains alone until the other publishes",
            vec![
                vec![
                    vec![Write(1), Open, Write(BOTH), Close],
                    vec![Write(1), Close, Write(1)],
                ],
                vec![vec![Open, Write(BOTH), Close]],
            ],
        )
    }
}

fn alone_defer2() -> Config {
    Config {
        terms: 1,
        alone: true,
        crashes: 1,
        frail: 0b01,
        drainers: 0b01,
        ..Config::new(
            "alone-defer-2",
            "a deferred close while the same node drains alone, dies and comes back",
            vec![
                vec![vec![Write(1), Defer]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}

fn alone_pause2() -> Config {
    Config {
        terms: 2,
        alone: true,
        pauses: 1,
        frail: 0b01,
        reclaimers: 0,
        ..Config::new(
            "alone-pause-2",
            "who drains alone sleeps past its lease",
            vec![vec![vec![Write(1)]], vec![vec![Write(1), Close]]],
        )
    }
}

fn alone_crash2() -> Config {
    Config {
        terms: 2,
        alone: true,
        crashes: 1,
        frail: 0b01,
        drainers: 0b01,
        ..Config::new(
            "alone-crash-2",
            "who drains alone dies and comes back",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}

fn adopt2() -> Config {
    Config {
        terms: 1,
        crashes: 1,
        adoption: true,
        frail: 0b01,
        drainers: 0b10,
        ..Config::new(
            "adopt-2",
            "a dead node's subfiles are adopted, then it comes back",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}

fn unlink2() -> Config {
    Config {
        setup: published(),
        terms: 1,
        crashes: 1,
        frail: 0b01,
        ..Config::new(
            "unlink-2",
            "unlink while the other node writes, drains and dies",
            vec![vec![vec![Write(1), Close]], vec![vec![Unlink]]],
        )
    }
}

fn mixed3() -> Config {
    Config {
        terms: 1,
        alone: true,
        drainers: 0b001,
        ..Config::new(
            "mixed-3",
            "alone, truncate and unlink with three nodes",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Truncate(0), Close], vec![Unlink]],
                vec![vec![Open, Write(2), Close]],
            ],
        )
    }
}
