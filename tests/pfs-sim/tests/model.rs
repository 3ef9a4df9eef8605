//! The model as a client sees it: times, stripes, locks.

mod common;

use common::{Bench, KIB, MIB, least, open, pattern, quick, read, same, set_xattr, timed, write};
use pfs_sim::layout::Wish;
use pfs_sim::{Change, Sim, lov};
use std::path::Path;

/// Makes a file at `path` on one OST.
fn place(path: &Path, ost: usize) {
    let wish = Wish {
        stripe_count: Some(1),
        start: Some(ost),
        ..Wish::default()
    };
    nix::sys::stat::mknod(
        path,
        nix::sys::stat::SFlag::S_IFREG,
        nix::sys::stat::Mode::from_bits_truncate(0o644),
        0,
    )
    .expect("mknod");
    set_xattr(path, lov::NAME, &lov::of_wish(&wish)).expect("set the layout");
}

/// The bandwidth is as configured. It is checked against another OST and not against the clock of a
/// busy machine: the OST with a tenth of the bandwidth takes 8 to 11 times as long by the clock,
/// and ten times as long by the counters.
#[test]
fn a_slow_ost_is_slower_by_its_share() {
    let sim = Sim::builder().osts(2).bandwidth("10M").slow("1", "1M");
    let bench = Bench::new(1, sim);
    let data = vec![7; 2 * MIB as usize];
    let files = [0, 1].map(|ost| {
        let path = bench.path(&format!("on{ost}"));
        place(&path, ost);
        open(&path)
    });
    let write_both = || {
        let took = [0, 1].map(|ost| timed(|| write(&files[ost], &data, 0)).as_secs_f64());
        assert!(took[0] > 0.19 && took[1] > 1.9, "too fast: {took:?}");
        took
    };
    let is_so = |[fast, slow]: [f64; 2]| (8.0..11.0).contains(&(slow / fast));
    let took = least(write_both, is_so);
    assert!(is_so(took), "{took:?}");
    let counters = bench.sim.counters().expect("counters");
    let busy = |ost: usize| counters.osts[ost].tally.busy_ns as f64;
    let exact = busy(1) / busy(0);
    assert!((9.99..10.01).contains(&exact), "{exact}");
}

/// Two requests at once take twice as long on one OST as on two.
#[test]
fn osts_work_side_by_side() {
    let bench = Bench::new(2, Sim::builder().osts(2).bandwidth("4M"));
    for (name, ost) in [("a0", 0), ("a1", 1), ("b0", 0), ("b1", 0)] {
        place(&bench.path(name), ost);
    }
    let data = vec![7; MIB as usize];
    let both = |names: [&str; 2]| {
        timed(|| {
            std::thread::scope(|scope| {
                for (mount, name) in names.iter().enumerate() {
                    let file = open(&bench.at(mount, name));
                    let data = &data;
                    scope.spawn(move || write(&file, data, 0));
                }
            });
        })
        .as_secs_f64()
    };
    let measure = || {
        let took = [both(["a0", "a1"]), both(["b0", "b1"])];
        assert!(took[0] > 0.24 && took[1] > 0.48, "too fast: {took:?}");
        took
    };
    let is_so = |[apart, together]: [f64; 2]| (1.6..2.3).contains(&(together / apart));
    let took = least(measure, is_so);
    assert!(is_so(took), "{took:?}");
}

/// A setting that is changed while the simulator runs applies to the next request.
#[test]
fn bandwidth_and_latency_change_while_it_runs() {
    let bench = Bench::new(1, quick().osts(1));
    let file = open(&bench.path("f"));
    let data = vec![1; MIB as usize];
    write(&file, &data, 0);
    let fast = timed(|| write(&file, &data, 0));
    bench
        .sim
        .set(0, Change::default().bandwidth("5M"))
        .expect("set");
    let slow = timed(|| write(&file, &data, 0));
    assert!(slow.as_secs_f64() > 0.19, "{fast:?} {slow:?}");
    bench
        .sim
        .set_all(Change::default().bandwidth("10G").latency("300ms"))
        .expect("set");
    let late = timed(|| write(&file, b"x", 0));
    assert!(late.as_secs_f64() > 0.29, "{late:?}");
    let config = bench.sim.config().expect("config");
    assert_eq!(config.osts[0].settings.latency_ns, 300_000_000);
}

