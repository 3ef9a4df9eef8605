//! Planning a read over the layers, and carrying it out.
//!
//! A plan holds its segments open: the drain may free one in the meantime, and the bytes read
//! are then those of the moment the plan was made, which a concurrent read may return. Every
//! byte from the log is checked against the checksum of its unit before anyone sees it.

use super::{File, Life};
use crate::checksum;
use crate::disk::DiskFile;
use crate::error::{Result, StoreError};
use crate::extent::{BLOCK, Extent, ExtentMap, Place, SubUnit, Unit};
use crate::layout::{View as Published, ViewSource};
use crate::log::segment::Segment;
use crate::subfile::{Subfile, Subfiles};
use crate::types::{ByteRange, FileNo, Seq};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes in the log.
#[derive(Clone, Debug)]
pub struct LogPiece {
    pub unit: Unit,
    pub skip: u32,
    segment: Arc<Segment>,
}

/// Bytes in a subfile.
#[derive(Clone, Debug)]
pub struct SubfilePiece {
    pub unit: SubUnit,
    pub skip: u32,
    pub subfile: Arc<Subfile>,
}

/// Where the newest bytes of a range are.
#[derive(Clone, Debug)]
pub enum Source {
    Log(LogPiece),
    Subfile(SubfilePiece),
    /// Reads as zeros: a hole, or past what the canonical file may still show.
    Zero,
    /// Published, by this node or another.
    Published(ViewSource),
    Canonical,
}

#[derive(Clone, Debug)]
pub struct Piece {
    pub range: ByteRange,
    pub source: Source,
}

/// A read, planned: pieces in order, without gaps, cut at the end of the file.
#[derive(Clone, Debug)]
pub struct Plan {
    pub range: ByteRange,
    /// Size of the file when the plan was made.
    pub size: u64,
    pub pieces: Vec<Piece>,
}

impl Plan {
    /// Needs nothing but the log: reading it waits for no other machine.
    pub fn is_local(&self) -> bool {
        let local = |p: &Piece| matches!(p.source, Source::Log(_) | Source::Zero);
        self.pieces.iter().all(local)
    }
}

/// What the layers show of a range: visible extents in order, gaps where they show nothing.
pub(super) struct View {
    pub extents: Vec<(u64, Extent)>,
    pub size: u64,
    pub limit: u64,
    /// `Life::freezes` when the memory layers were read.
    pub freezes: u64,
    pub lower_layers: bool,
    /// The newest record that cannot be overtaken any more within the range.
    pub settled: Seq,
}

impl View {
    /// Of a file without a life that is `size` long.
    fn nothing(size: u64) -> View {
        View {
            extents: Vec::new(),
            size,
            limit: u64::MAX,
            freezes: 0,
            lower_layers: false,
            settled: Seq(0),
        }
    }
}

/// Bytes of a file that are looked at at a time, to bound the extents in memory.
const WINDOW: u64 = 64 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static LAST: RefCell<LastUnit> = const { RefCell::new(LastUnit::NONE) };
}

/// The unit of a subfile that this thread read and checked last. Neighbours in a file that was
/// written in small strides are in one unit, and it is read once for all of them. It cannot be out
/// of date: a place in a subfile is never written again, and names are never used again.
struct LastUnit {
    subfile: String,
    unit: SubUnit,
    bytes: Vec<u8>,
}

impl LastUnit {
    const NONE: LastUnit = LastUnit {
        subfile: String::new(),
        unit: SubUnit {
            subfile: 0,
            block: 0,
            len: 0,
            crc: 0,
        },
        bytes: Vec::new(),
    };

    fn is(&self, piece: &SubfilePiece) -> bool {
        self.unit == piece.unit && self.subfile == piece.subfile.row().name
    }
}

