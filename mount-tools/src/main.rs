//! The `forebay` command: the composition root, and the only program of the workspace that users
//! see.
//!
//! ```text
//! args ─┐
//!       ├─▶ settings ─▶ daemon ─▶ wiring ─▶ store, overlay, flusher
//! config┘                 │
//! commands ─▶ control (socket) ─▶ verbs
//! ```

mod args;
mod checks;
mod coherence;
mod commands;
mod config;
mod control;
mod daemon;
mod exit_codes;
mod holders;
mod logging;
mod mountinfo;
mod output;
mod process;
mod report;
mod settings;
mod units;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let serves = matches!(command, Command::Mount(_));
    let result = match command {
        Command::Mount(args) => commands::mount::run(&args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Status(args) => commands::status::run(&args),
        Command::Drain(args) => commands::drain::run(&args),
        Command::Prefetch(args) => commands::prefetch::run(&args),
        Command::Layout(args) => commands::layout::run(&args),
        Command::Explain(args) => commands::explain::run(&args),
        Command::Probe(args) => commands::probe::run(&args),
        Command::Recover(args) => commands::recover::run(&args),
    };
    let code = result.unwrap_or_else(|failure| {
        eprintln!("forebay: {failure}");
        failure.code
    });
    if serves {
        end_at_once(code);
    }
    code.into()
}

/// Ends a daemon without the exit handlers of the C++ library. Threads that answered the last requests may
/// still hold the store, and RocksDB aborts when its locks are destroyed under them. Nothing is left to do:
/// the store is closed, and standard output was flushed line by line.
fn end_at_once(code: exit_codes::Code) -> ! {
    // SAFETY: ends the process; takes any number and touches no memory.
    unsafe { libc::_exit(code as i32) }
}
