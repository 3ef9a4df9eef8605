//! A Forebay daemon over a simulated client, used only through the `forebay` command.
//!
//! `forebay status --json` says when no byte is left only in its log ([`in_log`]), and what its
//! probes cost ([`Probe`]).

use crate::mountpoint;
use crate::teardown::Left;
use forebay_tests::{daemon_log, sys};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Bounds a hang; has no influence on what is measured.
const PATIENCE: Duration = Duration::from_secs(300);

/// Pause between two polls of the status: short compared with what is measured, long compared with
/// one poll.
const PAUSE: Duration = Duration::from_millis(20);

/// The cost of the probes that the daemon has made so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Probe {
    pub seconds: f64,
    /// `None` if the daemon does not report it.
    pub bytes: Option<u64>,
}

/// Parameters for starting a daemon.
pub struct Wish<'a> {
    pub program: &'a Path,
    /// An empty directory on disk, for store, mount point and log.
    pub dir: &'a Path,
    pub backing: &'a Path,
    /// Stands for the root directory of a Lustre client.
    pub lustre_root: &'a Path,
    pub args: &'a [String],
}

pub struct Daemon {
    program: PathBuf,
    dir: PathBuf,
    mount: PathBuf,
    child: Child,
    left: Left,
}

impl Daemon {
    /// Starts the daemon and returns when the mount answers.
    pub fn start(wish: &Wish<'_>) -> io::Result<Daemon> {
        let dir = wish.dir.to_owned();
        let mount = dir.join("mount");
        for path in [&mount, &dir.join("run")] {
            std::fs::create_dir(path)?;
        }
        let mut left = Left::below(&dir);
        left.mount(&mount);
        let log = File::create(log_file(&dir))?;
        let mut command = forebay(wish.program, &dir);
        command.arg("mount").arg(&mount).arg("--foreground");
        command.arg("--store").arg(dir.join("store"));
        command.arg("--backing").arg(wish.backing);
        command.args(wish.args);
        command.env("FOREBAY_LUSTRE_ROOT", wish.lustre_root);
        command.stdout(log.try_clone()?).stderr(log);
        sys::die_with_parent(&mut command);
        let child = command
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", wish.program.display())))?;
        left.process(child.id());
        let mut daemon = Daemon {
            program: wish.program.to_owned(),
            dir,
            mount,
            child,
            left,
        };
        daemon.wait_ready()?;
        Ok(daemon)
    }

    fn wait_ready(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                let text = format!("forebay mount ended with {status}:\n{}", self.last_words());
                return Err(io::Error::other(text));
            }
            if mountpoint::is_mounted(&self.mount)? && self.ask_status()?.status.success() {
                return Ok(());
            }
            self.check(begin, "mount")?;
            std::thread::sleep(PAUSE);
        }
    }

    pub fn mount(&self) -> &Path {
        &self.mount
    }

    fn run(&self, args: &[&OsStr]) -> io::Result<Output> {
        let mut command = forebay(&self.program, &self.dir);
        command.args(args).output()
    }

    fn ask_status(&self) -> io::Result<Output> {
        self.run(&["status".as_ref(), self.mount.as_ref(), "--json".as_ref()])
    }

    pub fn status(&self) -> io::Result<Value> {
        let output = succeed("status", self.ask_status()?)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|e| io::Error::other(format!("forebay status --json is not JSON: {e}")))
    }

    /// Waits until all bytes are on the parallel file system, in whatever files, and returns when
    /// that was.
    pub fn wait_safe(&self) -> io::Result<Instant> {
        let begin = Instant::now();
        loop {
            if in_log(&self.status()?)? == 0 {
                return Ok(Instant::now());
            }
            self.check(begin, "put its data on the file system below")?;
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for the first probe. In production a daemon runs long before the job starts.
    pub fn wait_probed(&self) -> io::Result<()> {
        let begin = Instant::now();
        while self.status()?["targets"]["probed_seconds_ago"].is_null() {
            self.check(begin, "probe its targets")?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Runs `forebay drain DIR --wait`: afterwards all bytes are in the canonical files.
    pub fn drain(&self) -> io::Result<()> {
        let args = ["drain".as_ref(), self.mount.as_ref(), "--wait".as_ref()];
        succeed("drain", self.run(&args)?).map(drop)
    }

    pub fn probe(&self) -> io::Result<Probe> {
        probe(&self.status()?)
    }

    /// Unmounts regularly and returns the log lines in which the daemon complained.
    pub fn stop(mut self) -> io::Result<Vec<String>> {
        let args = ["umount".as_ref(), self.mount.as_ref()];
        succeed("umount", self.run(&args)?)?;
        let status = self.reap()?;
        if !status.success() {
            let text = format!("forebay ended with {status}:\n{}", self.last_words());
            return Err(io::Error::other(text));
        }
        let log = daemon_log::read(&log_file(&self.dir));
        Ok(daemon_log::unexpected(&log, &[]))
    }

    fn reap(&mut self) -> io::Result<std::process::ExitStatus> {
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            self.check(begin, "end")?;
            std::thread::sleep(PAUSE);
        }
        self.left.forget_process(self.child.id());
        self.child.wait()
    }

    fn check(&self, begin: Instant, what: &str) -> io::Result<()> {
        if begin.elapsed() < PATIENCE {
            return Ok(());
        }
        let text = format!(
            "forebay did not {what} within {PATIENCE:?}:\n{}",
            self.last_words()
        );
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    fn last_words(&self) -> String {
        daemon_log::tail(&log_file(&self.dir), 20)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.left.forget_process(self.child.id());
        // A daemon that waits for its own mount survives even SIGKILL until the FUSE connection is
        // aborted.
        let ended = self
            .child
            .kill()
            .and_then(|()| sys::force_detach(&self.mount))
            .and_then(|()| self.child.wait().map(drop));
        if let Err(e) = ended {
            eprintln!("cannot end forebay {}: {e}", self.child.id());
        }
    }
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("log")
}

fn forebay(program: &Path, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("FOREBAY_RUNTIME_DIR", dir.join("run"));
    command.env("NO_COLOR", "1");
    command.stdin(Stdio::null());
    command
}

fn succeed(verb: &str, output: Output) -> io::Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let text = format!("forebay {verb} failed ({}): {}", output.status, said.trim());
    Err(io::Error::other(text))
}

fn missing(field: &str) -> io::Error {
    io::Error::other(format!(
        "forebay status --json has no number {field}; build forebay from the same sources"
    ))
}

/// Returns how many bytes are only in the log.
fn in_log(status: &Value) -> io::Result<u64> {
    let found = status.pointer("/bytes/in_log").and_then(Value::as_u64);
    found.ok_or_else(|| missing("bytes.in_log"))
}

fn probe(status: &Value) -> io::Result<Probe> {
    let seconds = status
        .pointer("/targets/probe_seconds")
        .and_then(Value::as_f64);
    Ok(Probe {
        seconds: seconds.ok_or_else(|| missing("targets.probe_seconds"))?,
        bytes: status
            .pointer("/targets/probe_bytes")
            .and_then(Value::as_u64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn status_fields() {
        let status = json!({
            "bytes": {"in_log": 7},
            "targets": {"probe_seconds": 1.5, "probe_bytes": 1024},
        });
        assert_eq!(in_log(&status).expect("there"), 7);
        let found = probe(&status).expect("there");
        assert_eq!((found.seconds, found.bytes), (1.5, Some(1024)));
        let sentence = in_log(&json!({"bytes": {}})).expect_err("missing");
        assert!(sentence.to_string().contains("bytes.in_log"));
        assert!(probe(&json!({"targets": null})).is_err());
    }
}
