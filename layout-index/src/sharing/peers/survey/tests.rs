//! Layouts that end within a batch.

use super::*;
use crate::sharing::layout::{BatchBuilder, HEADER_LEN, Head};
use crate::sharing::shared_dir::{Owner, Patience};

const FILE: FileId = FileId { ino: 7, birth: 8 };
const NODE: NodeId = NodeId(1);
const LEASE: Duration = Duration::from_secs(60);

fn join(dir: &tempfile::TempDir) -> SharedDir {
    let backing = std::fs::File::open(dir.path()).unwrap().into();
    let me = Owner { id: NODE, run: 1 };
    SharedDir::join(backing, me, "n", LEASE).unwrap()
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

fn append(shared_dir: &SharedDir, generation: u32, at: usize, bytes: &[u8]) {
    shared_dir
        .append_layout(FILE, generation, at as u64, bytes, Patience::Forever)
        .unwrap();
}

fn problems(shared_dir: &SharedDir) -> Vec<String> {
    let files = survey(shared_dir).unwrap().files;
    assert_eq!(files.len(), 1);
    let mut problems = files.into_iter().next().unwrap().problems;
    problems.sort();
    problems
}

/// S5.3, S8.12: data that cannot be what was written is reported, and so is missing data. Past a
/// seal nothing is missing.
#[test]
fn a_layout_that_ends_within_a_batch_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let shared_dir = join(&dir);
    append(&shared_dir, 1, 0, &one_batch(1));
    assert!(problems(&shared_dir).is_empty());
    let cut = one_batch(2).len() - 1;
    append(&shared_dir, 2, 0, &one_batch(2)[..cut]);
    append(&shared_dir, 3, 0, &one_batch(3)[..HEADER_LEN - 1]);
    append(&shared_dir, 4, 0, &one_batch(4)[..cut]);
    shared_dir.seal_layout(FILE, 4, 0).unwrap();
    let why = "an append to it died, or it was cut";
    let says = [
        format!("a layout of node n ends within a batch at byte {cut}: {why}"),
        format!("a layout of node n ends within its header at byte 191: {why}"),
    ];
    assert_eq!(problems(&shared_dir), says);
}

/// S8.12: only inconsistent data is reported. An append that is under way is consistent, and so is
/// the next one.
#[test]
fn an_append_that_is_under_way_is_not_named() {
    let dir = tempfile::tempdir().unwrap();
    let shared_dir = join(&dir);
    let whole = one_batch(1);
    let (begun, rest) = whole.split_at(HEADER_LEN + 10);
    append(&shared_dir, 1, 0, begun);
    let before = survey_file(&shared_dir, FILE, Asked::default()).unwrap();
    assert_eq!(before.layouts[0].torn, Some(begun.len() as u64));
    assert!(before.problems.is_empty());
    append(&shared_dir, 1, begun.len(), rest);
    let after = survey_again(&shared_dir, &before, Asked::default()).unwrap();
    assert_eq!((after.layouts[0].torn, after.problems.len()), (None, 0));
    append(&shared_dir, 1, whole.len(), &whole[HEADER_LEN..][..10]);
    let next = survey_again(&shared_dir, &before, Asked::default()).unwrap();
    assert!(next.layouts[0].torn.is_some());
    assert!(next.problems.is_empty(), "{:?}", next.problems);
}

/// S5.4: only one node's data: neither batches whose append died, nor those of another node.
#[test]
fn what_one_node_has_published() {
    let dir = tempfile::tempdir().unwrap();
    let shared_dir = join(&dir);
    let whole = one_batch(1);
    append(&shared_dir, 1, 0, &whole[..whole.len() - 1]);
    assert!(published_by(&shared_dir, NODE).unwrap().is_empty());
    append(&shared_dir, 2, 0, &one_batch(2));
    let files = published_by(&shared_dir, NODE).unwrap();
    assert_eq!(files.len(), 1);
    assert_eq!((files[0].id, files[0].problems.len()), (FILE, 0));
    assert!(published_by(&shared_dir, NodeId(2)).unwrap().is_empty());
}
