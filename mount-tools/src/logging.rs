//! The daemon's log: one line per event on standard error, which is the log file when the daemon
//! is in the background. `RUST_LOG` chooses what is logged; `info` is the default.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// fuser reports as an error that the kernel no longer waits for a reply, which is how a request
/// ends that a signal interrupted.
const SILENCED: &str = "fuser::reply=off";

pub fn start() {
    let wanted = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| "info".into());
    let filter = EnvFilter::try_new(format!("{wanted},{SILENCED}"))
        .unwrap_or_else(|_| EnvFilter::new(format!("info,{SILENCED}")));
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal() && !no_color)
        .with_writer(std::io::stderr)
        .try_init();
    if let Err(error) = started {
        eprintln!("forebay: no log: {error}");
    }
}
