//! The configurations: together they have every operation with two nodes and with three.

use crate::config::{Config, Op};

use Op::{Close, Defer, Lock, Open, Truncate, Unlink, Unlock, Write};

const BOTH: u8 = 0b11;

/// Every configuration.
pub fn all() -> Vec<Config> {
    vec![
        publish2(),
        publish3(),
        crash2(),
        crash3(),
        lock2(),
        lock3(),
        round2(),
        round_crash2(),
        round_pause2(),
        round3(),
        truncate2(),
        alone2(),
        adopt2(),
        unlink2(),
    ]
}

/// The configuration of that name.
pub fn named(name: &str) -> Option<Config> {
    all().into_iter().find(|config| config.name == name)
}

fn publish2() -> Config {
    let writers = vec![
        vec![Open, Write(1), Close, Open],
        vec![Open, Write(BOTH), Close, Write(2), Close],
        vec![Write(2), Defer, Open, Write(1), Close],
    ];
    Config::new("publish-2", "overlapping and disjoint writes, close, defer, open", vec![
        writers.clone(),
        writers,
    ])
}

fn publish3() -> Config {
    Config::new("publish-3", "the same with three nodes", vec![
        vec![vec![Open, Write(1), Close, Open], vec![Write(1), Defer, Open]],
        vec![vec![Open, Write(BOTH), Close, Open]],
        vec![vec![Open, Open], vec![Open, Write(1), Close]],
    ])
}

fn crash2() -> Config {
    Config {
        crashes: 2,
        ..Config::new("crash-2", "publish and defer, two crashes and restarts", vec![
            vec![vec![Open, Write(1), Close, Write(2), Close], vec![Write(1), Defer, Close, Open]],
            vec![vec![Open, Write(1), Close, Open], vec![Open, Write(BOTH), Defer, Open]],
        ])
    }
}

fn crash3() -> Config {
    Config {
        crashes: 1,
        ..Config::new("crash-3", "three nodes, one crash and restart", vec![
            vec![vec![Write(1), Close, Close]],
            vec![vec![Open, Write(1), Close, Open], vec![Open, Write(1), Defer]],
            vec![vec![Open, Open]],
        ])
    }
}

fn lock2() -> Config {
    let program = vec![Lock, Write(1), Unlock, Lock, Write(BOTH), Unlock];
    Config {
        crashes: 1,
        ..Config::new("lock-2", "writes under the lock, one crash", vec![
            vec![program.clone()],
            vec![program],
        ])
    }
}

fn lock3() -> Config {
    let program = vec![Lock, Write(1), Unlock];
    Config {
        terms: 1,
        drainers: 0b100,
        ..Config::new("lock-3", "writes under the lock while the third node drains", vec![
            vec![program.clone()],
            vec![program.clone()],
            vec![program],
        ])
    }
}

fn round2() -> Config {
    Config {
        terms: 2,
        ..Config::new("round-2", "two rounds while two nodes go on writing", vec![
            vec![vec![Write(1), Close, Open, Write(BOTH), Close]],
            vec![vec![Open, Write(1), Close, Open], vec![Open, Write(2), Close]],
        ])
    }
}

fn round_crash2() -> Config {
    Config {
        terms: 3,
        crashes: 1,
        ..Config::new("round-crash-2", "three terms, one crash and restart", vec![
            vec![vec![Write(BOTH), Close]],
            vec![vec![Open, Write(1), Close]],
        ])
    }
}

fn round_pause2() -> Config {
    Config {
        terms: 3,
        pauses: 1,
        ..Config::new("round-pause-2", "three terms, one node sleeps past its lease", vec![
            vec![vec![Write(1), Close]],
            vec![vec![Open, Write(1), Close]],
        ])
    }
}

fn round3() -> Config {
    Config {
        terms: 2,
        pauses: 1,
        ..Config::new("round-3", "two terms, three nodes, one sleeps", vec![
            vec![vec![Write(1), Close]],
            vec![vec![Write(2), Close]],
            vec![vec![Open, Write(1), Close]],
        ])
    }
}

fn truncate2() -> Config {
    Config {
        terms: 2,
        crashes: 1,
        restarts: false,
        ..Config::new("truncate-2", "truncate against writes and a round whose holder dies", vec![
            vec![vec![Write(BOTH), Close]],
            vec![vec![Open, Truncate(0), Write(1), Close], vec![Open, Truncate(1), Close]],
        ])
    }
}

fn alone2() -> Config {
    Config {
        terms: 2,
        alone: true,
        pauses: 1,
        ..Config::new("alone-2", "one node drains alone until the other publishes", vec![
            vec![vec![Write(1), Open, Write(1), Close]],
            vec![vec![Open, Write(BOTH), Close]],
        ])
    }
}

fn adopt2() -> Config {
    Config {
        terms: 2,
        crashes: 1,
        adoption: true,
        frail: 1,
        drainers: 2,
        ..Config::new("adopt-2", "a dead node's layout is adopted, then it comes back", vec![
            vec![vec![Write(1), Close]],
            vec![vec![Open, Write(1), Close]],
        ])
    }
}

fn unlink2() -> Config {
    Config {
        terms: 1,
        crashes: 1,
        ..Config::new("unlink-2", "unlink while the other node writes and drains", vec![
            vec![vec![Open, Write(1), Close]],
            vec![vec![Open, Write(2), Unlink, Close]],
        ])
    }
}
