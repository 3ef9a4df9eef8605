//! Random numbers for the tests. A seed must mean the same operations in every later version of this tree, so
//! the generator is our own and not a library's.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a separate generator for a part of the run, so that parts do not affect each other.
    pub fn derive(seed: u64, part: u64) -> Self {
        let mut mixed = Self(seed ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        mixed.draw();
        mixed
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "nothing is below zero");
        self.draw() % n
    }

    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns a number in 1..=max, every order of magnitude being equally likely: most requests are small,
    /// some large.
    pub fn size(&mut self, max: u64) -> u64 {
        let bits = 64 - max.leading_zeros() as u64;
        let top = 1u64 << self.within(0..bits + 1).min(63);
        1 + self.below(top.min(max))
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let bytes = self.draw().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        self.fill(&mut buf);
        buf
    }
}

/// Returns the run's seed: `FOREBAY_SEED` or a fresh one. Prints it, so that a failure can be replayed.
pub fn seed(test: &str) -> u64 {
    let seed = match std::env::var("FOREBAY_SEED") {
        Ok(text) => text.parse().unwrap_or_else(|_| {
            panic!("FOREBAY_SEED={text} is not a number; give a plain integer")
        }),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let nanos = now.expect("the clock is past 1970").as_nanos() as u64;
            Rng::derive(nanos, u64::from(std::process::id())).draw() >> 16
        }
    };
    println!("{test}: replay with FOREBAY_SEED={seed}");
    seed
}

/// Returns a count from the environment, or the default.
pub fn count(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is not a number; give a plain integer")),
        Err(_) => default,
    }
}
