//! One daemon per store: an advisory lock that the kernel drops when its holder dies.

use crate::error::{Result, StoreError};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

#[derive(Debug)]
pub struct Lock {
    file: Flock<File>,
}

impl Lock {
    pub fn acquire(dir: &Path) -> Result<Lock> {
        let path = dir.join("lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(|e| StoreError::io("open", &path, e))?;
        let mut file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(mut file, e)| {
            if e != nix::errno::Errno::EWOULDBLOCK {
                return StoreError::io("lock", &path, e.into());
            }
            let mut pid = String::new();
            if let Err(e) = file.read_to_string(&mut pid) {
                tracing::debug!(error = %e, "the lock's holder is unknown");
            }
            StoreError::Unusable(format!(
                "store {} is in use by process {}; unmount that one first, or give another --store",
                dir.display(),
                pid.trim()
            ))
        })?;
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write(&mut file).map_err(|e| StoreError::io("write", &path, e))?;
        Ok(Lock { file })
    }

    /// Text that is the same for whichever process holds this very lock file on this very kernel,
    /// and different for any other lock file or kernel. Empty where it cannot be determined.
    pub fn place(&self) -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        match (boot, self.file.metadata()) {
            (Ok(boot), Ok(meta)) => {
                format!("{} {} {}", boot.trim(), meta.dev(), meta.ino())
            }
            _ => String::new(),
        }
    }
}
