use super::*;
use parking_lot::Mutex;
use std::cell::Cell;

/// A canonical file in memory that counts the calls made to it.
#[derive(Debug, Default)]
struct Memory {
    bytes: Mutex<Vec<u8>>,
    writes: Mutex<Vec<ByteRange>>,
    punches: Mutex<Vec<ByteRange>>,
    no_punch: bool,
    flip: bool,
}

impl DiskFile for Memory {
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let data: Vec<u8> = bufs.iter().flat_map(|b| b.to_vec()).collect();
        let range = ByteRange::at(offset, data.len() as u64).unwrap();
        let mut bytes = self.bytes.lock();
        if bytes.len() < range.end as usize {
            bytes.resize(range.end as usize, 0);
        }
        bytes[range.start as usize..range.end as usize].copy_from_slice(&data);
        if self.flip {
            bytes[range.start as usize] ^= 1;
        }
        self.writes.lock().push(range);
        Ok(())
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.lock();
        let tail = bytes.get(offset as usize..).unwrap_or_default();
        let n = tail.len().min(buf.len());
        buf[..n].copy_from_slice(&tail[..n]);
        Ok(n)
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.lock().resize(len as usize, 0);
        Ok(())
    }
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }
    fn allocate(&self, _mode: i32, offset: u64, len: u64) -> io::Result<()> {
        if self.no_punch {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let range = ByteRange::at(offset, len).unwrap();
        self.bytes.lock()[range.start as usize..range.end as usize].fill(0);
        self.punches.lock().push(range);
        Ok(())
    }
    fn set_mtime(&self, _mtime: u64) -> io::Result<()> {
        Ok(())
    }
}

type Piece = (ByteRange, Kind);

fn log(start: u64, end: u64) -> Piece {
    (ByteRange::new(start, end), Kind::Data)
}

fn zero(start: u64, end: u64) -> Piece {
    (ByteRange::new(start, end), Kind::Zero)
}

struct Stripe {
    range: ByteRange,
    pieces: Vec<Piece>,
}

fn snapshot(start: u64, end: u64, pieces: Vec<Piece>) -> Stripe {
    Stripe {
        range: ByteRange::new(start, end),
        pieces,
    }
}

/// The byte that the log has at an offset: never zero, and never 0xcc as in the canonical file.
fn byte(offset: u64) -> u8 {
    (offset % 97) as u8 + 1
}

fn run(file: &Memory, stripe: &Stripe, verify: bool) -> Result<(), Problem> {
    let work = Work::plan(stripe.pieces.iter().copied());
    write(
        stripe.range,
        &work,
        file,
        &mut Buffer::default(),
        verify,
        |run, buf| {
            for (i, b) in buf.iter_mut().enumerate() {
                *b = byte(run.range.start + i as u64);
            }
            Ok(())
        },
    )
}

fn expect(file: &Memory, stripe: &Stripe, before: &[u8]) {
    let mut want = before.to_vec();
    for (range, kind) in &stripe.pieces {
        let end = match kind {
            Kind::Zero => range.end.min(want.len() as u64),
            _ => range.end,
        };
        if want.len() < end as usize {
            want.resize(end as usize, 0);
        }
        for o in range.start..end {
            want[o as usize] = match kind {
                Kind::Zero => 0,
                _ => byte(o),
            };
        }
    }
    let got = file.bytes.lock();
    assert_eq!(
        got[..want.len().min(got.len())],
        want[..want.len().min(got.len())]
    );
    assert!(got[want.len().min(got.len())..].iter().all(|b| *b == 0));
}

fn with_bytes(len: usize) -> (Memory, Vec<u8>) {
    let before = vec![0xcc; len];
    let file = Memory {
        bytes: Mutex::new(before.clone()),
        ..Memory::default()
    };
    (file, before)
}

#[test]
fn touching_pieces_are_one_write() {
    let (file, before) = with_bytes(0);
    let s = snapshot(
        4096,
        8192,
        vec![log(4096, 5000), log(5000, 7000), log(7000, 8192)],
    );
    run(&file, &s, true).unwrap();
    expect(&file, &s, &before);
    assert_eq!(*file.writes.lock(), [ByteRange::new(4096, 8192)]);
}

#[test]
fn a_few_runs_are_written_as_they_are_and_leave_the_gaps_alone() {
    let (file, before) = with_bytes(8192);
    let s = snapshot(0, 8192, vec![log(10, 20), log(4000, 4100), log(8191, 8192)]);
    run(&file, &s, true).unwrap();
    expect(&file, &s, &before);
    assert_eq!(file.writes.lock().len(), 3);
}

#[test]
fn many_runs_are_one_read_modify_write() {
    let (file, before) = with_bytes(4000);
    let pieces = (0..20).map(|i| log(i * 400 + 7, i * 400 + 207)).collect();
    let s = snapshot(0, 8192, pieces);
    run(&file, &s, true).unwrap();
    expect(&file, &s, &before);
    assert_eq!(*file.writes.lock(), [ByteRange::new(7, 19 * 400 + 207)]);
}

#[test]
fn zeros_are_punched_up_to_the_end_of_the_canonical_file() {
    let (file, before) = with_bytes(6000);
    let s = snapshot(
        0,
        8192,
        vec![log(0, 100), zero(100, 3000), zero(5000, 8192)],
    );
    run(&file, &s, true).unwrap();
    expect(&file, &s, &before);
    assert_eq!(file.size().unwrap(), 6000);
    assert_eq!(
        *file.punches.lock(),
        [ByteRange::new(100, 3000), ByteRange::new(5000, 6000)]
    );
}

