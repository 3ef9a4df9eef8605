//! Configurations with growth without bytes, and with power failures.

use super::BOTH;
use crate::config::{Config, Op};

use Op::{Close, Defer, Open, SyncLocal, Truncate, Write};

pub fn grow2() -> Config {
    Config {
        setup: vec![(0, vec![Write(1), Close])],
        terms: 2,
        crashes: 1,
        frail: 0b01,
        restarts: false,
        ..Config::new(
            "grow-2",
            "growth without bytes, also after a cut, and a round whose holder dies",
            vec![
                vec![vec![]],
                vec![
                    vec![Open, Truncate(2), Close],
                    vec![Open, Truncate(0), Truncate(2), Close],
                ],
            ],
        )
    }
}

pub fn grow3() -> Config {
    Config {
        setup: vec![(2, vec![Write(1), Close])],
        terms: 1,
        drainers: 0b100,
        reclaimers: 0,
        ..Config::new(
            "grow-3",
            "one node grows the file, one cuts it, the third drains and reads",
            vec![
                vec![vec![Truncate(2), Close]],
                vec![vec![Open, Truncate(0), Close]],
                vec![vec![Open]],
            ],
        )
    }
}

pub fn power2() -> Config {
    Config {
        power: 2,
        ..Config::new(
            "power-2",
            "publish, defer and fsync of the store alone, two power failures",
            vec![
                vec![
                    vec![Write(1), SyncLocal, Defer, Write(2), Close],
                    vec![Write(BOTH), Defer, Write(1), SyncLocal],
                ],
                vec![vec![Open, Write(1), Close, Open]],
            ],
        )
    }
}

pub fn power_round2() -> Config {
    Config {
        setup: vec![
            (0, vec![Write(BOTH), Close]),
            (1, vec![Open, Truncate(1), Close]),
        ],
        terms: 2,
        power: 1,
        frail: 0b01,
        ..Config::new(
            "power-round-2",
            "a holder and worker that cuts loses its power and comes back",
            vec![vec![vec![]], vec![vec![Write(2), Close]]],
        )
    }
}

pub fn power_grow2() -> Config {
    Config {
        setup: vec![
            (0, vec![Write(1), Close]),
            (1, vec![Open, Truncate(2), Close]),
        ],
        terms: 2,
        power: 1,
        frail: 0b01,
        drainers: 0b01,
        ..Config::new(
            "power-grow-2",
            "the same where the size grows without bytes",
            vec![vec![vec![]], vec![vec![Open]]],
        )
    }
}

pub fn power_round3() -> Config {
    Config {
        setup: vec![
            (0, vec![Write(BOTH), Close]),
            (1, vec![Open, Write(1), Close]),
        ],
        terms: 2,
        power: 1,
        frail: 0b001,
        drainers: 0b011,
        restarts: false,
        ..Config::new(
            "power-round-3",
            "a node dies within a domain, unsynced writes and all; another takes over, the third writes and reads",
            vec![
                vec![vec![]],
                vec![vec![]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}

pub fn power_alone2() -> Config {
    Config {
        terms: 2,
        alone: true,
        power: 1,
        frail: 0b01,
        drainers: 0b01,
        ..Config::new(
            "power-alone-2",
            "who drains alone loses its power and comes back",
            vec![
                vec![vec![Write(1), SyncLocal, Close]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}

pub fn power_reclaim2() -> Config {
    Config {
        setup: vec![(0, vec![Write(1), Close])],
        terms: 1,
        power: 1,
        frail: 0b01,
        drainers: 0b10,
        ..Config::new(
            "power-reclaim-2",
            "a node whose layout was drained and removed loses its power and comes back",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}
