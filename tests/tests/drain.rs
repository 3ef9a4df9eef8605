//! The drain: what it leaves in the log until the canonical file has it, and when it runs.

use forebay_tests::bay::{Bay, Drain, assert_same, get, open_rw, put, text};
use forebay_tests::rng::Rng;
use forebay_tests::sys;
use forebay_tests::wait::{LONG, wait_until};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// S6, S6.1: a drain is cut off half-way. What the layout then says is in the log needs nothing
/// from the canonical file, and what it says is canonical is there.
#[test]
fn the_log_keeps_what_is_not_drained() {
    let mut bay = Bay::new(Drain::Never);
    bay.set("drain-rate", "24MiB");
    bay.start();
    let want = Rng::new(1).bytes(150 * MIB);
    put(bay.path("f"), &want);
    let path = bay.path("f");
    let path = path.to_str().expect("plain text");
    bay.run(["drain", path]);
    wait_until("a part is drained", LONG, || {
        let left = bay.status().undrained() as usize;
        (0 < left && left < 150 * MIB).then_some(())
    });
    bay.kill();
    bay.start();
    let out = bay.run(["layout", path, "--json"]);
    let layout: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("layout is not JSON ({e}): {}", text(&out)));
    let pieces = layout["pieces"].as_array().expect("pieces");
    let canonical = open_rw(bay.canonical("f"));
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
    assert_same("through the mount", &get(bay.path("f")), &want);
    bay.kill();
    bay.set("drain-rate", "0");
    bay.start();
    bay.umount();
    assert_same("canonical", &get(bay.canonical("f")), &want);
    bay.finish();
}

/// S4.5: when data drains by itself.
#[test]
fn drain_policies() {
    for drain in Drain::ALL {
        let mut bay = Bay::new(drain);
        bay.start();
        let file = open_rw(bay.path("f"));
        sys::write_all_at(&file, &[1; 2_000_000], 0).expect("write");
        let drained = || (bay.status().undrained() == 0).then_some(());
        match drain {
            Drain::Immediate => {
                wait_until("it drains while open", LONG, drained);
                drop(file);
            }
            Drain::OnClose => {
                assert_eq!(bay.status().undrained(), 2_000_000, "not while it is open");
                drop(file);
                wait_until("it drains when closed", LONG, drained);
            }
            Drain::Never => {
                drop(file);
                assert_eq!(bay.status().undrained(), 2_000_000);
                bay.drain();
            }
        }
        assert_eq!(bay.status().undrained(), 0, "{drain:?}");
        assert_same("canonical", &get(bay.canonical("f")), &[1; 2_000_000]);
        bay.finish();
    }
}

/// S6.3: a file is overwritten while each of its stripes is being drained.
#[test]
fn overwriting_while_draining() {
    let mut bay = Bay::new(Drain::Immediate);
    bay.start();
    let mut rng = Rng::new(2);
    let mut want = vec![0; 6 * MIB];
    let file = open_rw(bay.path("f"));
    for _ in 0..400 {
        let at = rng.below(5 * MIB as u64) as usize;
        let len = rng.size(MIB as u64) as usize;
        rng.fill(&mut want[at..at + len]);
        sys::write_all_at(&file, &want[at..at + len], at as u64).expect("write");
    }
    let end = file.metadata().expect("stat").len() as usize;
    bay.drain();
    assert_same("canonical", &get(bay.canonical("f")), &want[..end]);
    drop(file);
    bay.finish();
}

/// S4.4: what is cut off or removed while it waits is never written to the backing.
#[test]
fn superseded_data_is_not_drained() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    let file = open_rw(bay.path("f"));
    sys::write_all_at(&file, &vec![1; 8 * MIB], 0).expect("write");
    file.set_len(MIB as u64).expect("cut");
    put(bay.path("g"), vec![2; 4 * MIB]);
    std::fs::remove_file(bay.path("g")).expect("unlink");
    for i in 0..10 {
        sys::write_all_at(&file, &vec![i; MIB], 0).expect("overwrite");
    }
    bay.drain();
    let status = bay.status();
    let drained = status.number("/bytes/canonical");
    assert!(
        drained <= 2 * MIB as u64,
        "{drained} bytes were drained for one MiB"
    );
    assert_same("canonical", &get(bay.canonical("f")), &vec![9; MIB]);
    drop(file);
    bay.finish();
}
