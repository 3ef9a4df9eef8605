//! Appends of several nodes: in turns, at the same time, and in every way that programs have.
//!
//! S2.15: an append goes behind everything that was announced or published before it, on whatever node; appends of
//! several nodes at the same time do not overlap.

use forebay_tests::cluster::Cluster;
use forebay_tests::locks::{How, unlock, wait_for_lock};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, assert_same, get, put};
use forebay_tests::wait::{LONG, wait_until};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn nodes(count: usize, settings: &[(&str, &str)]) -> Cluster {
    let mut cluster = Cluster::new(count, Drain::Immediate, LIMIT);
    for (key, value) in settings {
        cluster.set(key, value);
    }
    cluster.start();
    cluster
}

fn append(path: &Path) -> File {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.expect("open to append")
}

/// Appends a line as the shell does for `>>`.
fn append_line(path: &Path, line: &str) {
    let mut file = append(path);
    file.write_all(line.as_bytes()).expect("append");
    sys::close(file).expect("close");
}

/// S2.1, S2.15 with the default settings: names and attributes stay in the kernel for a while.
#[test]
fn nodes_that_take_turns_lose_no_line() {
    let cluster = nodes(2, &[]);
    let mut want = String::new();
    for round in 0..15 {
        for (node, path) in cluster.paths("log").iter().enumerate() {
            let line = format!("round {round} node {node}\n");
            append_line(path, &line);
            want += &line;
        }
    }
    for path in cluster.paths("log") {
        assert_same("the log", &get(path), want.as_bytes());
    }
    cluster.drain();
    assert_same("drained", &get(cluster.canonical("log")), want.as_bytes());
    cluster.finish();
}

/// S2.5, S2.15: an append does not go behind bytes that another node has cut off.
#[test]
fn an_append_comes_behind_a_cut_of_another_node() {
    let cluster = nodes(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|n| cluster.mount(n).path("f"));
    for path in [&a, &b, &c] {
        // The kernel of each node has the name and a size now.
        std::fs::metadata(cluster.mount(0).mnt()).expect("stat");
        put(&a, vec![7; 100_000]);
        assert_eq!(get(path).len(), 100_000);
    }
    sys::truncate(&b, 50_000).expect("truncate");
    append_line(&c, "end\n");
    let mut want = vec![7; 50_000];
    want.extend(b"end\n");
    for path in [a, b, c] {
        assert_same("cut and appended", &get(path), &want);
    }
    cluster.finish();
}

/// How a program appends.
#[derive(Clone, Copy, Debug)]
enum Way {
    Append,
    Direct,
    PerWrite,
    SetLater,
}

const WAYS: [Way; 4] = [Way::Append, Way::Direct, Way::PerWrite, Way::SetLater];

impl Way {
    fn open(self, path: &Path) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match self {
            Way::Append => drop(options.append(true)),
            Way::Direct => drop(options.append(true).custom_flags(libc::O_DIRECT)),
            Way::PerWrite | Way::SetLater => {}
        }
        options.open(path).expect("open to append")
    }

    fn write(self, file: &mut File, bytes: &[u8]) {
        match self {
            Way::PerWrite => sys::append_once(file, bytes).expect("pwritev2"),
            Way::SetLater => {
                sys::set_append(file, true).expect("F_SETFL");
                file.write_all(bytes).expect("append");
            }
            Way::Append | Way::Direct => file.write_all(bytes).expect("append"),
        }
    }
}

/// S2.15: right after an open each way to append finds the end. The file position is behind the bytes, and the end
/// too.
#[test]
fn every_way_to_append_finds_the_end_after_an_open() {
    let cluster = nodes(2, &[]);
    for way in WAYS {
        let paths = cluster.paths(format!("{way:?}"));
        let mut want = vec![1; 3000];
        put(&paths[0], &want);
        assert_eq!(get(&paths[1]).len(), want.len());
        for round in 0..4u8 {
            let bytes = vec![10 + round; 777];
            let mut file = way.open(&paths[round as usize % 2]);
            way.write(&mut file, &bytes);
            want.extend(&bytes);
            let end = want.len() as u64;
            if !matches!(way, Way::PerWrite) {
                assert_eq!(file.stream_position().expect("position"), end, "{way:?}");
            }
            assert_eq!(file.seek(SeekFrom::End(0)).expect("end"), end, "{way:?}");
            assert_eq!(file.metadata().expect("fstat").len(), end, "{way:?}");
            sys::close(file).expect("close");
        }
        for path in &paths {
            assert_same(&format!("{way:?}"), &get(path), &want);
        }
    }
    cluster.finish();
}