/// Bytes are distributed to the OSTs stripe by stripe, and are read back unchanged.
#[test]
fn stripes_go_round() {
    let bench = Bench::new(1, quick().osts(5).stripe("64K", 3));
    let file = open(&bench.path("f"));
    let data = pattern(1, 10 * 64 * KIB as usize + 100);
    // The split is not aligned to anything, and each half is one write.
    let (first, second) = data.split_at(100_001);
    write(&file, first, 0);
    write(&file, second, first.len() as u64);
    same("all", &read(&file, data.len(), 0), &data);
    same("a part", &read(&file, 200_000, 77), &data[77..200_077]);
    let counters = bench.sim.counters().expect("counters");
    let written: Vec<u64> = counters
        .osts
        .iter()
        .map(|o| o.tally.bytes_written)
        .collect();
    let unit = 64 * KIB;
    assert_eq!(written, [4 * unit, 3 * unit + 100, 3 * unit, 0, 0]);
    let file = counters.file("f").expect("the file");
    assert_eq!(file.tally.bytes_written, data.len() as u64);
    assert_eq!(counters.total.bytes_written, data.len() as u64);
    // The first write ended inside a stripe and the second began there. The tail is at the end of
    // the file.
    assert_eq!(counters.total.unaligned_writes, 1);
    assert_eq!(counters.total.read_modify_writes, 1);
}

/// Each new file starts on the next OST.
#[test]
fn files_start_in_turn() {
    let bench = Bench::new(1, quick().osts(4).stripe("64K", 1));
    for name in ["a", "b", "c", "d", "e"] {
        write(&open(&bench.path(name)), &[1; 4096], 0);
    }
    let counters = bench.sim.counters().expect("counters");
    let writes: Vec<u64> = counters.osts.iter().map(|o| o.tally.writes).collect();
    assert_eq!(writes, [2, 1, 1, 1]);
}

/// Writes a file of `blocks` twice over, block `i` by client `i % clients`, and returns how many
/// locks moved. The clients take turns, so the count does not depend on the machine's scheduling.
fn interleave(bench: &Bench, clients: usize, block: u64, blocks: u64) -> u64 {
    let all = open(&bench.path("shared"));
    all.set_len(block * blocks).expect("set the size");
    bench.sim.reset_counters().expect("reset");
    let files: Vec<_> = (0..clients).map(|c| open(&bench.at(c, "shared"))).collect();
    for i in (0..blocks).chain(0..blocks) {
        let file = &files[i as usize % clients];
        write(file, &pattern(i, block as usize), i * block);
    }
    let moves = bench.sim.counters().expect("counters").total.lock_moves;
    for i in 0..blocks {
        let want = pattern(i, block as usize);
        same("a block", &read(&all, block as usize, i * block), &want);
    }
    moves
}

/// Nisar et al., figure 4: if the number of clients is the number of OSTs or a factor of it, they
/// never meet on an OST.
#[test]
fn mapped_clients_move_no_locks() {
    let bench = Bench::new(2, quick().osts(4).stripe("64K", 4));
    let moves = interleave(&bench, 2, 64 * KIB, 96);
    // Setting the size left the first client a lock on the OST of the last byte.
    assert!(moves <= 1, "{moves}");
}

/// Figure 5: with one more client, all clients meet on all OSTs.
#[test]
fn unmapped_clients_move_many() {
    let bench = Bench::new(3, quick().osts(4).stripe("64K", 4));
    let moves = interleave(&bench, 3, 64 * KIB, 96);
    assert!(moves > 80, "{moves}");
}

/// Blocks that end inside a page move a lock at every write and cause reads as well.
#[test]
fn unaligned_blocks_move_locks_for_ever() {
    let bench = Bench::new(2, quick().osts(2).stripe("64K", 2));
    let moves = interleave(&bench, 2, 47 * KIB + 8, 64);
    assert!(moves > 100, "{moves}");
    let total = bench.sim.counters().expect("counters").total;
    assert!(total.unaligned_writes > 128, "{total:?}");
    assert!(total.read_modify_writes > 128, "{total:?}");
}

