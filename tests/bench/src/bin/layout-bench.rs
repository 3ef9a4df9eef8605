//! Measures the layouts that nodes publish for a file, in bytes and microseconds: the layout of one
//! node with a million extents, and the merged view of a thousand nodes' layouts. No file is
//! touched.

use clap::Parser;
use forebay_bench::stats;
use layout_index::extent::{SubUnit, UNIT_MAX};
use layout_index::sharing::layout::{
    BatchBuilder, BuildError, Head, LayoutId, Parsed, Piece, SubfileRef, Tail, View, parse,
};
use layout_index::{ByteRange, Epoch, FileId, NodeId};
use rand::prelude::*;
use std::process::ExitCode;
use std::time::Instant;

/// Print the size of layouts and the cost of views for regular and irregular patterns.
///
/// Example: layout-bench --nodes 1000 --extents 1000000
#[derive(Parser)]
struct Cli {
    /// Extents of one node's layout
    #[arg(long, default_value_t = 1_000_000)]
    extents: u64,
    /// Nodes that write one file
    #[arg(long, default_value_t = 1_000)]
    nodes: u64,
    /// Pieces of each node in the file of many nodes
    #[arg(long, default_value_t = 1_000)]
    pieces: u64,
    /// Lookups to time
    #[arg(long, default_value_t = 2_000)]
    lookups: usize,
}

/// Size of one extent when it is written as a record of the store's log.
const RECORD: f64 = 64.0;
const READ: u64 = 1 << 20;
const MIB: f64 = 1048576.0;

/// Makes the batches of one layout. Packs bytes into units in the order in which they come.
struct Node {
    id: LayoutId,
    layout: Vec<u8>,
    subfile: SubfileRef,
    builder: BatchBuilder,
    block: u32,
    used: u32,
    rng: StdRng,
    unit: SubUnit,
}

impl Node {
    fn new(node: u64) -> Node {
        let id = LayoutId {
            file: FileId { ino: 1, birth: 2 },
            node: NodeId(node),
            generation: 0,
        };
        let mut made = Node {
            id,
            layout: id.header(&[1, 0, 0, 0, 9]).to_vec(),
            subfile: SubfileRef {
                run: 7,
                no: 1,
                ost: "ost-0001".into(),
            },
            builder: BatchBuilder::new(),
            block: 0,
            used: 0,
            rng: StdRng::seed_from_u64(node),
            unit: SubUnit::default(),
        };
        made.begin_unit(UNIT_MAX);
        made
    }

    fn begin_unit(&mut self, len: u32) {
        self.unit = SubUnit {
            subfile: 1,
            block: self.block,
            len,
            crc: self.rng.random(),
        };
        self.block += len.div_ceil(512);
        self.used = 0;
    }

    fn push(&mut self, start: u64, len: u64) -> Result<(), BuildError> {
        let mut at = start;
        while at < start + len {
            if self.used == self.unit.len {
                self.begin_unit(UNIT_MAX);
            }
            let part = (start + len - at).min(u64::from(self.unit.len - self.used));
            let piece = Piece::Subfile {
                subfile: &self.subfile,
                unit: self.unit,
                skip: self.used,
            };
            self.builder.push(ByteRange::new(at, at + part), piece)?;
            at += part;
            self.used += part as u32;
        }
        Ok(())
    }

    fn publish(&mut self, epoch: u64) -> Result<(), BuildError> {
        let builder = std::mem::take(&mut self.builder);
        let head = Head {
            epoch: Epoch(epoch),
            ..Head::default()
        };
        let batch = builder.finish(head);
        self.layout.extend(batch.encode(&self.id)?);
        Ok(())
    }

    fn parse(&self) -> Result<Parsed, String> {
        let parsed = parse(&self.layout, 0, &self.id);
        match parsed.tail {
            Tail::Complete => Ok(parsed),
            other => Err(format!(
                "a layout that was made here is not read: {other:?}"
            )),
        }
    }
}

