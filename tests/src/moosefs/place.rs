//! Uses MooseFS' own tools: which targets are connected, which class pins a file, where its chunks are, and
//! what clients may do. Also finds what a cluster has left behind.

use super::{EXPORTS, MASTER_PORT, MooseFs, lock, net, text};
use crate::wait::{LONG, wait_until};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};

/// A valid copy of one of a file's 64 MiB chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Number of the chunk in the file, from 0.
    pub chunk: u32,
    pub target: usize,
}

impl MooseFs {
    /// Runs a MooseFS tool in the cluster's network and returns what it printed. A tool that hangs is ended,
    /// and fails the test.
    pub fn tool(&self, program: &str, args: &[&str]) -> String {
        let net = format!("--net={}", self.network.hub_path().display());
        let words = [&["nsenter", &net, program], args].concat();
        self.keeper.run(&words)
    }

    /// Returns the targets that are connected to the master and whose size it knows.
    pub fn connected(&self) -> Vec<usize> {
        let port = MASTER_PORT.to_string();
        let said = self.tool(
            "mfscli",
            &["-H", net::MASTER, "-P", &port, "-SCS", "-s", "|"],
        );
        said.lines()
            .map(|line| line.split('|').collect::<Vec<_>>())
            .filter(|fields| fields.len() > 10 && fields[0] == "chunk servers:")
            .filter(|fields| fields[10] != "0")
            .filter_map(|fields| (0..self.targets()).find(|t| fields[1] == net::address(*t)))
            .collect()
    }

    /// Sets the rights of clients from now on, in the syntax of `mfsexports.cfg`, also for existing mounts.
    pub fn export(&self, options: &str) {
        let line = format!("* / {options}\n");
        std::fs::write(self.root().join(EXPORTS), line).expect("write the exports");
        let before = self.exports_read();
        let master = self.master.as_ref().expect("there is a master");
        master.signal(Signal::SIGHUP);
        wait_until("the master has read its exports", LONG, || {
            (self.exports_read() > before).then_some(())
        });
        // The master has closed the connections of all clients. A client connects again, and gets its new
        // rights, when it is asked for something that only the master knows.
        for name in lock(&self.mounts).keys() {
            let point = self.mount_point(name);
            nix::sys::statvfs::statvfs(&point).expect("the client comes back");
        }
    }

    /// How often the master has read its exports.
    fn exports_read(&self) -> usize {
        let log = std::fs::read_to_string(self.root().join("master.log")).expect("read its log");
        log.matches("exports file has been loaded").count()
    }

    /// Has one copy kept of everything, and deleted files removed at once.
    pub(super) fn keep_one_copy(&self, mount: &Path) {
        let mount = text(mount);
        self.tool("mfssetgoal", &["1", mount]);
        self.tool("mfssettrashtime", &["0", mount]);
    }

    /// Creates a directory whose files are all on one target, and nowhere else if the target is full.
    pub fn pinned_dir(&self, mount: &Path, name: &str, target: usize) -> PathBuf {
        let class = format!("on-{}", self.label(target));
        let listed = self.tool("mfsscadmin", &[text(mount), "list"]);
        if !listed.lines().any(|line| line.trim() == class) {
            let label = self.label(target).to_string();
            self.tool(
                "mfsscadmin",
                &[text(mount), "create", "-m", "s", "-K", &label, &class],
            );
        }
        let dir = mount.join(name);
        std::fs::create_dir(&dir).expect("create a pinned directory");
        self.tool("mfssetsclass", &[&class, text(&dir)]);
        dir
    }

    /// Returns every valid copy of every chunk of a file, from `mfsfileinfo`.
    pub fn chunks_of(&self, path: &Path) -> Vec<Copy> {
        let said = self.tool("mfsfileinfo", &[text(path)]);
        let mut copies = Vec::new();
        let mut chunk = None;
        for line in said.lines().map(str::trim_start) {
            if let Some(rest) = line.strip_prefix("chunk ") {
                let index = rest.split(':').next().and_then(|n| n.parse().ok());
                chunk = Some(index.unwrap_or_else(|| panic!("a chunk without a number: {line}")));
            } else if line.starts_with("copy ") && line.contains("status:VALID") {
                let chunk = chunk.unwrap_or_else(|| panic!("a copy of no chunk:\n{said}"));
                let target = (0..self.targets()).find(|t| {
                    let address = format!(": {} ", self.address(*t));
                    line.contains(&address)
                });
                let target = target.unwrap_or_else(|| panic!("a copy on no target: {line}"));
                copies.push(Copy { chunk, target });
            }
        }
        copies
    }
}

/// Returns what is left of a cluster: namespaces, mounts and processes. `tag` and `root` are the cluster's.
pub fn traces(tag: &str, root: &Path) -> Vec<String> {
    let mut found: Vec<String> = net::namespaces(tag)
        .into_iter()
        .map(|name| format!("namespace {name}"))
        .collect();
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("read mountinfo");
    found.extend(
        table
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .filter(|point| Path::new(point).starts_with(root))
            .map(|point| format!("mount {point}")),
    );
    for entry in std::fs::read_dir("/proc")
        .expect("list processes")
        .flatten()
    {
        let dir = entry.path();
        let command = std::fs::read(dir.join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let there = std::fs::read_link(dir.join("cwd")).is_ok_and(|cwd| cwd.starts_with(root));
        if there || command.contains(text(root)) {
            let pid = entry.file_name().to_string_lossy().into_owned();
            found.push(format!("process {pid} {command}"));
        }
    }
    if root.exists() {
        found.push(format!("directory {}", root.display()));
    }
    found
}
