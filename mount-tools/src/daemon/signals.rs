//! SIGTERM and SIGINT do what `forebay umount` does; a second one does what `--keep` does. SIGHUP opens the
//! log again, and never unmounts: log rotation sends it, and so does the end of a terminal.
//!
//! The signals are blocked in every thread, and one thread waits for them, so that no handler code runs at an
//! arbitrary instant.

use super::lifecycle::{Lifecycle, Stop};
use crate::exit_codes::{Failure, Result};
use crate::logging;
use nix::sys::signal::{SigSet, Signal};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub struct Blocked(SigSet);

/// Must be called before any thread is started: threads inherit the mask.
pub fn block() -> Result<Blocked> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()
        .map_err(|e| Failure::failed(format!("signals cannot be blocked: {e}")))?;
    Ok(Blocked(set))
}

/// `log` is the log file, if there is one.
pub fn listen(blocked: Blocked, lifecycle: Arc<Lifecycle>, log: Option<PathBuf>) -> Result<()> {
    std::thread::Builder::new()
        .name("forebay-signals".into())
        .spawn(move || {
            let mut count = 0;
            loop {
                match blocked.0.wait() {
                    Ok(Signal::SIGHUP) => {
                        reopen(log.as_deref());
                        continue;
                    }
                    Ok(signal) => tracing::info!(%signal, "told to unmount"),
                    Err(nix::errno::Errno::EINTR) => continue,
                    Err(error) => {
                        tracing::error!(%error, "signals cannot be waited for");
                        return;
                    }
                }
                count += 1;
                on_signal(&lifecycle, count);
            }
        })
        .map(|_| ())
        .map_err(|e| Failure::failed(format!("no thread for signals: {e}")))
}

fn reopen(log: Option<&Path>) {
    match log.map(logging::reopen) {
        Some(Ok(())) => tracing::info!("told to open the log again"),
        Some(Err(error)) => tracing::warn!("{error}; the old one is used"),
        None => tracing::info!("told to open the log again; it is standard error and stays"),
    }
}

fn on_signal(lifecycle: &Arc<Lifecycle>, count: u32) {
    let stop = if count == 1 { Stop::Drain } else { Stop::Now };
    if stop == Stop::Now {
        lifecycle.hurry();
    }
    let lifecycle = lifecycle.clone();
    let spawned = std::thread::Builder::new()
        .name("forebay-stop".into())
        .spawn(move || {
            if let Err(refusal) = lifecycle.stop(stop, None, &mut |_| true) {
                tracing::info!("not ended: {}", refusal.message);
                for holder in &refusal.holders {
                    tracing::info!(
                        pid = holder.pid,
                        command = holder.command,
                        path = holder.path,
                        "in use"
                    );
                }
            }
        });
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to unmount with");
    }
}
