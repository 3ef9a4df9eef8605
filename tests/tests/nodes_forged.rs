//! Hostile content of the shared directory: forged with right checksums, torn, flipped, and other things under
//! familiar names.
//!
//! A directory counts if it belongs to the user to whom this daemon's own files belong and no other user may write
//! to it; a file counts if it is a regular one with one name, of the same user. Anything else is an error that says
//! which, or is listed as strange, and is left alone (`layout_index::sharing::shared_dir`). Every number in a layout is checked
//! against the bytes that are really there. So in every case here no daemon crashes or hangs, nothing outside of its
//! directories is read or written, a job gets an error or the right bytes, and the log says what is wrong.

mod nodes_forge;
mod nodes_pair;

use forebay_tests::sys;
use forebay_tests::test_mount::{get, put};
use forebay_tests::users::{ALICE, BOB, as_user};
use layout_index::sharing::layout::{Base, Covered, LayoutId, Plan};
use layout_index::{Epoch, FileId, NodeId, Timestamp};
use nodes_forge::*;
use std::fs::{self, File};
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

/// A layout names a subfile that is none: another user's file, a link, a FIFO, a device.
#[test]
fn subfiles_that_are_none() {
    let scene = Scene::new();
    let at = scene.subfile_path();
    let outside = scene.secret.clone();
    fs::create_dir_all(at.parent().expect("a parent")).expect("mkdir");
    type Put<'a> = Box<dyn Fn(&Path) + 'a>;
    let owned = |path: &Path, uid: u32| {
        put(path, SECRET);
        chown(path, Some(uid), Some(uid)).expect("chown");
    };
    let cases: Vec<(&str, Put<'_>, &str)> = vec![
        (
            "a file of Bob's",
            Box::new(|p| owned(p, BOB)),
            "another user",
        ),
        (
            "a file of root's",
            Box::new(|p| owned(p, 0)),
            "another user",
        ),
        (
            "a link to Bob's file",
            Box::new(|p| symlink(&outside, p).expect("symlink")),
            "not a regular file with one name",
        ),
        (
            "a second name of Bob's file",
            Box::new(|p| fs::hard_link(&outside, p).expect("link")),
            "not a regular file with one name",
        ),
        ("a FIFO", Box::new(fifo), "not a regular file with one name"),
        (
            "a device",
            Box::new(device),
            "not a regular file with one name",
        ),
        (
            "a directory",
            Box::new(|p| fs::create_dir(p).expect("mkdir")),
            "not a regular file with one name",
        ),
        ("nothing", Box::new(|_| {}), "is not on OST"),
    ];
    for (what, make, says) in cases {
        make(&at);
        if !at.is_symlink()
            && at.exists()
            && !says.contains("another")
            && what != "a second name of Bob's file"
        {
            chown(&at, Some(ALICE), Some(ALICE)).expect("chown");
        }
        scene.forge_batch(&in_subfile(&subfile("backing")));
        scene.judge(what, &[says]);
        scene.restore(what);
    }
    scene.finish();
}

/// A subfile is Alice's but not as the layout says: it has other bytes, or is shorter.
#[test]
fn subfiles_that_do_not_fit() {
    let scene = Scene::new();
    let at = scene.subfile_path();
    for (what, block, crc) in [
        ("another checksum", 0, 12345),
        ("beyond its end", 1 << 20, 0),
        ("beyond what a file can have", u32::MAX - 1, 0),
    ] {
        put(&at, SECRET);
        chown(&at, Some(ALICE), Some(ALICE)).expect("chown");
        scene.forge_batch(&in_unit(&subfile("backing"), block, crc));
        scene.judge(what, &["does not match its checksum"]);
        scene.restore(what);
    }
    scene.finish();
}

/// A layout names a storage target that no node has. The name is compared, and never opened as a path.
#[test]
fn targets_that_nobody_has() {
    let scene = Scene::new();
    let outside = scene
        .secret
        .parent()
        .expect("a parent")
        .display()
        .to_string();
    for target in [&outside, "../..", "/", "", "no-such"] {
        scene.forge_batch(&in_subfile(&subfile(target)));
        scene.judge(&format!("target {target:?}"), &["no such OST is known"]);
        scene.restore(target);
    }
    // This name would become a line of the log.
    let id = scene.layout();
    let batch = in_subfile(&subfile("back~WARN forged line"));
    scene.forge(&patched(&id, &batch, |bytes| {
        let name = bytes.windows(5).position(|part| part == b"back~");
        bytes[name.expect("in the batch") + 4] = b'\n';
    }));
    scene.judge(
        "a target with a line break",
        &["is damaged", "cannot be shown"],
    );
    scene.restore("a target with a line break");
    let forged = scene.b.log().lines().any(|line| line.starts_with("WARN"));
    assert!(!forged, "a name became a line of the log");
    scene.finish();
}

