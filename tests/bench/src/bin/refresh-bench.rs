//! Cost of an open when a thousand nodes have published parts of one file. Real files in a shared
//! directory are read by a node that has never seen them, and read again after one of them has
//! changed.

use clap::Parser;
use layout_index::extent::{SubUnit, UNIT_MAX};
use layout_index::sharing::layout::{BatchBuilder, Head, LayoutId, Piece, SubfileRef};
use layout_index::sharing::shared_dir::{Owner, SharedDir, names_of};
use layout_index::{
    ByteRange, Canonical, Epoch, FileId, NodeId, Peers, RealDisk, SpaceOptions, Store,
    StoreOptions, Wait,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time refreshes of a file that many nodes have published parts of.
///
/// Example: refresh-bench --dir /scratch/tmp --nodes 1000
#[derive(Parser)]
struct Cli {
    /// Directory on the file system to measure [default: the temporary directory]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Largest number of nodes; tenths of it are measured too
    #[arg(long, default_value_t = 1_000)]
    nodes: u64,
    /// Pieces of 47008 bytes of each node, interleaved
    #[arg(long, default_value_t = 1_000)]
    pieces: u64,
}

const FILE: FileId = FileId { ino: 7, birth: 9 };
const PIECE: u64 = 47_008;

fn main() -> io::Result<()> {
    let cli = Cli::parse();
    println!("| nodes | layouts | first look | nothing new | one node has published | in memory |");
    println!("|--:|--:|--:|--:|--:|--:|");
    for nodes in [cli.nodes / 100, cli.nodes / 10, cli.nodes] {
        if nodes > 0 {
            measure(&cli, nodes)?;
        }
    }
    Ok(())
}

fn measure(cli: &Cli, nodes: u64) -> io::Result<()> {
    let parent = cli.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::tempdir_in(parent)?;
    let backing = dir.path().join("backing");
    std::fs::create_dir(&backing)?;
    let store = store(dir.path(), &backing)?;
    let me = Owner {
        id: store.id(),
        run: store.run(),
    };
    let root = std::fs::File::open(&backing)?;
    let shared_dir = SharedDir::join(root.into(), me, "reader", Duration::from_secs(30))?;
    // Makes the file's directory in the same way as a node does.
    let announcement = shared_dir.announce(FILE)?;
    shared_dir.fulfil(FILE, &[announcement])?;
    let [group, fid] = names_of(FILE);
    let there = backing.join(".forebay/files").join(group).join(fid);
    let mut bytes = 0;
    for node in 1..=nodes {
        bytes += publish(&there, node, nodes, cli.pieces, Epoch(node))?;
    }
    let peers = Peers::new(&store, shared_dir, layout_index::sleep);
    peers.shared_dir().touch(FILE)?;
    let file = store.file(FILE);
    let ask = || Ok(Canonical { size: 0, uid: 0 });
    let look = || -> io::Result<f64> {
        let began = Instant::now();
        let looked = peers.refresh(&file, &ask, Wait::No);
        looked.map_err(io::Error::other)?;
        Ok(began.elapsed().as_secs_f64())
    };
    let first = look()?;
    let mut idle = Vec::new();
    for _ in 0..1000 {
        idle.push(look()?);
    }
    idle.sort_by(f64::total_cmp);
    publish(&there, nodes + 1, nodes, 1, Epoch(nodes + 1))?;
    peers.shared_dir().touch(FILE)?;
    let news = look()?;
    let memory = peers.view(&file).memory();
    println!(
        "| {nodes} | {:.1} KiB | {:.1} ms | {:.1} us | {:.1} ms | {:.1} KiB |",
        bytes as f64 / 1024.0,
        first * 1e3,
        idle[idle.len() / 2] * 1e6,
        news * 1e3,
        memory as f64 / 1024.0
    );
    Ok(())
}

fn store(dir: &Path, backing: &Path) -> io::Result<Arc<Store>> {
    let options = StoreOptions {
        dir: dir.join("store"),
        node: "reader".into(),
        backing: backing.to_path_buf(),
        index_memory: 16 << 20,
        space: SpaceOptions {
            capacity: Some(64 << 20),
            ..SpaceOptions::default()
        },
    };
    let opened = Store::open(options, Arc::new(RealDisk));
    opened.map(|(store, _)| store).map_err(io::Error::other)
}

/// Writes the layout of one node as that node would leave it.
fn publish(dir: &Path, node: u64, nodes: u64, pieces: u64, epoch: Epoch) -> io::Result<u64> {
    let id = LayoutId {
        file: FILE,
        node: NodeId(node),
        generation: 1,
    };
    let subfile = SubfileRef {
        run: 1,
        no: 1,
        ost: "backing".into(),
    };
    let mut builder = BatchBuilder::new();
    let whole = u64::from(UNIT_MAX);
    for piece in 0..pieces {
        let mut at = piece * PIECE;
        let mut start = (piece * nodes + node) * PIECE;
        let end = start + PIECE;
        while start < end {
            let part = (whole - at % whole).min(end - start);
            let unit = SubUnit {
                subfile: 1,
                block: (at / whole * whole / 512) as u32,
                len: UNIT_MAX,
                crc: (at / whole) as u32,
            };
            let from = Piece::Subfile {
                subfile: &subfile,
                unit,
                skip: (at % whole) as u32,
            };
            let pushed = builder.push(ByteRange::new(start, start + part), from);
            pushed.map_err(io::Error::other)?;
            at += part;
            start += part;
        }
    }
    let batch = builder.finish(Head {
        epoch,
        ..Head::default()
    });
    let mut bytes = id.header(&[]).to_vec();
    bytes.extend(batch.encode(&id).map_err(io::Error::other)?);
    let path = dir.join(format!("l.{}.{:x}", id.node, id.generation));
    std::fs::write(&path, &bytes)?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(bytes.len() as u64)
}
