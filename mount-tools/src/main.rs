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
mod commands;
mod config;
mod control;
mod daemon;
mod exit_codes;
mod holders;
mod logging;
mod mountinfo;
mod output;
mod report;
mod settings;
mod units;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Mount(args) => commands::mount::run(&args),
        Command::Umount(args) => commands::umount::run(&args),
        Command::Status(args) => commands::status::run(&args),
        Command::Drain(args) => commands::drain::run(&args),
        Command::Layout(args) => commands::layout::run(&args),
        Command::Recover(args) => commands::recover::run(&args),
    };
    match result {
        Ok(code) => code.into(),
        Err(failure) => {
            eprintln!("forebay: {failure}");
            failure.code.into()
        }
    }
}
