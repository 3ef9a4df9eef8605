//! Carries out a planned read. Every byte from the log or a subfile is checked against the checksum
//! of its unit before the caller gets it.

mod logged;

use super::File;
use super::PublishedSource;
use super::plan::{Plan, Source, SubfilePiece};
use crate::checksum;
use crate::disk::DiskFile;
use crate::error::{Result, StoreError};
use crate::extent::{BLOCK, SubUnit};
use crate::store::subfile::Subfiles;
use crate::types::ByteRange;
use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Extents of a file that are processed at a time, to bound the memory in use.
const AT_A_TIME: usize = 16384;

/// Bytes that count as one stretch where no plan can be made, so that it is unknown where bytes
/// are.
const STRETCH: u64 = 64 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static LAST: RefCell<LastUnit> = const { RefCell::new(LastUnit::NONE) };
}

/// The unit of a subfile that this thread read and checked last. In a file that was written in
/// small strides, neighbouring pieces share a unit, which is then read once for all of them. It
/// cannot be out of date: no place in a subfile is written twice, and no name is used twice.
struct LastUnit {
    subfile: String,
    /// Owner that the subfile must have.
    uid: u32,
    unit: SubUnit,
    bytes: Vec<u8>,
}

impl LastUnit {
    const NONE: LastUnit = LastUnit {
        subfile: String::new(),
        uid: 0,
        unit: SubUnit {
            subfile: 0,
            block: 0,
            len: 0,
            crc: 0,
        },
        bytes: Vec::new(),
    };

    fn is(&self, piece: &SubfilePiece) -> bool {
        let row = piece.subfile.row();
        self.unit == piece.unit && self.subfile == row.name && self.uid == row.uid
    }
}

impl File {
    /// Reads `plan.range` into `buf`. Needs `canonical` only if the plan does. Returns `Vanished`
    /// if a subfile was drained and removed since the plan was made; the caller then makes another
    /// plan.
    pub fn read(
        &self,
        plan: &Plan,
        buf: &mut [u8],
        canonical: Option<&dyn DiskFile>,
    ) -> Result<()> {
        let mut in_log = Vec::new();
        for piece in &plan.pieces {
            let at = (piece.range.start - plan.range.start) as usize;
            let part = &mut buf[at..at + piece.range.len() as usize];
            match &piece.source {
                Source::Zero => part.fill(0),
                Source::Log(log) => in_log.push((piece.range, log)),
                Source::Subfile(sub) | Source::Published(PublishedSource::Subfile(sub)) => {
                    self.read_subfile(piece.range, sub, part)?;
                }
                Source::Published(PublishedSource::Inline { bytes, at }) => {
                    part.copy_from_slice(&bytes[*at..][..part.len()]);
                }
                Source::Canonical => {
                    let canonical = canonical.ok_or(StoreError::Clean)?;
                    let n = canonical
                        .read_at(part, piece.range.start)
                        .map_err(|e| StoreError::io("read", self.id.to_string(), e))?;
                    part[n..].fill(0);
                }
            }
        }
        self.read_logged(in_log, plan.range.start, buf)
    }

    fn read_subfile(&self, range: ByteRange, piece: &SubfilePiece, out: &mut [u8]) -> Result<()> {
        let opener = self.state.subfiles.opener.read().clone();
        let opener = opener.ok_or_else(|| {
            StoreError::Unusable(format!(
                "file {} bytes {range} are in a subfile on OST {}, and no targets are known here; mount with the same --ost as before",
                self.id, piece.subfile.row().ost_name
            ))
        })?;
        let whole = piece.skip == 0 && out.len() == piece.unit.len as usize;
        if whole {
            return self.read_subunit(range, piece, &*opener, out);
        }
        LAST.with_borrow_mut(|last| {
            if !last.is(piece) {
                last.subfile.clear();
                last.bytes.resize(piece.unit.len as usize, 0);
                self.read_subunit(range, piece, &*opener, &mut last.bytes)?;
                last.unit = piece.unit;
                last.subfile.push_str(&piece.subfile.row().name);
                last.uid = piece.subfile.row().uid;
            }
            let skip = piece.skip as usize;
            out.copy_from_slice(&last.bytes[skip..skip + out.len()]);
            Ok(())
        })
    }

