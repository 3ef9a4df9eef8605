//! Names and sizes that the kernel of a node knows from before, and that another node has changed since.

use forebay_tests::cluster::Cluster;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use forebay_tests::{prereq, sys};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// S2.1, S2.6: a file is removed and made again on one node. A program that opens the name on another node gets the
/// new file, also while the kernel there still knows the old one. Bytes that the program writes to it are not lost.
#[test]
fn a_name_that_was_given_to_another_file() {
    let mut cluster = Cluster::new(2, Drain::Immediate, LIMIT);
    cluster.start();
    let [here, there] = [0, 1].map(|node| cluster.mount(node).path("f"));
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

/// S2.6: a directory is removed and made again on one node. Everything that happens below its name on another node
/// concerns the new directory, also while the kernel there still knows the old one.
#[test]
fn a_name_that_was_given_to_another_directory() {
    let mut cluster = Cluster::new(2, Drain::Immediate, LIMIT);
    cluster.set("attr-timeout", "30s");
    cluster.start();
    let [here, there] = [0, 1].map(|node| cluster.mount(node).path("dir"));
    type Act = fn(&Path) -> std::io::Result<()>;
    let acts: [(&str, Act); 8] = [
        ("create", |dir| File::create_new(dir.join("new")).map(drop)),
        ("open", |dir| File::open(dir.join("there")).map(drop)),
        ("mkdir", |dir| std::fs::create_dir(dir.join("new"))),
        ("symlink", |dir| {
            std::os::unix::fs::symlink("x", dir.join("new"))
        }),
        ("unlink", |dir| std::fs::remove_file(dir.join("there"))),
        ("rename", |dir| {
            std::fs::rename(dir.join("there"), dir.join("new"))
        }),
        ("link", |dir| {
            std::fs::hard_link(dir.join("there"), dir.join("new"))
        }),
        ("list", |dir| {
            assert_eq!(std::fs::read_dir(dir)?.count(), 1);
            Ok(())
        }),
    ];
    for (what, act) in acts {
        std::fs::create_dir(&here).expect("make it");
        put(here.join("before"), b"x");
        assert_eq!(get(there.join("before")), b"x");
        std::fs::remove_file(here.join("before")).expect("empty it");
        std::fs::remove_dir(&here).expect("remove it");
        std::fs::create_dir(&here).expect("make it again");
        put(here.join("there"), b"y");
        act(&there).unwrap_or_else(|e| panic!("{what} in the new directory: {e}"));
        std::fs::remove_dir_all(&here).expect("remove it");
    }
    cluster.finish();
}

/// S2.6: a directory that this node has removed gives ENOENT, as on any file system.
#[test]
fn a_removed_directory_is_gone_here() {
    let mut cluster = Cluster::new(2, Drain::Immediate, LIMIT);
    cluster.start();
    let dir = cluster.mount(0).path("dir");
    std::fs::create_dir(&dir).expect("make it");
    let held = File::open(&dir).expect("hold it");
    std::fs::remove_dir(&dir).expect("remove it");
    let below = format!("/proc/self/fd/{}/new", held.as_raw_fd());
    let made = File::create(below);
    assert_eq!(
        sys::errno(made, "create in a removed directory"),
        libc::ENOENT
    );
    drop(held);
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
            let (all, wrong, mount) = (&all, &wrong, cluster.mount(i % NODES));
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let path = mount.path(format!("f{round}"));
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
                        wrong
                            .lock()
                            .expect("no thread panics")
                            .push((round, i, end));
                    }
                    all.wait();
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("no thread panics");
    assert!(wrong.is_empty(), "round, thread and end: {wrong:?}");
    cluster.finish();
}

/// S2.6: another node has removed a file, on a file system that does not keep it for clients that know it. Its data
/// is dropped, and no drain fails because of it.
#[test]
fn a_file_that_is_gone_below() {
    prereq::mounting();
    let dir = tempfile::tempdir().expect("a directory");
    let clients = ["a", "b"].map(|name| dir.path().join(name));
    for client in &clients {
        std::fs::create_dir(client).expect("mkdir");
    }
    let sim = pfs_sim::Sim::builder()
        .latency("0")
        .lock_cost("0")
        .program(prereq::helper("pfs-sim"))
        .start(&clients)
        .expect("start pfs-sim");
    let mut mounts = clients.each_ref().map(|client| {
        let mut mount = TestMount::with_limit(Drain::Never, LIMIT);
        let name = client.file_name().and_then(|name| name.to_str());
        mount
            .set_backing(client)
            .set("node", name.expect("a name"))
            .set("attr-timeout", "0s");
        mount.start();
        mount
    });
    put(mounts[0].path("kept"), [1; 5000]);
    put(mounts[0].path("gone"), [2; 5000]);
    std::fs::remove_file(mounts[1].path("gone")).expect("remove it");
    for mount in &mut mounts {
        mount.drain();
        assert!(mount.status().errors().is_empty());
        mount.umount();
    }
    assert_same("the other file", &get(clients[1].join("kept")), &[1; 5000]);
    drop(mounts);
    drop(sim);
}

/// S1.5, S1.6: some file systems do not know a file any more once its last name is gone (GlusterFS and NFS say
/// ESTALE). The call that removed the name succeeds, and the data is dropped.
#[test]
fn the_last_name_on_a_file_system_that_forgets() {
    prereq::mounting();
    let dir = tempfile::tempdir().expect("a directory");
    let client = dir.path().join("a");
    std::fs::create_dir(&client).expect("mkdir");
    let sim = pfs_sim::Sim::builder()
        .latency("0")
        .lock_cost("0")
        .forgets_removed()
        .program(prereq::helper("pfs-sim"))
        .start(&[&client])
        .expect("start pfs-sim");
    let mut mount = TestMount::with_limit(Drain::Never, LIMIT);
    mount.set_backing(&client);
    mount.start();
    for name in ["removed", "replaced", "new", "linked"] {
        put(mount.path(name), name.as_bytes());
    }
    std::fs::hard_link(mount.path("linked"), mount.path("other")).expect("link");
    std::fs::remove_file(mount.path("removed")).expect("unlink");
    std::fs::rename(mount.path("new"), mount.path("replaced")).expect("rename over");
    std::fs::remove_file(mount.path("linked")).expect("unlink one of two");
    std::fs::create_dir(mount.path("dir")).expect("mkdir");
    std::fs::remove_dir(mount.path("dir")).expect("rmdir");
    mount.drain();
    assert_eq!(mount.status().undrained(), 0);
    assert_same("the new one", &get(client.join("replaced")), b"new");
    assert_same("the other name", &get(client.join("other")), b"linked");
    mount.finish();
    drop(sim);
}
