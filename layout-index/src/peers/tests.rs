//! A store and its node, and another node that is only what it leaves in the shared directory.

use super::*;
use crate::calls;
use crate::commons::{Owner, Patience};
use crate::disk::RealDisk;
use crate::layout::{BatchBuilder, Head, LayoutId, Piece};
use crate::space::SpaceOptions;
use crate::store::StoreOptions;
use crate::types::{ByteRange, Epoch, FileId, Timestamp};

const ID: FileId = FileId { ino: 42, birth: 1 };

fn node(dir: &tempfile::TempDir, id: u64) -> Commons {
    let backing = std::fs::File::open(dir.path()).unwrap().into();
    let me = Owner {
        id: NodeId(id),
        run: 1,
    };
    Commons::join(backing, me, &format!("n{id}"), Duration::from_secs(60)).unwrap()
}

fn here(dir: &tempfile::TempDir) -> (Arc<Store>, Arc<Peers>, Arc<File>) {
    let options = StoreOptions {
        dir: dir.path().join("store"),
        node: "n1".into(),
        backing: dir.path().into(),
        index_memory: 4 << 20,
        space: SpaceOptions {
            capacity: Some(32 << 20),
            ..SpaceOptions::default()
        },
    };
    let (store, _) = Store::open(options, Arc::new(RealDisk)).unwrap();
    let peers = Peers::new(&store, node(dir, 1), Duration::from_secs(1));
    let file = store.file(ID);
    (store, peers, file)
}

/// Bytes in the log that nobody else knows of.
fn write(file: &File, data: &[u8]) {
    let intro = Intro {
        size: 0,
        mtime: Timestamp(0),
        uid: 0,
        gid: 0,
        handle: Vec::new(),
        path: b"f".to_vec(),
    };
    let exclusive = file.exclusive();
    if exclusive.is_clean() {
        exclusive.begin(intro).unwrap();
    }
    drop(exclusive);
    file.write(0, 0, data).unwrap();
}

/// Appends a batch as another node does, and dies before it stamps.
fn append_unstamped(other: &Commons, id: u64, epoch: u64) {
    let layout = LayoutId {
        file: ID,
        node: NodeId(id),
        generation: 7,
    };
    let mut batch = BatchBuilder::new();
    batch
        .push(ByteRange::new(0, 4), Piece::Inline(b"them"))
        .unwrap();
    let batch = batch.finish(Head {
        epoch: Epoch(epoch),
        ..Head::default()
    });
    let mut bytes = layout.header(b"").to_vec();
    bytes.extend(batch.encode(&layout).unwrap());
    other
        .append_layout(ID, 7, 0, &bytes, Patience::Forever)
        .unwrap();
}

/// S2: "never older data over newer". Who sees a batch must not miss those that it is newer than, so
/// a node that publishes after it has seen another's batch stamps first, whatever epochs the two
/// have: the other's may not be stamped yet, and a third node may have read its layout before.
#[test]
fn what_was_seen_is_stamped_before_the_next_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, peers, file) = here(&dir);
    let ask = || Ok(Canonical::default());
    let stamps = |data: &[u8]| {
        write(&file, data);
        let (all, made) = calls::of(|| peers.publish(&file, &ask).unwrap());
        assert!(all, "few bytes go into the batch");
        made.iter().filter(|call| **call == "utime").count()
    };
    assert_eq!(stamps(b"one"), 1, "nobody else has said anything");
    assert_eq!(stamps(b"two"), 1);
    append_unstamped(&node(&dir, 2), 2, 1);
    assert_eq!(stamps(b"three"), 2, "an epoch below its own was seen");
    assert_eq!(stamps(b"four"), 1, "and is stamped since");
}
