//! Forged seals: names `s.<id>.<gen>.<end>` that say where a layout ends.
//!
//! A seal decides which published bytes count. So a seal must be treated like this:
//!
//! - A seal counts only if it is a link that names the layout's own node as its maker. Anything else is no seal: all
//!   bytes are served, nothing is opened or removed, and `forebay status --backing` names it.
//! - A node seals where its last batch ends. A seal in the middle of a batch or beyond the layout is damage: reading
//!   the file is an error, the log and `status` say so, and the older bytes are never served.
//! - A seal that is forged as its node would make it, where a batch ends, cannot be told from a real one by nodes
//!   that read the layout for the first time: what lies behind it is gone for them, as with a layout that was
//!   removed. The node itself knows that it has published more, and says so; `status` says so if more than one
//!   append lies behind the seal; and a node that has the file open and has read the layout before goes on with the
//!   right bytes.

mod nodes_adopt_rig;
mod nodes_forge;
mod nodes_pair;

use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{TestMount, assert_same, get};
use forebay_tests::users::{ALICE, as_user};
use nodes_adopt_rig::{data, overlay};
use nodes_forge::{Scene, fifo};
use nodes_pair::{list, logged, name_of, until};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The scene, with three batches in node `a`'s layout of Alice's file.
struct Seals {
    scene: Scene,
    layout: PathBuf,
    /// Offset at which each batch ends.
    ends: Vec<u64>,
}

impl Seals {
    fn new() -> Seals {
        let mut scene = Scene::new();
        let layout = list(&scene.dir)
            .into_iter()
            .find(|path| name_of(path).starts_with("l."));
        let layout = layout.expect("a layout");
        let len = || fs::metadata(&layout).expect("stat").len();
        let mut ends = vec![len()];
        for (n, at) in [(1, 1000), (2, 50_000)] {
            let bytes = data(n, 3000);
            let path = scene.a.path("alices");
            as_user(ALICE, &[], || {
                let file = File::options().write(true).open(path).expect("open");
                sys::write_all_at(&file, &bytes, at).expect("write");
                sys::close(file).expect("close");
            });
            overlay(&mut scene.want, at as usize, &bytes);
            ends.push(len());
        }
        assert!(ends.is_sorted() && ends[0] < ends[2], "batches: {ends:?}");
        Seals {
            scene,
            layout,
            ends,
        }
    }

    fn name(&self, end: &str) -> String {
        format!("s{}.{end}", &name_of(&self.layout)[1..])
    }

    fn path(&self, end: &str) -> PathBuf {
        self.scene.dir.join(self.name(end))
    }

    /// Makes a seal as node `a` itself would make it.
    fn seal(&self, end: u64) -> PathBuf {
        let path = self.path(&format!("{end:x}"));
        self.scene.mark();
        symlink(format!("{}.00000001", self.scene.node), &path).expect("seal");
        self.scene.touch();
        path
    }

    /// Restarts node `b`, so that it knows nothing of the file any more.
    fn fresh(&mut self) {
        self.scene.b.kill();
        self.scene.b.start();
    }

    fn problems(&self) -> String {
        self.scene.problems()
    }

    fn read_on(&self, mount: &TestMount) -> std::io::Result<Vec<u8>> {
        let path = mount.path("alices");
        as_user(ALICE, &[], || fs::read(path))
    }
}

fn remove(path: &Path) {
    match path.is_dir() && !path.is_symlink() {
        true => fs::remove_dir(path).expect("remove"),
        false => fs::remove_file(path).expect("remove"),
    }
}

/// Things that only look like seals, and numbers that are none: every byte is served, by a node that reads
/// everything anew and by the node itself. These things are named and left alone.
#[test]
fn what_is_no_seal_of_its_node_hides_nothing() {
    let mut seals = Seals::new();
    let other = format!("{:016x}.00000001", seals.scene.node.0 ^ 1);
    let own = format!("{}.00000001", seals.scene.node);
    let first = format!("{:x}", seals.ends[0]);
    type Make<'a> = Box<dyn Fn(&Path) + 'a>;
    let link = |text: &str| -> Make<'_> {
        let text = text.to_owned();
        Box::new(move |path| symlink(&text, path).expect("symlink"))
    };
    let cases: Vec<(&str, Make<'_>)> = vec![
        ("0", Box::new(fifo)),
        (&first, Box::new(|p| fs::create_dir(p).expect("mkdir"))),
        ("1", Box::new(|p| fs::write(p, &own).expect("write"))),
        ("2", link(&other)),
        ("3", link("sealed")),
        ("4", link("/etc/passwd")),
        ("10000000000000000", link(&own)),
        ("ffffffffffffffffffffffff", link(&own)),
        ("-1", link(&own)),
        ("00", link(&own)),
    ];
    for (end, make) in &cases {
        make(&seals.path(end));
    }
    // A seal of a layout that does not exist: it is removed when the file is drained, and disturbs nothing before.
    let orphan = seals.scene.dir.join(format!("s.{}.7.0", seals.scene.node));
    symlink(&own, &orphan).expect("symlink");
    seals.scene.touch();
    seals.fresh();
    seals.scene.judge_harmless("no seals");
    let read = seals.scene.read().expect("read on b");
    assert_same("on b", &read, &seals.scene.want);
    let read = seals.read_on(&seals.scene.a).expect("read on a");
    assert_same("on a", &read, &seals.scene.want);
    let problems = seals.problems();
    for (end, _) in &cases {
        let name = seals.name(end);
        assert!(problems.contains(&name), "{name} is not named: {problems}");
        let path = seals.path(end);
        assert!(fs::symlink_metadata(&path).is_ok(), "{name} was touched");
        remove(&path);
    }
    seals.scene.touch();
    assert_eq!(seals.problems(), "");
    seals.scene.finish();
}

