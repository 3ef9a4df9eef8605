//! Storage targets that are the chunkservers of a real MooseFS, one of them slow, cut off or stopped. The tests run
//! with all of them behind one client mount, and with one client mount for each.
//!
//! Checks S1, S4, S6, S9.1, S9.4, S9.5, S9.8 and S9.9 there: the slow one is left out, subfiles are where
//! `mfsfileinfo` says they should be, and one that goes away and comes back loses nothing and holds up only what was
//! on it.
//!
//! Canonical files are where MooseFS puts them: each of these small files is on one chunkserver, and MooseFS decides
//! what happens to it while that one is away. The client waits.

use forebay_tests::cli::{OK, code, str};
use forebay_tests::moosefs::MooseFs;
use forebay_tests::rng::Rng;
use forebay_tests::status::Status;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put};
use forebay_tests::wait::{LONG, wait_until};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const TARGETS: usize = 4;
/// The target that is slow, in tests that have a slow one.
const SLOW: usize = 3;
/// Clients come back to a repaired target after pauses of up to some ten seconds.
const PATIENCE: Duration = Duration::from_secs(45);

#[derive(Clone, Copy, Debug)]
enum Mounts {
    /// All targets are behind one client mount, and MooseFS' provider is used.
    One,
    /// Each target has a client mount, and so has the backing: the targets are directories.
    Many,
}

forebay_tests::with_one_node_and_many!(
    a_slow_chunkserver_is_left_out,
    a_cut_link_behind_one_mount_loses_nothing,
    a_cut_link_with_a_mount_for_each_loses_nothing,
    a_stopped_chunkserver_behind_one_mount_loses_nothing,
    a_stopped_chunkserver_with_a_mount_for_each_loses_nothing,
);

/// A test mount over the cluster. A process that hangs in a client mount cannot be killed: if the test fails, the
/// client mounts go first.
struct Place<'a> {
    cluster: &'a MooseFs,
    mounts: Vec<String>,
    /// The directory of each target's subfiles.
    subfiles: Vec<PathBuf>,
    test_mount: TestMount,
}

impl<'a> Place<'a> {
    /// Makes a place that is not started. `name` must be this place's alone.
    fn new(cluster: &'a MooseFs, mounts: Mounts, name: &str, nodes: &str) -> Place<'a> {
        let client = cluster.mount(name);
        let backing = client.join(format!("{name}-scratch"));
        std::fs::create_dir(&backing).expect("create the backing");
        let mut test_mount = TestMount::with_limit(Drain::Never, Duration::from_secs(240));
        test_mount.set("nodes", nodes);
        test_mount
            .set_backing(&backing)
            .set("subfiles", "always")
            .set("ost-deadline", "2s")
            .set("ost-retry", "1s");
        let mut names = vec![name.to_owned()];
        let mut places = Vec::new();
        for target in 0..TARGETS {
            match mounts {
                Mounts::One => {
                    let label = cluster.label(target).to_string();
                    places.push(backing.join(".forebay/subfiles").join(label));
                }
                Mounts::Many => {
                    let own = format!("{name}-{target}");
                    let mount = cluster.mount(&own);
                    let dir = cluster.pinned_dir(&mount, &format!("{name}-ost{target}"), target);
                    test_mount.arg("--ost").arg(str(&dir));
                    places.push(dir.join(".forebay/subfiles"));
                    names.push(own);
                }
            }
        }
        if let Mounts::One = mounts {
            test_mount.set("ost-provider", "moosefs");
        }
        Place {
            cluster,
            mounts: names,
            subfiles: places,
            test_mount,
        }
    }

    fn start(&mut self) -> Status {
        self.test_mount.start();
        self.until("the targets are known", |status| {
            status.at("/targets/probing") == false && !status.chosen().is_empty()
        })
    }

    fn until(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let patience = Instant::now() + PATIENCE;
        wait_until(what, LONG, || {
            let status = self.test_mount.status();
            let late = Instant::now() > patience;
            assert!(!late, "in vain: {what}: {:#}", status.0);
            is_so(&status).then_some(status)
        })
    }

    fn drain(&self, name: &str, options: &[&str]) -> i32 {
        let path = self.test_mount.path(name);
        let mut args = vec!["drain", str(&path)];
        args.extend(options);
        code(&self.test_mount.run(args))
    }

    /// Returns the chunkserver that has all of a canonical file.
    fn home_of(&self, name: &str) -> usize {
        let chunks = self.cluster.chunks_of(&self.test_mount.canonical(name));
        assert_eq!(chunks.len(), 1, "a small file: {chunks:?}");
        chunks[0].target
    }

    /// Returns the subfiles that are there now, each with its target.
    fn subfiles(&self) -> Vec<(usize, PathBuf)> {
        let of = |(target, dir): (usize, &PathBuf)| -> Vec<(usize, PathBuf)> {
            match std::fs::read_dir(dir) {
                Ok(list) => list.flatten().map(|e| (target, e.path())).collect(),
                Err(_) => Vec::new(),
            }
        };
        self.subfiles.iter().enumerate().flat_map(of).collect()
    }

    /// Returns whether a subfile that has data and is none of `old` is on this target.
    fn has_data_on(&self, target: usize, old: &[(usize, PathBuf)]) -> bool {
        let there = self.subfiles().into_iter();
        let mut new = there.filter(|one| one.0 == target && !old.contains(one));
        new.any(|(_, path)| path.metadata().is_ok_and(|meta| meta.len() > 0))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for mount in &self.mounts {
                self.cluster.unmount(mount);
            }
        }
    }
}