/// Layouts have false counts, offsets and sizes, each with right checksums.
#[test]
fn numbers_that_lie() {
    let scene = Scene::new();
    let id = scene.layout();
    let batch = inline(SECRET, head());
    // Offsets at which the fields of a batch begin: docs/FORMAT.md.
    let (epoch, cut, grown, counts) = (16, 40, 48, 64);
    for (what, at) in [("epoch", epoch), ("size", grown)] {
        scene.forge(&patched(&id, &batch, |b| set_u64(b, at, u64::MAX)));
        scene.judge(what, &["is damaged", "that of node a"]);
        scene.restore(what);
    }
    scene.forge(&patched(&id, &batch, |b| {
        b[14] |= 1;
        set_u64(b, cut, u64::MAX);
    }));
    scene.judge("cut", &["is damaged"]);
    scene.restore("cut");
    for n in 0..5 {
        for count in [u32::MAX, 1 << 31, 1 << 20] {
            let what = format!("count {n} is {count}");
            scene.forge(&patched(&id, &batch, |b| set_u32(b, counts + 4 * n, count)));
            scene.judge(&what, &["is damaged"]);
            scene.restore(&what);
        }
    }
    // The length of the batch itself is false.
    for len in [0, 11, 84, u32::MAX, 33 << 20] {
        let what = format!("length {len}");
        let says = match len {
            // A batch can be as short as that, but this one is not.
            84 => "does not match its checksum".to_owned(),
            _ => format!("says that it is {len} bytes long"),
        };
        scene.forge(&patched(&id, &batch, |b| set_u32(b, 0, len)));
        scene.judge(&what, &["is damaged", &says]);
        scene.restore(&what);
    }
    // This strip begins at the largest of all numbers. Its start follows the counts.
    let mut far = vec![0xff; 9];
    far.push(0x01);
    scene.forge(&patched(&id, &batch, |b| {
        let strips = 84;
        b.splice(strips + 1..strips + 2, far);
        let len = b.len() as u32;
        set_u32(b, 0, len);
    }));
    scene.judge("offset", &["is damaged"]);
    scene.restore("offset");
    scene.finish();
}

/// A batch has the largest epoch there is, so nothing could be newer. It is refused, or what is published after it
/// is seen all the same.
#[test]
fn an_epoch_that_leaves_no_room() {
    let scene = Scene::new();
    let mut last = head();
    last.epoch = Epoch(i64::MAX as u64);
    let mut want = scene.want.clone();
    want[..SECRET.len()].copy_from_slice(SECRET);
    scene.forge_batch(&inline(SECRET, last));
    let seen = scene.read();
    // The batch has right checksums and is in Alice's own file: these bytes may be seen.
    if let Ok(seen) = &seen {
        assert!(*seen == want || *seen == scene.want, "other bytes");
    }
    let path = scene.b.path("alices");
    let wrote = as_user(ALICE, &[], || {
        let file = File::options().write(true).open(&path)?;
        sys::write_all_at(&file, b"newest", 0)?;
        file.sync_all()
    });
    if wrote.is_ok() {
        for mount in [&scene.a, &scene.b] {
            let path = mount.path("alices");
            let got = as_user(ALICE, &[], || get(path));
            assert!(got.starts_with(b"newest"), "what was synced is lost");
        }
    }
    fs::remove_file(scene.layout_path()).expect("remove");
    scene.touch();
    scene.read().expect("read after the forgery is gone");
    scene.b.status();
    put(scene.b.path("other"), b"fine");
    let Scene { mut a, mut b, .. } = scene;
    a.kill();
    b.kill();
}

