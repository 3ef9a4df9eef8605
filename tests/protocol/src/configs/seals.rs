//! Configurations with appends that do not return.

use super::BOTH;
use crate::config::{Config, Op};

use Op::{Close, Open, Write};

pub fn seal2() -> Config {
    Config {
        terms: 2,
        hangs: 1,
        frail: 0,
        drainers: 0b10,
        ..Config::new(
            "seal-2",
            "an append hangs, and lands when others have written over the same bytes and all is drained",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(1), Close, Open]],
            ],
        )
    }
}

pub fn seal_crash2() -> Config {
    Config {
        terms: 1,
        hangs: 1,
        crashes: 1,
        frail: 0b01,
        drainers: 0b10,
        ..Config::new(
            "seal-crash-2",
            "the same where the node whose append hangs dies and comes back",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![Open, Write(BOTH), Close]],
            ],
        )
    }
}

pub fn seal3() -> Config {
    Config {
        setup: vec![(1, vec![Write(2), Close])],
        terms: 1,
        hangs: 1,
        drainers: 0b010,
        reclaimers: 0,
        ..Config::new(
            "seal-3",
            "the same while a second node drains and a third reads what has landed early",
            vec![
                vec![vec![Write(1), Close]],
                vec![vec![]],
                vec![vec![Open, Write(1), Close]],
            ],
        )
    }
}