/// S2.15, S3.6: through handles that stay open each way to append finds the end, under each kind of lock and after
/// fsync.
#[test]
fn every_way_to_append_finds_the_end_under_a_lock() {
    let cluster = nodes(2, &[]);
    for way in WAYS {
        for how in How::ALL {
            let paths = cluster.paths(format!("{way:?}-{how:?}"));
            put(&paths[0], b"begin\n");
            let mut files: Vec<File> = paths.iter().map(|path| way.open(path)).collect();
            let mut want = b"begin\n".to_vec();
            for round in 0..6u8 {
                let file = &mut files[round as usize % 2];
                wait_for_lock(file, how).expect("lock");
                let bytes = vec![b'a' + round; 500 + round as usize];
                way.write(file, &bytes);
                want.extend(&bytes);
                unlock(file, how).expect("unlock");
            }
            for path in &paths {
                assert_same(&format!("{way:?} under {how:?}"), &get(path), &want);
            }
            files[0].sync_all().expect("fsync");
            let end = files[0].seek(SeekFrom::End(0)).expect("end");
            assert_eq!(end, want.len() as u64);
            for file in files {
                sys::close(file).expect("close");
            }
        }
    }
    cluster.finish();
}

/// S2.15 for appends at the same time: every line is there once and whole, whatever the nodes do with their stores.
#[test]
fn appends_at_the_same_time_are_all_there() {
    at_the_same_time(&[]);
}

/// S2.15 with `close = publish`, and with files that are opened for each line.
#[test]
fn appends_at_the_same_time_with_publishing_closes() {
    at_the_same_time(&[("close", "publish")]);
}

/// S2.15 and S2.9: appends to coherent files.
#[test]
fn appends_at_the_same_time_of_coherent_files() {
    at_the_same_time(&[("absorb", "coherent")]);
}

/// S2.15 for appends that are written through.
#[test]
fn appends_at_the_same_time_that_are_not_absorbed() {
    at_the_same_time(&[("absorb", "off")]);
}

fn at_the_same_time(settings: &[(&str, &str)]) {
    const LINES: usize = 40;
    let cluster = nodes(3, settings);
    let paths = cluster.paths("log");
    put(&paths[0], b"");
    let barrier = Barrier::new(paths.len());
    std::thread::scope(|scope| {
        for (node, path) in paths.iter().enumerate() {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let mut file = append(path);
                for line in 0..LINES {
                    // One of the lines takes several requests.
                    let long = if line == LINES / 2 {
                        2_500_000
                    } else {
                        3 + 37 * line
                    };
                    let text = format!("{node} {line} {}\n", "x".repeat(long));
                    match line % 8 {
                        // A `>>` runs beside the open handle.
                        3 => append_line(path, &text),
                        _ => file.write_all(text.as_bytes()).expect("append"),
                    }
                }
                sys::close(file).expect("close");
            });
        }
    });
    cluster.drain();
    let got = get(cluster.canonical("log"));
    for path in &paths {
        assert_same("all nodes agree", &get(path), &got);
    }
    let mut found: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for line in std::str::from_utf8(&got).expect("text").lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|w| w.parse().ok());
        let (node, number) = (number().expect("node"), number().expect("line"));
        let rest = words.next().expect("rest");
        assert!(
            rest.bytes().all(|b| b == b'x'),
            "torn: node {node}, line {number}"
        );
        *found.entry((node, number)).or_default() += rest.len();
    }
    assert_eq!(found.len(), paths.len() * LINES, "lines that are there");
    for ((node, line), len) in found {
        let long = if line == LINES / 2 {
            2_500_000
        } else {
            3 + 37 * line
        };
        assert_eq!(len, long, "node {node}, line {line}");
    }
    cluster.finish();
}

