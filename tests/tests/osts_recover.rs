//! A daemon died with data in subfiles: the next mount, and `recover`, find it there.
//!
//! Checks S5.1, S5.5, S6.4, S9.1, S9.2 and S9.6.

use forebay_tests::cli::{FAILED, OK, code, str};
use forebay_tests::rng::Rng;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::wait::{LONG, wait_until};

const MIB: usize = 1 << 20;

/// Returns a mount whose daemon was killed when all its data had left the log and little of it was in the canonical
/// file, and that data.
fn killed_half_way() -> (TestMount, Vec<u8>) {
    let mut mount = TestMount::new(Drain::Never);
    mount.set("nodes", "one");
    mount.with_osts(3).set("drain-rate", "6MiB");
    mount.start();
    let data = Rng::new(7).bytes(24 * MIB + 123);
    put(mount.path("f"), &data);
    assert!(mount.run(["drain", str(&mount.path("f"))]).status.code() == Some(3));
    wait_until("the data to leave the log", LONG, || {
        let status = mount.status();
        (status.in_log() == 0 && status.undrained() > 0).then_some(())
    });
    mount.kill();
    assert_eq!(mount.subfiles().len(), 3, "one on each target");
    (mount, data)
}

#[test]
fn the_next_mount_reads_and_drains_what_is_in_subfiles() {
    let (mut mount, data) = killed_half_way();
    mount.set("drain-rate", "0");
    mount.start();
    assert!(mount.status().undrained() > 0);
    assert_same("through the mount", &get(mount.path("f")), &data);
    mount.drain();
    mount.umount();
    assert_same("in the backing", &get(mount.canonical("f")), &data);
    assert!(mount.subfiles().is_empty(), "{:?}", mount.subfiles());
    mount.finish();
}

/// S9.6, S6.4: published data has left the store. `recover` without the targets has drained nothing of it, and does
/// not release the store.
#[test]
fn recover_counts_what_was_published() {
    let mut mount = TestMount::new(Drain::Never);
    mount.with_osts(2).start();
    let data = Rng::new(8).bytes(3 * MIB);
    put(mount.path("f"), &data);
    let file = open_rw(mount.path("f"));
    file.sync_all().expect("fsync");
    forebay_tests::sys::close(file).expect("close");
    mount.kill();
    let base = [
        "recover",
        "--store",
        str(mount.store()),
        "--backing",
        str(mount.backing()),
    ];
    let out = mount.run(base);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let said = text(&out);
    assert!(said.contains("in 1 file"), "{said}");
    assert!(said.contains("with the same --ost as before"), "{said}");
    assert!(!said.contains("any backing"), "it is not released: {said}");
    let mut args: Vec<String> = base.map(ToOwned::to_owned).to_vec();
    args.extend((0..2).flat_map(|n| ["--ost".to_owned(), format!("{}/ost{n}", str(mount.root()))]));
    let out = mount.run(args);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("any backing"), "{}", text(&out));
    assert_same("in the backing", &get(mount.canonical("f")), &data);
    mount.finish();
}

#[test]
fn recover_finds_subfiles_and_says_so_when_it_is_not_told_where() {
    let (mount, data) = killed_half_way();
    let base = [
        "recover",
        "--store",
        str(mount.store()),
        "--backing",
        str(mount.backing()),
    ];
    let osts: Vec<String> = (0..3)
        .flat_map(|n| ["--ost".to_owned(), format!("{}/ost{n}", str(mount.root()))])
        .collect();
    let args = |dry: bool, told: bool| {
        let mut args: Vec<String> = base.map(ToOwned::to_owned).to_vec();
        args.extend(dry.then(|| "--dry-run".to_owned()));
        args.extend(osts.iter().filter(|_| told).cloned());
        args
    };
    for dry in [true, false] {
        let untold = mount.run(args(dry, false));
        assert_ne!(code(&untold), 0, "{}", text(&untold));
        let said = text(&untold);
        assert!(said.contains("with the same --ost as before"), "{said}");
        assert_eq!(mount.subfiles().len(), 3, "nothing is lost");
    }
    let looked = mount.run(args(true, true));
    assert_eq!(code(&looked), 0, "{}", text(&looked));
    assert_eq!(mount.subfiles().len(), 3, "looking changes nothing");
    let recovered = mount.run(args(false, true));
    assert_eq!(code(&recovered), 0, "{}", text(&recovered));
    assert_same("in the backing", &get(mount.canonical("f")), &data);
    assert!(mount.subfiles().is_empty(), "{:?}", mount.subfiles());
    mount.finish();
}