/// Layouts lie under other names than their own (of another file, another node, another generation), and things that
/// are no files lie under the name of a layout.
#[test]
fn layouts_that_lie_elsewhere() {
    let scene = Scene::new();
    let own = scene.layout();
    let batch = inline(SECRET, head());
    let others = [
        LayoutId {
            file: FileId {
                ino: own.file.ino + 1,
                ..own.file
            },
            ..own
        },
        LayoutId {
            node: NodeId(own.node.0 ^ 1),
            ..own
        },
        LayoutId {
            generation: own.generation + 1,
            ..own
        },
    ];
    for id in others {
        let mut bytes = id.header(&[]).to_vec();
        bytes.extend(batch.encode(&id).expect("encode"));
        scene.forge(&bytes);
        scene.judge("another's layout", &["is damaged", "should be"]);
        scene.restore("another's layout");
        // The foreign batch lies behind the right header.
        let mut bytes = own.header(&[]).to_vec();
        bytes.extend(batch.encode(&id).expect("encode"));
        scene.forge(&bytes);
        scene.judge("another's batch", &["is damaged", "not of this layout"]);
        scene.restore("another's batch");
    }
    let at = scene.layout_path();
    let outside = scene.a.root().join("layout");
    let mut bytes = own.header(&[]).to_vec();
    bytes.extend(batch.encode(&own).expect("encode"));
    put(&outside, &bytes);
    for (what, make) in [
        (
            "a link",
            (|p, o| symlink(o, p).expect("symlink")) as fn(&Path, &Path),
        ),
        ("a second name", |p, o| fs::hard_link(o, p).expect("link")),
        ("a FIFO", |p, _| fifo(p)),
        ("a device", |p, _| device(p)),
        ("a directory", |p, _| fs::create_dir(p).expect("mkdir")),
        ("Bob's", |p, o| {
            fs::copy(o, p).expect("copy");
            chown(p, Some(BOB), Some(BOB)).expect("chown");
        }),
    ] {
        make(&at, &outside);
        scene.touch();
        let says = match what {
            "Bob's" => format!("belongs to user {BOB}"),
            _ => "not a regular file with one name".to_owned(),
        };
        scene.judge(what, &["in the shared directory", &says]);
        assert_eq!(get(&outside), bytes, "{what}: it was written to");
        scene.restore(what);
    }
    scene.finish();
}

/// A layout that is torn at any byte looks like one that is being appended to, or whose node died in an append: the
/// batches before that count, and daemons log nothing, but a command that reads it twice reports it. A layout with
/// any bit flipped is refused.
#[test]
fn layouts_that_are_torn_or_flipped() {
    let scene = Scene::new();
    let id = scene.layout();
    let mut whole = id.header(&[]).to_vec();
    whole.extend(inline(SECRET, head()).encode(&id).expect("encode"));
    for len in [0, 1, 47, 48, 100, 191, 192, 193, 204, whole.len() - 1] {
        let what = format!("torn at {len}");
        scene.forge(&whole[..len]);
        scene.judge_harmless(&what);
        let problems = scene.problems();
        let says = format!("at byte {len}");
        match len {
            // A header with nothing behind it is a good layout.
            192 => assert_eq!(problems, "", "{what}"),
            _ => assert!(
                problems.contains("ends within") && problems.contains(&says),
                "{problems}"
            ),
        }
    }
    let mut rng = forebay_tests::rng::Rng::new(7);
    for bit in [0, 70, 130, 400, 500, 700]
        .into_iter()
        .chain((0..6).map(|_| rng.below(8 * whole.len() as u64)))
    {
        let mut bytes = whole.clone();
        bytes[bit as usize / 8] ^= 1 << (bit % 8);
        scene.forge(&bytes);
        scene.judge(&format!("bit {bit} flipped"), &["is damaged"]);
    }
    scene.restore("torn and flipped layouts");
    scene.finish();
}