/// S1.9, S2.15: pages of a mapping go where they belong, also through a handle that appends, and a removed file is
/// appended to like any other.
#[test]
fn appends_beside_other_uses_of_the_handle() {
    let cluster = nodes(2, &[]);
    let path = cluster.mount(0).path("f");
    put(&path, vec![1; 8192]);
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .open(&path)
        .expect("open");
    let mut map = sys::Mapping::new(&file, 0, 4096).expect("map");
    map.bytes_mut()[10] = 9;
    map.sync().expect("msync");
    file.write_all(b"tail").expect("append");
    let mut want = vec![1; 8192];
    want[10] = 9;
    want.extend(b"tail");
    assert_same("mapped and appended", &get(&path), &want);
    std::fs::remove_file(&path).expect("remove");
    file.write_all(b"more").expect("append to a removed file");
    want.extend(b"more");
    let mut got = vec![0; want.len() + 1];
    let len = file.read_at(&mut got, 0).expect("read");
    assert_same("removed and appended", &got[..len], &want);
    drop((map, file));
    cluster.finish();
}

/// S2.15: an acknowledged append is not written over by another one, also if its daemon is killed.
#[test]
fn appends_of_a_killed_node_are_waited_for() {
    let mut cluster = Cluster::new(2, Drain::Never, LIMIT);
    cluster.set("visibility-timeout", "1s");
    cluster.allow_log("did not let this one append");
    cluster.start();
    let [a, b] = [0, 1].map(|n| cluster.mount(n).path("log"));
    append_line(&a, "begin\n");
    assert_same("published", &get(&b), b"begin\n");
    let mut held = append(&a);
    held.write_all(b"acknowledged\n").expect("append");
    cluster.mount_mut(0).kill();
    drop(held);
    let mut file = append(&b);
    let refused = sys::errno(file.write_all(b"lost?\n"), "append behind a killed node");
    assert_eq!(refused, libc::ETIMEDOUT);
    assert_same("readers go on", &get(&b), b"begin\n");
    cluster.mount_mut(0).start();
    file.write_all(b"end\n").expect("append when it is back");
    sys::close(file).expect("close");
    for path in [&a, &b] {
        assert_same("all of them", &get(path), b"begin\nacknowledged\nend\n");
    }
    cluster.finish();
}

/// S2.15 while programs have had the file open for reading since it was drained (`tail -f`): the kernel then reads
/// the canonical file by itself. Appends take turns all the same, also through handles that stay open.
#[test]
fn appends_beside_readers_of_a_drained_file() {
    let mut cluster = Cluster::new(2, Drain::Immediate, LIMIT);
    cluster.start();
    let paths = cluster.paths("log");
    append_line(&paths[0], "begin\n");
    cluster.drain();
    let readers: Vec<File> = paths.iter().map(|p| File::open(p).expect("open")).collect();
    std::thread::scope(|scope| {
        for (node, path) in paths.iter().enumerate() {
            scope.spawn(move || {
                for line in 0..10 {
                    append_line(path, &format!("{node} {line}\n"));
                }
            });
        }
    });
    let got = String::from_utf8(get(&paths[0])).expect("text");
    assert_eq!(got.lines().count(), 21, "{got}");
    for reader in &readers {
        reader.sync_all().expect("a sync point");
        let seen = sys::read_at(reader, 0, got.len() + 1).expect("read");
        assert_same("a reader from before", &seen, got.as_bytes());
    }
    let held = OpenOptions::new().read(true).write(true).open(&paths[0]);
    let mut held = held.expect("open");
    sys::set_append(&held, true).expect("F_SETFL");
    held.write_all(b"held\n").expect("append");
    append_line(&paths[1], "beside\n");
    held.write_all(b"held again\n").expect("append");
    sys::close(held).expect("close");
    append_line(&paths[1], "end\n");
    for path in &paths {
        let want = got.clone() + "held\nbeside\nheld again\nend\n";
        assert_same("behind each other", &get(path), want.as_bytes());
    }
    drop(readers);
    cluster.finish();
}

