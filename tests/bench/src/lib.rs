//! Code that the benchmarks and the demo share: a job of several real processes that write or read
//! one shared file in an interleaved pattern, the baselines for it, and tables.
//!
//! A number alone says more about the machine than about Forebay, so every figure is printed beside
//! a baseline that was measured in the same run, alternating with it round by round.

pub mod cases;
pub mod defer;
pub mod fixture;
pub mod grid;
pub mod job;
pub mod jobs;
pub mod mountpoint;
pub mod osts;
pub mod pattern;
pub mod report;
pub mod stats;
pub mod teardown;
pub mod units;