/// A lock move takes its OST the configured time.
#[test]
fn moves_cost_time() {
    let bench = Bench::new(2, quick().osts(1).lock_cost("20ms"));
    let files = [open(&bench.at(0, "f")), open(&bench.at(1, "f"))];
    files[0].set_len(MIB).expect("set the size");
    bench.sim.reset_counters().expect("reset");
    let turns = || {
        for i in 0..10 {
            write(&files[i % 2], b"here", 0);
        }
    };
    let dear = timed(turns);
    let moves = bench.sim.counters().expect("counters").total.lock_moves;
    assert!((9..=10).contains(&moves), "{moves}");
    assert!(dear.as_secs_f64() > 0.17, "{dear:?}");
    bench.sim.set_lock_cost("0").expect("set");
    let is_so = |[cheap]: [f64; 1]| cheap < 0.17 / 3.0;
    let cheap = least(|| [timed(turns).as_secs_f64()], is_so);
    assert!(is_so(cheap), "{cheap:?} {dear:?}");
}

/// A client with a cache keeps many OSTs busy although it writes one block after the other, and a
/// sync waits for what was written.
#[test]
fn write_behind_fills_the_osts() {
    let builder = Sim::builder().osts(4).bandwidth("8M").stripe("64K", 4);
    let took = |builder: pfs_sim::Builder| {
        let bench = Bench::new(1, builder);
        let file = open(&bench.path("f"));
        let acknowledged = timed(|| {
            for i in 0..32 {
                write(&file, &[1; 64 << 10], i * 64 * KIB);
            }
        });
        let synced = timed(|| file.sync_all().expect("fsync"));
        (acknowledged.as_secs_f64(), synced.as_secs_f64())
    };
    let (one_by_one, _) = took(builder.clone());
    assert!(one_by_one > 0.24, "{one_by_one}");
    let behind = || {
        let (acknowledged, synced) = took(builder.clone().write_behind("1M"));
        let both = acknowledged + synced;
        assert!(both > 0.05, "too fast: {acknowledged} {synced}");
        [acknowledged, both]
    };
    let is_so = |[acknowledged, both]: [f64; 2]| acknowledged < 0.24 / 2.0 && both < 0.15;
    let took = least(behind, is_so);
    assert!(is_so(took), "{took:?}");
}

/// With `--clients process` the shell that writes is a different client from this test.
#[test]
fn processes_can_be_clients() {
    let bench = Bench::new(1, quick().osts(1).option("clients", "process"));
    let file = open(&bench.path("f"));
    write(&file, b"here", 0);
    let shell = std::process::Command::new("sh")
        .arg("-c")
        .arg("for i in 1 2 3; do printf there 1<> \"$0\"; done")
        .arg(bench.path("f"))
        .status()
        .expect("run sh");
    assert!(shell.success());
    let moves = bench.sim.counters().expect("counters").total.lock_moves;
    assert_eq!(moves, 1, "three handles of one other process");
    write(&file, b"here", 0);
    let moves = bench.sim.counters().expect("counters").total.lock_moves;
    assert_eq!(moves, 2);
}

/// With `--clients handle` two handles of one mount are two clients.
#[test]
fn handles_can_be_clients() {
    for (clients, want) in [("handle", 3), ("mount", 0), ("process", 0)] {
        let bench = Bench::new(1, quick().osts(1).option("clients", clients));
        let files = [open(&bench.path("f")), open(&bench.path("f"))];
        for i in 0..4 {
            write(&files[i % 2], b"here", 0);
        }
        let moves = bench.sim.counters().expect("counters").total.lock_moves;
        assert_eq!(moves, want, "{clients}");
        drop(files);
        // A handle that was closed holds no locks.
        write(&open(&bench.path("f")), b"here", 0);
        let after = bench.sim.counters().expect("counters").total.lock_moves;
        assert_eq!(after, want, "{clients}");
    }
}
