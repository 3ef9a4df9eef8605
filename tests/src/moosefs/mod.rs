//! A real MooseFS cluster for one test: a master, targets that can be slowed, cut off, frozen and stopped one
//! by one, and client mounts that any process can use.
//!
//! Each target is a chunkserver with a label of its own (`A`, `B`, …) in a network namespace of its own. All
//! files of the cluster are below one temporary directory. Whatever happens to the test, the cluster's
//! mounts, processes and namespaces are gone when the [`MooseFs`] is dropped, and soon after the test program
//! is killed.
//!
//! MooseFS' tools and `mfscli` talk to the master over the network. So they, and every program that calls
//! them, must run in the cluster's network: [`MooseFs::enter`] does that for a command, [`MooseFs::inside`]
//! for a function. Plain file access through a mount works from anywhere.
//!
//! A call into a mount whose target is away blocks. Make such calls on a thread that is not scoped: a scope
//! would wait for the thread before the cluster is dropped, and only dropping the cluster ends the call.

mod keeper;
mod net;
mod place;

pub use place::{Copy, traces};

use crate::wait::{LONG, wait_until};
use crate::watchdog::Watchdog;
use crate::{prereq, sys};
use keeper::{Daemon, Keeper};
use net::Network;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const MASTER_PORT: u16 = 19421;
/// Bytes that each target leaves free on its disk.
pub const KEPT_FREE: u64 = 64 << 20;
const EXPORTS: &str = "exports.cfg";
/// Rights of clients, in the syntax of `mfsexports.cfg`, unless [`MooseFs::export`] sets others.
pub const ALL_RIGHTS: &str = "rw,alldirs,admin,maproot=0:0";
const EMPTY_METADATA: &str = "/var/lib/mfs/metadata.mfs.empty";
/// How long the master keeps the session of a client that is gone without signing off.
const SUSTAINED: Duration = Duration::from_secs(60);
/// After this time the master has certainly given up such a session: it checks every ten seconds, but not in
/// its own first two minutes.
pub const GIVEN_UP: Duration = SUSTAINED.saturating_add(Duration::from_secs(120 + 20));
/// If a test hangs in a mount for this long, the mount is removed.
const MOUNT_LIMIT: Duration = Duration::from_secs(240);

struct Mounted {
    // Must be before `daemon`, so that it is dropped first: it must not fire while the mount is taken down.
    watchdog: Watchdog,
    daemon: Daemon,
}

pub struct MooseFs {
    mounts: Mutex<BTreeMap<String, Mounted>>,
    targets: Vec<Mutex<Option<Daemon>>>,
    master: Option<Daemon>,
    network: Network,
    keeper: Keeper,
    root: PathBuf,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks for root, FUSE and Debian's MooseFS packages.
pub fn prerequisites() {
    prereq::mounting();
    prereq::program("mfsmaster", "moosefs-master");
    prereq::program("mfschunkserver", "moosefs-chunkserver");
    prereq::program("mfsmount", "moosefs-client");
    prereq::program("mfscli", "moosefs-cli");
    prereq::program("ip", "iproute2");
    prereq::program("tc", "iproute2");
    assert!(
        Path::new(EMPTY_METADATA).is_file(),
        "{EMPTY_METADATA} is missing; install it: apt-get install --reinstall moosefs-master"
    );
}

impl MooseFs {
    /// Starts a cluster of `targets` targets, all connected and ready for writes. Nothing is mounted.
    pub fn start(targets: usize) -> Self {
        Self::start_on(&vec![None; targets])
    }

    /// Like `start`, but a target with a number keeps its chunks on a disk of that many bytes, of which it
    /// leaves [`KEPT_FREE`] free.
    pub fn start_on(disks: &[Option<u64>]) -> Self {
        prerequisites();
        let targets = disks.len();
        assert!(
            (1..=26).contains(&targets),
            "a MooseFS cluster has one label per target: 1 to 26 targets, not {targets}"
        );
        let tag = net::new_tag();
        let root = tempfile::Builder::new()
            .prefix(&format!("{tag}-"))
            .tempdir()
            .expect("create the cluster's directory")
            .keep();
        let keeper = Keeper::start(&root, &tag);
        let network = Network::new(&keeper, &tag);
        let mut cluster = Self {
            mounts: Mutex::default(),
            targets: Vec::new(),
            master: None,
            network,
            keeper,
            root,
        };
        cluster.start_master();
        for (target, size) in disks.iter().enumerate() {
            cluster.network.add_target(&cluster.keeper, target);
            cluster.configure_target(target, *size);
            let daemon = cluster.spawn_target(target);
            cluster.targets.push(Mutex::new(Some(daemon)));
        }
        cluster.wait_ready(&(0..targets).collect::<Vec<_>>());
        cluster
    }

    /// Directory of this cluster: mounts, logs, chunks.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Prefix of the names of the cluster's namespaces.
    pub fn tag(&self) -> &str {
        self.network.tag()
    }

    pub fn targets(&self) -> usize {
        self.targets.len()
    }

    pub fn label(&self, target: usize) -> char {
        assert!(target < self.targets.len(), "there is no target {target}");
        label(target)
    }

