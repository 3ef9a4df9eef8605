//! Configurations to explore.

use super::Op::{Close, Open, Read, ReadOnly, Write};
use super::state::closes;
use super::{Config, Op, Rules};

fn config(name: &'static str, about: &'static str, programs: &[&[Op]]) -> Config {
    assert!(programs.iter().all(|p| closes(p)), "{name}: a writer stays");
    Config {
        name,
        about,
        programs: programs.iter().map(|p| p.to_vec()).collect(),
        stopped_clocks: 0,
        crashes: 0,
        lapses: 0,
        frail: u8::MAX,
        drainers: u8::MAX,
        channel: true,
        plans: 2,
        rules: Rules::default(),
    }
}

const WRITE_READ: &[Op] = &[Open, Write(1), Read, Close];
const ALL_READ: &[Op] = &[Open, Write(3), Read, Close];
const ONCE: &[Op] = &[Open, Write(3), Close];
const TWICE: &[Op] = &[Open, Write(1), Write(3), Close];

pub fn all() -> Vec<Config> {
    vec![
        config(
            "order-2",
            "overlapping writes, closes in any order",
            &[ONCE, TWICE],
        ),
        config(
            "order-read-2",
            "each reads what both have written",
            &[ALL_READ, WRITE_READ],
        ),
        Config {
            channel: false,
            ..config(
                "order-notes-2",
                "the same without the channel",
                &[ALL_READ, WRITE_READ],
            )
        },
        Config {
            plans: 1,
            drainers: 0b001,
            ..config(
                "order-read-3",
                "the same with three nodes",
                &[WRITE_READ, ONCE, &[Open, Write(1), Close]],
            )
        },
        config(
            "order-only-2",
            "a reader without write access",
            &[TWICE, &[ReadOnly, ReadOnly]],
        ),
        Config {
            crashes: 1,
            ..config(
                "order-crash-2",
                "a writer dies and comes back",
                &[TWICE, ALL_READ],
            )
        },
        Config {
            crashes: 1,
            frail: 1,
            ..config(
                "order-late-3",
                "late bytes of a dead node under drained newer ones",
                &[&[Open, Write(1), Close], ONCE, &[ReadOnly]],
            )
        },
        Config {
            lapses: 1,
            frail: 1,
            ..config(
                "order-sleep-2",
                "a writer sleeps past its lease",
                &[&[Open, Write(1), Read, Write(1), Close], ALL_READ],
            )
        },
        Config {
            stopped_clocks: 0b11,
            ..config(
                "order-clock-2",
                "clocks that stand still: order only through the protocol",
                &[&[Open, Read, Write(1), Read, Close], ALL_READ],
            )
        },
        Config {
            stopped_clocks: 0b11,
            ..config(
                "order-hello-2",
                "the same, for writers that read nothing",
                &[&[Open, Write(1), Close], ONCE],
            )
        },
        Config {
            stopped_clocks: 0b10,
            crashes: 1,
            ..config(
                "order-clock-crash-2",
                "one clock stands still, and a writer dies",
                &[ONCE, WRITE_READ],
            )
        },
        Config {
            stopped_clocks: 0b010,
            plans: 1,
            drainers: 0b100,
            ..config(
                "order-clock-3",
                "one of three clocks stands still",
                &[
                    ONCE,
                    &[Open, Read, Write(1), Close],
                    &[Open, Write(1), Close],
                ],
            )
        },
    ]
}

pub fn named(name: &str) -> Option<Config> {
    all().into_iter().find(|config| config.name == name)
}
