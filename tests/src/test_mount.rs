//! One Forebay mount for one test: created, broken, repaired and removed.

use crate::status::Status;
use crate::wait::{LONG, wait_until};
use crate::watchdog::{self, Watchdog};
use crate::{daemon_log, prereq, sys};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub use crate::files::{assert_same, get, open_rw, put};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    Immediate,
    OnClose,
    Never,
}

impl Drain {
    pub const ALL: [Drain; 3] = [Drain::Immediate, Drain::OnClose, Drain::Never];

    pub fn key(self) -> &'static str {
        match self {
            Drain::Immediate => "immediate",
            Drain::OnClose => "on-close",
            Drain::Never => "never",
        }
    }
}

/// Directories, settings and (while it runs) the daemon of one test mount.
pub struct TestMount {
    watchdog: Watchdog,
    daemon: Option<Child>,
    config: BTreeMap<String, String>,
    rules: String,
    allowed: Vec<String>,
    args: Vec<String>,
    env: Vec<(String, PathBuf)>,
    descriptors: Option<u64>,
    mnt: PathBuf,
    store: PathBuf,
    backing: PathBuf,
    root: TempDir,
}

impl TestMount {
    /// Creates the directories (the daemon creates the store); nothing is mounted yet. All are on the real
    /// disk that holds the temporary directory.
    pub fn new(drain: Drain) -> Self {
        Self::with_limit(drain, Duration::from_secs(240))
    }

    /// Like `new`, for a test that may take longer than others.
    pub fn with_limit(drain: Drain, limit: Duration) -> Self {
        prereq::mounting();
        let root = tempfile::Builder::new()
            .prefix("forebay-test-")
            .tempdir()
            .expect("make a temporary directory");
        open_to_all(root.path());
        let [mnt, store, backing] = ["mnt", "store", "backing"].map(|name| root.path().join(name));
        for dir in [&mnt, &backing] {
            std::fs::create_dir(dir).expect("make the test's directories");
        }
        std::fs::create_dir(root.path().join("run")).expect("make the runtime directory");
        open_to_all(&backing);
        let mut mount = Self {
            watchdog: Watchdog::new(mnt.clone(), limit),
            daemon: None,
            config: BTreeMap::new(),
            rules: String::new(),
            allowed: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            descriptors: None,
            mnt,
            store,
            backing,
            root,
        };
        mount.set("drain", drain.key());
        mount.set("store-size", "2GiB");
        mount
    }

    /// Sets a text key of the configuration file, for the next start.
    pub fn set(&mut self, key: &str, value: &str) -> &mut Self {
        self.config.insert(key.into(), format!("{value:?}"));
        self
    }

    /// Sets a number key of the configuration file, for the next start.
    pub fn set_number(&mut self, key: &str, value: f64) -> &mut Self {
        self.config.insert(key.into(), value.to_string());
        self
    }

    /// Sets the `[[policy]]` rules of the configuration file, for the next start.
    pub fn rules(&mut self, rules: &[&str]) -> &mut Self {
        self.rules = rules.iter().map(|r| format!("[[policy]]\n{r}\n")).collect();
        self
    }

    /// Adds an argument of `forebay mount`, for the next start.
    pub fn arg(&mut self, arg: &str) -> &mut Self {
        self.args.push(arg.into());
        self
    }

    /// Limits how many files the daemon may have open. The daemon cannot raise the limit.
    pub fn limit_descriptors(&mut self, most: u64) -> &mut Self {
        self.descriptors = Some(most);
        self
    }

    /// Sets an environment variable of every `forebay` command that is started from here on.
    pub fn env(&mut self, name: &str, value: &Path) -> &mut Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Adds storage targets that are directories. All data goes through subfiles on them, and all are used
    /// alike.
    pub fn with_osts(&mut self, count: usize) -> &mut Self {
        for n in 0..count {
            let dir = self.root.path().join(format!("ost{n}"));
            std::fs::create_dir(&dir).expect("make a storage target");
            self.args
                .extend(["--ost".into(), dir.display().to_string()]);
        }
        self.set("subfiles", "always").set("probe", "off")
    }

    /// Subfiles on the storage targets of `with_osts`.
    pub fn subfiles(&self) -> Vec<PathBuf> {
        let osts = (0..).map(|n| self.root.path().join(format!("ost{n}")));
        osts.take_while(|ost| ost.exists())
            .filter_map(|ost| std::fs::read_dir(ost.join(".forebay/subfiles")).ok())
            .flatten()
            .map(|entry| entry.expect("list a storage target").path())
            .collect()
    }

