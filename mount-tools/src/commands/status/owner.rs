//! Shows root the mounts and stores of other users.
//!
//! Everything that leads to such a mount (the entry that names socket and store, the store itself) is under
//! that user's control, and may be a link, a FIFO or a file system that does not answer. So root does not
//! access it itself: a process with that user's rights does, and its output counts as that user's answer. The
//! process gets [`PATIENCE`]; if it hangs, it is killed and not waited for.

use crate::exit_codes::{Code, Failure, Result};
use crate::holders::user_name;
use crate::mountinfo;
use crate::output::plain;
use crate::process::Watched;
use crate::report::StatusReport;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(5);
/// Longest report that is read. A report has at most 1000 files.
const LONGEST: u64 = 16 << 20;
/// Group for users that the user database does not know. It owns nothing.
const NO_GROUP: u32 = 65534;

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Returns the other user whose mount `dir` is on. Only compares path names: nothing is looked up on the
/// mount.
pub fn of_mount(dir: &Path) -> Option<u32> {
    if !is_root() {
        return None;
    }
    let dir = std::path::absolute(dir).ok()?;
    let on = |(point, _): &(_, u32)| dir.starts_with(point);
    let mounts = mountinfo::of_users().ok()?.into_iter().filter(on);
    let topmost = mounts.max_by_key(|(point, _)| point.as_os_str().len());
    topmost.map(|(_, uid)| uid)
}

/// Returns the other user whose store `dir` is.
pub fn of_store(dir: &Path) -> Option<u32> {
    if !is_root() {
        return None;
    }
    let meta = std::fs::symlink_metadata(dir).ok()?;
    Some(meta.uid()).filter(|uid| *uid != 0)
}

/// Returns a command that runs this program as another user.
fn forebay_as(uid: u32, gid: u32) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .current_dir("/")
        .env_clear()
        .env("XDG_RUNTIME_DIR", format!("/run/user/{uid}"))
        .uid(uid)
        .gid(gid)
        .stdin(Stdio::null());
    if let Some(dir) = std::env::var_os("FOREBAY_RUNTIME_DIR") {
        command.env("FOREBAY_RUNTIME_DIR", dir);
    }
    // SAFETY: setsid is async-signal-safe. The user may trace this process, so it must have no way to root's terminal.
    unsafe { command.pre_exec(|| Ok(nix::unistd::setsid().map(drop)?)) };
    command
}

/// Whether the mount at `point` belongs to another user and is dead for that user. The kernel lets no other
/// user in, nor this user with another group.
pub fn is_dead(point: &Path) -> Result<bool> {
    let cannot =
        |e: std::io::Error| Failure::failed(format!("cannot look at {}: {e}", point.display()));
    let Some((uid, gid)) = mountinfo::user_of(point).filter(|_| is_root()) else {
        return Ok(false);
    };
    if uid == 0 {
        return Ok(false);
    }
    let mut child = forebay_as(uid, gid)
        .args(["umount", "--is-dead"])
        .arg(point)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(cannot)?;
    // A process that does not end waits for a daemon, so the daemon is alive.
    if !Watched::new(child.id()).is_some_and(|child| child.wait(PATIENCE)) {
        child.kill().map_err(cannot)?;
        return Ok(false);
    }
    Ok(child.wait().map_err(cannot)?.success())
}

/// Runs `forebay status OPTION PATH` as `uid`.
pub fn ask(option: &str, path: &Path, uid: u32) -> Result<StatusReport> {
    let what = path.display();
    let cannot = |e: std::io::Error| Failure::failed(format!("cannot look at {what}: {e}"));
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    let gid = user.map_or(NO_GROUP, |user| user.gid.as_raw());
    let path = std::path::absolute(path).map_err(cannot)?;
    let mut command = forebay_as(uid, gid);
    command
        .args(["status", "--json", option])
        .arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let deadline = Instant::now() + PATIENCE;
    let mut child = command.spawn().map_err(cannot)?;
    let said = listen(child.stdout.take());
    let complained = listen(child.stderr.take());
    let left = || deadline.saturating_duration_since(Instant::now());
    let (Ok(said), Ok(complained)) = (
        said.recv_timeout(left()),
        complained.recv_timeout(left().max(Duration::from_millis(1))),
    ) else {
        // The child may hang where no signal ends it. It is then left to the system.
        if let Err(e) = child.kill() {
            eprintln!("forebay: {e}");
        }
        return Err(Failure::new(
            Code::NoDaemon,
            format!(
                "{what} belongs to {}, and asked as that user it does not answer within {PATIENCE:?}",
                name(uid)
            ),
        ));
    };
    // Both of the child's pipes are closed, so it is ending. If it does not, it is left to the system.
    if let Err(e) = child.try_wait() {
        eprintln!("forebay: {e}");
    }
    serde_json::from_slice(&said).map_err(|_| {
        let text = String::from_utf8_lossy(&complained);
        let text = text.trim().trim_start_matches("forebay: ");
        let text = plain(text.get(..text.len().min(500)).unwrap_or(""));
        Failure::new(
            Code::NoDaemon,
            format!("{what}, asked as {}: {text}", name(uid)),
        )
    })
}

fn listen(from: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, heard) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = from.map(|from| from.take(LONGEST).read_to_end(&mut bytes));
        if read.is_some_and(|r| r.is_ok()) {
            // The caller may have given up.
            send.send(bytes).unwrap_or_default();
        }
    });
    heard
}

fn name(uid: u32) -> String {
    format!("user {}", plain(&user_name(uid)))
}

/// Lines for root's list that name other users' mounts. These were not asked, because root trusts only
/// entries that root has written.
pub fn mounts_of_others() -> String {
    if !is_root() {
        return String::new();
    }
    let mounts = mountinfo::of_users().unwrap_or_default();
    let line = |(point, uid): &(std::path::PathBuf, u32)| {
        let point = plain(&point.display().to_string());
        format!(
            "{point}  of {}: ask with forebay status {point}\n",
            name(*uid)
        )
    };
    mounts.iter().map(line).collect()
}
