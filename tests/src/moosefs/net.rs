//! The cluster's network: one namespace for the master and the clients and one for each target, connected by
//! veth pairs. The addresses are the same in every cluster: they exist in its namespaces only.

use super::keeper::Keeper;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const NAMESPACES: &str = "/run/netns";
const PREFIX: &str = "fbmfs";

const BRIDGE: &str = "02:00:00:00:00:01";
pub const MASTER: &str = "10.77.0.10";

pub fn address(target: usize) -> String {
    format!("10.77.0.{}", 11 + target)
}

/// Returns a name for a new cluster that no other cluster has: two clusters can run at once, also in two
/// programs.
pub fn new_tag() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{count}", std::process::id())
}

/// The cluster's namespaces. The keeper removes them: it knows them by the prefix of their names.
pub struct Network {
    tag: String,
}

impl Network {
    pub fn new(keeper: &Keeper, tag: &str) -> Self {
        ip(keeper, &["netns", "add", tag]);
        ip(keeper, &["-n", tag, "link", "set", "lo", "up"]);
        // The bridge gets a MAC address of its own. Otherwise it takes the address of one of its ports and
        // changes it when that port goes down, and the targets that are left talk to an address that is gone.
        ip(
            keeper,
            &[
                "-n", tag, "link", "add", "br0", "address", BRIDGE, "type", "bridge",
            ],
        );
        let cidr = format!("{MASTER}/24");
        ip(keeper, &["-n", tag, "addr", "add", &cidr, "dev", "br0"]);
        ip(keeper, &["-n", tag, "link", "set", "br0", "up"]);
        Self { tag: tag.into() }
    }

    /// Prefix of the name of every namespace of this cluster.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    pub fn add_target(&self, keeper: &Keeper, target: usize) {
        let (hub, name, port) = (&self.tag, &self.target(target), &port(target));
        ip(keeper, &["netns", "add", name]);
        ip(
            keeper,
            &[
                "link", "add", port, "netns", hub, "type", "veth", "peer", "name", "e0", "netns",
                name,
            ],
        );
        ip(
            keeper,
            &["-n", hub, "link", "set", port, "master", "br0", "up"],
        );
        let cidr = format!("{}/24", address(target));
        ip(keeper, &["-n", name, "addr", "add", &cidr, "dev", "e0"]);
        ip(keeper, &["-n", name, "link", "set", "lo", "up"]);
        ip(keeper, &["-n", name, "link", "set", "e0", "up"]);
    }

    fn target(&self, target: usize) -> String {
        format!("{}-{target}", self.tag)
    }

    /// Namespace of the master and the clients.
    pub fn hub_path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.tag)
    }

    pub fn target_path(&self, target: usize) -> PathBuf {
        Path::new(NAMESPACES).join(self.target(target))
    }

    pub fn link(&self, keeper: &Keeper, target: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(
            keeper,
            &["-n", &self.tag, "link", "set", &port(target), state],
        );
    }

    /// Limits both directions: what is sent to the target and what it answers.
    pub fn limit(&self, keeper: &Keeper, target: usize, mbit: u32) {
        let rate = format!("{mbit}mbit");
        for (namespace, device) in self.ends(target) {
            keeper.run(&[
                "tc", "-n", &namespace, "qdisc", "replace", "dev", &device, "root", "tbf", "rate",
                &rate, "burst", "64k", "latency", "20ms",
            ]);
        }
    }

    pub fn unlimit(&self, keeper: &Keeper, target: usize) {
        for (namespace, device) in self.ends(target) {
            keeper.run(&[
                "tc", "-n", &namespace, "qdisc", "del", "dev", &device, "root",
            ]);
        }
    }

    fn ends(&self, target: usize) -> [(String, String); 2] {
        [
            (self.tag.clone(), port(target)),
            (self.target(target), "e0".into()),
        ]
    }
}

/// Name of the cluster's end of a target's veth pair; the other end is `e0`.
fn port(target: usize) -> String {
    format!("v{target}")
}

fn ip(keeper: &Keeper, args: &[&str]) {
    keeper.run(&[&["ip"], args].concat());
}

/// Returns the namespaces whose names begin with `tag`.
pub fn namespaces(tag: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(NAMESPACES) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name == tag || name.starts_with(&format!("{tag}-")))
        .collect()
}

/// Makes the command run in the network namespace. It keeps the caller's mounts, which `ip netns exec` would
/// hide.
pub fn enter(command: &mut Command, namespace: &Path) {
    let file = open(namespace);
    // SAFETY: between fork and exec only setns is called, a plain system call; the descriptor
    // lives as long as the closure.
    unsafe {
        command.pre_exec(move || set(&file));
    }
}

/// Moves the calling thread into the namespace, and processes that it starts.
pub fn enter_thread(namespace: &Path) -> io::Result<()> {
    set(&open(namespace))
}

fn open(namespace: &Path) -> File {
    File::open(namespace).unwrap_or_else(|e| panic!("open {}: {e}", namespace.display()))
}

fn set(namespace: &File) -> io::Result<()> {
    // SAFETY: takes an open descriptor and a number.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
