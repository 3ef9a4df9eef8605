//! The cluster's network: one namespace for the master and the clients, one per target, a veth
//! pair between. The addresses are the same in every cluster: they exist in its namespaces only.

use super::run;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const NAMESPACES: &str = "/run/netns";
/// Names begin with this and the process id, so that what a killed test left can be told from
/// what a running one uses.
const PREFIX: &str = "fbmfs";

pub const MASTER: &str = "10.77.0.10";

pub fn address(target: usize) -> String {
    format!("10.77.0.{}", 11 + target)
}

pub struct Network {
    tag: String,
    namespaces: Vec<String>,
}

impl Network {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let tag = format!("{PREFIX}{}-{count}", std::process::id());
        let mut network = Self {
            tag: tag.clone(),
            namespaces: Vec::new(),
        };
        network.add(&tag);
        ip(&["-n", &tag, "link", "set", "lo", "up"]);
        ip(&["-n", &tag, "link", "add", "br0", "type", "bridge"]);
        let cidr = format!("{MASTER}/24");
        ip(&["-n", &tag, "addr", "add", &cidr, "dev", "br0"]);
        ip(&["-n", &tag, "link", "set", "br0", "up"]);
        network
    }

    /// What every namespace of this cluster is called, at its beginning.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    fn add(&mut self, name: &str) {
        ip(&["netns", "add", name]);
        self.namespaces.push(name.to_owned());
    }

    pub fn add_target(&mut self, target: usize) {
        let (hub, name, port) = (self.tag.clone(), self.target(target), port(target));
        self.add(&name);
        ip(&[
            "link", "add", &port, "netns", &hub, "type", "veth", "peer", "name", "e0", "netns",
            &name,
        ]);
        ip(&["-n", &hub, "link", "set", &port, "master", "br0", "up"]);
        let cidr = format!("{}/24", address(target));
        ip(&["-n", &name, "addr", "add", &cidr, "dev", "e0"]);
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        ip(&["-n", &name, "link", "set", "e0", "up"]);
    }

    fn target(&self, target: usize) -> String {
        format!("{}-{target}", self.tag)
    }

    /// Where the master and the clients live.
    pub fn hub_path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.tag)
    }

    pub fn target_path(&self, target: usize) -> PathBuf {
        Path::new(NAMESPACES).join(self.target(target))
    }

    pub fn link(&self, target: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(&["-n", &self.tag, "link", "set", &port(target), state]);
    }

    /// Both directions: what the target is sent and what it answers.
    pub fn limit(&self, target: usize, mbit: u32) {
        let rate = format!("{mbit}mbit");
        for (namespace, device) in self.ends(target) {
            run(Command::new("tc").args([
                "-n", &namespace, "qdisc", "replace", "dev", &device, "root", "tbf", "rate", &rate,
                "burst", "64k", "latency", "20ms",
            ]));
        }
    }

    pub fn unlimit(&self, target: usize) {
        for (namespace, device) in self.ends(target) {
            run(Command::new("tc").args(["-n", &namespace, "qdisc", "del", "dev", &device, "root"]));
        }
    }

    fn ends(&self, target: usize) -> [(String, String); 2] {
        [
            (self.tag.clone(), port(target)),
            (self.target(target), "e0".into()),
        ]
    }

    /// Processes in any of the namespaces.
    pub fn pids(&self) -> Vec<String> {
        let mut found = Vec::new();
        for namespace in &self.namespaces {
            let out = Command::new("ip")
                .args(["netns", "pids", namespace])
                .output();
            match out {
                Ok(out) => found.extend(
                    String::from_utf8_lossy(&out.stdout)
                        .split_whitespace()
                        .map(str::to_owned),
                ),
                Err(e) => eprintln!("ip netns pids {namespace}: {e}"),
            }
        }
        found
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in self.namespaces.iter().rev() {
            delete(namespace);
        }
    }
}

/// The cluster's end of the pair; the other one is `e0`.
fn port(target: usize) -> String {
    format!("v{target}")
}

fn ip(args: &[&str]) {
    run(Command::new("ip").args(args));
}

fn delete(namespace: &str) {
    match Command::new("ip")
        .args(["netns", "del", namespace])
        .output()
    {
        Ok(out) if out.status.success() => {}
        Ok(out) => eprintln!(
            "ip netns del {namespace}: {}",
            String::from_utf8_lossy(&out.stderr).trim()
        ),
        Err(e) => eprintln!("ip netns del {namespace}: {e}"),
    }
}

/// Names in use that begin with `tag`.
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

/// Removes the namespaces of test programs that were killed.
pub fn sweep() {
    let Ok(entries) = std::fs::read_dir(NAMESPACES) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if owner(&name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            delete(&name);
        }
    }
}

/// The process that made what has this name.
pub fn owner(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(PREFIX)?;
    rest.split('-').next()?.parse().ok()
}

/// The command runs in the network namespace and keeps the caller's mounts, which
/// `ip netns exec` would hide.
pub fn enter(command: &mut Command, namespace: &Path) {
    let file = open(namespace);
    // SAFETY: between fork and exec only setns is called, a plain system call; the descriptor
    // lives as long as the closure.
    unsafe {
        command.pre_exec(move || set(&file));
    }
}

/// Moves the calling thread, and what it starts, into the namespace.
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