    /// Reads a whole unit and checks it. If the mount that the subfile was opened on died and came
    /// back, the subfile is opened again.
    fn read_subunit(
        &self,
        range: ByteRange,
        piece: &SubfilePiece,
        opener: &dyn Subfiles,
        out: &mut [u8],
    ) -> Result<()> {
        let row = piece.subfile.row();
        let (subfile, ost) = (row.name.clone(), row.ost_name.clone());
        let file = self.id;
        let failed = |op: &'static str, source: std::io::Error| match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESTALE) => StoreError::Vanished {
                file,
                range,
                subfile: subfile.clone(),
                ost: ost.clone(),
            },
            _ => StoreError::SubfileIo {
                file,
                range,
                op,
                subfile: subfile.clone(),
                ost: ost.clone(),
                source,
            },
        };
        let open = || piece.subfile.file(opener).map_err(|e| failed("opening", e));
        let at = u64::from(piece.unit.block) * BLOCK;
        let disk = open()?;
        let read = match disk.read_at(out, at) {
            Err(e) if piece.subfile.reopen_after(&e, &disk) => open()?.read_at(out, at),
            other => other,
        };
        let n = read.map_err(|e| failed("reading", e))?;
        if n == out.len() && checksum::crc32c(out) == piece.unit.crc {
            return Ok(());
        }
        Err(StoreError::SubfileChecksum {
            file,
            range,
            subfile,
            ost,
        })
    }

    /// Counts the bytes that the canonical file does not have, whichever node wrote them, extent by
    /// extent. The running counters ([`File::shown`]) may be too high until the next merge; they
    /// are used instead if the count is not complete by `deadline`.
    pub fn count_undrained(&self, deadline: Option<Instant>) -> Result<u64> {
        let counted = match self.has_published() {
            true => self.count_planned(deadline),
            false => self.count_layers(deadline),
        };
        match counted {
            Ok(Some(sum)) => Ok(sum),
            Ok(None) => Ok(self.shown().map_or(0, |shown| shown.undrained)),
            Err(StoreError::Clean) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Returns `None` if it took too long.
    fn count_planned(&self, deadline: Option<Instant>) -> Result<Option<u64>> {
        let mut sum = 0;
        let mut at = 0;
        loop {
            let plan = self.plan_upto(ByteRange::new(at, u64::MAX), AT_A_TIME)?;
            let elsewhere = |s: &Source| !matches!(s, Source::Zero | Source::Canonical);
            let pieces = plan.pieces.iter().filter(|p| elsewhere(&p.source));
            sum += pieces.map(|p| p.range.len()).sum::<u64>();
            at = plan.range.end;
            if at >= plan.size {
                return Ok(Some(sum));
            }
            if is_past(deadline) {
                return Ok(None);
            }
        }
    }

    fn count_layers(&self, deadline: Option<Instant>) -> Result<Option<u64>> {
        match &self.inner().period {
            Some(period) if !period.has_lower_layers() => {
                return Ok(Some(period.tally.undrained.load(Ordering::Relaxed)));
            }
            _ => {}
        }
        let mut sum = 0;
        let mut rest = ByteRange::ALL;
        loop {
            let view = self.view_upto(rest, AT_A_TIME)?;
            let extents = view.extents.iter();
            sum += extents.map(|(s, e)| e.undrained(*s)).sum::<u64>();
            if view.upto == u64::MAX {
                return Ok(Some(sum));
            }
            if is_past(deadline) {
                return Ok(None);
            }
            rest.start = view.upto;
        }
    }

    /// Reads every undrained byte in the log and in this store's subfiles. Returns one sentence for
    /// each stretch that cannot be read.
    pub fn damage(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut buf = Vec::new();
        let mut at = 0;
        loop {
            let plan = match self.plan_upto(ByteRange::new(at, u64::MAX), AT_A_TIME) {
                Ok(plan) => plan,
                Err(StoreError::Clean) => return found,
                Err(error) => {
                    found.push(error.to_string());
                    match self.next_extent(at.saturating_add(STRETCH)) {
                        Ok(Some(next)) => at = next,
                        _ => return found,
                    }
                    continue;
                }
            };
            let size = plan.size;
            at = plan.range.end;
            let pieces = plan.pieces;
            for piece in pieces
                .into_iter()
                .filter(|p| matches!(p.source, Source::Log(_) | Source::Subfile(_)))
            {
                buf.resize(piece.range.len() as usize, 0);
                let plan = Plan {
                    range: piece.range,
                    size,
                    pieces: vec![piece],
                };
                if let Err(error) = self.read(&plan, &mut buf, None) {
                    found.push(error.to_string());
                }
            }
            if at >= size {
                return found;
            }
        }
    }
}

fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}
