//! Names and sizes that the kernel of a node has from before, and another node has changed since.

use forebay_tests::bay::{Drain, assert_same, get, open_rw, put};
use forebay_tests::cluster::Cluster;
use forebay_tests::sys;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// S2.1, S2.6: a file that was removed and made again on one node is the new one for whoever opens the
/// name on another, also while the kernel there still knows the old one. What is written to it is
/// not lost.
#[test]
fn a_name_that_was_given_to_another_file() {
    let mut cluster = Cluster::new(2, Drain::Immediate, LIMIT);
    cluster.start();
    let [here, there] = [0, 1].map(|node| cluster.bay(node).path("f"));
    for round in 0..5u8 {
        put(&here, [round; 40_000]);
        assert_same("the first", &get(&there), &[round; 40_000]);
        std::fs::remove_file(&here).expect("remove it");
        put(&here, [100 + round; 1000]);
        let file = open_rw(&there);
        sys::write_all_at(&file, &[200 + round; 500], 1000).expect("write");
        sys::close(file).expect("close");
        let mut want = vec![100 + round; 1000];
        want.extend([200 + round; 500]);
        assert_same("where it was made", &get(&here), &want);
        assert_same("where it was written", &get(&there), &want);
        std::fs::remove_file(&there).expect("remove it");
    }
    cluster.finish();
}

/// S2.1: after an open `lseek` finds the end that all closes before it made, also when several
/// processes of a node open the file at once.
#[test]
fn the_end_of_a_file_that_several_open_at_once() {
    const NODES: usize = 2;
    const EACH: usize = 3;
    const ROUNDS: usize = 40;
    let mut cluster = Cluster::new(NODES, Drain::Immediate, LIMIT);
    cluster.start();
    let all = Barrier::new(NODES * EACH);
    let wrong = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for i in 0..NODES * EACH {
            let (all, wrong, bay) = (&all, &wrong, cluster.bay(i % NODES));
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let path = bay.path(format!("f{round}"));
                    if i == 0 {
                        File::create(&path).expect("make the file");
                    }
                    all.wait();
                    let file = open_rw(&path);
                    sys::write_all_at(&file, &[1; 1000], i as u64 * 1000).expect("write");
                    sys::close(file).expect("close");
                    all.wait();
                    let mut file = File::open(&path).expect("open it again");
                    let end = file.seek(SeekFrom::End(0)).expect("seek");
                    // A thread that stops here would leave the others waiting.
                    if end != (NODES * EACH * 1000) as u64 {
                        wrong.lock().expect("nobody panics").push((round, i, end));
                    }
                    all.wait();
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("nobody panics");
    assert!(wrong.is_empty(), "round, thread and end: {wrong:?}");
    cluster.finish();
}
