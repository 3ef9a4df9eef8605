//! `forebay layout`.

use crate::args::LayoutArgs;
use crate::control::client::{self, Client};
use crate::control::protocol::{Reply, Request};
use crate::exit_codes::{Code, Failure, Result};
use crate::output::table::{Align, Table};
use crate::output::{self, Style, plain};
use crate::report::{LayoutPiece, LayoutReport, Tier};
use crate::units;
use std::os::unix::fs::MetadataExt;

/// Number of blocks in the line that shows the whole file.
const CELLS: u64 = 64;

pub fn run(args: &LayoutArgs) -> Result<Code> {
    let (mount, _) = client::mount_of(&args.file)?;
    // Connect before the file is accessed: a mount without its daemon does not answer.
    let daemon = Client::connect(&mount)?;
    let meta = std::fs::metadata(&args.file)
        .map_err(|e| Failure::failed(format!("cannot look at {}: {e}", args.file.display())))?;
    if !meta.is_file() {
        return Err(Failure::usage(format!(
            "{} is not a regular file, so its bytes are nowhere",
            args.file.display()
        )));
    }
    let reply = daemon.ask(&Request::Layout { ino: meta.ino() }, |_| {})?;
    let report = match reply {
        Reply::Layout(report) => fill(report, meta.len()),
        other => return Err(client::unexpected(&other)),
    };
    let name = plain(&args.file.display().to_string());
    output::report(&report, args.json, |r, style| render(&name, r, style))?;
    Ok(Code::Ok)
}

/// Completes the report of a clean file, for which the daemon sends no pieces: all of it is in the canonical
/// file.
fn fill(mut report: LayoutReport, size: u64) -> LayoutReport {
    if report.pieces.is_empty() {
        report.size = size;
        if size > 0 {
            report.pieces.push(LayoutPiece {
                start: 0,
                end: size,
                tier: Tier::Canonical,
                segment: None,
                offset: None,
                ost: None,
            });
        }
    }
    report
}

fn render(name: &str, report: &LayoutReport, style: Style) -> String {
    let mut out = format!(
        "{}  {}, {} undrained\n",
        style.bold(name),
        units::bytes(report.size),
        units::bytes(report.undrained)
    );
    if report.size == 0 {
        return out;
    }
    out.push_str(&format!("\n  {}\n", blocks(report, style)));
    out.push_str(&format!(
        "  {} log   {} subfile   {} canonical file   {} hole\n\n",
        style.yellow("L"),
        style.yellow("S"),
        style.green("C"),
        style.dim(".")
    ));
    let mut table = Table::new(&[
        ("from", Align::Right),
        ("to", Align::Right),
        ("length", Align::Right),
        ("where", Align::Left),
    ]);
    for piece in &report.pieces {
        table.row([
            piece.start.to_string(),
            piece.end.to_string(),
            units::bytes(piece.end - piece.start),
            place(piece, style),
        ]);
    }
    out.push_str(&table.render());
    if report.cut {
        out.push_str("  (there are more pieces than one report can hold)\n");
    }
    out
}

fn place(piece: &LayoutPiece, style: Style) -> String {
    match piece.tier {
        Tier::Canonical => style.green("canonical file"),
        Tier::Hole => style.dim("hole"),
        Tier::Layout => style.yellow("layout"),
        Tier::Subfile => style.yellow(&format!(
            "subfile {} on {} at {}",
            piece.segment.unwrap_or(0),
            plain(piece.ost.as_deref().unwrap_or("?")),
            piece.offset.unwrap_or(0)
        )),
        Tier::Log => style.yellow(&format!(
            "log, segment {} at {}",
            piece.segment.unwrap_or(0),
            piece.offset.unwrap_or(0)
        )),
    }
}

/// Draws the whole file as one line. Each cell shows where most of its bytes are.
fn blocks(report: &LayoutReport, style: Style) -> String {
    let cells = CELLS.min(report.size).max(1);
    let bound = |i: u64| (u128::from(report.size) * u128::from(i) / u128::from(cells)) as u64;
    let mut pieces = report.pieces.iter().peekable();
    (0..cells)
        .map(|i| {
            let (start, end) = (bound(i), bound(i + 1));
            let mut weight = [0_u64; 5];
            while let Some(piece) = pieces.peek() {
                let overlap = piece.end.min(end).saturating_sub(piece.start.max(start));
                weight[piece.tier as usize] += overlap;
                if piece.end > end {
                    break;
                }
                pieces.next();
            }
            // If two places have equally many bytes, the first one in this list is shown: the least safe
            // place.
            let tiers = [
                Tier::Log,
                Tier::Subfile,
                Tier::Layout,
                Tier::Canonical,
                Tier::Hole,
            ];
            let most = tiers.into_iter().rev().max_by_key(|t| weight[*t as usize]);
            match most.filter(|t| weight[*t as usize] > 0) {
                None => style.dim("?"),
                Some(Tier::Log) => style.yellow("L"),
                Some(Tier::Subfile | Tier::Layout) => style.yellow("S"),
                Some(Tier::Canonical) => style.green("C"),
                Some(Tier::Hole) => style.dim("."),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: u64, end: u64, tier: Tier) -> LayoutPiece {
        LayoutPiece {
            start,
            end,
            tier,
            segment: (tier == Tier::Log).then_some(3),
            offset: (tier == Tier::Log).then_some(4096),
            ost: None,
        }
    }

    fn report() -> LayoutReport {
        LayoutReport {
            size: 64 << 20,
            undrained: 16 << 20,
            pieces: vec![
                piece(0, 16 << 20, Tier::Log),
                piece(16 << 20, 48 << 20, Tier::Canonical),
                piece(48 << 20, 64 << 20, Tier::Hole),
            ],
            cut: false,
        }
    }

    #[test]
    fn a_line_of_blocks_in_proportion() {
        let line = blocks(&report(), Style::forced(false));
        let want = "L".repeat(16) + &"C".repeat(32) + &".".repeat(16);
        assert_eq!(line, want);
    }

    #[test]
    fn small_and_cut_files_have_blocks_too() {
        let mut r = report();
        r.size = 3;
        r.pieces = vec![piece(0, 2, Tier::Canonical)];
        assert_eq!(blocks(&r, Style::forced(false)), "CC?");
    }

    #[test]
    fn a_clean_file_is_all_below() {
        let empty = LayoutReport {
            size: 0,
            undrained: 0,
            pieces: vec![],
            cut: false,
        };
        let filled = fill(empty.clone(), 10);
        assert_eq!(filled.pieces, [piece(0, 10, Tier::Canonical)]);
        assert!(fill(empty, 0).pieces.is_empty());
    }

    #[test]
    fn the_table_names_the_place() {
        let text = render("f", &report(), Style::forced(false));
        assert!(text.contains("log, segment 3 at 4096"), "{text}");
        assert!(text.contains("64.0 MiB, 16.0 MiB undrained"), "{text}");
        assert!(!text.contains('\x1b'));
    }
}