/// Checks S9.8 and S9.9.
fn slow_one_is_left_out(cluster: &MooseFs, mounts: Mounts, name: &str, nodes: &str) {
    let mut place = Place::new(cluster, mounts, name, nodes);
    // The drain takes long enough to look at it.
    place.test_mount.set("drain-rate", "4MiB");
    // The probe is long enough that no fast target looks slow because caches are cold or the machine is busy.
    place.test_mount.set("probe-size", "8MiB");
    // The canonical file may be on the slow target, and is then written slowly.
    place.test_mount.set("ost-deadline", "20s");
    let status = place.start();
    assert_eq!(status.target(SLOW)["state"], "left-out", "{:#}", status.0);
    let fast = status.chosen();
    assert_eq!(fast, [0, 1, 2], "{:#}", status.0);

    // There are four units for each of them.
    let data = Rng::new(1).bytes(12 * MIB);
    put(place.test_mount.path("f"), &data);
    place.drain("f", &[]);
    let there = wait_until("a subfile on each fast target, with data", LONG, || {
        let all = fast.iter().all(|target| place.has_data_on(*target, &[]));
        all.then(|| place.subfiles())
    });
    assert_eq!(there.len(), fast.len(), "one on each: {there:?}");
    for (target, path) in &there {
        assert!(fast.contains(target), "a subfile on {target}");
        let chunks = cluster.chunks_of(path);
        assert!(!chunks.is_empty(), "{} is empty", path.display());
        for chunk in chunks {
            assert_eq!(chunk.target, *target, "{}", path.display());
        }
    }
    place.test_mount.drain();
    assert_same("mounted", &get(place.test_mount.path("f")), &data);
    assert_same("canonical", &get(place.test_mount.canonical("f")), &data);
    place.test_mount.umount();
    assert_eq!(place.subfiles(), [], "subfiles are left");
}

fn a_slow_chunkserver_is_left_out(nodes: &str) {
    let cluster = MooseFs::start(TARGETS);
    // The links decide the speed, also of the fast targets; the load of this machine does not.
    for target in 0..TARGETS {
        cluster.slow(target, if target == SLOW { 24 } else { 64 });
    }
    cluster.inside(|| {
        slow_one_is_left_out(&cluster, Mounts::One, "one", nodes);
        slow_one_is_left_out(&cluster, Mounts::Many, "many", nodes);
    });
}

/// Files whose expected bytes are known.
struct Files<'a> {
    place: &'a Place<'a>,
    want: BTreeMap<String, Vec<u8>>,
}

impl Files<'_> {
    /// Writes in place: a file that is cut off begins with a new chunk, which may be elsewhere.
    fn put(&mut self, name: &str, len: usize) {
        let data = Rng::new(self.want.len() as u64 + len as u64).bytes(len);
        let file = open_rw(self.place.test_mount.path(name));
        sys::write_all_at(&file, &data, 0).expect("write");
        self.want.insert(name.into(), data);
    }

    fn check(&self, what: &str, dir: &Path) {
        for (name, want) in &self.want {
            assert_same(&format!("{name}, {what}"), &get(dir.join(name)), want);
        }
    }
}

/// Reads through the mount, and fails if that takes too long.
fn read(file: &File, len: usize) -> Vec<u8> {
    let file = file.try_clone().expect("another handle");
    let (done, result) = channel();
    std::thread::spawn(move || done.send(sys::read_at(&file, 0, len)));
    let result = result.recv_timeout(LONG);
    result.expect("a read hangs").expect("a read fails")
}

