//! The MooseFS provider on a real MooseFS. MooseFS' own tools check the results.

use flusher::ost::{Kind, MooseFs, Ost, ProbeOptions, Provider, probe, provider};
use forebay_tests::moosefs::MooseFs as Cluster;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn open(dir: &Path) -> MooseFs {
    let dir = File::open(dir).expect("open the directory");
    let found = MooseFs::open(dir.as_fd()).expect("look for a MooseFS");
    found.expect("it is one")
}

fn fill(file: &File, len: usize) -> std::io::Result<()> {
    file.write_all_at(&vec![3; len], 0)?;
    file.sync_all()
}

#[test]
fn every_chunk_of_a_subfile_is_on_its_chunkserver() {
    let cluster = Cluster::start(3);
    let mount = cluster.mount("client");
    let backing = mount.join("scratch");
    std::fs::create_dir(&backing).expect("mkdir");
    cluster.inside(|| {
        let moosefs = open(&backing);
        let osts = moosefs.osts().expect("list");
        let seen: Vec<(u32, &str)> = osts.iter().map(|o| (o.index, o.name.as_str())).collect();
        let expected = [0, 1, 2].map(|n| format!("{} at {}", cluster.label(n), cluster.address(n)));
        assert_eq!(seen, [0, 1, 2].map(|n| (n as u32, expected[n].as_str())));
        for n in [1, 2, 0] {
            let file = moosefs.create(&osts[n], "7-1", false).expect("create");
            // The file has more than one chunk.
            fill(&file, 65 * MIB).expect("write");
            let path = backing.join(format!(".forebay/subfiles/{}/7-1", cluster.label(n)));
            let copies = cluster.chunks_of(&path);
            assert_eq!(copies.len(), 2, "{copies:?}");
            assert!(copies.iter().all(|copy| copy.target == n), "{copies:?}");
            assert_eq!(moosefs.list(&osts[n]).expect("list"), ["7-1"]);
            let again = moosefs.create(&osts[n], "7-1", false);
            assert_eq!(again.expect_err("it is there").errno(), Some(libc::EEXIST));
            moosefs.open(&osts[n], "7-1").expect("open");
            drop(file);
            moosefs.remove(&osts[n], "7-1").expect("remove");
            let gone = moosefs.open(&osts[n], "7-1").expect_err("removed");
            assert_eq!(gone.errno(), Some(libc::ENOENT));
        }
    });
}

#[test]
fn found_by_itself_and_probed() {
    let cluster = Cluster::start(2);
    let mount = cluster.mount("client");
    cluster.inside(|| {
        let dir = File::open(&mount).expect("open");
        for kind in [Kind::Auto, Kind::Moosefs] {
            let found = provider(kind, dir.as_fd(), &[]).expect("choose");
            let found: Arc<dyn Provider> = found.expect("a MooseFS");
            assert_eq!(found.kind(), "moosefs");
        }
        let refused = provider(Kind::Lustre, dir.as_fd(), &[]).expect_err("no Lustre");
        assert!(
            refused.to_string().contains("is not on Lustre"),
            "{refused}"
        );
    });
    // If the master cannot be reached, the overlay can still be mounted, only without OSTs.
    let elsewhere = std::thread::spawn({
        let mount = mount.clone();
        move || {
            // SAFETY: takes a number; moves this thread to a network namespace with no other host.
            let alone = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(alone, 0, "{}", std::io::Error::last_os_error());
            let dir = File::open(&mount).expect("open");
            let found = provider(Kind::Auto, dir.as_fd(), &[]).expect("choose");
            assert!(found.is_none(), "{found:?}");
            let told = provider(Kind::Moosefs, dir.as_fd(), &[]).expect("choose");
            let error = told.expect("asked for").osts().expect_err("out of reach");
            assert!(error.to_string().contains("does not answer"), "{error}");
        }
    });
    elsewhere.join().expect("the thread");
}

#[test]
fn a_chunkserver_that_is_away_keeps_its_number_and_refuses_at_once() {
    let cluster = Cluster::start(3);
    let mount = cluster.mount("client");
    cluster.inside(|| {
        let moosefs = open(&mount);
        let before = moosefs.osts().expect("list");
        cluster.stop_target(1);
        cluster.wait_lost(1);
        let now = moosefs.osts().expect("list");
        assert_eq!(now, before);
        let began = Instant::now();
        let error = moosefs.create(&now[1], "a", true).expect_err("it is away");
        let said = error.to_string();
        assert!(
            said.starts_with("OST 1 (B at ") && said.contains("is it running"),
            "{said}"
        );
        assert!(began.elapsed() < Duration::from_secs(5));
        assert_eq!(moosefs.list(&now[1]).expect("list"), [""; 0]);
        for n in [0, 2] {
            let file = moosefs.create(&now[n], "a", false).expect("create");
            fill(&file, MIB).expect("write");
        }
        cluster.start_target(1);
        let file = moosefs.create(&now[1], "a", false).expect("it is back");
        fill(&file, MIB).expect("write");
        let copies = cluster.chunks_of(&mount.join(".forebay/subfiles/B/a"));
        assert!(copies.iter().all(|copy| copy.target == 1), "{copies:?}");
    });
}

#[test]
fn quota_and_read_only_are_told() {
    let cluster = Cluster::start(1);
    let mount = cluster.mount("client");
    let backing = mount.join("scratch");
    std::fs::create_dir(&backing).expect("mkdir");
    let path = backing.to_str().expect("text");
    cluster.tool("mfssetquota", &["-L", "1MiB", path]);
    let first = |moosefs: &MooseFs| -> Ost { moosefs.osts().expect("list").remove(0) };
    cluster.inside(|| {
        let moosefs = open(&backing);
        let ost = first(&moosefs);
        let provider: Arc<dyn Provider> = Arc::new(moosefs);
        let options = ProbeOptions {
            size: 2 << 20,
            deadline: Duration::from_secs(20),
        };
        let probed = probe(&provider, std::slice::from_ref(&ost), options).remove(0);
        let error = probed.result.expect_err("over quota").to_string();
        assert!(
            error.contains("a quota is used up: ask for more"),
            "{error}"
        );
        assert_eq!(provider.list(&ost).expect("list"), [""; 0]);
    });
    use nix::mount::MsFlags;
    let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    nix::mount::mount(None::<&str>, &mount, None::<&str>, read_only, None::<&str>)
        .expect("make the mount read-only");
    cluster.inside(|| {
        let moosefs = open(&mount);
        let ost = first(&moosefs);
        let error = moosefs.create(&ost, "a", false).expect_err("read-only");
        let said = error.to_string();
        assert!(said.contains("it is mounted read-only"), "{said}");
    });
}
