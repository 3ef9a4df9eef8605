//! A small ext4 file system for one test, so that the test can fill it up or break it.

use crate::{prereq, sys};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct LoopFs {
    dir: PathBuf,
}

impl LoopFs {
    /// Creates a file system of `bytes` in `image` and mounts it on the new directory `dir`. No blocks are
    /// reserved for root: "full" is the same for every user.
    pub fn new(image: &Path, dir: &Path, bytes: u64) -> Self {
        Self::with_reserve(image, dir, bytes, 0)
    }

    /// Like `new`, but reserves `percent` of the file system for root: it is full earlier for other users.
    pub fn with_reserve(image: &Path, dir: &Path, bytes: u64, percent: u32) -> Self {
        prereq::program("mkfs.ext4", "e2fsprogs");
        let file = File::create(image).expect("create the image");
        file.set_len(bytes).expect("size the image");
        std::fs::create_dir(dir).expect("create the mount point");
        run(Command::new("mkfs.ext4")
            .args(["-q", "-m", &percent.to_string()])
            .arg(image));
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(image)
            .arg(dir));
        Self { dir: dir.into() }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes every later call on this file system fail with EIO, as on a disk that is gone.
    pub fn break_down(&self) -> io::Result<()> {
        /// `_IOR('X', 125, __u32)`: EXT4_IOC_SHUTDOWN, with "do not flush the journal".
        const SHUTDOWN: libc::c_ulong = 0x8004_587d;
        const NO_LOG_FLUSH: u32 = 2;
        let dir = File::open(&self.dir)?;
        // SAFETY: the descriptor is open and the argument is the u32 this ioctl reads.
        let rc = unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN as _, &NO_LOG_FLUSH) };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Writes a file until nothing more fits, as other programs do on a disk that the store shares with them.
    pub fn fill(&self) {
        let mut file = File::create(self.dir.join(OTHERS)).expect("create the file of others");
        let mut piece = 1 << 20;
        while piece >= 512 {
            match file.write(&vec![0x55; piece]) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => piece /= 2,
                Err(e) => panic!("filling {}: {e}", self.dir.display()),
            }
        }
    }

    /// Removes the file of `fill`.
    pub fn free(&self) {
        std::fs::remove_file(self.dir.join(OTHERS)).expect("remove the file of others");
    }

    /// Makes the kernel give the file system up, as after an error: what is there can be read, and every
    /// change fails.
    pub fn abort(&self) {
        run(Command::new("mount")
            .args(["-o", "remount,abort"])
            .arg(&self.dir));
    }
}

const OTHERS: &str = "others";

impl Drop for LoopFs {
    fn drop(&mut self) {
        if let Err(e) = sys::detach(&self.dir) {
            eprintln!("umount -l {}: {e}", self.dir.display());
        }
    }
}

fn run(command: &mut Command) {
    let out = command.output().expect("start a system program");
    assert!(
        out.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}