    /// Allows a WARN or ERROR line in the daemon's log that this test provokes.
    pub fn allow_log(&mut self, text: &str) -> &mut Self {
        self.allowed.push(text.into());
        self
    }

    /// Mounts at `dir` from the next start on.
    pub fn set_mnt(&mut self, dir: &Path) -> &mut Self {
        self.mnt = dir.into();
        self
    }

    pub fn set_backing(&mut self, dir: &Path) -> &mut Self {
        self.backing = dir.into();
        self
    }

    pub fn set_store(&mut self, dir: &Path) -> &mut Self {
        self.store = dir.into();
        self
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn mnt(&self) -> &Path {
        &self.mnt
    }

    pub fn store(&self) -> &Path {
        &self.store
    }

    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Path of a name in the mount.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mnt.join(name)
    }

    /// Path of the same name in the backing: the canonical file.
    pub fn canonical(&self, name: impl AsRef<Path>) -> PathBuf {
        self.backing.join(name)
    }

    pub fn log_file(&self) -> PathBuf {
        self.root().join("daemon.log")
    }

    pub fn log(&self) -> String {
        daemon_log::read(&self.log_file())
    }

    /// A `forebay` command in the environment of this test mount.
    pub fn forebay<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(prereq::forebay());
        command
            .args(args)
            .env("FOREBAY_RUNTIME_DIR", self.root().join("run"))
            .env_remove("XDG_RUNTIME_DIR")
            .env("NO_COLOR", "1")
            .env("RUST_LOG", "info")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs a `forebay` command to its end.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.forebay(args).output().expect("start forebay")
    }

    /// `forebay mount …` with the directories and settings of this test mount, not started yet.
    pub fn mount_command(&self) -> Command {
        let file = self.root().join("forebay.toml");
        let text: String = self
            .config
            .iter()
            .map(|(key, value)| format!("{key} = {value}\n"))
            .collect();
        std::fs::write(&file, text + &self.rules).expect("write the configuration");
        let mut command = self.forebay(["mount"]);
        command.arg(&self.mnt);
        command.arg("--store").arg(&self.store);
        command.arg("--backing").arg(&self.backing);
        command.arg("--config").arg(file);
        // A sync may take ten seconds on a disk that other programs also use, and that is not a hang. A test
        // that makes something hang sets its own deadline.
        if !self.config.contains_key("ost-deadline") {
            command.args(["--ost-deadline", "60s"]);
        }
        command.args(&self.args);
        command
    }

    /// Starts the daemon and returns when the mount answers.
    pub fn start(&mut self) -> &mut Self {
        if plain() {
            let none = None::<&str>;
            let bind = nix::mount::MsFlags::MS_BIND;
            nix::mount::mount(Some(&self.backing), &self.mnt, none, bind, none).expect("bind");
            return self;
        }
        self.spawn();
        let mnt = self.mnt.clone();
        let log = self.log_file();
        let child = self.daemon.as_mut().expect("just started");
        wait_until("the mount answers", LONG, || {
            if let Some(status) = child.try_wait().expect("ask after the daemon") {
                panic!(
                    "forebay mount ended with {status} instead of mounting:\n{}",
                    daemon_log::tail(&log, 40)
                );
            }
            (sys::is_mounted(&mnt) && std::fs::metadata(&mnt).is_ok()).then_some(())
        });
        // The control socket appears after the mount. In the background, `mount` waits for both.
        let pid = u64::from(self.pid());
        wait_until("the daemon answers", LONG, || {
            let out = self.run(["status".as_ref(), self.mnt.as_os_str(), "--json".as_ref()]);
            let status = out.status.success().then(|| Status::parse(&out))?;
            (status.0["pid"].as_u64() == Some(pid)).then_some(())
        });
        self
    }

    /// Starts the daemon and waits for nothing.
    pub fn spawn(&mut self) {
        assert!(self.daemon.is_none(), "the daemon runs already");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file())
            .expect("open the daemon's log");
        let mut command = self.mount_command();
        command
            .arg("--foreground")
            .stdout(log.try_clone().expect("share the log"))
            .stderr(log);
        sys::die_with_parent(&mut command);
        if let Some(most) = self.descriptors {
            sys::limit_descriptors(&mut command, most);
        }
        let child = command.spawn().expect("start forebay");
        self.watchdog.watch(Some(child.id() as i32));
        self.daemon = Some(child);
    }

    pub fn running(&self) -> bool {
        self.daemon.is_some()
    }

    /// The daemon's process id.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("the daemon runs").id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid() as i32);
        nix::sys::signal::kill(pid, signal).expect("signal the daemon");
    }

    /// Kills the daemon with `kill -9` and detaches the dead mount: the state after a crash and a clean-up.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.reap();
        sys::detach(&self.mnt).expect("detach the dead mount");
    }

    /// Waits until the daemon has ended by itself and returns its exit code.
    pub fn wait_for_exit(&mut self) -> Option<i32> {
        let child = self.daemon.as_mut().expect("the daemon runs");
        let status = wait_until("the daemon ends", LONG, || {
            child.try_wait().expect("ask after the daemon")
        });
        self.reap();
        status.code()
    }

    /// Waits for the end of a daemon that was killed or has ended.
    fn reap(&mut self) {
        let Some(mut child) = self.daemon.take() else {
            return;
        };
        // A daemon that waits for its own mount survives even kill -9. Aborting the connection frees it, and
        // the test fails.
        let patience = Instant::now() + Duration::from_secs(20);
        while child.try_wait().expect("ask after the daemon").is_none() {
            if Instant::now() > patience {
                let stacks = watchdog::stacks(child.id() as i32);
                sys::force_detach(&self.mnt).expect("abort the connection");
                child.wait().expect("wait for the daemon");
                panic!("the daemon did not die:\n{stacks}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.watchdog.watch(None);
    }

    /// Runs `forebay umount`, which drains and unmounts. Fails the test if that does not work.
    pub fn umount(&mut self) {
        self.umount_with(&[]);
    }

    pub fn umount_with(&mut self, options: &[&str]) {
        if plain() {
            return sys::detach(&self.mnt).expect("unmount");
        }
        let mut args = vec!["umount".as_ref(), self.mnt.as_os_str()];
        args.extend(options.iter().map(OsStr::new));
        // While another test starts a program, its child holds copies of all descriptors of this process
        // until it runs the program, so "busy" may pass.
        let mut tries = 0;
        let out = wait_until("the mount is not busy", LONG, || {
            let out = self.run(&args);
            tries += 1;
            (out.status.code() != Some(crate::cli::BUSY) || tries > 20).then_some(out)
        });
        assert!(
            out.status.success(),
            "forebay umount: {}\n{}\n{}",
            out.status,
            text(&out),
            daemon_log::tail(&self.log_file(), 20)
        );
        if self.running() {
            assert_eq!(self.wait_for_exit(), Some(0), "the daemon's exit code");
        }
        assert!(!sys::is_mounted(&self.mnt), "the mount is still there");
    }

    /// Runs `forebay drain DIR --wait`.
    pub fn drain(&self) {
        if plain() {
            return;
        }
        let out = self.run([
            "drain".as_ref(),
            self.mnt.as_os_str(),
            "--wait".as_ref(),
            "--timeout".as_ref(),
            "120s".as_ref(),
        ]);
        assert!(
            out.status.success(),
            "forebay drain: {}\n{}",
            out.status,
            text(&out)
        );
    }

    pub fn status(&self) -> Status {
        let out = self.run(["status".as_ref(), self.mnt.as_os_str(), "--json".as_ref()]);
        Status::parse(&out)
    }

    /// Unmounts and checks the log. A test that succeeds ends with this.
    pub fn finish(mut self) {
        if self.running() {
            self.umount();
        }
    }

    fn check_log(&self) {
        let bad = daemon_log::unexpected(&self.log(), &self.allowed);
        assert!(
            bad.is_empty(),
            "the daemon logged what the test did not expect:\n{}",
            bad.join("\n")
        );
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if let Some(mut child) = self.daemon.take() {
            let ended = child
                .kill()
                .and_then(|()| sys::force_detach(&self.mnt))
                .and_then(|()| child.wait().map(drop));
            if let Err(e) = ended {
                eprintln!("end the daemon: {e}");
            }
        }
        self.watchdog.watch(None);
        if let Err(e) = sys::detach(&self.mnt) {
            eprintln!("umount -l {}: {e}", self.mnt.display());
        }
        if std::thread::panicking() {
            if std::env::var_os("FOREBAY_KEEP").is_some() {
                self.root.disable_cleanup(true);
                eprintln!("--- kept: {} ---", self.root().display());
            }
            eprintln!(
                "--- the daemon's last words ---\n{}",
                daemon_log::tail(&self.log_file(), 60)
            );
        } else {
            assert!(!self.watchdog.fired(), "the test hung until its limit");
            self.check_log();
        }
    }
}

/// With `FOREBAY_PLAIN=1` the "mount" is the backing itself. The tests of S1 then show what a local file
/// system does, which checks the tests themselves.
fn plain() -> bool {
    std::env::var_os("FOREBAY_PLAIN").is_some()
}

/// Everything a command printed, for messages.
pub fn text(out: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

fn open_to_all(dir: &Path) {
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir, mode).expect("set the mode of a test directory");
}
