//! Answers `forebay layout`: turns a file's read plan, part by part, into a list of pieces.

use crate::report::{LayoutPiece, LayoutReport, Tier};
use layout_index::extent::BLOCK;
use layout_index::{ByteRange, File, Piece, PublishedSource, Result, Source, StoreError};

/// Maximum number of pieces in one report. Each has about 100 bytes on the wire, so that the report fits into
/// the longest message.
const MOST: usize = 8000;
/// Maximum number of pieces that are planned at once.
const AT_A_TIME: usize = 8192;

/// `None` is a clean file, which has no pieces here: the client knows its size. Ends early when `is_wanted`
/// returns false, which means that the client is gone.
pub fn report_layout(
    file: Option<&File>,
    is_wanted: &mut dyn FnMut() -> bool,
) -> Result<LayoutReport> {
    let mut report = LayoutReport {
        size: 0,
        undrained: 0,
        pieces: Vec::new(),
        cut: false,
    };
    let Some((file, stat)) = file.and_then(|f| Some((f, f.shown()?))) else {
        return Ok(report);
    };
    report.size = stat.size;
    report.undrained = stat.undrained;
    let mut at = 0;
    while at < stat.size && !report.cut && is_wanted() {
        let plan = match file.plan_upto(ByteRange::new(at, stat.size), AT_A_TIME) {
            Ok(plan) => plan,
            // The file became clean meanwhile.
            Err(StoreError::Clean) => {
                report.pieces.clear();
                report.undrained = 0;
                return Ok(report);
            }
            Err(e) => return Err(e),
        };
        for piece in &plan.pieces {
            if !add(&mut report.pieces, describe(piece)) {
                report.cut = true;
                break;
            }
        }
        if plan.range.is_empty() {
            // The file became shorter meanwhile.
            break;
        }
        at = plan.range.end;
    }
    Ok(report)
}

fn describe(piece: &Piece) -> LayoutPiece {
    let (tier, segment, offset) = match &piece.source {
        Source::Log(log) => {
            let offset = u64::from(log.unit.offset) + u64::from(log.skip);
            (Tier::Log, Some(log.unit.segment), Some(offset))
        }
        Source::Subfile(sub) | Source::Published(PublishedSource::Subfile(sub)) => {
            let offset = u64::from(sub.unit.block) * BLOCK + u64::from(sub.skip);
            (Tier::Subfile, Some(sub.unit.subfile), Some(offset))
        }
        Source::Published(PublishedSource::Inline { .. }) => (Tier::Layout, None, None),
        Source::Zero => (Tier::Hole, None, None),
        Source::Canonical => (Tier::Canonical, None, None),
    };
    let ost = match &piece.source {
        Source::Subfile(sub) | Source::Published(PublishedSource::Subfile(sub)) => {
            Some(sub.subfile.row().ost_name.clone())
        }
        _ => None,
    };
    LayoutPiece {
        ost,
        start: piece.range.start,
        end: piece.range.end,
        tier,
        segment,
        offset,
    }
}

/// Appends a piece, or extends the last one if the new one continues it. Returns false if the list is full.
fn add(pieces: &mut Vec<LayoutPiece>, piece: LayoutPiece) -> bool {
    if let Some(last) = pieces.last_mut()
        && last.end == piece.start
        && last.tier == piece.tier
        && last.segment == piece.segment
        && last.offset.map(|o| o + (last.end - last.start)) == piece.offset
    {
        last.end = piece.end;
        return true;
    }
    if pieces.len() >= MOST {
        return false;
    }
    pieces.push(piece);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(start: u64, end: u64, offset: u64) -> LayoutPiece {
        LayoutPiece {
            start,
            end,
            tier: Tier::Log,
            segment: Some(1),
            offset: Some(offset),
            ost: None,
        }
    }

    #[test]
    fn runs_are_joined_and_jumps_are_not() {
        let mut pieces = Vec::new();
        for piece in [
            log(0, 10, 100),
            log(10, 20, 110),
            log(20, 30, 500),
            log(40, 50, 510),
        ] {
            assert!(add(&mut pieces, piece));
        }
        assert_eq!(
            pieces,
            [log(0, 20, 100), log(20, 30, 500), log(40, 50, 510)]
        );
    }

    #[test]
    fn a_full_report_says_so() {
        let mut pieces: Vec<_> = (0..MOST as u64)
            .map(|i| log(i * 2, i * 2 + 1, i * 7))
            .collect();
        assert!(!add(&mut pieces, log(1 << 40, (1 << 40) + 1, 0)));
        let wire = serde_json::to_vec(&LayoutReport {
            size: u64::MAX,
            undrained: u64::MAX,
            pieces: vec![log(u64::MAX - 1, u64::MAX, u64::MAX); MOST],
            cut: true,
        })
        .unwrap();
        assert!(wire.len() < crate::control::codec::MAX, "{}", wire.len());
    }
}
