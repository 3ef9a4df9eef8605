use super::*;

fn job(processes: u64, block: u64, total: u64) -> Job {
    Job {
        file: PathBuf::from("unused"),
        op: Op::Write,
        processes,
        block,
        total,
        seed: 1,
        filler: false,
        fsync: false,
        passes: 1,
    }
}

#[test]
fn the_ranks_cover_the_file_exactly_once() {
    for (processes, block, total) in [(1, 10, 100), (4, 47008, 1_000_000), (3, 7, 5), (4, 8, 64)] {
        let job = job(processes, block, total);
        let mut all: Vec<_> = (0..processes).flat_map(|r| job.blocks(r)).collect();
        all.sort();
        let mut at = 0;
        for (offset, len) in all {
            assert_eq!(
                offset, at,
                "{processes} processes, block {block}, total {total}"
            );
            at += len as u64;
        }
        assert_eq!(at, total);
    }
}