    /// Returns `ADDRESS:PORT`, as MooseFS' tools name a target.
    pub fn address(&self, target: usize) -> String {
        format!("{}:{}", net::address(target), MASTER_PORT + 1)
    }

    fn start_master(&mut self) {
        let data = self.root().join("master");
        std::fs::create_dir(&data).expect("create the master's directory");
        std::fs::copy(EMPTY_METADATA, data.join("metadata.mfs")).expect("copy the empty metadata");
        let exports = self.root().join(EXPORTS);
        std::fs::write(&exports, format!("* / {ALL_RIGHTS}\n")).expect("write the exports");
        let mut config = settings(&[
            ("DATA_PATH", &data.to_string_lossy()),
            ("EXPORTS_FILENAME", &exports.to_string_lossy()),
            // The shortest round that the master accepts, and deletions that keep up with a test.
            ("CHUNKS_LOOP_MIN_TIME", "60"),
            ("CHUNKS_SOFT_DEL_LIMIT", "200"),
            ("CHUNKS_HARD_DEL_LIMIT", "500"),
            // Also the shortest: how long files that a dead client had open are kept for it (by default a
            // day).
            ("SESSION_SUSTAIN_TIME", &SUSTAINED.as_secs().to_string()),
        ]);
        for (service, port) in [("ML", 19419), ("CS", 19420), ("CL", MASTER_PORT)] {
            writeln!(config, "MATO{service}_LISTEN_HOST = {}", net::MASTER).expect("a string");
            writeln!(config, "MATO{service}_LISTEN_PORT = {port}").expect("a string");
        }
        let path = self.root().join("master.cfg");
        std::fs::write(&path, config).expect("write the master's settings");
        let log = self.root().join("master.log");
        self.master = Some(self.keeper.spawn(
            &["mfsmaster", "-f", "-c", text(&path), "start"],
            &self.network.hub_path(),
            &log,
        ));
    }

    fn configure_target(&self, target: usize, size: Option<u64>) {
        let at = |what: &str| self.root().join(format!("{what}{target}"));
        let (data, disk) = (at("chunkserver"), at("disk"));
        std::fs::create_dir(&data).expect("create the target's directory");
        std::fs::create_dir(&disk).expect("create the target's disk");
        if let Some(size) = size {
            // The keeper unmounts it.
            let size = format!("size={size}");
            let mount = ["mount", "-t", "tmpfs", "-o", &size, "tmpfs", text(&disk)];
            self.keeper.run(&mount);
        }
        let disks = at("disks");
        std::fs::write(&disks, format!("{}\n", disk.display())).expect("write the list of disks");
        let address = net::address(target);
        let config = settings(&[
            ("DATA_PATH", &data.to_string_lossy()),
            ("HDD_CONF_FILENAME", &disks.to_string_lossy()),
            ("LABELS", &label(target).to_string()),
            ("BIND_HOST", &address),
            ("MASTER_HOST", net::MASTER),
            ("MASTER_PORT", "19420"),
            ("MASTER_RECONNECTION_DELAY", "1"),
            ("CSSERV_LISTEN_HOST", &address),
            ("CSSERV_LISTEN_PORT", &(MASTER_PORT + 1).to_string()),
            (
                "HDD_LEAVE_SPACE_DEFAULT",
                &format!("{}MiB", KEPT_FREE >> 20),
            ),
        ]);
        std::fs::write(at("target"), config).expect("write the target's settings");
    }

    fn spawn_target(&self, target: usize) -> Daemon {
        let config = self.root().join(format!("target{target}"));
        let log = self.root().join(format!("target{target}.log"));
        self.keeper.spawn(
            &["mfschunkserver", "-f", "-c", text(&config), "start"],
            &self.network.target_path(target),
            &log,
        )
    }

    /// Waits until the master knows these targets and the size of their disks: before that it has no room for
    /// a chunk.
    pub fn wait_ready(&self, targets: &[usize]) {
        wait_until(&format!("targets {targets:?} are ready"), LONG, || {
            self.check();
            let ready = self.connected();
            targets.iter().all(|t| ready.contains(t)).then_some(())
        });
    }

    /// Waits until the master has noticed that a target is away.
    pub fn wait_lost(&self, target: usize) {
        wait_until(&format!("the master misses target {target}"), LONG, || {
            (!self.connected().contains(&target)).then_some(())
        });
    }

    /// Checks that every daemon that the test has not stopped is running.
    fn check(&self) {
        for target in &self.targets {
            if let Some(daemon) = lock(target).as_ref() {
                daemon.check();
            }
        }
    }

    /// Creates a client mount that every process of this machine can use.
    pub fn mount(&self, name: &str) -> PathBuf {
        self.mount_with(name, &[])
    }

