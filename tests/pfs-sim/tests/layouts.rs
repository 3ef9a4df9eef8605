//! Lustre's layout attribute, and the files in which a Lustre client shows its OSTs.

mod common;

use common::{Bench, KIB, MIB, errno, get_xattr, open, quick, set_xattr, write};
use pfs_sim::layout::{ANY, Layout, Wish};
use pfs_sim::lov;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

fn layout(path: &Path) -> Layout {
    let bytes = get_xattr(path, lov::NAME).expect("get the layout");
    lov::parse_file(&bytes).expect("a layout")
}

fn wish(size: u64, count: u16, start: usize) -> Vec<u8> {
    lov::of_wish(&Wish {
        stripe_size: Some(size),
        stripe_count: Some(count),
        start: Some(start),
        ..Wish::default()
    })
}

/// The file is opened as Lustre's tools do it: the objects are made when the attribute is set.
#[test]
fn a_file_is_placed_when_it_is_made() {
    let bench = Bench::new(2, quick().osts(8));
    let path = bench.path("f");
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        // O_LOV_DELAY_CREATE: open(2) masks the bits of it that are not flags of Linux.
        .custom_flags(0o100_000_000 | libc::O_NOCTTY | libc::O_ASYNC)
        .open(&path)
        .expect("create");
    assert_eq!(errno(get_xattr(&path, lov::NAME)), libc::ENODATA);
    set_xattr(&path, lov::NAME, &wish(256 * KIB, 3, 6)).expect("set");
    let want = Layout {
        stripe_size: 256 * KIB,
        osts: vec![6, 7, 0],
        pool: None,
    };
    assert_eq!(layout(&bench.at(1, "f")), want);
    write(&file, &[1; 3 << 20], 0);
    let counters = bench.sim.counters().expect("counters");
    let written: Vec<u64> = counters
        .osts
        .iter()
        .map(|o| o.tally.bytes_written)
        .collect();
    assert_eq!(written, [MIB, 0, 0, 0, 0, 0, MIB, MIB]);

    // Once the file has objects nothing changes, and no error is returned, as on Lustre.
    set_xattr(&path, lov::NAME, &wish(64 * KIB, 1, 0)).expect("ignored");
    assert_eq!(layout(&path), want);
}

#[test]
fn a_plain_file_has_the_mounts_layout() {
    let bench = Bench::new(1, quick().osts(4).stripe("128K", 2));
    drop(open(&bench.path("f")));
    let got = layout(&bench.path("f"));
    assert_eq!((got.stripe_size, got.osts), (128 * KIB, vec![0, 1]));
}

#[test]
fn directories_hand_their_layout_down() {
    let bench = Bench::new(1, quick().osts(8));
    let dir = bench.path("d");
    std::fs::create_dir(&dir).expect("mkdir");
    assert_eq!(errno(get_xattr(&dir, lov::NAME)), libc::ENODATA);
    let bytes = wish(64 * KIB, 1, 5);
    set_xattr(&dir, lov::NAME, &bytes).expect("set");
    assert_eq!(get_xattr(&dir, lov::NAME).expect("get"), bytes);
    std::fs::create_dir(dir.join("sub")).expect("mkdir");
    drop(open(&dir.join("sub/f")));
    let got = layout(&dir.join("sub/f"));
    assert_eq!((got.stripe_size, got.osts), (64 * KIB, vec![5]));
}

#[test]
fn version_3_lists_and_all() {
    let bench = Bench::new(1, quick().osts(6));
    let make = |name: &str, wish: &Wish| {
        let path = bench.path(name);
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
        nix::sys::stat::mknod(&path, nix::sys::stat::SFlag::S_IFREG, mode, 0).expect("mknod");
        set_xattr(&path, lov::NAME, &lov::of_wish(wish)).expect("set");
        layout(&path)
    };
    let pool = Some(*b"flash\0\0\0\0\0\0\0\0\0\0\0");
    let all = make(
        "all",
        &Wish {
            stripe_count: Some(ANY),
            start: Some(2),
            pool,
            ..Wish::default()
        },
    );
    assert_eq!(all.osts, [2, 3, 4, 5, 0, 1]);
    assert_eq!(all.pool, pool);
    let list = make(
        "list",
        &Wish {
            osts: Some(vec![4, 1]),
            ..Wish::default()
        },
    );
    assert_eq!(list.osts, [4, 1]);
}

#[test]
fn impossible_layouts_are_refused() {
    let bench = Bench::new(1, quick().osts(4));
    let dir = bench.path("d");
    std::fs::create_dir(&dir).expect("mkdir");
    for (what, bytes) in [
        ("too far", wish(64 * KIB, 1, 4)),
        ("odd size", wish(1000, 1, 0)),
        ("nothing", vec![]),
        ("cut", wish(64 * KIB, 1, 0)[..31].to_vec()),
    ] {
        let refused = errno(set_xattr(&dir, lov::NAME, &bytes));
        assert_eq!(refused, libc::EINVAL, "{what}");
    }
}

/// The ioctl cannot carry the structure through FUSE, so it must fail and not do anything else.
#[test]
fn the_ioctl_is_refused() {
    use std::os::fd::AsRawFd;
    let bench = Bench::new(1, quick().osts(2));
    let file = open(&bench.path("f"));
    let bytes = wish(64 * KIB, 1, 0);
    for number in [154u64, 155] {
        let command = 1 << 30 | 8 << 16 | u64::from(b'f') << 8 | number;
        // SAFETY: the descriptor is open, and the argument is longer than the eight bytes that the
        // kernel reads.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), command, bytes.as_ptr()) };
        let error = std::io::Error::last_os_error();
        assert_eq!((rc, error.raw_os_error()), (-1, Some(libc::ENOTTY)));
    }
}

#[test]
fn osts_are_listed_as_lustre_does() {
    let bench = Bench::new(1, quick().osts(3).capacity("1G"));
    let list = std::fs::read_to_string(bench.sim.own_file("target_obd")).expect("target_obd");
    assert_eq!(
        list,
        "0: sim-OST0000_UUID ACTIVE\n1: sim-OST0001_UUID ACTIVE\n2: sim-OST0002_UUID ACTIVE\n"
    );
    let file = open(&bench.path("f"));
    write(&file, &[1; 8192], 0);
    let number = |name: &str| -> u64 {
        let path = bench.sim.own_file("osc/sim-OST0000-osc-sim").join(name);
        let text = std::fs::read_to_string(path).expect("read");
        text.trim().parse().expect("a number")
    };
    assert_eq!(number("kbytestotal"), MIB);
    assert_eq!(number("kbytesavail"), MIB - 8);
    let root: Vec<_> = std::fs::read_dir(&bench.sim.mounts()[0])
        .expect("list")
        .map(|entry| entry.expect("entry").file_name())
        .collect();
    std::fs::create_dir(bench.path("d")).expect("mkdir");
    let taken = std::fs::rename(bench.path("d"), bench.path(".pfs-sim"));
    assert_eq!(errno(taken), libc::EBUSY);
    assert_eq!(root, ["f"], "the simulator's own files are in no listing");
}