impl File {
    /// All layers of one moment. Memory is read before RocksDB; where a merge has begun in between,
    /// RocksDB may already lack bytes whose successors were not in memory yet: look again.
    pub(super) fn view(&self, range: ByteRange) -> Result<View> {
        loop {
            let (no, view) = self.look(range)?;
            let same = |life: &Life| life.no == no && life.freezes == view.freezes;
            if !view.lower_layers || self.inner().life.as_ref().is_some_and(same) {
                return Ok(view);
            }
        }
    }

    fn look(&self, range: ByteRange) -> Result<(FileNo, View)> {
        let inner = self.inner();
        let life = inner.life.as_ref().ok_or(StoreError::Clean)?;
        let settled = inner
            .active
            .floor(range)
            .map_or_else(|| self.shared.upto_now(), |f| Seq(f - 1));
        let mut view = View {
            extents: Vec::new(),
            size: life.row.size,
            limit: life.row.limit,
            freezes: life.freezes,
            lower_layers: life.has_lower_layers(),
            settled,
        };
        if !view.lower_layers {
            view.extents.extend(life.hot.within(range));
            return Ok((life.no, view));
        }
        let hot: Vec<_> = life.hot.within(range).collect();
        let frozen: Vec<_> = life.frozen.iter().flat_map(|f| f.within(range)).collect();
        let no = life.no;
        drop(inner);
        view.extents = self.overlay(no, range, frozen, hot)?;
        Ok((no, view))
    }

    fn overlay(
        &self,
        no: FileNo,
        range: ByteRange,
        frozen: Vec<(u64, Extent)>,
        hot: Vec<(u64, Extent)>,
    ) -> Result<Vec<(u64, Extent)>> {
        let mut map = ExtentMap::default();
        let cold = self.shared.index.extents(no, range)?;
        for (start, extent) in cold.into_iter().chain(frozen).chain(hot) {
            map.insert(start, extent, |_, _| {});
        }
        Ok(map.iter().map(|(s, e)| (*s, *e)).collect())
    }

    /// The visible extents of all layers within `range`.
    pub(crate) fn visible(&self, range: ByteRange) -> Result<Vec<(u64, Extent)>> {
        Ok(self.view(range)?.extents)
    }

    /// `Clean` when the file has no life and nothing is published: read the canonical file then.
    pub fn plan(&self, range: ByteRange) -> Result<Plan> {
        self.retry_moved(|| {
            let view = match self.view(range) {
                Err(StoreError::Clean) => None,
                other => Some(other?),
            };
            // After the store: bytes are here before they are forgotten there.
            let (published, canonical) = {
                let seen = self.seen();
                (seen.view.clone(), seen.canonical.size)
            };
            match view {
                Some(view) => self.plan_view(range, view, &published),
                None if published.is_empty() => Err(StoreError::Clean),
                None => {
                    let size = published.size(canonical);
                    let nothing = View::nothing(size);
                    self.plan_view(range, nothing, &published)
                }
            }
        })
    }

    /// A segment can go between looking into RocksDB and holding it, when a merge and a
    /// checkpoint come in between. Another look sees where the bytes went.
    pub(super) fn retry_moved<T>(&self, look: impl Fn() -> Result<T>) -> Result<T> {
        for _ in 0..16 {
            match look() {
                Err(StoreError::Unusable(_)) => {}
                other => return other,
            }
        }
        look()
    }

    fn plan_view(&self, range: ByteRange, view: View, published: &Published) -> Result<Plan> {
        let range = ByteRange {
            start: range.start.min(view.size),
            end: range.end.min(view.size),
        };
        let mut pieces = Vec::with_capacity(view.extents.len() + 1);
        let mut at = range.start;
        for (start, extent) in &view.extents {
            let Some((start, extent)) = extent.cut(*start, range) else {
                continue;
            };
            fill_gap(
                &mut pieces,
                ByteRange {
                    start: at,
                    end: start,
                },
                view.limit,
                published,
            );
            at = extent.end;
            let piece = ByteRange {
                start,
                end: extent.end,
            };
            match extent.place {
                Place::Canonical => fill_gap(&mut pieces, piece, view.limit, published),
                _ => pieces.push(self.piece(start, &extent)?),
            }
        }
        fill_gap(
            &mut pieces,
            ByteRange {
                start: at,
                end: range.end,
            },
            view.limit,
            published,
        );
        Ok(Plan {
            range,
            size: view.size,
            pieces,
        })
    }

