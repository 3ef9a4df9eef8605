//! Drops a privilege and raises a limit before the daemon has threads. (Both are per thread or process, and
//! threads that start later inherit them.)

use crate::exit_codes::{Failure, Result};
use caps::{CapSet, Capability};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

pub fn trim() -> Result<()> {
    raise_file_limit();
    drop_sys_resource()?;
    // The kernel has applied the caller's mask to the modes that it sends, and the daemon's own mask must not
    // cut them again. Everything that the daemon creates for itself gets its mode explicitly.
    umask(Mode::empty());
    Ok(())
}

/// Raises the limit on open files, because every known file holds a descriptor. Only root may exceed the hard
/// limit, and only while it has `CAP_SYS_RESOURCE`.
fn raise_file_limit() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return;
    };
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(hard)
        .max(hard);
    if soft < most
        && setrlimit(Resource::RLIMIT_NOFILE, most, most).is_err()
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(%error, limit = soft, "the limit on open files could not be raised");
    }
}

/// Drops `CAP_SYS_RESOURCE`. With this capability the kernel lets a process write past disk quotas and into
/// the blocks reserved for root: a user's data, drained by a root daemon, would escape the user's quota.
fn drop_sys_resource() -> Result<()> {
    for set in [CapSet::Effective, CapSet::Permitted] {
        caps::drop(None, set, Capability::CAP_SYS_RESOURCE)
            .map_err(|e| Failure::failed(format!("CAP_SYS_RESOURCE cannot be given up: {e}")))?;
    }
    Ok(())
}