/// Times lookups of 1 MiB at random places below `end`. Returns the median and the 99th percentile
/// in microseconds, and the average number of pieces that a lookup finds.
fn lookups(view: &View, end: u64, count: usize) -> (f64, f64, f64) {
    let mut rng = StdRng::seed_from_u64(1);
    let mut found = 0;
    let times: Vec<f64> = (0..count)
        .map(|_| {
            let start = rng.random_range(0..end.saturating_sub(READ).max(1));
            let begun = Instant::now();
            found += view.pieces(ByteRange::new(start, start + READ)).len();
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    let each = found as f64 / count as f64;
    (stats::median(&times), stats::quantile(&times, 0.99), each)
}

fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// Measures one node with `extents` extents. `next` returns start and length of an extent, given
/// the end of the previous one.
fn one_node(
    cli: &Cli,
    what: &str,
    own_units: bool,
    mut next: impl FnMut(&mut StdRng, u64) -> (u64, u64),
) -> Result<(), String> {
    let mut node = Node::new(1);
    let mut rng = StdRng::seed_from_u64(2);
    let mut end = 0;
    let begun = Instant::now();
    for _ in 0..cli.extents {
        let (start, len) = next(&mut rng, end);
        if own_units {
            node.begin_unit(len as u32);
        }
        node.push(start, len).map_err(|e| e.to_string())?;
        end = start + len;
    }
    node.publish(1).map_err(|e| e.to_string())?;
    let built = ms(begun);
    let begun = Instant::now();
    let parsed = node.parse()?;
    let decoded = ms(begun);
    let (strips, units) = parsed
        .batches
        .iter()
        .fold((0, 0), |(strips, units), (_, b)| {
            (strips + b.strips().len(), units + b.units().len())
        });
    let mut view = View::default();
    for (end, batch) in parsed.batches {
        view.add(node.id.node, 0, end, batch);
    }
    let bytes = node.layout.len() as f64;
    let (median, p99, _) = lookups(&view, end, cli.lookups);
    println!(
        "{what:<38}{strips:>9}{units:>9}{:>11.0}{:>8.2}{:>9.3}{built:>8.0}{decoded:>8.1}{:>8.1}{median:>8.1}{p99:>8.1}",
        bytes / 1024.0,
        bytes / cli.extents as f64,
        bytes / (cli.extents as f64 * RECORD),
        view.memory() as f64 / MIB,
    );
    Ok(())
}

/// Measures many nodes that publish `batches` batches each. `starts` returns where the pieces of
/// one batch begin; all pieces are `len` bytes long.
fn many_nodes(
    cli: &Cli,
    what: &str,
    len: u64,
    batches: u64,
    starts: impl Fn(u64, u64) -> Vec<u64>,
) -> Result<(), String> {
    let mut nodes = Vec::new();
    let mut end = 0;
    for id in 0..cli.nodes {
        let mut node = Node::new(id);
        for batch in 0..batches {
            for start in starts(id, batch) {
                node.push(start, len).map_err(|e| e.to_string())?;
                end = end.max(start + len);
            }
            node.publish(batch + 1).map_err(|e| e.to_string())?;
        }
        nodes.push(node);
    }
    let bytes: usize = nodes.iter().map(|n| n.layout.len()).sum();
    let begun = Instant::now();
    let parsed: Vec<Parsed> = nodes.iter().map(Node::parse).collect::<Result<_, _>>()?;
    let decoded = ms(begun);
    let begun = Instant::now();
    let mut view = View::default();
    for (node, parsed) in nodes.iter().zip(parsed) {
        for (end, batch) in parsed.batches {
            view.add(node.id.node, 0, end, batch);
        }
    }
    view.limit();
    let merged = ms(begun);
    let (median, p99, pieces) = lookups(&view, end, cli.lookups);
    let begun = Instant::now();
    let (mut units, mut from) = (0, 0);
    loop {
        let page = view.ranges(READ, from, 1024);
        let Some(last) = page.last() else { break };
        (units, from) = (units + page.len(), last.end);
    }
    println!(
        "{what:<38}{:>9.1}{:>11.0}{decoded:>9.1}{merged:>9.2}{:>8.1}{median:>8.1}{p99:>8.1}{pieces:>8.0}{units:>9}{:>9.1}",
        end as f64 / MIB / 1024.0,
        bytes as f64 / 1024.0,
        view.memory() as f64 / MIB,
        ms(begun),
    );
    Ok(())
}

fn run(cli: &Cli) -> Result<(), String> {
    let nodes = cli.nodes;
    println!("One node, {} extents in one layout", cli.extents);
    println!(
        "{:<38}{:>9}{:>9}{:>11}{:>8}{:>9}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "",
        "strips",
        "units",
        "KiB",
        "B/ext.",
        "records",
        "make ms",
        "read ms",
        "MiB",
        "us",
        "us p99"
    );
    let stride = |len: u64| move |_: &mut StdRng, end: u64| (end + (nodes - 1) * len, len);
    one_node(cli, "stride, 4096 bytes", false, stride(4096))?;
    one_node(cli, "stride, 47008 bytes", false, stride(47008))?;
    one_node(cli, "stride, 47008 bytes, a unit each", true, stride(47008))?;
    let gaps = |rng: &mut StdRng, end: u64| (end + rng.random_range(1..8192), 4096);
    one_node(cli, "4096 bytes, irregular gaps", false, gaps)?;
    let wild =
        |rng: &mut StdRng, end: u64| (end + rng.random_range(1..8192), rng.random_range(1..8192));
    one_node(cli, "irregular lengths and gaps", false, wild)?;
    one_node(cli, "irregular, a unit each", true, wild)?;
    let all_over = |rng: &mut StdRng, _: u64| (rng.random_range(0..1 << 40), 4096);
    one_node(cli, "4096 bytes all over a TiB, no order", false, all_over)?;
    println!(
        "records: against one record of {RECORD} bytes for each extent; us: a lookup of 1 MiB\n"
    );

    println!("{nodes} nodes, one file, {} pieces each", cli.pieces);
    println!(
        "{:<38}{:>9}{:>11}{:>9}{:>9}{:>8}{:>8}{:>8}{:>8}{:>9}{:>9}",
        "", "GiB", "KiB", "read ms", "merge ms", "MiB", "us", "us p99", "pieces", "units", "all ms"
    );
    let interleaved = |len: u64, pieces: u64| {
        move |node: u64, batch: u64| -> Vec<u64> {
            let first = batch * pieces;
            (first..first + pieces)
                .map(|i| (i * nodes + node) * len)
                .collect()
        }
    };
    let each = cli.pieces;
    many_nodes(
        cli,
        "interleaved, 100 bytes",
        100,
        1,
        interleaved(100, each),
    )?;
    many_nodes(
        cli,
        "interleaved, 4096 bytes",
        4096,
        1,
        interleaved(4096, each),
    )?;
    many_nodes(
        cli,
        "interleaved, 47008 bytes",
        47008,
        1,
        interleaved(47008, each),
    )?;
    many_nodes(cli, "interleaved, 1 MiB", READ, 1, interleaved(READ, each))?;
    let in_ten = interleaved(47008, each.div_ceil(10));
    many_nodes(cli, "47008 bytes, 10 batches of a tenth", 47008, 10, in_ten)?;
    let again = interleaved(47008, each);
    many_nodes(cli, "47008 bytes, 10 times over", 47008, 10, |node, _| {
        again(node, 0)
    })?;
    many_nodes(cli, "segments, 4096 bytes", 4096, 1, |node, _| {
        (0..each).map(|i| (node * each + i) * 4096).collect()
    })?;
    println!("us: a lookup of 1 MiB; units, all ms: every MiB that a drain has to write");
    Ok(())
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("layout-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
