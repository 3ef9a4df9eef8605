//! The job: writers that share one file, each on its own client, and a check of what they wrote.
//!
//! Writers are threads; they are different clients because each writes through its own mount. Their
//! data is made before the clock runs. The clock counts from the first open to the last close.

use crate::pattern;
use layout_index::ByteRange;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

/// The task of one writer: it writes these ranges of the file at this path, in this order.
pub struct Writer {
    pub path: PathBuf,
    pub ranges: Vec<ByteRange>,
}

/// The times when the first writer opened the file and when the last one had closed it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    pub start: Instant,
    pub end: Instant,
}

impl Clock {
    pub fn seconds(&self) -> f64 {
        (self.end - self.start).as_secs_f64()
    }
}

fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |e| io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

/// Makes a file of this size without data, so that no write has to wait for another one to extend
/// it.
pub fn preset(path: &Path, size: u64) -> io::Result<()> {
    let file = File::create_new(path).map_err(named(path))?;
    file.set_len(size).map_err(named(path))
}

/// Starts all writers at once; with `sync` they sync before they close. The file must exist.
pub fn write(writers: &[Writer], seed: u64, sync: bool) -> io::Result<Clock> {
    let barrier = &Barrier::new(writers.len());
    let clocks: Vec<io::Result<Clock>> = std::thread::scope(|scope| {
        let one = |writer| scope.spawn(move || one_writer(writer, seed, sync, barrier));
        let threads: Vec<_> = writers.iter().map(one).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(died())))
            .collect()
    });
    let clocks = clocks.into_iter().collect::<io::Result<Vec<Clock>>>()?;
    let start = clocks.iter().map(|clock| clock.start).min();
    let end = clocks.iter().map(|clock| clock.end).max();
    match (start, end) {
        (Some(start), Some(end)) => Ok(Clock { start, end }),
        _ => Err(io::Error::other("a job needs at least one writer")),
    }
}

fn died() -> io::Error {
    io::Error::other("a writer died")
}

fn one_writer(writer: &Writer, seed: u64, sync: bool, barrier: &Barrier) -> io::Result<Clock> {
    let total: u64 = writer.ranges.iter().map(ByteRange::len).sum();
    let mut data = vec![0; total as usize];
    let mut rest = &mut data[..];
    for range in &writer.ranges {
        let (block, tail) = rest.split_at_mut(range.len() as usize);
        pattern::fill(seed, range.start, block);
        rest = tail;
    }
    // Nothing before this may fail: the other writers wait at the barrier.
    barrier.wait();
    let start = Instant::now();
    let file = OpenOptions::new()
        .write(true)
        .open(&writer.path)
        .map_err(named(&writer.path))?;
    let mut rest = &data[..];
    for range in &writer.ranges {
        let (block, tail) = rest.split_at(range.len() as usize);
        file.write_all_at(block, range.start)
            .map_err(named(&writer.path))?;
        rest = tail;
    }
    if sync {
        file.sync_all().map_err(named(&writer.path))?;
    }
    nix::unistd::close(file)?;
    Ok(Clock {
        start,
        end: Instant::now(),
    })
}

/// Compares every byte of the file with the content given by `seed`; the error names the first
/// wrong byte.
pub fn verify(path: &Path, size: u64, seed: u64) -> io::Result<()> {
    const BLOCK: usize = 4 << 20;
    let file = File::open(path).map_err(named(path))?;
    let found = file.metadata()?.len();
    if found != size {
        let text = format!("it has {found} bytes instead of {size}");
        return Err(named(path)(io::Error::other(text)));
    }
    let (mut is, mut should) = (vec![0; BLOCK], vec![0; BLOCK]);
    let mut at = 0;
    while at < size {
        let len = BLOCK.min((size - at) as usize);
        file.read_exact_at(&mut is[..len], at)
            .map_err(named(path))?;
        pattern::fill(seed, at, &mut should[..len]);
        if let Some(wrong) = (0..len).find(|i| is[*i] != should[*i]) {
            let text = format!("the byte at {} is wrong", at + wrong as u64);
            return Err(named(path)(io::Error::other(text)));
        }
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(path: &Path, ranges: [&[(u64, u64)]; 2]) -> Vec<Writer> {
        let writer = |ranges: &[(u64, u64)]| Writer {
            path: path.to_owned(),
            ranges: ranges.iter().map(|(s, e)| ByteRange::new(*s, *e)).collect(),
        };
        ranges.map(writer).into()
    }

    #[test]
    fn what_is_written_verifies_and_nothing_else_does() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("f");
        preset(&path, 100).expect("preset");
        let writers = job(&path, [&[(0, 30), (60, 100)], &[(30, 60)]]);
        let clock = write(&writers, 5, true).expect("write");
        assert!(clock.end >= clock.start);
        verify(&path, 100, 5).expect("all of it is there");

        let said = |size, seed| {
            let error = verify(&path, size, seed).expect_err("it is another file");
            error.to_string()
        };
        assert!(said(100, 6).ends_with("the byte at 0 is wrong"));
        assert!(said(99, 5).ends_with("it has 100 bytes instead of 99"));
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        let mut wrong = [0];
        file.write_at(&[0xff; 1], 77).expect("write");
        pattern::fill(5, 77, &mut wrong);
        assert_ne!(wrong[0], 0xff, "choose another byte");
        assert!(said(100, 5).ends_with("the byte at 77 is wrong"));
    }

    #[test]
    fn a_writer_that_cannot_open_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("missing");
        let error = write(&job(&path, [&[(0, 1)], &[]]), 1, false).expect_err("no file");
        assert!(error.to_string().contains("missing"), "{error}");
        assert!(write(&[], 1, false).is_err());
    }
}
