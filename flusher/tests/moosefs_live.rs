//! `ost::moosefs_master` against a real MooseFS. MooseFS' own tools check the results.

use flusher::ost::moosefs_master::{Chunk, CopyState, Error, Master, Target};
use forebay_tests::moosefs::MooseFs;
use forebay_tests::wait_until;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn master(mount: &Path) -> Master {
    let dir = File::open(mount).expect("open the mount");
    let found = Master::find(&dir).expect("look for a MooseFS");
    found.expect("a client mount is recognised")
}

fn create(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path);
    file.unwrap_or_else(|e| panic!("create {}: {e}", path.display()))
}

fn target_of<'a>(cluster: &MooseFs, targets: &'a [Target], index: usize) -> &'a Target {
    let address = cluster.address(index);
    let found = targets.iter().find(|t| t.address.to_string() == address);
    found.unwrap_or_else(|| panic!("no target at {address}: {targets:?}"))
}

#[test]
fn a_file_goes_where_it_was_pinned() {
    let cluster = MooseFs::start(3);
    let mount = cluster.mount("client");
    cluster.inside(|| {
        let deep = mount.join("a/b");
        std::fs::create_dir_all(&deep).expect("create directories");
        // Any directory of the mount works.
        let master = master(&deep);
        let targets = master.targets().expect("list the targets");
        assert_eq!(targets.len(), 3);
        for index in [2, 0, 1] {
            let target = target_of(&cluster, &targets, index);
            assert!(target.connected && target.total > target.used && !target.busy);
            let label = target.own_label(&targets).expect("a label of its own");
            assert_eq!(label, cluster.label(index));
            let class = master.ensure_class(label).expect("make the class");
            let path = deep.join(format!("file{index}"));
            let mut file = create(&path);
            master.pin(&file, &class).expect("pin it");
            assert_eq!(master.chunks(&file).expect("no chunks"), []);
            file.write_all(&vec![index as u8; 65 * MIB]).expect("write");
            file.sync_all().expect("sync");
            let chunks = master.chunks(&file).expect("two chunks");
            assert_eq!(chunks.iter().map(|c| c.index).collect::<Vec<_>>(), [0, 1]);
            assert!(chunks.iter().all(|c| c.is_only_on(target.address)));
            let judged = cluster.chunks_of(&path);
            assert_eq!(judged.len(), 2);
            assert!(judged.iter().all(|copy| copy.target == index), "{judged:?}");
            std::fs::remove_file(&path).expect("remove");
        }
    });
}

#[test]
fn sparse_files_and_refusals() {
    let cluster = MooseFs::start(1);
    let mount = cluster.mount("client");
    cluster.inside(|| {
        let master = master(&mount);
        let class = master.ensure_class('A').expect("make the class");
        assert_eq!(master.ensure_class('A').expect("it is there"), class);
        let listed = cluster.tool("mfsscadmin", &[mount.to_str().expect("text"), "list", "-l"]);
        let ours = "mode: STRICT ; create_labels: [A] ; keep_labels: [A]";
        let line = listed.lines().find(|line| line.starts_with(class.as_str()));
        assert!(line.is_some_and(|line| line.contains(ours)), "{listed}");

        let file = create(&mount.join("sparse"));
        std::os::unix::fs::fchown(&file, Some(65001), Some(65001)).expect("give it away");
        master.pin(&file, &class).expect("pin it");
        use std::os::unix::fs::FileExt;
        file.write_all_at(b"far out", 130 * MIB as u64)
            .expect("write");
        file.sync_all().expect("sync");
        let chunks = master.chunks(&file).expect("one chunk");
        assert_eq!(chunks.len(), 1, "{chunks:?}");
        assert_eq!(chunks[0].index, 2);
        assert_eq!(chunks[0].copies[0].state, CopyState::Valid);

        let error = master.pin(&file, &class).expect_err("it has data");
        assert!(matches!(error, Error::NotEmpty), "{error}");
        let error = master.ensure_class('a').expect_err("not a label");
        assert!(matches!(error, Error::BadLabel('a')), "{error}");
        // A class of the same name that an administrator made differently is not used.
        let mount = mount.to_str().expect("text");
        cluster.tool("mfsscadmin", &[mount, "create", "-K", "B", "forebay-on-B"]);
        let error = master.ensure_class('B').expect_err("not strict");
        assert!(matches!(error, Error::ClassDiffers { .. }), "{error}");
    });
    let elsewhere = tempfile::tempdir().expect("a directory");
    let dir = File::open(elsewhere.path()).expect("open it");
    assert!(Master::find(&dir).expect("look").is_none());
}