    pub(super) fn piece(&self, start: u64, extent: &Extent) -> Result<Piece> {
        let range = ByteRange {
            start,
            end: extent.end,
        };
        let source = match extent.place {
            Place::Log { unit, skip } => {
                let segment = self.shared.segment_of(self.id, extent, start)?;
                let segment = segment.ok_or(StoreError::Clean)?;
                Source::Log(LogPiece {
                    unit,
                    skip,
                    segment,
                })
            }
            Place::Subfile { unit, skip } => {
                let subfile = self.shared.subfiles.get(unit.subfile);
                let subfile = subfile.ok_or_else(|| {
                    StoreError::Unusable(format!(
                        "file {} bytes {range}: no subfile has number {}",
                        self.id, unit.subfile
                    ))
                })?;
                Source::Subfile(SubfilePiece {
                    unit,
                    skip,
                    subfile,
                })
            }
            Place::Zero => Source::Zero,
            Place::Canonical => Source::Canonical,
        };
        Ok(Piece { range, source })
    }

    /// Fills `buf`, which is `plan.range`. Needs `canonical` only if the plan does. `Vanished`: a
    /// subfile was drained and removed since the plan was made; make another one.
    pub fn read(
        &self,
        plan: &Plan,
        buf: &mut [u8],
        canonical: Option<&dyn DiskFile>,
    ) -> Result<()> {
        for piece in &plan.pieces {
            let at = (piece.range.start - plan.range.start) as usize;
            let part = &mut buf[at..at + piece.range.len() as usize];
            match &piece.source {
                Source::Zero => part.fill(0),
                Source::Log(log) => self.read_log(piece.range, log, part)?,
                Source::Subfile(sub) => self.read_subfile(piece.range, sub, part)?,
                Source::Published(source) => self.read_published(piece.range, source, part)?,
                Source::Canonical => {
                    let canonical = canonical.ok_or(StoreError::Clean)?;
                    let n = canonical
                        .read_at(part, piece.range.start)
                        .map_err(|e| StoreError::io("read", self.id.to_string(), e))?;
                    part[n..].fill(0);
                }
            }
        }
        Ok(())
    }

    pub(crate) fn read_log(&self, range: ByteRange, log: &LogPiece, out: &mut [u8]) -> Result<()> {
        let damaged = || StoreError::Checksum {
            file: self.id,
            range,
            segment: log.unit.segment,
            offset: log.unit.offset,
        };
        if log.skip == 0 && out.len() == log.unit.len as usize {
            let n = log.segment.read_payload(out, u64::from(log.unit.offset))?;
            let good = n == out.len() && checksum::crc32c(out) == log.unit.crc;
            return if good { Ok(()) } else { Err(damaged()) };
        }
        SCRATCH.with_borrow_mut(|scratch| {
            log.segment
                .read_unit(&log.unit, scratch)?
                .ok_or_else(damaged)?;
            let skip = log.skip as usize;
            let part = scratch.get(skip..skip + out.len()).ok_or_else(damaged)?;
            out.copy_from_slice(part);
            Ok(())
        })
    }

    /// What `published`, a part of this file's view, has of a range.
    pub fn published_pieces(&self, published: &Published, range: ByteRange) -> Vec<Piece> {
        let mut pieces = Vec::new();
        fill_published(&mut pieces, range, published);
        pieces
    }

