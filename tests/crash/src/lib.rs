//! Tests what a power failure, a killed daemon or a failing disk leaves behind, and whether the store keeps its
//! promises over it.
//!
//! ```text
//! script ─▶ rig (store, files, mini-drain) ─▶ Recorder ─▶ events ─▶ image at every cut ─▶ verify
//!              │                                                                            ▲
//!              └─▶ history: what was acknowledged when, what was synced when ───────────────┘
//! ```
//!
//! Everything the store and the drain write goes through layout-index's disk traits, so the
//! recorder has every byte in order and can say for any moment what is certain to be on the disk.
//! RocksDB does its own I/O: with its write-ahead log off, what it has on the disk changes only
//! when it flushes, and the recorder keeps a copy of it whenever that happened.

pub mod cuts;
pub mod drain;
pub mod fault;
pub mod history;
pub mod image;
pub mod osts;
pub mod recorder;
pub mod rig;
pub mod script;
pub mod verify;

use std::path::Path;

/// Makes a directory for stores and images: in memory where that is possible, since these tests decide by rules what
/// is synced, and do not depend on what the machine syncs.
pub fn scratch() -> std::io::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() {
        memory.into()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("forebay-crash-")
        .tempdir_in(place)
}

/// Returns a number from the environment, or `usual`.
pub fn setting(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => usual,
    }
}