#[test]
fn zeros_are_written_where_holes_cannot_be_punched() {
    let (mut file, before) = with_bytes(6000);
    file.no_punch = true;
    let s = snapshot(0, 8192, vec![zero(100, 3000)]);
    run(&file, &s, true).unwrap();
    expect(&file, &s, &before);
    assert_eq!(*file.writes.lock(), [ByteRange::new(100, 3000)]);
}

#[test]
fn zeros_inside_and_outside_a_read_modify_write() {
    let (file, before) = with_bytes(8192);
    let mut pieces = vec![zero(0, 50)];
    pieces.extend((0..10).map(|i| log(100 + i * 100, 150 + i * 100)));
    pieces.insert(3, zero(260, 280));
    pieces.push(zero(1100, 2000));
    let s = snapshot(0, 8192, pieces);
    run(&file, &s, true).unwrap();
    expect(&file, &s, &before);
    assert_eq!(file.writes.lock().len(), 1);
    assert_eq!(
        *file.punches.lock(),
        [ByteRange::new(0, 50), ByteRange::new(1100, 2000)]
    );
}

#[test]
fn a_damaged_record_writes_nothing_of_its_stripe() {
    let (file, before) = with_bytes(100);
    let s = snapshot(0, 4096, vec![log(0, 50), log(60, 90)]);
    let calls = Cell::new(0);
    let result = write(
        s.range,
        &Work::plan(s.pieces.iter().copied()),
        &file,
        &mut Buffer::default(),
        false,
        |run, _| {
            calls.set(calls.get() + 1);
            if calls.get() < 2 {
                return Ok(());
            }
            Err(StoreError::Checksum {
                file: layout_index::FileId { ino: 1, birth: 2 },
                range: run.range,
                segment: 3,
                offset: 4,
            })
        },
    );
    assert!(matches!(result, Err(Problem::Damaged(_))), "{result:?}");
    assert_eq!(*file.bytes.lock(), before);
}

#[test]
fn verify_notices_what_the_canonical_file_changed() {
    let (mut file, _) = with_bytes(0);
    file.flip = true;
    let s = snapshot(0, 4096, vec![log(0, 4096)]);
    assert!(run(&file, &s, false).is_ok());
    let result = run(&file, &s, true);
    assert!(
        matches!(
            result,
            Err(Problem::Canonical {
                op: "verifying",
                ..
            })
        ),
        "{result:?}"
    );
}

#[test]
fn random_snapshots_become_exactly_their_bytes() {
    use rand::{Rng, SeedableRng, rngs::StdRng};
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let base = rng.random_range(0..4) * 4096;
        let (file, before) = with_bytes(rng.random_range(0..20_000));
        let mut at = base + rng.random_range(0..50);
        let mut pieces = Vec::new();
        let longest = rng.random_range(20..900);
        while at < base + 4000 {
            let end = (at + rng.random_range(1..longest)).min(base + 4096);
            match rng.random_range(0..4) {
                0 => pieces.push(zero(at, end)),
                1 => {}
                _ => pieces.push(log(at, end)),
            }
            at = end;
        }
        let s = snapshot(base, base + 4096, pieces);
        run(&file, &s, true).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        expect(&file, &s, &before);
    }
}

#[test]
fn buffers_start_on_a_page_and_are_used_again() {
    let buffers = Buffers::default();
    for len in [1, 4096, 1 << 20, 5] {
        buffers.with(|b| {
            let slice = b.slice(len);
            assert_eq!((slice.len(), slice.as_ptr().align_offset(ALIGN)), (len, 0));
        });
    }
    assert_eq!(buffers.0.lock().len(), 1);
}

/// Many small runs become one write, of whole blocks or of the whole stripe, which never makes the
/// file longer.
#[test]
fn what_is_read_around_reaches_as_far_as_blocks_do() {
    let stripe = ByteRange::new(1 << 20, 2 << 20);
    let of = |every: u64| {
        let runs = (0..20).map(|n| stripe.start + 5000 + n * every);
        let pieces = runs.map(|at| (ByteRange::new(at, at + 10), Kind::Data));
        Work::plan(pieces)
    };
    let span = |work: Work, size| work.aligned(stripe, size).span.unwrap();
    let block = |n: u64| stripe.start + n * 4096;
    // The span is from 5000 to 5000 + 19 * 100 + 10.
    assert_eq!(span(of(100), 1 << 30), ByteRange::new(block(1), block(2)));
    assert_eq!(
        span(of(100), block(1) + 3000),
        ByteRange::new(block(1), block(1) + 3000)
    );
    assert_eq!(span(of(40_000), 1 << 30), stripe);
    assert_eq!(
        span(of(40_000), stripe.end - 7),
        ByteRange::new(stripe.start, stripe.end - 7)
    );
    // The size is from before the last write.
    assert_eq!(
        span(of(40_000), 0).end,
        stripe.start + 5000 + 19 * 40_000 + 10
    );
    let few = Work::plan([(stripe, Kind::Data)].into_iter());
    assert_eq!(few.aligned(stripe, 1 << 30).span, None);
}