    fn read_published(&self, range: ByteRange, from: &ViewSource, out: &mut [u8]) -> Result<()> {
        match from {
            ViewSource::Zero => out.fill(0),
            ViewSource::Inline { batch, at } => {
                out.copy_from_slice(&batch.inline()[*at as usize..][..out.len()]);
            }
            ViewSource::Subfile {
                node,
                batch,
                unit,
                skip,
            } => {
                let (subfile, unit) = batch.unit(*unit);
                let piece = SubfilePiece {
                    unit: SubUnit {
                        subfile: subfile.no,
                        block: unit.block,
                        len: unit.len,
                        crc: unit.crc,
                    },
                    skip: *skip,
                    subfile: self.foreign(*node, subfile),
                };
                self.read_subfile(range, &piece, out)?;
            }
        }
        Ok(())
    }

    fn read_subfile(&self, range: ByteRange, piece: &SubfilePiece, out: &mut [u8]) -> Result<()> {
        let opener = self.shared.subfiles.opener.read().clone();
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
            }
            let skip = piece.skip as usize;
            out.copy_from_slice(&last.bytes[skip..skip + out.len()]);
            Ok(())
        })
    }

    /// Reads a whole unit and checks it. A subfile whose mount died and came back is opened again.
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

    /// Bytes that the canonical file does not have, counted extent by extent. The
    /// books ([`File::stat`]) may count too many until the next merge. Zero when clean.
    pub fn count_undrained(&self) -> Result<u64> {
        match self.count_layers() {
            Err(StoreError::Clean) => Ok(0),
            other => other,
        }
    }

    fn count_layers(&self) -> Result<u64> {
        match &self.inner().life {
            Some(life) if !life.has_lower_layers() => {
                return Ok(life.tally.undrained.load(Ordering::Relaxed));
            }
            _ => {}
        }
        let mut sum = 0;
        let mut from = 0;
        while let Some(start) = self.next_extent(from)? {
            let window = ByteRange {
                start,
                end: start.saturating_add(WINDOW),
            };
            let extents = self.view(window)?.extents;
            sum += extents.iter().map(|(s, e)| e.undrained(*s)).sum::<u64>();
            from = window.end;
        }
        Ok(sum)
    }

    /// Reads every undrained byte; one sentence for each stretch that cannot be had.
    pub fn damage(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut buf = Vec::new();
        let size = self.stat().map_or(0, |stat| stat.size);
        let mut at = 0;
        while at < size {
            let window = ByteRange {
                start: at,
                end: size.min(at.saturating_add(WINDOW)),
            };
            at = window.end;
            let pieces = match self.plan(window) {
                Ok(plan) => plan.pieces,
                Err(error) => {
                    found.push(error.to_string());
                    continue;
                }
            };
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
        }
        found
    }
}

/// What lies below the store's own bytes: nothing beyond `limit`, and before it what is published
/// over the canonical file.
fn fill_gap(pieces: &mut Vec<Piece>, gap: ByteRange, limit: u64, published: &Published) {
    let below = ByteRange {
        start: gap.start,
        end: gap.end.min(limit),
    };
    if below.start < below.end {
        fill_published(pieces, below, published);
    }
    push(pieces, gap.start.max(limit), gap.end, Source::Zero);
}

fn fill_published(pieces: &mut Vec<Piece>, range: ByteRange, published: &Published) {
    if published.is_empty() {
        return push(pieces, range.start, range.end, Source::Canonical);
    }
    let cut = published.limit();
    let mut at = range.start;
    let fill = |pieces: &mut Vec<Piece>, start: u64, end: u64| {
        push(pieces, start, end.min(cut), Source::Canonical);
        push(pieces, start.max(cut), end, Source::Zero);
    };
    for piece in published.pieces(range) {
        fill(pieces, at, piece.range.start);
        at = piece.range.end;
        let source = match piece.source {
            ViewSource::Zero => Source::Zero,
            other => Source::Published(other),
        };
        push(pieces, piece.range.start, piece.range.end, source);
    }
    fill(pieces, at, range.end);
}

fn push(pieces: &mut Vec<Piece>, start: u64, end: u64, source: Source) {
    if start < end {
        let range = ByteRange { start, end };
        pieces.push(Piece { range, source });
    }
}
