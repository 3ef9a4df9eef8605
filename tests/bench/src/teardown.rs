//! Removes everything that a benchmark made, also when it is interrupted. Mounts and processes are
//! registered before they are made; the owner's drop and the signal thread both take them down.

use crate::mountpoint;
use nix::sys::signal::{self, SigSet, Signal};
use nix::unistd::Pid;
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};

static REGISTER: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    /// Removed with its content after an interruption.
    dir: PathBuf,
    mounts: Vec<PathBuf>,
    processes: Vec<Pid>,
    clusters: Vec<PathBuf>,
}

/// Mounts, processes and nodes that belong to one temporary directory and have to be taken down.
pub struct Left(PathBuf);

impl Left {
    pub fn below(dir: &Path) -> Left {
        REGISTER.lock().push(Entry {
            dir: dir.to_owned(),
            mounts: Vec::new(),
            processes: Vec::new(),
            clusters: Vec::new(),
        });
        Left(dir.to_owned())
    }

    fn entry(&self, change: impl FnOnce(&mut Entry)) {
        let mut register = REGISTER.lock();
        if let Some(entry) = register.iter_mut().find(|entry| entry.dir == self.0) {
            change(entry);
        }
    }

    /// Registers a mount point. Must be called before mounting. Mounts are unmounted in the order
    /// in which they were registered.
    pub fn mount(&mut self, dir: &Path) {
        self.entry(|entry| entry.mounts.push(dir.to_owned()));
    }

    /// Registers a child that must not go on when the benchmark is interrupted.
    /// [`Left::forget_process`] must be called before the child is waited for: its number may
    /// belong to another process afterwards.
    pub fn process(&mut self, pid: u32) {
        self.entry(|entry| entry.processes.push(Pid::from_raw(pid as i32)));
    }

    pub fn forget_process(&mut self, pid: u32) {
        self.entry(|entry| entry.processes.retain(|known| known.as_raw() != pid as i32));
    }

    /// Registers the state directory of nodes that must not outlive an interruption. Must be called
    /// before they are made.
    pub fn cluster(&mut self, state: &Path) {
        self.entry(|entry| entry.clusters.push(state.to_owned()));
    }

    /// Unmounts what is still mounted. Processes and nodes are ended by their owners.
    pub fn take_down(&mut self) {
        let mut mounts = Vec::new();
        self.entry(|entry| mounts.append(&mut entry.mounts));
        for problem in unmount_all(&mounts) {
            eprintln!("{problem}");
        }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.take_down();
        REGISTER.lock().retain(|entry| entry.dir != self.0);
    }
}

fn unmount_all(mounts: &[PathBuf]) -> Vec<io::Error> {
    let unmount = |dir: &PathBuf| match mountpoint::is_mounted(dir)? {
        true => mountpoint::unmount(dir, true),
        false => Ok(()),
    };
    mounts.iter().filter_map(|dir| unmount(dir).err()).collect()
}

/// On SIGINT, SIGTERM and SIGHUP takes everything down and ends the program. Must be called before
/// any thread starts.
pub fn on_signals() -> io::Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let signal = signals.wait().map_or(0, |s| s as i32);
            // Later entries may depend on earlier ones.
            for entry in REGISTER.lock().drain(..).rev() {
                clear(&entry);
            }
            std::process::exit(128 + signal);
        })?;
    Ok(())
}

fn clear(entry: &Entry) {
    for state in &entry.clusters {
        if let Err(failure) = forebay_cluster::end(state) {
            eprintln!("the nodes in {}: {failure}", state.display());
        }
    }
    for pid in &entry.processes {
        if let Err(errno) = signal::kill(*pid, Signal::SIGKILL) {
            eprintln!("cannot end process {pid}: {errno}");
        }
    }
    let problems = unmount_all(&entry.mounts);
    for problem in &problems {
        eprintln!("{problem}");
    }
    // A mount that could not be removed still shows another file system's files, which must not be
    // deleted.
    if problems.is_empty()
        && let Err(error) = std::fs::remove_dir_all(&entry.dir)
    {
        eprintln!("{}: {error}", entry.dir.display());
    }
}