/// Plans and bases are not what their names say.
#[test]
fn forged_plans_and_bases() {
    let scene = Scene::new();
    let id = scene.id;
    let other = FileId {
        ino: id.ino + 1,
        ..id
    };
    let covered = Covered([((scene.node, 1), 1 << 40)].into());
    let plan = |term| Plan {
        term,
        covered: covered.clone(),
        unit: 1 << 20,
        domains: 1,
        size: 1,
        mtime: Timestamp(0),
        epoch: Epoch(NEWER),
        limit: u64::MAX,
    };
    let base = |term| Base {
        term,
        covered: covered.clone(),
        epoch: Epoch(NEWER),
    };
    let term = 1u64 << 40;
    let flipped = |mut bytes: Vec<u8>| {
        bytes[40] ^= 1;
        bytes
    };
    let zero_unit = Plan {
        unit: 0,
        ..plan(term)
    };
    let many = Plan {
        domains: u32::MAX,
        ..plan(term)
    };
    let huge = |mut bytes: Vec<u8>| {
        let at = bytes.len() - 24;
        set_u32(&mut bytes, at, u32::MAX);
        let crc = layout_index::checksum::crc32c(&bytes[..8]);
        let crc = layout_index::checksum::append(crc, &bytes[12..]);
        set_u32(&mut bytes, 8, crc);
        bytes
    };
    let (of_plan, of_base) = (|| plan(term).encode(id), || base(term).encode(id));
    let (empty, other_file) = ("is only 0 bytes long", "lies where one of file");
    let (other_kind, changed) = ("begins with other bytes", "does not match its checksum");
    let layouts = "has another number of layouts than it says";
    let cases = [
        ("plan", Vec::new(), empty),
        ("plan", plan(term).encode(other), other_file),
        ("plan", of_base(), other_kind),
        ("plan", flipped(of_plan()), changed),
        ("plan", zero_unit.encode(id), "with units of 0 bytes"),
        ("plan", many.encode(id), "has 4294967295 domains"),
        ("plan", huge(of_plan()), layouts),
        ("base", Vec::new(), empty),
        ("base", base(term).encode(other), other_file),
        ("base", of_plan(), other_kind),
        ("base", flipped(of_base()), changed),
        ("base", huge(of_base()), layouts),
    ];
    for (kind, bytes, says) in cases {
        let what = &format!("a {kind} that {says}");
        let path = scene.dir.join(format!("{}.{term:x}", &kind[..1]));
        put(&path, bytes);
        scene.touch();
        let damaged = format!("a {kind} in the shared directory is damaged");
        scene.judge(what, &[&damaged, says]);
        fs::remove_file(&path).expect("remove");
        scene.restore(what);
    }
    for (kind, make) in [('p', fifo as fn(&Path)), ('b', fifo), ('b', device)] {
        let path = scene.dir.join(format!("{kind}.{term:x}"));
        make(&path);
        scene.touch();
        scene.judge("a FIFO or device", &["not a regular file with one name"]);
        fs::remove_file(&path).expect("remove");
        scene.restore("a FIFO or device");
    }
    scene.finish();
}

/// A layout has the handle of its file, for processes that have to find the file without a mount. A handle of
/// another file is not believed: no daemon drains into that file.
#[test]
fn a_handle_of_another_file() {
    let mut scene = Scene::new();
    let path = scene.a.path("bobs-own");
    as_user(BOB, &[], || put(&path, SECRET));
    let dirs = scene.shared.file_dirs();
    let bobs = dirs.iter().find(|dir| **dir != scene.dir).expect("Bob's");
    let layout = nodes_pair::list(bobs)
        .into_iter()
        .find(|path| nodes_pair::name_of(path).starts_with("l."))
        .expect("Bob's layout");
    let header = get(layout);
    let handle = header[44..48].try_into().expect("four bytes");
    let handle = &header[48..48 + u32::from_le_bytes(handle) as usize];
    assert!(!handle.is_empty(), "this file system has handles");
    scene.a.drain();
    let canonical = scene.shared.canonical("bobs-own");
    assert_eq!(get(&canonical), SECRET);
    // From here on no daemon knows Alice's file by its name.
    fs::remove_file(scene.shared.canonical("alices")).expect("remove");
    scene.b.kill();
    fs::create_dir_all(&scene.dir).expect("mkdir");
    let id = scene.layout();
    for handle in [handle, b"", b"\xff\xff\xff\xff", &[0x5a; 132]] {
        let mut bytes = id.header(handle).to_vec();
        bytes.extend(inline(b"forged", head()).encode(&id).expect("encode"));
        scene.forge(&bytes);
        scene.b.start();
        scene.b.run([
            "drain".as_ref(),
            scene.b.mnt().as_os_str(),
            "--wait".as_ref(),
            "--timeout=1s".as_ref(),
        ]);
        scene.b.kill();
        assert_eq!(get(&canonical), SECRET, "Bob's canonical file");
    }
    let Scene { mut a, .. } = scene;
    a.kill();
}
