//! A store and its node, and another node that consists only of what it leaves in the shared
//! directory.

use super::*;
use crate::calls;
use crate::disk::RealDisk;
use crate::policy::FileSettings;
use crate::sharing::layout::{BatchBuilder, Head, LayoutId, Piece};
use crate::sharing::shared_dir::{Owner, Patience};
use crate::store::StoreOptions;
use crate::store::file::Intro;
use crate::store::space::SpaceOptions;
use crate::types::{ByteRange, Epoch, FileId, Timestamp};

const ID: FileId = FileId { ino: 42, birth: 1 };

fn node(dir: &tempfile::TempDir, id: u64) -> SharedDir {
    let backing = std::fs::File::open(dir.path()).unwrap().into();
    let me = Owner {
        id: NodeId(id),
        run: 1,
    };
    SharedDir::join(backing, me, &format!("n{id}"), Duration::from_secs(60)).unwrap()
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
    store.set_file_settings(FileSettings {
        visibility_timeout: Duration::from_secs(1),
        ..FileSettings::default()
    });
    let peers = Peers::new(&store, node(dir, 1), crate::sleep);
    let file = store.file(ID);
    (store, peers, file)
}

/// Writes bytes to the log that other nodes do not know about.
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

/// Appends a batch as another node does that dies before it sets a change token.
fn append_without_touch(other: &SharedDir, id: u64, epoch: u64) {
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

/// S2: "never older data over newer". A node that sees a batch must not miss the batches that it is
/// newer than. So a node that publishes after it has seen another node's batch sets a change token
/// first, whatever epochs the two batches have: the other node may not have set one yet, and a
/// third node may have read its layout before.
#[test]
fn the_token_changes_before_the_next_batch_if_others_were_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, peers, file) = here(&dir);
    let ask = || Ok(Canonical::default());
    let touches = |data: &[u8]| {
        write(&file, data);
        let (all, made) = calls::of(|| peers.publish(&file, &ask).unwrap());
        assert!(all, "few bytes go into the batch");
        made.iter().filter(|call| **call == "utime").count()
    };
    assert_eq!(touches(b"one"), 1, "no other node has published");
    assert_eq!(touches(b"two"), 1);
    append_without_touch(&node(&dir, 2), 2, 1);
    assert_eq!(touches(b"three"), 2, "an epoch below its own was seen");
    assert_eq!(touches(b"four"), 1, "and is stamped since");
}
