//! Reads and writes whole files in one call, with messages that name them.

use std::fs::{File, OpenOptions};
use std::path::Path;

/// Creates a file with this content.
pub fn put(path: impl AsRef<Path>, data: impl AsRef<[u8]>) {
    let path = path.as_ref();
    std::fs::write(path, data).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
}

pub fn get(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    std::fs::read(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
}

/// Opens for reading and writing, creating if needed.
pub fn open_rw(path: impl AsRef<Path>) -> File {
    let path = path.as_ref();
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap_or_else(|e| panic!("open {}: {e}", path.display()))
}

/// Panics with the first differing byte rather than with megabytes of numbers.
pub fn assert_same(what: &str, got: &[u8], want: &[u8]) {
    if got == want {
        return;
    }
    let at = got
        .iter()
        .zip(want)
        .position(|(a, b)| a != b)
        .unwrap_or(got.len().min(want.len()));
    let show = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 16)]);
    panic!(
        "{what}: {} bytes, expected {}; first difference at {at}: {} instead of {}",
        got.len(),
        want.len(),
        show(got),
        show(want)
    );
}
