//! SIGTERM and SIGINT do what `forebay umount` does; the second one does `--keep`.
//!
//! They are blocked in every thread and taken by one that waits for them, so that no handler code
//! runs at an arbitrary instant.

use super::lifecycle::{Lifecycle, Stop};
use crate::exit_codes::{Failure, Result};
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;

pub struct Blocked(SigSet);

/// Before any thread is started: threads inherit the mask.
pub fn block() -> Result<Blocked> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        set.add(signal);
    }
    set.thread_block()
        .map_err(|e| Failure::failed(format!("signals cannot be blocked: {e}")))?;
    Ok(Blocked(set))
}

pub fn listen(blocked: Blocked, lifecycle: Arc<Lifecycle>, foreground: bool) -> Result<()> {
    std::thread::Builder::new()
        .name("forebay-signals".into())
        .spawn(move || {
            let mut count = 0;
            loop {
                match blocked.0.wait() {
                    // In the background there is no terminal whose end could mean anything.
                    Ok(Signal::SIGHUP) if !foreground => continue,
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
                tracing::info!("still mounted: {}", refusal.message);
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