/// The reason for not starting MooseFS' tools: in this situation they could not be started.
#[test]
fn targets_are_pinned_to_while_another_hangs() {
    let cluster = MooseFs::start(2);
    let mount = cluster.mount("client");
    cluster.inside(|| {
        let (started, go_on) = std::sync::mpsc::channel();
        let master = master(&mount);
        let classes = ['A', 'B'].map(|label| master.ensure_class(label).expect("a class"));
        let stuck = create(&mount.join("stuck"));
        master.pin(&stuck, &classes[0]).expect("pin it");
        cluster.cut_link(0);
        let writer = std::thread::spawn({
            let mut stuck = stuck.try_clone().expect("a second descriptor");
            move || {
                started.send(()).expect("the test waits");
                stuck.write_all(&vec![1; MIB])?;
                stuck.sync_all()
            }
        });
        go_on.recv().expect("the writer runs");
        let start = Instant::now();
        for n in 0..5 {
            let mut file = create(&mount.join(format!("free{n}")));
            master.pin(&file, &classes[1]).expect("pin another");
            file.write_all(&vec![2; MIB]).expect("write");
            file.sync_all().expect("sync");
            let chunks = master.chunks(&file).expect("its chunks");
            assert_eq!(chunks.len(), 1);
        }
        println!("five files beside a hanging one in {:?}", start.elapsed());
        wait_until(
            "the master misses the target",
            Duration::from_secs(60),
            || {
                let targets = master.targets().expect("list");
                let away = target_of(&cluster, &targets, 0);
                (!away.connected && away.labels == 0).then_some(())
            },
        );
        assert!(!writer.is_finished(), "a write to a cut target ended");
        cluster.restore_link(0);
        cluster.wait_ready(&[0]);
        let written = writer.join().expect("the writer ends");
        written.expect("the write succeeds after all");
        let on = master.chunks(&stuck).expect("its chunks");
        let targets = master.targets().expect("list");
        let first = target_of(&cluster, &targets, 0).address;
        assert!(
            on.iter().all(|chunk: &Chunk| chunk.is_only_on(first)),
            "{on:?}"
        );
    });
}

#[test]
fn from_another_network_it_is_said_to_be_out_of_reach() {
    let cluster = MooseFs::start(1);
    let mount = cluster.mount("client");
    let elsewhere = std::thread::spawn(move || {
        // SAFETY: takes a number; moves this thread to a network namespace with no other host.
        let alone = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(alone, 0, "{}", std::io::Error::last_os_error());
        let master = master(&mount);
        let start = Instant::now();
        let class = master.ensure_class('A').expect_err("no proxy there");
        let targets = master.targets().expect_err("no master there");
        for error in [class, targets] {
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(5));
    });
    elsewhere.join().expect("the thread");
}

/// After a mount over the backing, the backing's own path leads into the overlay.
#[test]
fn a_mount_over_the_path_is_not_in_the_way() {
    let cluster = MooseFs::start(1);
    let mount = cluster.mount("client");
    let backing = mount.join("scratch");
    std::fs::create_dir(&backing).expect("create the backing");
    let dir = File::open(&backing).expect("hold the backing");
    let over = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "tmpfs"])
        .arg(&backing)
        .status();
    assert!(over.expect("start mount").success());
    cluster.inside(|| {
        let master = Master::find(&dir).expect("look").expect("a MooseFS");
        let class = master.ensure_class('A').expect("make the class");
        let path = format!("/proc/self/fd/{}/file", dir.as_raw_fd());
        let mut file = create(Path::new(&path));
        master.pin(&file, &class).expect("pin it");
        file.write_all(b"beneath").expect("write");
        file.sync_all().expect("sync");
        assert_eq!(master.chunks(&file).expect("its chunk").len(), 1);
    });
    umount(&backing);
}

fn umount(path: &Path) {
    let status = std::process::Command::new("umount").arg(path).status();
    assert!(status.expect("start umount").success());
}
