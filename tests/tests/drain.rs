//! Tests of the drain: the log keeps data until the canonical file has it, and the policy decides when the drain
//! runs.

use forebay_tests::rng::Rng;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::wait::{LONG, wait_until};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// S6, S6.1: a drain is cut off half-way. Data that `layout` then reports in the log is served without the canonical
/// file, and data that it reports as canonical is in the canonical file.
#[test]
fn the_log_keeps_what_is_not_drained() {
    let mut mount = TestMount::new(Drain::Never);
    mount.set("drain-rate", "24MiB");
    mount.start();
    let want = Rng::new(1).bytes(150 * MIB);
    put(mount.path("f"), &want);
    let path = mount.path("f");
    let path = path.to_str().expect("plain text");
    mount.run(["drain", path]);
    wait_until("a part is drained", LONG, || {
        let left = mount.status().undrained() as usize;
        (0 < left && left < 150 * MIB).then_some(())
    });
    mount.kill();
    mount.start();
    let out = mount.run(["layout", path, "--json"]);
    let layout: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("layout is not JSON ({e}): {}", text(&out)));
    let pieces = layout["pieces"].as_array().expect("pieces");
    let canonical = open_rw(mount.canonical("f"));
    let (mut in_log, mut below) = (0, 0);
    for piece in pieces {
        let at = |key: &str| piece[key].as_u64().expect("an offset") as usize;
        let (start, end) = (at("start"), at("end"));
        if piece["tier"] == "log" {
            in_log += end - start;
            sys::write_all_at(&canonical, &vec![0xee; end - start], start as u64)
                .expect("scribble");
        } else {
            assert_eq!(
                piece["tier"], "canonical",
                "a hole where data was written: {piece}"
            );
            below += end - start;
            let got = sys::read_at(&canonical, start as u64, end - start).expect("read");
            assert_same("the canonical part", &got, &want[start..end]);
        }
    }
    assert_eq!(in_log + below, want.len(), "the pieces cover the file");
    assert!(
        in_log > 0 && below > 0,
        "{in_log} bytes in the log, {below} below"
    );
    assert_same("through the mount", &get(mount.path("f")), &want);
    mount.kill();
    mount.set("drain-rate", "0");
    mount.start();
    mount.umount();
    assert_same("canonical", &get(mount.canonical("f")), &want);
    mount.finish();
}

/// S4.5: each policy decides when data drains by itself.
#[test]
fn drain_policies() {
    for drain in Drain::ALL {
        let mut mount = TestMount::new(drain);
        mount.start();
        let file = open_rw(mount.path("f"));
        sys::write_all_at(&file, &[1; 2_000_000], 0).expect("write");
        let drained = || (mount.status().undrained() == 0).then_some(());
        match drain {
            Drain::Immediate => {
                wait_until("it drains while open", LONG, drained);
                drop(file);
            }
            Drain::OnClose => {
                assert_eq!(
                    mount.status().undrained(),
                    2_000_000,
                    "not while it is open"
                );
                drop(file);
                wait_until("it drains when closed", LONG, drained);
            }
            Drain::Never => {
                drop(file);
                assert_eq!(mount.status().undrained(), 2_000_000);
                mount.drain();
            }
        }
        assert_eq!(mount.status().undrained(), 0, "{drain:?}");
        assert_same("canonical", &get(mount.canonical("f")), &[1; 2_000_000]);
        mount.finish();
    }
}

/// S6.3: a file is overwritten while each of its stripes is being drained.
#[test]
fn overwriting_while_draining() {
    let mut mount = TestMount::new(Drain::Immediate);
    mount.start();
    let mut rng = Rng::new(2);
    let mut want = vec![0; 6 * MIB];
    let file = open_rw(mount.path("f"));
    for _ in 0..400 {
        let at = rng.below(5 * MIB as u64) as usize;
        let len = rng.size(MIB as u64) as usize;
        rng.fill(&mut want[at..at + len]);
        sys::write_all_at(&file, &want[at..at + len], at as u64).expect("write");
    }
    let end = file.metadata().expect("stat").len() as usize;
    mount.drain();
    assert_same("canonical", &get(mount.canonical("f")), &want[..end]);
    drop(file);
    mount.finish();
}

/// S4.4: data that is cut off or removed before it is drained is never written to the backing.
#[test]
fn superseded_data_is_not_drained() {
    let mut mount = TestMount::new(Drain::Never);
    mount.start();
    let file = open_rw(mount.path("f"));
    sys::write_all_at(&file, &vec![1; 8 * MIB], 0).expect("write");
    file.set_len(MIB as u64).expect("cut");
    put(mount.path("g"), vec![2; 4 * MIB]);
    std::fs::remove_file(mount.path("g")).expect("unlink");
    for i in 0..10 {
        sys::write_all_at(&file, &vec![i; MIB], 0).expect("overwrite");
    }
    mount.drain();
    let status = mount.status();
    let drained = status.number("/bytes/canonical");
    assert!(
        drained <= 2 * MIB as u64,
        "{drained} bytes were drained for one MiB"
    );
    assert_same("canonical", &get(mount.canonical("f")), &vec![9; MIB]);
    drop(file);
    mount.finish();
}
