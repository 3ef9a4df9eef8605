//! Who keeps a mount busy: processes with an open file, a working or root directory, or a
//! mapping on it. Without root only one's own processes can be looked into; the count of the
//! others is unknown and the caller says so.

use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: i32,
    pub user: String,
    pub command: String,
    /// How it holds the mount: `open`, `cwd`, `root`, `mapped`.
    pub how: String,
    pub path: String,
}

/// One line for each process that holds something on the file system with device number `dev`,
/// except `except` (the daemon itself). Processes that end meanwhile are skipped.
pub fn find(dev: u64, except: &[i32]) -> Vec<Holder> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut holders: Vec<Holder> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| !except.contains(pid))
        .filter_map(|pid| holder(pid, dev))
        .collect();
    holders.sort_by_key(|h| h.pid);
    holders
}

fn holder(pid: i32, dev: u64) -> Option<Holder> {
    let proc = Path::new("/proc").join(pid.to_string());
    let (how, path) = held(&proc, dev)?;
    let uid = std::fs::metadata(&proc).ok()?.uid();
    let command = std::fs::read_to_string(proc.join("comm")).unwrap_or_default();
    Some(Holder {
        pid,
        user: user_name(uid),
        command: command.trim().to_owned(),
        how: how.to_owned(),
        path,
    })
}

/// The first thing on `dev` that the process holds.
fn held(proc: &Path, dev: u64) -> Option<(&'static str, String)> {
    let on = |link: &Path| std::fs::metadata(link).is_ok_and(|m| m.dev() == dev);
    let name = |link: &Path| {
        std::fs::read_link(link).map_or_else(|_| "?".into(), |p| p.display().to_string())
    };
    for how in ["cwd", "root"] {
        let link = proc.join(how);
        if on(&link) {
            return Some((how, name(&link)));
        }
    }
    let fds = std::fs::read_dir(proc.join("fd")).into_iter().flatten();
    for fd in fds.flatten() {
        let link = fd.path();
        if on(&link) {
            return Some(("open", name(&link)));
        }
    }
    let maps = std::fs::read_to_string(proc.join("maps")).unwrap_or_default();
    mapped(&maps, dev).map(|path| ("mapped", path))
}

fn mapped(maps: &str, dev: u64) -> Option<String> {
    let want = format!(
        "{:02x}:{:02x}",
        nix::sys::stat::major(dev),
        nix::sys::stat::minor(dev)
    );
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        (fields.nth(3)? == want).then(|| fields.skip(1).collect::<Vec<_>>().join(" "))
    })
}

/// A name for a user number, or the number.
pub fn user_name(uid: u32) -> String {
    match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// The device number of what is mounted at `point`.
pub fn device(point: &Path) -> std::io::Result<u64> {
    Ok(std::fs::metadata(point)?.dev())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_an_open_file() {
        let file = tempfile::tempfile().unwrap();
        let dev = file.metadata().unwrap().dev();
        let me = std::process::id() as i32;
        let found = find(dev, &[]);
        assert!(
            found
                .iter()
                .any(|h| h.pid == me && h.user == user_name(nix::unistd::getuid().as_raw()))
        );
        assert!(find(dev, &[me]).iter().all(|h| h.pid != me));
    }

    #[test]
    fn mappings_are_matched_by_device() {
        let maps =
            "7f00-7f01 r--p 00000000 00:2a 77    /mnt/a b.so\n8000-8001 rw-p 0 00:00 0 [heap]\n";
        assert_eq!(
            mapped(maps, nix::sys::stat::makedev(0, 0x2a)),
            Some("/mnt/a b.so".into())
        );
        assert_eq!(mapped(maps, nix::sys::stat::makedev(1, 0x2a)), None);
    }
}
