//! S1 (the last completed write of this node counts) for writes that are reduced to what they
//! change: a change by this node between the read and the write-back is always noticed.

use super::*;
use crate::store::file::tests::rig::Rig;

fn range(start: u64, end: u64) -> ByteRange {
    ByteRange { start, end }
}

fn back(rig: &Rig, watch: &Watch, offset: u64, data: &[u8], run: Range<usize>) -> Result<bool> {
    rig.file().write_runs(1, offset, data, &[run], watch)
}

#[test]
fn only_the_runs_are_absorbed() {
    let mut rig = Rig::new();
    rig.write(0, 1000);
    let before = rig.store().totals().in_log;
    let watch = rig.file().watch(range(0, 1000));
    let mut data = rig.model[..1000].to_vec();
    data[100..110].fill(1);
    assert!(back(&rig, &watch, 0, &data, 100..110).unwrap());
    assert_eq!(rig.store().totals().in_log, before, "ten bytes for ten");
    rig.model[100..110].fill(1);
    rig.check(range(0, 4000), "the file");
}

#[test]
fn changes_of_this_node_are_noticed() {
    let mut rig = Rig::new();
    rig.write(0, 4000);
    let other = |rig: &mut Rig, which: u32| match which {
        0 => rig.write(500, 10),
        1 => rig.truncate(505),
        2 => rig.zero(500, 10, false),
        _ => rig.write_through(500, 10),
    };
    for which in 0..4 {
        rig.write(0, 4000);
        let watch = rig.file().watch(range(0, 300));
        watch.join(rig.file().watch(range(300, 4000)));
        other(&mut rig, which);
        let data = vec![9; 100];
        let touched = back(&rig, &watch, 450, &data, 0..1).unwrap();
        assert!(!touched, "change {which} was not noticed");
        if which != 1 {
            let apart = back(&rig, &watch, 100, &data, 0..0).unwrap();
            assert!(apart, "change {which} was noticed where it was not");
        }
    }
    rig.check(range(0, 4000), "the file");
}

/// A read at the end of the file may be shorter than the one before it.
#[test]
fn a_watch_stays_as_long_as_it_was() {
    let mut rig = Rig::new();
    rig.write(0, 100);
    let watch = rig.file().watch(range(0, 4000));
    watch.join(rig.file().watch(range(100, 200)));
    rig.write(3000, 10);
    assert!(rig.file().is_touched(&watch, range(3000, 3001)));
    assert!(!rig.file().is_touched(&watch, range(200, 3000)));
}

#[test]
fn a_watch_that_is_gone_says_nothing() {
    let mut rig = Rig::new();
    rig.write(0, 100);
    let watch = rig.file().watch(range(0, 50));
    let gone = rig.file().watch(range(50, 100));
    let id = gone.id;
    watch.join(gone);
    assert!(rig.file().inner().is_touched(id, range(60, 70)));
    assert!(!rig.file().inner().is_touched(watch.id, range(60, 70)));
    drop(watch);
    assert!(rig.file().inner().watched.is_empty());
}

#[test]
fn many_changes_are_noted_as_one() {
    let mut rig = Rig::new();
    rig.write(0, 4000);
    let watch = rig.file().watch(range(0, 4000));
    for i in 0..100 {
        rig.write(1000 + 20 * i, 10);
    }
    let inner = rig.file().inner();
    assert!(inner.watched[0].touched.len() <= MOST_TOUCHED);
    assert!(inner.is_touched(watch.id, range(1000, 1001)));
    assert!(inner.is_touched(watch.id, range(2985, 2986)));
    assert!(!inner.is_touched(watch.id, range(0, 1000)));
    assert!(!inner.is_touched(watch.id, range(3000, 4000)));
}
