//! Tools that leave holes out, on files in every state that data passes through.
//!
//! S1.2: `stat` shows the size and the allocated blocks as if all data were in the canonical file, also while none
//! of it is; S1.10: `SEEK_DATA` never skips data. `tar -S` takes a file without blocks for one without data, and
//! archives zeros.

use forebay_tests::cluster::Cluster;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, put};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const STATES: [&str; 6] = [
    "written",
    "closed",
    "synced",
    "seen",
    "rewritten",
    "drained",
];
const SHAPES: [&str; 3] = ["small", "dense", "holes"];

/// Returns pieces of data, and the size of the file.
fn shape(name: &str) -> (Vec<(u64, usize)>, u64) {
    match name {
        "small" => (vec![(0, 700)], 700),
        "dense" => (vec![(0, 300_000)], 300_000),
        _ => (vec![(0, 5000), (1 << 20, 100_000), (7 << 20, 1)], 8 << 20),
    }
}

fn content(shape_name: &str) -> Vec<u8> {
    let (pieces, size) = shape(shape_name);
    let mut bytes = vec![0; size as usize];
    for (at, len) in pieces {
        bytes[at as usize..at as usize + len].fill(b'd');
    }
    bytes
}

fn write(file: &File, shape_name: &str) {
    let (pieces, size) = shape(shape_name);
    file.set_len(size).expect("set the size");
    for (at, len) in pieces {
        sys::write_all_at(file, &vec![b'd'; len], at).expect("write");
    }
}

/// Checks S1.2 and S1.10 on every node, with `tar -S`, `cp --sparse=always` and `rsync -S`.
#[test]
fn tools_that_leave_out_holes_leave_out_no_data() {
    let mut cluster = Cluster::new(3, Drain::Never, LIMIT);
    cluster.start();
    fs::create_dir(cluster.mount(0).path("d")).expect("mkdir");
    let mut open = Vec::new();
    for state in [
        "drained",
        "written",
        "closed",
        "synced",
        "seen",
        "rewritten",
    ] {
        for shape in SHAPES {
            let name = format!("d/{state}-{shape}");
            let file = File::create(cluster.mount(0).path(&name)).expect("create");
            write(&file, shape);
            match state {
                "written" => {
                    open.push(file);
                    continue;
                }
                "synced" => file.sync_all().expect("fsync"),
                _ => {}
            }
            sys::close(file).expect("close");
            match state {
                "seen" => assert_same(&name, &get(cluster.mount(1).path(&name)), &content(shape)),
                "rewritten" => {
                    // A piece of it comes from another node, and is published.
                    let file = File::options()
                        .write(true)
                        .open(cluster.mount(1).path(&name));
                    let file = file.expect("open");
                    sys::write_all_at(&file, b"ddd", 100).expect("write");
                    file.sync_all().expect("fsync");
                }
                _ => {}
            }
        }
        if state == "drained" {
            cluster.drain();
        }
    }
    // Other nodes see bytes that were written and not closed only after a sync.
    copies_on(cluster.mount(0), &STATES);
    for file in open {
        file.sync_all().expect("fsync");
        sys::close(file).expect("close");
    }
    for node in [1, 2, 0] {
        copies_on(cluster.mount(node), &STATES);
    }
    cluster.drain();
    copies_on(cluster.mount(2), &STATES);
    cluster.finish();
}

fn copies_on(mount: &TestMount, states: &[&str]) {
    let from = mount.path("d");
    for state in states {
        for shape in SHAPES {
            let name = format!("{state}-{shape}");
            // The file is opened, so that it shows data that is only announced (S2.2).
            let opened = File::open(from.join(&name)).expect("open");
            let meta = opened.metadata().expect("fstat");
            let data: usize = self::shape(shape).0.iter().map(|(_, len)| len).sum();
            let allocated = meta.blocks() * 512;
            assert!(
                allocated >= data as u64,
                "{name}: {allocated} bytes in blocks, {data} of data"
            );
            assert!(
                allocated <= meta.len().next_multiple_of(4096),
                "{name}: {allocated} in blocks"
            );
        }
    }
    let to = tempfile::tempdir().expect("a directory");
    let [tar, cp, rsync] = ["tar", "cp", "rsync"].map(|tool| to.path().join(tool));
    fs::create_dir(&tar).expect("mkdir");
    let archive = to.path().join("a.tar");
    run(Command::new("tar")
        .arg("-S")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(&from)
        .arg("."));
    run(Command::new("tar")
        .arg("-xf")
        .arg(&archive)
        .arg("-C")
        .arg(&tar));
    run(Command::new("cp")
        .args(["-r", "--sparse=always"])
        .arg(&from)
        .arg(&cp));
    run(Command::new("rsync").arg("-rS").arg(&from).arg(&rsync));
    for state in states {
        for shape in SHAPES {
            let name = format!("{state}-{shape}");
            for copy in [&tar, &cp, &rsync.join("d")] {
                let copy: &Path = copy;
                let what = format!(
                    "{} on {}",
                    copy.join(&name).display(),
                    mount.mnt().display()
                );
                assert_same(&what, &get(copy.join(&name)), &content(shape));
            }
        }
    }
}

fn run(command: &mut Command) {
    let out = command.output().expect("run a tool");
    assert!(
        out.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
}

/// S1.2: holes, and bytes that were published again, do not count as blocks.
#[test]
fn blocks_are_those_of_the_data() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.start();
    let paths = cluster.paths("f");
    put(&paths[0], b"");
    let file = File::options().write(true).open(&paths[0]).expect("open");
    file.set_len(64 << 20).expect("set the size");
    for _ in 0..20 {
        sys::write_all_at(&file, &[1; 4096], 1 << 20).expect("write");
        file.sync_all().expect("fsync");
    }
    for path in &paths {
        let opened = File::open(path).expect("open");
        let blocks = opened.metadata().expect("fstat").blocks();
        assert_eq!(blocks, 8, "{}", path.display());
        assert_eq!(
            sys::seek(&opened, 0, libc::SEEK_DATA).expect("seek"),
            Some(1 << 20)
        );
    }
    drop(file);
    cluster.finish();
}