/// S2.15 for `RWF_APPEND` after a lock, also while the kernel reads the drained file by itself.
#[test]
fn an_append_of_one_write_finds_the_end_beside_readers() {
    let mut cluster = Cluster::new(2, Drain::Immediate, LIMIT);
    cluster.start();
    let paths = cluster.paths("log");
    append_line(&paths[0], "begin\n");
    cluster.drain();
    let reader = File::open(&paths[0]).expect("open");
    let held = OpenOptions::new().read(true).write(true).open(&paths[0]);
    let held = held.expect("open");
    let mut want = b"begin\n".to_vec();
    for how in How::ALL {
        append_line(&paths[1], "other\n");
        wait_for_lock(&held, how).expect("lock");
        sys::append_once(&held, b"one write\n").expect("pwritev2");
        unlock(&held, how).expect("unlock");
        want.extend(b"other\none write\n");
        for path in &paths {
            assert_same(&format!("under {how:?}"), &get(path), &want);
        }
    }
    drop((reader, held));
    cluster.finish();
}

/// S2.15: a node that appends requests of full length without a pause lets other nodes append. Only a node that was
/// killed keeps them out until ETIMEDOUT.
#[test]
fn long_appends_let_other_nodes_append() {
    const REQUEST: usize = 1 << 20;
    // The pace keeps the file from outgrowing the test's disk.
    const PACE: Duration = Duration::from_millis(20);
    let cluster = nodes(2, &[("visibility-timeout", "4s")]);
    let paths = cluster.paths("log");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut log = append(&paths[0]);
            // The data starts at a page boundary, as with `dd`: otherwise a request is not of full length.
            let space = vec![b'a'; REQUEST + 4096];
            let from = space.as_ptr().align_offset(4096);
            while !ended.load(Ordering::Acquire) {
                log.write_all(&space[from..][..REQUEST]).expect("append");
                std::thread::sleep(PACE);
            }
            sys::close(log).expect("close");
        });
        let len = || std::fs::metadata(&paths[0]).map_or(0, |meta| meta.len());
        wait_until("the long appends are under way", LONG, || {
            (len() > 0).then_some(())
        });
        for _ in 0..3 {
            append_line(&paths[1], "between\n");
        }
        ended.store(true, Ordering::Release);
        writer.join().expect("the long appends");
    });
    let got = get(&paths[1]);
    let lines = got.split(|b| *b == b'\n').count() - 1;
    assert_eq!(
        (lines, (got.len() - 3 * 8) % REQUEST),
        (3, 0),
        "lines, rest"
    );
    cluster.finish();
}

/// S2.15 for a handle that stays open and goes on appending while another node, without appending, cuts the file or
/// writes past its end.
#[test]
fn an_open_appender_goes_behind_what_others_publish() {
    let cluster = nodes(2, &[]);
    let paths = cluster.paths("log");
    let mut log = append(&paths[0]);
    let mut want = Vec::new();
    for round in 0..20 {
        let line = format!("line {round}\n");
        log.write_all(line.as_bytes()).expect("append");
        want.extend(line.as_bytes());
        // This is no sync point of the handle: the drain publishes what was appended.
        wait_until("it is drained", LONG, || {
            (get(cluster.canonical("log")) == want).then_some(())
        });
        if round % 2 == 0 {
            // This is what logrotate does with copytruncate.
            let cut = File::create(&paths[1]).expect("cut");
            sys::close(cut).expect("close");
            want.clear();
        } else {
            let at = want.len() as u64 + 3;
            let other = OpenOptions::new().write(true).open(&paths[1]);
            other
                .and_then(|file| {
                    file.write_all_at(b"past the end\n", at)?;
                    sys::close(file)
                })
                .expect("write past the end");
            want.resize(at as usize, 0);
            want.extend(b"past the end\n");
        }
    }
    sys::close(log).expect("close");
    for path in &paths {
        assert_same("behind what was published", &get(path), &want);
    }
    cluster.finish();
}
