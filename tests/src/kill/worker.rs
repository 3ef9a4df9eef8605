//! One writer of the kill test. It works until the mount fails under it or the test closes its pipe.

use super::{Act, BLOCK, BLOCKS_PER_WORKER, MAX_SIZE, Note, SHARED, content};
use crate::rng::Rng;
use crate::sys;
use crate::wait::wait_until;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

/// A living daemon would have answered long before.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Task {
    pub mount: PathBuf,
    pub notes: PathBuf,
    pub worker: u64,
    pub workers: u64,
    pub seed: u64,
    /// Number of the first operation. Numbers go on counting from one daemon to the next.
    pub first: u64,
}

pub struct Worker {
    rng: Rng,
    notes: File,
    /// Holds on to the mount: once it is dead and detached, its path is a plain directory again,
    /// and a write there would count as acknowledged.
    root: File,
    open: BTreeMap<String, File>,
    task: Task,
}

impl Worker {
    pub fn new(task: Task) -> io::Result<Self> {
        Ok(Self {
            rng: Rng::derive(task.seed ^ (task.worker << 40), task.first),
            notes: OpenOptions::new()
                .create(true)
                .append(true)
                .open(&task.notes)?,
            root: File::open(&task.mount)?,
            open: BTreeMap::new(),
            task,
        })
    }

    /// Works until a call fails, which shows that the daemon is dead. Writes a dot to `progress` for each
    /// acknowledged operation.
    pub fn run(&mut self, mut progress: impl Write) -> io::Result<()> {
        for seq in self.task.first.. {
            let (file, act) = self.choose();
            self.note(&Note::Begin {
                seq,
                file: file.clone(),
                act: act.clone(),
            })?;
            if let Err(e) = self.act(seq, &file, &act) {
                return if self.daemon_is_dead(&e) {
                    Ok(())
                } else {
                    Err(e)
                };
            }
            self.note(&Note::Done { seq })?;
            if let Err(e) = progress.write_all(b".") {
                // The test has closed its end of the pipe: stop.
                return if e.kind() == io::ErrorKind::BrokenPipe {
                    Ok(())
                } else {
                    Err(e)
                };
            }
        }
        Ok(())
    }

    /// Writes a note in a single call, so that no note is ever there in part.
    fn note(&mut self, note: &Note) -> io::Result<()> {
        let mut line = serde_json::to_vec(note)?;
        line.push(b'\n');
        self.notes.write_all(&line)
    }

    fn choose(&mut self) -> (String, Act) {
        let rng = &mut self.rng;
        let own = format!("own-{}-{}", self.task.worker, rng.below(3));
        match rng.below(100) {
            0..45 => {
                let block = rng.below(BLOCKS_PER_WORKER) * self.task.workers + self.task.worker;
                let start = if rng.one_in(2) { 0 } else { rng.below(BLOCK) };
                let len = if start == 0 {
                    BLOCK
                } else {
                    rng.size(BLOCK - start)
                };
                let at = block * BLOCK + start;
                (SHARED.into(), Act::Write { at, len })
            }
            45..82 => {
                let len = rng.size(200 << 10);
                let at = rng.below(MAX_SIZE - len);
                (own, Act::Write { at, len })
            }
            82..90 => {
                let size = rng.below(MAX_SIZE);
                (own, Act::Truncate { size })
            }
            90..94 => (own, Act::Unlink),
            94..97 => (own, Act::Sync),
            _ => (SHARED.into(), Act::Sync),
        }
    }

    /// Whether the error shows that the daemon is dead. The kernel answers EIO for a request that a thread of
    /// the daemon was just reading when it was killed; the connection ends a moment later. Any other EIO is a
    /// finding.
    fn daemon_is_dead(&self, error: &io::Error) -> bool {
        if error.raw_os_error() == Some(libc::EIO) {
            let nobody = format!("/proc/self/fd/{}/no-such-file", self.root.as_raw_fd());
            wait_until("the daemon that answered EIO is dead", PATIENCE, || {
                let asked = std::fs::symlink_metadata(&nobody);
                asked.err().filter(tells_of_death)
            });
            return true;
        }
        tells_of_death(error)
    }

    fn act(&mut self, seq: u64, name: &str, act: &Act) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}/{name}", self.root.as_raw_fd());
        if *act == Act::Unlink {
            self.open.remove(name);
            return match std::fs::remove_file(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            };
        }
        // Keep some files open and close others, to exercise both paths.
        if self.rng.one_in(5) {
            self.open.remove(name);
        }
        if !self.open.contains_key(name) {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            self.open.insert(name.into(), file);
        }
        let file = &self.open[name];
        match act {
            Act::Write { at, len } => {
                let data = content(self.task.seed, self.task.worker, seq, *len);
                sys::write_all_at(file, &data, *at)
            }
            Act::Truncate { size } => file.set_len(*size),
            Act::Sync => file.sync_all(),
            Act::Unlink => Ok(()),
        }
    }
}

/// Whether this is one of the errors that a dead daemon causes. Any other error is a finding.
fn tells_of_death(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECONNREFUSED)
    )
}