    /// Like `mount`, with mount options such as `mfstimeout=5`.
    pub fn mount_with(&self, name: &str, options: &[&str]) -> PathBuf {
        let point = self.mount_point(name);
        std::fs::create_dir_all(&point).expect("create the mount point");
        let port = MASTER_PORT.to_string();
        let mut command = vec!["mfsmount", "-f", "-H", net::MASTER, "-P", &port];
        command.extend(options.iter().flat_map(|option| ["-o", option]));
        command.push(text(&point));
        let log = self.root().join(format!("mount-{name}.log"));
        let daemon = self.keeper.spawn(&command, &self.network.hub_path(), &log);
        let watchdog = Watchdog::new(point.clone(), MOUNT_LIMIT);
        watchdog.watch(Some(daemon.pid()));
        wait_until(&format!("mfsmount {name}"), LONG, || {
            daemon.check();
            sys::is_mounted(&point).then_some(())
        });
        let mounted = Mounted { watchdog, daemon };
        if let Some(old) = lock(&self.mounts).insert(name.to_owned(), mounted) {
            drop(old);
            panic!("there is a mount {name} already");
        }
        self.keep_one_copy(&point);
        point
    }

    /// Creates one client mount per target, named by the target's label: a call that hangs on one target then
    /// blocks no call on another.
    pub fn mount_many(&self) -> Vec<PathBuf> {
        (0..self.targets.len())
            .map(|target| self.mount(&label(target).to_string()))
            .collect()
    }

    pub fn mount_point(&self, name: &str) -> PathBuf {
        self.root().join("mnt").join(name)
    }

    /// Process id of the client behind a mount.
    pub fn mount_pid(&self, name: &str) -> i32 {
        let mounts = lock(&self.mounts);
        let mounted = mounts.get(name);
        mounted
            .unwrap_or_else(|| panic!("there is no mount {name}"))
            .daemon
            .pid()
    }

    /// Removes a mount, whatever still waits in it.
    pub fn unmount(&self, name: &str) {
        let mounted = lock(&self.mounts).remove(name);
        take_down(
            &self.mount_point(name),
            mounted.unwrap_or_else(|| panic!("there is no mount {name}")),
        );
    }

    /// Limits writes to the target and reads from it to this rate. Other targets are not affected.
    pub fn slow(&self, target: usize, mbit: u32) {
        self.network.limit(&self.keeper, target, mbit);
    }

    pub fn unslow(&self, target: usize) {
        self.network.unlimit(&self.keeper, target);
    }

    pub fn cut_link(&self, target: usize) {
        self.network.link(&self.keeper, target, false);
    }

    pub fn restore_link(&self, target: usize) {
        self.network.link(&self.keeper, target, true);
    }

    /// Sends SIGSTOP: the target is there and does not answer.
    pub fn freeze(&self, target: usize) {
        self.signal(target, Signal::SIGSTOP);
    }

    pub fn thaw(&self, target: usize) {
        self.signal(target, Signal::SIGCONT);
    }

    fn signal(&self, target: usize, signal: Signal) {
        match lock(&self.targets[target]).as_ref() {
            Some(daemon) => daemon.signal(signal),
            None => panic!("target {target} is stopped"),
        }
    }

    /// Stops the target gracefully. Returns when its process has ended. (A killed chunkserver loses data.)
    pub fn stop_target(&self, target: usize) {
        let daemon = lock(&self.targets[target]).take();
        daemon
            .unwrap_or_else(|| panic!("target {target} is stopped already"))
            .terminate();
    }

    /// Starts a stopped target. Returns when the master has it again.
    pub fn start_target(&self, target: usize) {
        {
            let mut slot = lock(&self.targets[target]);
            assert!(slot.is_none(), "target {target} is running");
            *slot = Some(self.spawn_target(target));
        }
        self.wait_ready(&[target]);
    }

    /// Makes the command run in the cluster's network, as a client there.
    pub fn enter(&self, command: &mut Command) {
        net::enter(command, &self.network.hub_path());
    }

    /// Runs `act` on a thread in the cluster's network. Processes that it starts are there too.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let hub = self.network.hub_path();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                net::enter_thread(&hub).expect("enter the cluster's network");
                act()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for MooseFs {
    fn drop(&mut self) {
        // The watchdogs of the mounts must be gone before the keeper kills the processes.
        for (name, mounted) in std::mem::take(&mut *lock(&self.mounts)) {
            take_down(&self.mount_point(&name), mounted);
        }
        // The keeper removes the rest, and the mounts as well if a test is killed.
    }
}

/// Removes a mount. Ends the client first: a plain unmount could wait for a target that is away, and nothing
/// can wait in a mount without a client. Detaching is for a mount that a process still uses.
fn take_down(point: &Path, mounted: Mounted) {
    drop(mounted.watchdog);
    mounted.daemon.kill();
    match nix::mount::umount2(point, nix::mount::MntFlags::empty()) {
        Ok(()) | Err(nix::errno::Errno::EINVAL) => {}
        Err(_) => {
            if let Err(e) = sys::detach(point) {
                eprintln!("umount -l {}: {e}", point.display());
            }
        }
    }
}

fn label(target: usize) -> char {
    char::from(b'A' + u8::try_from(target).expect("at most 26 targets"))
}

fn settings(own: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let common = [("WORKING_USER", "root"), ("WORKING_GROUP", "root")];
    for (key, value) in common.iter().chain(own) {
        writeln!(text, "{key} = {value}").expect("a string");
    }
    text
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are plain text")
}
