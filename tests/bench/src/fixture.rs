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

/// What Forebay is compared with besides the plain directory, as a program.
pub enum Baseline {
    Minimal(PathBuf),
    /// Another build of Forebay, mounted with a store and a backing of its own.
    Forebay(PathBuf),
}

enum Running {
    Minimal(Child),
    Forebay(PathBuf),
}

pub struct Fixture {
    dir: tempfile::TempDir,
    forebay: PathBuf,
    baseline: Running,
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

fn start_minimal(program: &Path, path: &Path) -> io::Result<Child> {
    Command::new(program)
        .arg(path.join("minimal"))
        .arg("--log")
        .arg(path.join("minimal.log"))
        .arg("--through")
        .arg(path.join("backing"))
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))
}

fn mount(program: &Path, path: &Path, at: &Path, store: &str, backing: &str) -> io::Result<()> {
    forebay(
        program,
        &path.join("mount.out"),
        &[
            "mount".as_ref(),
            at.as_os_str(),
            "--store".as_ref(),
            path.join(store).as_os_str(),
            "--backing".as_ref(),
            path.join(backing).as_os_str(),
            "--config".as_ref(),
            path.join("forebay.toml").as_os_str(),
        ],
    )
}

impl Fixture {
    pub fn start(parent: &Path, forebay_program: &Path, baseline: Baseline) -> io::Result<Self> {
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
        // Draining is off: it would take the disk and a core from the case that is being measured.
        std::fs::write(path.join("forebay.toml"), "drain = \"never\"\n")?;
        let baseline = match baseline {
            Baseline::Minimal(program) => Running::Minimal(start_minimal(&program, &path)?),
            Baseline::Forebay(program) => {
                std::fs::create_dir(path.join("backing-2"))?;
                mount(&program, &path, &minimal_dir, "store-2", "backing-2")?;
                Running::Forebay(program)
            }
        };
        let fixture = Fixture {
            dir,
            forebay: forebay_program.to_path_buf(),
            baseline,
            left,
        };
        mountpoint::wait_mounted(&minimal_dir, Duration::from_secs(10))?;
        mount(forebay_program, &path, &mount_dir, "store", "backing")?;
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
        let (mount, other) = (self.forebay(), self.minimal());
        self.umount(&self.forebay, &mount)?;
        match &mut self.baseline {
            Running::Forebay(program) => {
                let program = program.clone();
                self.umount(&program, &other)
            }
            Running::Minimal(child) => {
                mountpoint::unmount(&other, false)?;
                let status = child.wait()?;
                status
                    .success()
                    .then_some(())
                    .ok_or_else(|| io::Error::other(format!("minimal-fs ended badly: {status}")))
            }
        }
    }

    fn umount(&self, program: &Path, mount: &Path) -> io::Result<()> {
        forebay(
            program,
            &self.dir.path().join("umount.out"),
            &["umount".as_ref(), mount.as_os_str()],
        )
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.left.take_down();
        // After its unmount the process ends by itself, and killing it loses nothing. An error of
        // `kill` means that it has ended already.
        if let Running::Minimal(child) = &mut self.baseline
            && child.kill().is_ok()
        {
            drop(child.wait());
        }
    }
}
