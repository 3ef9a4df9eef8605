//! Random batches together with their meaning, for the tests of this module.

use super::{Batch, BatchBuilder, Head, Piece, SubfileRef, ViewPiece, ViewSource};
use crate::checksum;
use crate::extent::{BLOCK, SubUnit};
use crate::types::{ByteRange, Epoch, FileNo, NodeId, Seq, Timestamp};
use rand::prelude::*;
use std::collections::HashMap;

/// Maximum size of the files in these tests.
pub(super) const MAX: u64 = 1500;

/// Takes `FOREBAY_SEED` or a fresh seed, and prints it so that a failure can be replayed.
pub(super) fn seed(test: &str) -> u64 {
    let seed = match std::env::var("FOREBAY_SEED") {
        Ok(text) => text.parse().expect("FOREBAY_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("{test}: replay with FOREBAY_SEED={seed}");
    seed
}

/// The subfiles of all nodes, by name.
#[derive(Default)]
pub(super) struct Targets(HashMap<String, Vec<u8>>);

impl Targets {
    /// Adds a new unit at the end of a subfile.
    fn append(&mut self, node: NodeId, subfile: &SubfileRef, bytes: &[u8]) -> SubUnit {
        let file = self.0.entry(subfile.name(node)).or_default();
        file.resize(file.len().next_multiple_of(BLOCK as usize), 0);
        let block = (file.len() as u64 / BLOCK) as u32;
        file.extend_from_slice(bytes);
        SubUnit {
            subfile: subfile.no,
            block,
            len: bytes.len() as u32,
            crc: checksum::crc32c(bytes),
        }
    }

    /// Reads a piece's bytes from a unit, which must match its checksum.
    pub fn read(&self, piece: &ViewPiece) -> Vec<u8> {
        let len = piece.range.len() as usize;
        match &piece.source {
            ViewSource::Zero => vec![0; len],
            ViewSource::Inline { batch, at } => batch.inline()[*at as usize..][..len].to_vec(),
            ViewSource::Subfile {
                node,
                batch,
                unit,
                skip,
            } => {
                let (subfile, unit) = batch.unit(*unit);
                let file = &self.0[&subfile.name(*node)];
                let bytes = &file[unit.offset() as usize..][..unit.len as usize];
                assert_eq!(checksum::crc32c(bytes), unit.crc, "{piece:?}");
                bytes[*skip as usize..][..len].to_vec()
            }
        }
    }
}

/// A batch, and its writes in order.
pub(super) struct Published {
    pub batch: Batch,
    pub writes: Vec<(u64, Vec<u8>)>,
}

/// Ranges as a job would write them: regular, irregular, adjacent, or anywhere.
fn ranges(rng: &mut StdRng) -> Vec<ByteRange> {
    let mut ranges = Vec::new();
    for _ in 0..rng.random_range(0..4) {
        let (len, start) = (rng.random_range(1..60), rng.random_range(0..MAX));
        let stride = len + rng.random_range(0..3) * rng.random_range(0..90);
        let count = [1, 1, 2, 7, 30][rng.random_range(0..5)];
        for i in 0..count {
            let at = start + i * stride;
            if at + len <= MAX {
                ranges.push(ByteRange::new(at, at + len));
            }
        }
    }
    ranges
}

pub(super) fn publish(
    rng: &mut StdRng,
    targets: &mut Targets,
    node: NodeId,
    epoch: Epoch,
) -> Published {
    let mut builder = BatchBuilder::new();
    let mut writes = Vec::new();
    let mut unit: Option<(SubfileRef, SubUnit, Vec<u8>, usize)> = None;
    let mut way = 0;
    for range in ranges(rng) {
        if rng.random_bool(0.3) {
            way = rng.random_range(0..4);
        }
        let mut bytes: Vec<u8> = (0..range.len()).map(|_| rng.random()).collect();
        match way {
            0 => {
                bytes.fill(0);
                builder.push(range, Piece::Zero).unwrap();
            }
            1 => builder.push(range, Piece::Inline(&bytes)).unwrap(),
            _ => {
                // Bytes are taken from units that were filled before, so that pieces begin and end
                // anywhere in them.
                let mut at = range.start;
                bytes.clear();
                while at < range.end {
                    if unit
                        .as_ref()
                        .is_none_or(|(_, u, _, used)| *used == u.len as usize)
                    {
                        let subfile = SubfileRef {
                            run: node.0 as u32,
                            no: rng.random_range(0..3),
                            ost: "a target".into(),
                        };
                        let len = rng.random_range(1..700);
                        let content: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                        let new = targets.append(node, &subfile, &content);
                        unit = Some((subfile, new, content, 0));
                    }
                    let (subfile, unit, content, used) = unit.as_mut().unwrap();
                    let part = (range.end - at).min((content.len() - *used) as u64);
                    let piece = Piece::Subfile {
                        subfile,
                        unit: *unit,
                        skip: *used as u32,
                    };
                    builder.push(ByteRange::new(at, at + part), piece).unwrap();
                    bytes.extend_from_slice(&content[*used..][..part as usize]);
                    *used += part as usize;
                    at += part;
                }
            }
        }
        writes.push((range.start, bytes));
    }
    let head = Head {
        epoch,
        period: FileNo(rng.random()),
        upto: Seq(rng.random()),
        cut: rng.random_bool(0.2).then(|| rng.random_range(0..MAX)),
        grown: if rng.random_bool(0.2) {
            rng.random_range(0..=MAX)
        } else {
            0
        },
        mtime: Timestamp(rng.random()),
    };
    Published {
        batch: builder.finish(head),
        writes,
    }
}

/// A file as the rules of decision 0008 define it, byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub bytes: Vec<u8>,
    pub size: u64,
    pub mtime: Timestamp,
}

impl Model {
    pub fn new(rng: &mut StdRng) -> Model {
        let size = rng.random_range(0..=MAX);
        let bytes = (0..MAX).map(|at| if at < size { rng.random() } else { 0 });
        Model {
            bytes: bytes.collect(),
            size,
            mtime: Timestamp(7),
        }
    }

    pub fn cut(&mut self, at: u64) {
        self.bytes[at as usize..].fill(0);
        self.size = self.size.min(at);
    }

    pub fn apply(&mut self, published: &Published) {
        let head = &published.batch.head;
        if let Some(cut) = head.cut {
            self.cut(cut);
        }
        for (at, bytes) in &published.writes {
            self.bytes[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        self.size = self.size.max(head.grown);
        self.mtime = head.mtime;
    }
}
