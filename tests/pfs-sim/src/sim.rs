//! A simulator process for a test or a benchmark: starts it, sends it commands and takes it down.

use crate::settings::{Change, Target};
use crate::tally::{Config, Counters};
use crate::virtual_files;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a simulator may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Settings of a simulator. Values that are not set have the defaults of `pfs-sim --help`.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    program: Option<PathBuf>,
    args: Vec<OsString>,
}

impl Builder {
    /// Uses this program instead of the `pfs-sim` beside the running program.
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = Some(path.into());
        self
    }

    /// Sets any option of the command line; `name` is without the dashes. The last option of a name
    /// counts.
    pub fn option(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.args.push(format!("--{name}").into());
        self.args.push(value.into());
        self
    }

    pub fn osts(self, count: usize) -> Self {
        self.option("osts", count.to_string())
    }

    pub fn bandwidth(self, bytes_per_second: &str) -> Self {
        self.option("bandwidth", bytes_per_second)
    }

    pub fn latency(self, per_request: &str) -> Self {
        self.option("latency", per_request)
    }

    pub fn jitter(self, share: &str) -> Self {
        self.option("jitter", share)
    }

    pub fn capacity(self, bytes: &str) -> Self {
        self.option("capacity", bytes)
    }

    /// `osts` is a number, a range or a list.
    pub fn slow(self, osts: &str, bytes_per_second: &str) -> Self {
        self.option("slow", format!("{osts}={bytes_per_second}"))
    }

    pub fn stripe(self, size: &str, count: usize) -> Self {
        let this = self.option("stripe-size", size);
        this.option("stripe-count", count.to_string())
    }

    pub fn lock_cost(self, time: &str) -> Self {
        self.option("lock-cost", time)
    }

    /// Sets how many bytes each client may have acknowledged but not yet served, per OST.
    pub fn write_behind(self, bytes: &str) -> Self {
        self.option("write-behind", bytes)
    }

    /// Refuses to open files with O_DIRECT.
    pub fn no_direct(self) -> Self {
        self.flag("no-direct")
    }

    /// Sets an option without a value.
    pub fn flag(mut self, name: &str) -> Self {
        self.args.push(format!("--{name}").into());
        self
    }

    /// Answers ESTALE about a file that has lost its last name and is not open.
    pub fn forgets_removed(mut self) -> Self {
        self.args.push("--forgets-removed".into());
        self
    }

    pub fn seed(self, seed: u64) -> Self {
        self.option("seed", seed.to_string())
    }

    /// Mounts the file system on these directories, each for one client, and returns when all of
    /// them answer.
    pub fn start(self, mountpoints: &[impl AsRef<Path>]) -> io::Result<Sim> {
        let program = match self.program {
            Some(program) => program,
            None => find_program()?,
        };
        let mounts: Vec<PathBuf> = mountpoints.iter().map(|m| m.as_ref().to_owned()).collect();
        let mut command = Command::new(&program);
        command.args(&mounts).args(&self.args);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: between fork and exec only prctl is called, which is a plain system call.
        unsafe {
            command.pre_exec(
                || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                },
            );
        }
        let mut child = command
            .spawn()
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", program.display())))?;
        let output = child.stdout.take();
        let sim = Sim { child, mounts };
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line)?;
        }
        if !line.starts_with("mounted ") {
            return Err(io::Error::other(
                "pfs-sim did not start; it says why on standard error",
            ));
        }
        Ok(sim)
    }
}

/// Returns `PFS_SIM_BIN`, or `pfs-sim` in the directory of this build.
fn find_program() -> io::Result<PathBuf> {
    if let Some(path) = std::env::var_os("PFS_SIM_BIN") {
        return Ok(path.into());
    }
    let exe = std::env::current_exe()?;
    let dirs = exe.ancestors().skip(1).take(2);
    let candidates: Vec<PathBuf> = dirs.map(|dir| dir.join("pfs-sim")).collect();
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "the program pfs-sim is missing; build it: cargo build -p pfs-sim (same profile)",
        )
    })
}

/// A running simulator. It ends and is unmounted when this value is dropped, and it ends when the
/// thread that started it ends.
pub struct Sim {
    child: Child,
    mounts: Vec<PathBuf>,
}

impl Sim {
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the mount points in the order in which they were given.
    pub fn mounts(&self) -> &[PathBuf] {
        &self.mounts
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of a file of the simulator itself, such as `target_obd`.
    pub fn own_file(&self, name: &str) -> PathBuf {
        self.mounts[0].join(virtual_files::NAME).join(name)
    }

    /// Writes the list of OSTs below `root` where a Lustre client has it below `/`. The list is a
    /// copy, because another mount may hide the original later.
    pub fn lustre_root(&self, root: &Path) -> io::Result<()> {
        let dir = root.join("proc/fs/lustre/lov/sim-clilov-0000000000000001");
        std::fs::create_dir_all(&dir)?;
        let list = std::fs::read(self.own_file("target_obd"))?;
        std::fs::write(dir.join("target_obd"), list)
    }

    pub fn counters(&self) -> io::Result<Counters> {
        let text = std::fs::read(self.own_file("counters"))?;
        Ok(serde_json::from_slice(&text)?)
    }

    pub fn config(&self) -> io::Result<Config> {
        let text = std::fs::read(self.own_file("config"))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Changes one OST, or several.
    pub fn set(&self, ost: impl Into<Target>, change: Change) -> io::Result<()> {
        self.command(&Change {
            ost: Some(ost.into()),
            ..change
        })
    }

    pub fn set_all(&self, change: Change) -> io::Result<()> {
        self.set(Target::all(), change)
    }

    pub fn reset_counters(&self) -> io::Result<()> {
        self.command(&Change {
            reset: Some("counters".into()),
            ..Change::default()
        })
    }

    /// Sets the cost of each lock move from now on.
    pub fn set_lock_cost(&self, time: &str) -> io::Result<()> {
        self.command(&Change {
            lock_cost: Some(time.into()),
            ..Change::default()
        })
    }

    fn command(&self, change: &Change) -> io::Result<()> {
        let control = self.own_file("control");
        let text = serde_json::to_string(change)?;
        std::fs::write(&control, text).map_err(|e| match std::fs::read_to_string(&control) {
            Ok(sentence) if e.raw_os_error() == Some(libc::EINVAL) => {
                io::Error::new(e.kind(), sentence.trim().to_owned())
            }
            _ => e,
        })
    }

    /// Ends the simulator: pending requests fail, and the mounts are removed.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        if self.child.try_wait()?.is_none() {
            let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        }
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > PATIENCE {
                self.child.kill()?;
                self.child.wait()?;
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for mount in &self.mounts {
            crate::mount::unmount(mount)?;
        }
        Ok(())
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            eprintln!("pfs-sim {} could not be ended: {e}", self.child.id());
        }
    }
}
