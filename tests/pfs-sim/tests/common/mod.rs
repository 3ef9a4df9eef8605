//! Code that the tests on real mounts share.

// Each test file is a crate of its own and uses only part of this module.
#![allow(dead_code)]

use pfs_sim::{Builder, Sim};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const KIB: u64 = 1024;
pub const MIB: u64 = 1 << 20;

/// Held for reading while a program is being started.
static STARTING: RwLock<()> = RwLock::new(());

/// Prevents programs from being started while the guard lives. A program that is being started has
/// copies of all descriptors of this process and closes them, which counts as closes of these
/// files.
pub fn nothing_starts() -> RwLockWriteGuard<'static, ()> {
    STARTING.write().unwrap_or_else(PoisonError::into_inner)
}

/// A simulator with its mount points in its own directory.
pub struct Bench {
    pub sim: Sim,
    _dir: TempDir,
}

impl Bench {
    /// Starts a simulator with the settings of `builder` and `mounts` clients.
    pub fn new(mounts: usize, builder: Builder) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests mount: run them as root"
        );
        let dir = tempfile::tempdir().expect("a directory");
        let points: Vec<PathBuf> = (0..mounts)
            .map(|i| dir.path().join(i.to_string()))
            .collect();
        for point in &points {
            std::fs::create_dir(point).expect("a mount point");
        }
        let builder = builder.program(env!("CARGO_BIN_EXE_pfs-sim"));
        let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
        let sim = builder.start(&points).expect("start pfs-sim");
        Self { sim, _dir: dir }
    }

    /// Returns the path of `name` for client `mount`.
    pub fn at(&self, mount: usize, name: &str) -> PathBuf {
        self.sim.mounts()[mount].join(name)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.at(0, name)
    }
}

/// A simulator so fast that only what a test configures takes time.
pub fn quick() -> Builder {
    Sim::builder().bandwidth("10G").latency("0").lock_cost("0")
}

pub fn open(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options
        .open(path)
        .unwrap_or_else(|e| panic!("open {}: {e}", path.display()))
}

/// Returns bytes that differ from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Writes with one call, which must write all of it.
pub fn write(file: &File, data: &[u8], offset: u64) {
    let n = file.write_at(data, offset).expect("write");
    assert_eq!(n, data.len(), "a short write at {offset}");
}

pub fn read(file: &File, len: usize, offset: u64) -> Vec<u8> {
    let mut buf = vec![0; len];
    file.read_exact_at(&mut buf, offset).expect("read");
    buf
}

pub fn same(what: &str, got: &[u8], want: &[u8]) {
    let differs = got.iter().zip(want).position(|(a, b)| a != b);
    assert!(
        differs.is_none() && got.len() == want.len(),
        "{what}: {} bytes instead of {}, first difference at {differs:?}",
        got.len(),
        want.len()
    );
}

pub fn timed(work: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    work();
    begin.elapsed()
}

/// Measures repeatedly until the least of each time satisfies `will_do`, for a minute at most, and
/// returns the least times. A busy machine makes everything slower and nothing faster, so an upper
/// limit must be checked against the quickest of several tries.
pub fn least<const N: usize>(
    mut measure: impl FnMut() -> [f64; N],
    will_do: impl Fn([f64; N]) -> bool,
) -> [f64; N] {
    let begin = Instant::now();
    let mut least = [f64::INFINITY; N];
    while !will_do(least) && begin.elapsed() < Duration::from_secs(60) {
        for (least, took) in least.iter_mut().zip(measure()) {
            *least = least.min(took);
        }
    }
    least
}

/// Waits for a condition. The limit is generous: it bounds a hang and measures nothing.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        let waited = begin.elapsed();
        assert!(waited < Duration::from_secs(60), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn errno<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => panic!("it succeeded and should not have"),
        Err(e) => e.raw_os_error().unwrap_or_else(|| panic!("no errno: {e}")),
    }
}

fn c_string(bytes: &[u8]) -> CString {
    CString::new(bytes).expect("no NUL inside")
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (
        c_string(path.as_os_str().as_bytes()),
        c_string(name.as_bytes()),
    );
    // SAFETY: both strings are NUL-terminated; the length is that of the value.
    let rc = unsafe {
        let (at, len) = (value.as_ptr().cast(), value.len());
        libc::setxattr(path.as_ptr(), name.as_ptr(), at, len, 0)
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

pub fn get_xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (
        c_string(path.as_os_str().as_bytes()),
        c_string(name.as_bytes()),
    );
    let mut buf = vec![0u8; 65536];
    // SAFETY: both strings are NUL-terminated; the length is that of the buffer.
    let n = unsafe {
        let (at, len) = (buf.as_mut_ptr().cast(), buf.len());
        libc::getxattr(path.as_ptr(), name.as_ptr(), at, len)
    };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    buf.truncate(n as usize);
    Ok(buf)
}
