//! Recognises file systems whose clients do not see each other's data, by the type and the options that the
//! kernel shows for the mount.
//!
//! On such a file system a node that reads under a lock may get old bytes where another node has written new
//! ones, with Forebay as without it, and no call fails. So the user is warned when the backing is mounted,
//! and told which setting helps. Properties that cannot be seen from here (settings of servers, caches within
//! a client's process) are not guessed: a mount that follows the advice, as far as can be seen, gets no
//! warning.

use crate::mountinfo;
use std::path::Path;

/// Returns the warning for the user who mounts over `backing`, if there is one. `can_map` says whether a file
/// there can be mapped shared: FUSE file systems refuse that if they keep nothing in the page cache.
pub fn doubt(backing: &Path, locks: bool, can_map: &dyn Fn() -> bool) -> Option<String> {
    let mount = mountinfo::mount_of(backing).ok()??;
    let has = |option: &str| mount.options.split(',').any(|o| o == option);
    let (what, mend) = advice(&mount.fstype, &has, locks, can_map)?;
    Some(format!(
        "{} is on {what}: what another node has written can be missing or old here, with Forebay as without it; {mend}, or use one node only (--nodes one)",
        backing.display()
    ))
}

fn advice(
    fstype: &str,
    has: &dyn Fn(&str) -> bool,
    locks: bool,
    can_map: &dyn Fn() -> bool,
) -> Option<(&'static str, &'static str)> {
    let local_locks = || ["all", "flock", "posix"].map(|which| format!("local_lock={which}"));
    match fstype {
        "fuse.ceph-fuse" | "fuse.ceph" if can_map() => Some((
            "ceph-fuse with its page cache, which is not coherent between clients",
            "set fuse_disable_pagecache = true for its client and mount it again, or use the kernel's CephFS",
        )),
        "fuse.glusterfs" if can_map() => Some((
            "GlusterFS with caches that are not coherent between clients",
            "mount it with -o direct-io-mode=enable and switch performance.write-behind, open-behind, io-cache, quick-read, read-ahead and stat-prefetch off for the volume",
        )),
        "9p" if ["cache=loose", "cache=fscache", "cache=mmap"]
            .iter()
            .any(|o| has(o)) =>
        {
            Some((
                "9p with a cache that is not coherent between clients",
                "mount it with cache=none",
            ))
        }
        "cifs" | "smb3" if has("cache=loose") => Some((
            "SMB with a cache that is not coherent between clients",
            "mount it with cache=strict",
        )),
        "lustre" if locks && has("localflock") => Some((
            "Lustre with locks of its own on each client",
            "mount it with -o flock",
        )),
        "nfs" | "nfs4" if locks && (has("nolock") || local_locks().iter().any(|o| has(o))) => {
            Some((
                "NFS with locks of its own on each client",
                "mount it without nolock and local_lock",
            ))
        }
        "nfs" | "nfs4" if !has("noac") => Some((
            "NFS with attributes that each client remembers",
            "mount it with -o noac",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_known_is_said_and_what_was_mended_is_not() {
        let says = |fstype, options: &str, maps: bool| {
            let has = |option: &str| options.split(',').any(|o| o == option);
            advice(fstype, &has, true, &|| maps).map(|(_, mend)| mend)
        };
        let told = |fstype, options, maps, word| {
            let said = says(fstype, options, maps).unwrap_or_default();
            assert!(said.contains(word), "{fstype} {options}: {said}");
        };
        told("fuse.ceph-fuse", "rw", true, "fuse_disable_pagecache");
        told("fuse.glusterfs", "rw", true, "direct-io-mode=enable");
        told("9p", "rw,cache=loose", true, "cache=none");
        told("cifs", "rw,cache=loose", true, "cache=strict");
        told("lustre", "rw,localflock", true, "flock");
        told("nfs4", "rw,noac,local_lock=all", true, "local_lock");
        told("nfs4", "rw,local_lock=none", true, "noac");
        for (fstype, options, maps) in [
            ("fuse.ceph-fuse", "rw", false),
            ("fuse.glusterfs", "rw", false),
            ("9p", "rw,cache=none", true),
            ("cifs", "rw,cache=strict", true),
            ("lustre", "rw,flock", true),
            ("nfs4", "rw,noac,local_lock=none", true),
            ("ceph", "rw", true),
            ("ext4", "rw", true),
        ] {
            assert_eq!(says(fstype, options, maps), None, "{fstype} {options}");
        }
    }
}
