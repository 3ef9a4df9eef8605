//! Layouts that end within a batch.

use super::*;
use crate::commons::{Owner, Patience};
use crate::layout::{BatchBuilder, HEADER_LEN, Head};

const FILE: FileId = FileId { ino: 7, birth: 8 };
const NODE: NodeId = NodeId(1);
const LEASE: Duration = Duration::from_secs(60);

fn join(dir: &tempfile::TempDir) -> Commons {
    let backing = std::fs::File::open(dir.path()).unwrap().into();
    let me = Owner { id: NODE, run: 1 };
    Commons::join(backing, me, "n", LEASE).unwrap()
}

/// A header and one batch.
fn one_batch(generation: u32) -> Vec<u8> {
    let id = LayoutId {
        file: FILE,
        node: NODE,
        generation,
    };
    let batch = BatchBuilder::new().finish(Head {
        epoch: Epoch(1),
        ..Head::default()
    });
    let mut bytes = id.header(&[]).to_vec();
    bytes.extend(batch.encode(&id).unwrap());
    bytes
}

fn append(commons: &Commons, generation: u32, at: usize, bytes: &[u8]) {
    commons
        .append_layout(FILE, generation, at as u64, bytes, Patience::Forever)
        .unwrap();
}

fn problems(commons: &Commons) -> Vec<String> {
    let files = survey(commons).unwrap().files;
    assert_eq!(files.len(), 1);
    let mut problems = files.into_iter().next().unwrap().problems;
    problems.sort();
    problems
}

/// S5.3, S8.12: what cannot be taken for what was written is reported; also that something is missing. Behind a
/// seal nothing is.
#[test]
fn a_layout_that_ends_within_a_batch_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let commons = join(&dir);
    append(&commons, 1, 0, &one_batch(1));
    assert!(problems(&commons).is_empty());
    let cut = one_batch(2).len() - 1;
    append(&commons, 2, 0, &one_batch(2)[..cut]);
    append(&commons, 3, 0, &one_batch(3)[..HEADER_LEN - 1]);
    append(&commons, 4, 0, &one_batch(4)[..cut]);
    commons.seal_layout(FILE, 4, 0).unwrap();
    let why = "an append to it died, or it was cut";
    let says = [
        format!("a layout of node n ends within a batch at byte {cut}: {why}"),
        format!("a layout of node n ends within its header at byte 191: {why}"),
    ];
    assert_eq!(problems(&commons), says);
}

/// S8.12: only what makes no sense is reported. An append that is under way makes sense, and so does the next one.
#[test]
fn an_append_that_is_under_way_is_not_named() {
    let dir = tempfile::tempdir().unwrap();
    let commons = join(&dir);
    let whole = one_batch(1);
    let (begun, rest) = whole.split_at(HEADER_LEN + 10);
    append(&commons, 1, 0, begun);
    let before = survey_file(&commons, FILE, Asked::default()).unwrap();
    assert_eq!(before.layouts[0].torn, Some(begun.len() as u64));
    assert!(before.problems.is_empty());
    append(&commons, 1, begun.len(), rest);
    let after = survey_again(&commons, &before, Asked::default()).unwrap();
    assert_eq!((after.layouts[0].torn, after.problems.len()), (None, 0));
    append(&commons, 1, whole.len(), &whole[HEADER_LEN..][..10]);
    let next = survey_again(&commons, &before, Asked::default()).unwrap();
    assert!(next.layouts[0].torn.is_some());
    assert!(next.problems.is_empty(), "{:?}", next.problems);
}

/// S5.4: one node's part alone: what it has promised to no node is not of it, nor is another node's.
#[test]
fn what_one_node_has_published() {
    let dir = tempfile::tempdir().unwrap();
    let commons = join(&dir);
    let whole = one_batch(1);
    append(&commons, 1, 0, &whole[..whole.len() - 1]);
    assert!(published_by(&commons, NODE).unwrap().is_empty());
    append(&commons, 2, 0, &one_batch(2));
    let files = published_by(&commons, NODE).unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!((files[0].id, files[0].problems.len()), (FILE, 0));
    assert!(published_by(&commons, NodeId(2)).unwrap().is_empty());
}
