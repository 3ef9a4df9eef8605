//! Finds the processes that keep a mount busy: those with an open file, a working or root directory, or a
//! mapping on it. Without root, only the processes of the daemon's own user can be inspected; others are not
//! found.
//!
//! A process may hang in another file system, and a thread that inspects it then hangs as well: at an open
//! file, unless its attributes are taken as the kernel has them cached, and at mappings always. So the search
//! has a thread of its own and a deadline, and mappings come last.

use rustix::fs::{AtFlags, CWD, StatxFlags, major, makedev, minor, statx};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Processes that are not found within this time are not named.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: i32,
    pub user: String,
    pub command: String,
    /// How it holds the mount: `open`, `cwd`, `root`, `mapped`.
    pub how: String,
    pub path: String,
}

/// Returns an entry for each process that holds something on the file system with device number `dev`, except
/// `except` (the daemon itself). Processes that end meanwhile are skipped.
pub fn find(dev: u64, except: &[i32]) -> Vec<Holder> {
    let (found, holders) = mpsc::channel();
    let except = except.to_vec();
    let searching = std::thread::Builder::new()
        .name("forebay-holders".into())
        .spawn(move || search(dev, &except, &found));
    if let Err(error) = searching {
        tracing::warn!(%error, "no thread to look for the holders of the mount");
        return Vec::new();
    }
    let deadline = Instant::now() + PATIENCE;
    let next = || holders.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    let mut holders: Vec<Holder> = std::iter::from_fn(|| next().ok()).collect();
    holders.sort_by_key(|h| h.pid);
    holders
}

/// Ends early when the caller no longer waits.
fn search(dev: u64, except: &[i32], found: &mpsc::Sender<Holder>) {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return;
    };
    let processes: Vec<i32> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| !except.contains(pid))
        .collect();
    let mut rest = Vec::new();
    for pid in processes {
        let proc = Path::new("/proc").join(pid.to_string());
        match held(&proc, dev) {
            Some(held) => {
                if holder(pid, &proc, held).is_some_and(|h| found.send(h).is_err()) {
                    return;
                }
            }
            None => rest.push((pid, proc)),
        }
    }
    for (pid, proc) in rest {
        let maps = std::fs::read_to_string(proc.join("maps")).unwrap_or_default();
        if let Some(path) = mapped(&maps, dev)
            && holder(pid, &proc, ("mapped", path)).is_some_and(|h| found.send(h).is_err())
        {
            return;
        }
    }
}

fn holder(pid: i32, proc: &Path, (how, path): (&str, String)) -> Option<Holder> {
    let uid = std::fs::metadata(proc).ok()?.uid();
    let command = std::fs::read_to_string(proc.join("comm")).unwrap_or_default();
    Some(Holder {
        pid,
        user: user_name(uid),
        command: command.trim().to_owned(),
        how: how.to_owned(),
        path,
    })
}

/// Returns the first thing on `dev` that the process holds, mappings aside.
fn held(proc: &Path, dev: u64) -> Option<(&'static str, String)> {
    let on = |link: &Path| known_device(link).is_ok_and(|d| d == dev);
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
    fds.filter_map(|fd| Some(fd.ok()?.path()))
        .find(|link| on(link))
        .map(|link| ("open", name(&link)))
}

/// Returns the device that `link` leads to, without asking its file system.
fn known_device(link: &Path) -> rustix::io::Result<u64> {
    let seen = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok(makedev(seen.stx_dev_major, seen.stx_dev_minor))
}

fn mapped(maps: &str, dev: u64) -> Option<String> {
    let want = format!("{:02x}:{:02x}", major(dev), minor(dev));
    maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        (fields.nth(3)? == want).then(|| fields.skip(1).collect::<Vec<_>>().join(" "))
    })
}

/// Returns the name of a user, or the number if there is no name.
pub fn user_name(uid: u32) -> String {
    match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
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
        assert_eq!(mapped(maps, makedev(0, 0x2a)), Some("/mnt/a b.so".into()));
        assert_eq!(mapped(maps, makedev(1, 0x2a)), None);
    }
}
