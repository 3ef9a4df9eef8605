//! A daemon that died with data in subfiles: the next mount, and `recover`, find it there.
//!
//! Checks S5.1, S5.5, S6.4, S9.1, S9.2 and S9.6.

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put, text};
use forebay_tests::cli::{FAILED, OK, code, str};
use forebay_tests::rng::Rng;
use forebay_tests::wait::{LONG, wait_until};

const MIB: usize = 1 << 20;

/// A mount whose daemon was killed when all its data had left the log and little of it was in the
/// canonical file, and that data.
fn killed_half_way() -> (Bay, Vec<u8>) {
    let mut bay = Bay::new(Drain::Never);
    bay.set("nodes", "one");
    bay.with_osts(3).set("drain-rate", "6MiB");
    bay.start();
    let data = Rng::new(7).bytes(24 * MIB + 123);
    put(bay.path("f"), &data);
    assert!(bay.run(["drain", str(&bay.path("f"))]).status.code() == Some(3));
    wait_until("the data to leave the log", LONG, || {
        let status = bay.status();
        (status.in_log() == 0 && status.undrained() > 0).then_some(())
    });
    bay.kill();
    assert_eq!(bay.subfiles().len(), 3, "one on each target");
    (bay, data)
}

#[test]
fn the_next_mount_reads_and_drains_what_is_in_subfiles() {
    let (mut bay, data) = killed_half_way();
    bay.set("drain-rate", "0");
    bay.start();
    assert!(bay.status().undrained() > 0);
    assert_same("through the mount", &get(bay.path("f")), &data);
    bay.drain();
    bay.umount();
    assert_same("in the backing", &get(bay.canonical("f")), &data);
    assert!(bay.subfiles().is_empty(), "{:?}", bay.subfiles());
    bay.finish();
}

/// S9.6, S6.4: data that was published has left the store: recover without its targets has drained nothing of it,
/// and does not give the store away.
#[test]
fn recover_counts_what_was_published() {
    let mut bay = Bay::new(Drain::Never);
    bay.with_osts(2).start();
    let data = Rng::new(8).bytes(3 * MIB);
    put(bay.path("f"), &data);
    let file = open_rw(bay.path("f"));
    file.sync_all().expect("fsync");
    forebay_tests::sys::close(file).expect("close");
    bay.kill();
    let base = [
        "recover",
        "--store",
        str(bay.store()),
        "--backing",
        str(bay.backing()),
    ];
    let out = bay.run(base);
    assert_eq!(code(&out), FAILED, "{}", text(&out));
    let said = text(&out);
    assert!(said.contains("in 1 file"), "{said}");
    assert!(said.contains("with the same --ost as before"), "{said}");
    assert!(!said.contains("any backing"), "it is not released: {said}");
    let mut args: Vec<String> = base.map(ToOwned::to_owned).to_vec();
    args.extend((0..2).flat_map(|n| ["--ost".to_owned(), format!("{}/ost{n}", str(bay.root()))]));
    let out = bay.run(args);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("any backing"), "{}", text(&out));
    assert_same("in the backing", &get(bay.canonical("f")), &data);
    bay.finish();
}

#[test]
fn recover_finds_subfiles_and_says_so_when_it_is_not_told_where() {
    let (bay, data) = killed_half_way();
    let base = [
        "recover",
        "--store",
        str(bay.store()),
        "--backing",
        str(bay.backing()),
    ];
    let osts: Vec<String> = (0..3)
        .flat_map(|n| ["--ost".to_owned(), format!("{}/ost{n}", str(bay.root()))])
        .collect();
    let args = |dry: bool, told: bool| {
        let mut args: Vec<String> = base.map(ToOwned::to_owned).to_vec();
        args.extend(dry.then(|| "--dry-run".to_owned()));
        args.extend(osts.iter().filter(|_| told).cloned());
        args
    };
    for dry in [true, false] {
        let untold = bay.run(args(dry, false));
        assert_ne!(code(&untold), 0, "{}", text(&untold));
        let said = text(&untold);
        assert!(said.contains("with the same --ost as before"), "{said}");
        assert_eq!(bay.subfiles().len(), 3, "nothing is lost");
    }
    let looked = bay.run(args(true, true));
    assert_eq!(code(&looked), 0, "{}", text(&looked));
    assert_eq!(bay.subfiles().len(), 3, "looking changes nothing");
    let recovered = bay.run(args(false, true));
    assert_eq!(code(&recovered), 0, "{}", text(&recovered));
    assert_same("in the backing", &get(bay.canonical("f")), &data);
    assert!(bay.subfiles().is_empty(), "{:?}", bay.subfiles());
    bay.finish();
}
