//! The three places that a case runs in, below one directory on disk: a plain directory, the
//! minimal FUSE file system, and Forebay with its own store and backing.
//!
//! All of it is removed when the run ends or is interrupted: see [`crate::teardown`].

use crate::mountpoint;
use crate::teardown::Left;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub struct Fixture {
    dir: tempfile::TempDir,
    forebay: PathBuf,
    minimal: Child,
    left: Left,
}

/// Runs `forebay ARGS`. Its output goes to a file: the daemon that it leaves behind would hold a
/// pipe open, and reading the pipe to its end would wait for the daemon.
fn forebay(program: &Path, log: &Path, args: &[&std::ffi::OsStr]) -> io::Result<()> {
    let out = File::create(log)?;
    let runtime = log.with_file_name("run");
    let status = Command::new(program)
        .args(args)
        .env("FOREBAY_RUNTIME_DIR", runtime)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .status()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))?;
    if status.success() {
        return Ok(());
    }
    let said = std::fs::read_to_string(log)?;
    let verb = args
        .first()
        .map(|a| a.to_string_lossy())
        .unwrap_or_default();
    Err(io::Error::other(format!(
        "forebay {verb} failed ({status}): {}",
        said.trim()
    )))
}

impl Fixture {
    pub fn start(
        parent: &Path,
        forebay_program: &Path,
        minimal_program: &Path,
    ) -> io::Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("forebay-bench.")
            .tempdir_in(parent)?;
        let path = dir.path().to_path_buf();
        for name in ["plain", "minimal", "backing", "mount", "run"] {
            std::fs::create_dir(path.join(name))?;
        }
        let (minimal_dir, mount_dir) = (path.join("minimal"), path.join("mount"));
        let mut left = Left::below(&path);
        left.mount(&minimal_dir);
        left.mount(&mount_dir);
        let minimal = Command::new(minimal_program)
            .arg(&minimal_dir)
            .arg("--log")
            .arg(path.join("minimal.log"))
            .arg("--through")
            .arg(path.join("backing"))
            .stdin(Stdio::null())
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", minimal_program.display())))?;
        let fixture = Fixture {
            dir,
            forebay: forebay_program.to_path_buf(),
            minimal,
            left,
        };
        mountpoint::wait_mounted(&minimal_dir, Duration::from_secs(10))?;

        // Draining is off: it would take the disk and a core from the case that is being measured.
        let config = path.join("forebay.toml");
        std::fs::write(&config, "drain = \"never\"\n")?;
        forebay(
            forebay_program,
            &path.join("mount.out"),
            &[
                "mount".as_ref(),
                mount_dir.as_os_str(),
                "--store".as_ref(),
                path.join("store").as_os_str(),
                "--backing".as_ref(),
                path.join("backing").as_os_str(),
                "--config".as_ref(),
                config.as_os_str(),
            ],
        )?;
        Ok(fixture)
    }

    /// A directory beside the store, on the same file system.
    pub fn plain(&self) -> PathBuf {
        self.dir.path().join("plain")
    }

    pub fn minimal(&self) -> PathBuf {
        self.dir.path().join("minimal")
    }

    pub fn forebay(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    /// The directory below Forebay's mount.
    pub fn backing(&self) -> PathBuf {
        self.dir.path().join("backing")
    }

    /// Runs `forebay drain FILE --wait`.
    pub fn drain(&self, file: &Path) -> io::Result<()> {
        forebay(
            &self.forebay,
            &self.dir.path().join("drain.out"),
            &["drain".as_ref(), file.as_os_str(), "--wait".as_ref()],
        )
    }

    /// Unmounts both regularly, so that an unclean end is noticed.
    pub fn stop(mut self) -> io::Result<()> {
        let mount = self.forebay();
        forebay(
            &self.forebay,
            &self.dir.path().join("umount.out"),
            &["umount".as_ref(), mount.as_os_str()],
        )?;
        mountpoint::unmount(&self.minimal(), false)?;
        let status = self.minimal.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "minimal-fs ended badly: {status}"
            )))
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.left.take_down();
        // After its unmount the process ends by itself, and killing it loses nothing. An error of
        // `kill` means that it has ended already.
        if self.minimal.kill().is_ok() {
            drop(self.minimal.wait());
        }
    }
}