/// A seal where no batch ends, made as its node would make it, is an error that is reported. The bytes of before are
/// never served.
#[test]
fn seals_where_no_batch_ends() {
    let mut seals = Seals::new();
    let [first, second, last] = seals.ends[..] else {
        panic!("three batches");
    };
    for end in [1, 191, 192, first - 1, first + 1, second + 12, last - 1] {
        let what = format!("within a batch: {end}");
        let path = seals.seal(end);
        seals.fresh();
        let read = seals.read_on(&seals.scene.b);
        assert_eq!(errno(read, &what), libc::EIO);
        let says = format!("is sealed at byte {end}, where none of its batches ends");
        assert!(seals.problems().contains(&says), "{}", seals.problems());
        seals.scene.judge(&what, &[&says]);
        // The layout's own node has published more than that.
        let read = seals.read_on(&seals.scene.a);
        assert_eq!(errno(read, &what), libc::EIO);
        let says = format!("own was sealed at byte {end} by another program");
        until("its node says so", || {
            logged(&seals.scene.a, &[&says]).is_some()
        });
        remove(&path);
        seals.scene.touch();
        assert_same(
            &what,
            &seals.read_on(&seals.scene.b).expect("read"),
            &seals.scene.want,
        );
        assert_same(
            &what,
            &seals.read_on(&seals.scene.a).expect("read"),
            &seals.scene.want,
        );
    }
    for end in [last + 1, last + 1_000_000, u64::MAX] {
        let what = format!("beyond the layout: {end}");
        let path = seals.seal(end);
        seals.fresh();
        let read = seals.read_on(&seals.scene.b);
        assert_eq!(errno(read, &what), libc::EIO);
        let says = format!("is sealed at byte {end}");
        assert!(seals.scene.said(&[&says]), "{what}");
        assert!(seals.problems().contains(&says), "{}", seals.problems());
        let read = seals.read_on(&seals.scene.a).expect("read on a");
        assert_same(&what, &read, &seals.scene.want);
        remove(&path);
        seals.scene.touch();
        assert_same(
            &what,
            &seals.read_on(&seals.scene.b).expect("read"),
            &seals.scene.want,
        );
    }
    // The node heeds a seal behind everything that it has in that layout: what it publishes from now on is
    // elsewhere, and seen.
    let path = seals.scene.a.path("alices");
    let newest = data(9, 500);
    as_user(ALICE, &[], || {
        let file = File::options().write(true).open(path).expect("open");
        sys::write_all_at(&file, &newest, 99).expect("write");
        sys::close(file).expect("close");
    });
    overlay(&mut seals.scene.want, 99, &newest);
    assert_eq!(fs::metadata(&seals.layout).expect("stat").len(), last);
    assert_same(
        "on b",
        &seals.read_on(&seals.scene.b).expect("read"),
        &seals.scene.want,
    );
    seals.scene.finish();
}

/// A seal is made as its node would make it, at the end of an earlier batch or at the beginning: other nodes cannot
/// tell it from a real one, its node says what is wrong, and `status` reports that too much lies behind it.
#[test]
fn seals_that_could_be_real() {
    let seals = Seals::new();
    // The file stays open, so that the node remembers what it has read.
    let path = seals.scene.b.path("alices");
    let open = as_user(ALICE, &[], || File::open(path).expect("open"));
    assert_same(
        "before",
        &seals.scene.read().expect("read"),
        &seals.scene.want,
    );
    for end in [0, seals.ends[0]] {
        let what = format!("sealed at {end}");
        let path = seals.seal(end);
        let read = seals.read_on(&seals.scene.a);
        assert_eq!(errno(read, &what), libc::EIO);
        let says = format!("own was sealed at byte {end} by another program");
        assert!(logged(&seals.scene.a, &[&says]).is_some(), "{what}");
        let behind = format!("is sealed at byte {end}, and ");
        assert!(seals.problems().contains(&behind), "{}", seals.problems());
        remove(&path);
        seals.scene.touch();
        assert_same(
            &what,
            &seals.read_on(&seals.scene.a).expect("read"),
            &seals.scene.want,
        );
    }
    drop(open);
    let below = get(seals.scene.shared.canonical("alices"));
    assert!(below != seals.scene.want, "nothing was drained meanwhile");
    seals.scene.finish();
}
