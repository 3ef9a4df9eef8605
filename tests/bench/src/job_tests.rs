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
        nodes: None,
        cluster: None,
    }
}

#[test]
fn ranks_go_to_the_nodes_in_turn() {
    let job = Job {
        nodes: Some(2),
        cluster: Some("forebay-cluster".into()),
        ..job(4, 10, 100)
    };
    let node = |rank| {
        let command = job.rank_command(Path::new("/bin/writer"), rank);
        assert_eq!(command.get_program(), "forebay-cluster");
        let words: Vec<_> = command.get_args().map(|w| w.to_string_lossy()).collect();
        assert_eq!(
            (&*words[0], &*words[2], &*words[3]),
            ("exec", "--", "/bin/writer")
        );
        words[1].to_string()
    };
    assert_eq!((0..4).map(node).collect::<Vec<_>>(), ["0", "1", "0", "1"]);
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