/// S9.4 and S9.5: a chunkserver goes away while data is on its way to it, and comes back.
fn loses_nothing(
    nodes: &str,
    mounts: Mounts,
    breaks: fn(&MooseFs, usize),
    repairs: fn(&MooseFs, usize),
) {
    let cluster = MooseFs::start(TARGETS);
    cluster.inside(|| {
        let mut place = Place::new(&cluster, mounts, "client", nodes);
        place.test_mount.set("drain-rate", "6MiB");
        place.test_mount.set("probe", "off");
        let hangs = "has data of it, has not answered";
        for text in ["dropped: OST", "OST ", hangs, "goes to another layout"] {
            place.test_mount.allow_log(text);
        }
        assert_eq!(place.start().chosen(), [0, 1, 2, 3]);
        let place = place;
        let mut files = Files {
            place: &place,
            want: BTreeMap::new(),
        };

        // Files of which the test knows where they are.
        let (mut here, mut elsewhere) = (Vec::new(), Vec::new());
        files.put("first", MIB);
        place.test_mount.drain();
        let victim = place.home_of("first");
        for n in 0..40 {
            let name = format!("f{n}");
            files.put(&name, MIB);
            assert_eq!(place.drain(&name, &["--wait"]), OK);
            match place.home_of(&name) == victim {
                true => here.push(name),
                false => elsewhere.push(name),
            }
            if !here.is_empty() && elsewhere.len() > 1 {
                break;
            }
        }
        let on_it = here
            .first()
            .expect("MooseFS deals files over its chunkservers");

        // The file is opened now, because the client lets no process open a file for which it waits.
        let open = open_rw(place.test_mount.path(on_it));
        // Subfiles of data that is drained may not be removed yet.
        let old = place.subfiles();
        files.put("big", 32 * MIB);
        place.drain("big", &[]);
        place.until("the drain is in the middle, with data there", |status| {
            status.number("/bytes/subfiled") as usize > files.want.len() * MIB
                && status.in_log() > 4 << 20
                && place.has_data_on(victim, &old)
        });
        breaks(&cluster, victim);

        // Files that have nothing to do with that chunkserver are drained meanwhile.
        for name in &elsewhere {
            files.put(name, 2 * MIB);
            let ended = place.drain(name, &["--wait", "--timeout", "40s"]);
            assert_eq!(
                ended,
                OK,
                "{name} is held up: {:#}",
                place.test_mount.status().0
            );
            let want = &files.want[name];
            assert_same("canonical", &get(place.test_mount.canonical(name)), want);
        }
        // Data of a file on that chunkserver leaves the log, is reported, and is read all the same.
        files.put(on_it, 3 * MIB);
        place.drain(on_it, &[]);
        let status = place.until("the file is reported, and safe", |status| {
            status.in_log() == 0 && status.error_of(on_it).is_some()
        });
        let said = status.error_of(on_it).unwrap_or_default();
        assert!(said.contains("has not answered for"), "{said}");
        assert_ne!(status.target(victim)["state"], "chosen", "{:#}", status.0);
        let want = &files.want[on_it];
        assert_same("from subfiles", &read(&open, want.len()), want);
        drop(open);

        repairs(&cluster, victim);
        place.until("the target is used again, and nothing hangs", |status| {
            status.chosen() == [0, 1, 2, 3] && status.errors().is_empty()
        });
        place.test_mount.drain();
        assert_eq!(place.test_mount.status().undrained(), 0);
        files.check("mounted", place.test_mount.mnt());
        files.check("canonical", place.test_mount.backing());
        let mut place = place;
        place.test_mount.umount();
        assert_eq!(place.subfiles(), [], "subfiles are left");
    });
}

fn a_cut_link_behind_one_mount_loses_nothing(nodes: &str) {
    loses_nothing(nodes, Mounts::One, MooseFs::cut_link, MooseFs::restore_link);
}

fn a_cut_link_with_a_mount_for_each_loses_nothing(nodes: &str) {
    loses_nothing(
        nodes,
        Mounts::Many,
        MooseFs::cut_link,
        MooseFs::restore_link,
    );
}

fn a_stopped_chunkserver_behind_one_mount_loses_nothing(nodes: &str) {
    loses_nothing(
        nodes,
        Mounts::One,
        MooseFs::stop_target,
        MooseFs::start_target,
    );
}

fn a_stopped_chunkserver_with_a_mount_for_each_loses_nothing(nodes: &str) {
    loses_nothing(
        nodes,
        Mounts::Many,
        MooseFs::stop_target,
        MooseFs::start_target,
    );
}
