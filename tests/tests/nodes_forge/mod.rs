//! Forges the files through which nodes tell each other things, with right checksums.
//!
//! Only root can put anything into the shared directory, and the tests are root: as root of another machine is that
//! mounts the same file system, or a daemon that has gone wrong. Layouts come from the product's own encoder; what
//! the encoder refuses to make is patched into its bytes, and the checksums are made anew.

// Each test file is a crate of its own and uses only a part of this module.
#![allow(dead_code)]

use crate::nodes_pair::{Shared, json, list, logged_behind, name_of, texts, until};
use forebay_tests::cli::{OK, code};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, put, text};
use forebay_tests::users::{ALICE, BOB, as_user};
use forebay_tests::wait::{in_background, in_time};
use layout_index::checksum;
use layout_index::extent::SubUnit;
use layout_index::sharing::layout::{
    Batch, BatchBuilder, HEADER_LEN, Head, LayoutId, Piece, SubfileRef,
};
use layout_index::{ByteRange, Epoch, FileId, NodeId, Timestamp};
use serde_json::Value;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicUsize, Ordering};

/// The content of Bob's file, which no other user may see or change.
pub const SECRET: &[u8] = b"bob's secret: nobody else reads this, and nobody changes it.....";

/// The generation of forged layouts, and the run and number of the subfiles that they name.
const FORGED: u32 = 0xf0f0;

/// An epoch newer than everything that real nodes have published in a test.
pub const NEWER: u64 = 1000;

/// A file of Alice's that node `a` has published, two daemons, and a file of Bob's beside them.
pub struct Scene {
    pub a: TestMount,
    pub b: TestMount,
    pub shared: Shared,
    pub id: FileId,
    pub dir: PathBuf,
    pub node: NodeId,
    pub want: Vec<u8>,
    /// Bob's file, outside of the backing.
    pub secret: PathBuf,
    /// The generation of the forged layout.
    generation: AtomicU32,
    /// Number of lines of `b`'s log that were there before the last forgery.
    before: AtomicUsize,
}

impl Scene {
    pub fn new() -> Scene {
        let shared = Shared::plain();
        let mut nodes = ["a", "b"].map(|name| {
            let mut node = shared.mortal(name, Drain::Never);
            node.set("close", "publish").set("visibility-timeout", "2s");
            // All these lines are what daemons say of forgeries.
            for said in [
                "shared directory",
                "alices",
                "OST backing",
                "subfile",
                "lease",
                "has closed it and not published",
            ] {
                node.allow_log(said);
            }
            node.start();
            node
        });
        let want: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        let path = nodes[0].path("alices");
        as_user(ALICE, &[], || put(&path, &want));
        let dir = shared.file_dir();
        let id = name_of(&dir).parse().expect("the id of a file");
        let node = shared.id_of("a");
        let node = NodeId(u64::from_str_radix(&node, 16).expect("the id of a node"));
        let secret = nodes[0].root().join("bobs");
        put(&secret, SECRET);
        chown(&secret, Some(BOB), Some(BOB)).expect("chown");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("chmod");
        let [b, a] = {
            nodes.reverse();
            nodes
        };
        let scene = Scene {
            a,
            b,
            shared,
            id,
            dir,
            node,
            want,
            secret,
            generation: AtomicU32::new(FORGED),
            before: AtomicUsize::new(0),
        };
        assert_same("before", &scene.read().expect("read"), &scene.want);
        scene.mark();
        scene
    }

    /// Marks the end of `b`'s log: what `b` logs from here on is about the next forgery.
    pub fn mark(&self) {
        let lines = self.b.log().lines().count();
        self.before.store(lines, Ordering::Relaxed);
    }

    /// Returns whether `b` has logged a line with these words since then.
    pub fn said(&self, words: &[&str]) -> bool {
        let before = self.before.load(Ordering::Relaxed);
        logged_behind(&self.b, before, words).is_some()
    }

    /// Reads the file as Alice on node `b`, at most as much as a file of this test can have.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let path = self.b.path("alices");
        let read = in_background(move || {
            as_user(ALICE, &[], || {
                let file = fs::File::open(&path)?;
                sys::read_at(&file, 0, 1 << 20)
            })
        });
        in_time("reading", read)
    }

    pub fn layout(&self) -> LayoutId {
        LayoutId {
            file: self.id,
            node: self.node,
            generation: self.generation.load(Ordering::Relaxed),
        }
    }

    pub fn layout_path(&self) -> PathBuf {
        let LayoutId {
            node, generation, ..
        } = self.layout();
        self.dir.join(format!("l.{node}.{generation:x}"))
    }

    /// Returns the path of the subfile that a forged layout names, whatever is there.
    pub fn subfile_path(&self) -> PathBuf {
        let name = subfile("backing").name(self.node);
        self.shared.shared_dir().join("subfiles").join(name)
    }

    /// Writes a forged layout and changes the change token, so that all nodes refresh.
    pub fn forge(&self, bytes: &[u8]) {
        self.mark();
        put(self.layout_path(), bytes);
        self.touch();
    }

    /// As [`Scene::forge`], with one batch in a layout of its own. The layout can be read, so a round may have
    /// covered the last one.
    pub fn forge_batch(&self, batch: &Batch) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        let id = self.layout();
        let mut bytes = id.header(&[]).to_vec();
        bytes.extend(batch.encode(&id).expect("encode"));
        self.forge(&bytes);
    }

    /// Sets another change token, so that all nodes refresh.
    pub fn touch(&self) {
        static NEXT: AtomicI64 = AtomicI64::new(1_234_567);
        let at = NEXT.fetch_add(1_000_000_007, Ordering::Relaxed);
        sys::set_times(&self.dir, at, at).expect("touch");
    }

    /// Checks that reading gives an error or the right bytes, in time; that the log has a line with these words
    /// about this forgery; that Bob's file is what it was; and that the daemon does other work.
    pub fn judge(&self, what: &str, words: &[&str]) {
        assert!(!words.is_empty(), "{what}: what is said of it?");
        self.try_it(what);
        until(&format!("{what}: the log says {words:?}"), || {
            self.said(words)
        });
        self.goes_on(what);
    }

    /// The same for a forgery that no daemon has a reason to log: `forebay status --backing` reports it.
    pub fn judge_by_status(&self, what: &str, words: &str) {
        self.try_it(what);
        let problems = self.problems();
        assert!(problems.contains(words), "{what}: {words}: {problems}");
        self.goes_on(what);
    }

    /// The same for content that is no forgery, or lies where no daemon looks: everything works as before, and there
    /// is nothing to log.
    pub fn judge_harmless(&self, what: &str) {
        let got = self.read().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_same(what, &got, &self.want);
        self.drained_nothing(what);
        assert!(!self.said(&["is damaged"]), "{what}: the log of b");
        self.goes_on(what);
    }

    fn try_it(&self, what: &str) {
        match self.read() {
            Ok(got) => assert_same(what, &got, &self.want),
            Err(e) => assert_ne!(
                e.raw_os_error(),
                Some(libc::ENOENT),
                "{what}: the file is there"
            ),
        }
        self.drained_nothing(what);
    }

    fn goes_on(&self, what: &str) {
        assert_eq!(get(&self.secret), SECRET, "{what}: Bob's file");
        put(self.b.path("other"), what.as_bytes());
        assert_eq!(get(self.b.path("other")), what.as_bytes(), "{what}");
        for mount in [&self.a, &self.b] {
            mount.status();
        }
    }

    /// Drains the file, which acts on the forgery, too, and checks that no byte of Bob's gets into Alice's file.
    fn drained_nothing(&self, what: &str) {
        let path = self.b.path("alices");
        let args = [
            "drain".as_ref(),
            path.as_os_str(),
            "--wait".as_ref(),
            "--timeout=300ms".as_ref(),
        ];
        let out = self.b.run(args);
        let below = get(self.shared.canonical("alices"));
        if out.status.success() && below.len() == self.want.len() {
            assert_same(what, &below, &self.want);
        }
        let found = below.windows(SECRET.len()).any(|part| part == SECRET);
        assert!(!found, "{what}: Bob's bytes are in Alice's file");
    }

    /// Takes the forgery away and checks that everything is as before.
    pub fn restore(&self, what: &str) {
        for path in [self.layout_path(), self.subfile_path()] {
            match fs::symlink_metadata(&path) {
                Ok(meta) if meta.is_dir() => fs::remove_dir_all(&path).expect("remove"),
                Ok(_) => fs::remove_file(&path).expect("remove"),
                Err(_) => {}
            }
        }
        self.touch();
        let got = self.read().unwrap_or_else(|e| panic!("after {what}: {e}"));
        assert_same(&format!("after {what}"), &got, &self.want);
        self.mark();
    }

    /// Returns the report of `forebay status --backing` about nodes and files.
    fn report(&self) -> Value {
        let backing = self.shared.backing();
        let args = ["status".as_ref(), "--backing".as_ref(), backing.as_os_str()];
        let mut command = self.a.forebay(args);
        let out = command.arg("--json").output().expect("start forebay");
        assert_eq!(code(&out), OK, "{}", text(&out));
        json(&out)
    }

    /// Returns the problems of files in that report.
    pub fn problems(&self) -> String {
        let report = self.report();
        let files = report["files"].as_array().expect("files");
        let all: Vec<String> = files.iter().flat_map(|f| texts(&f["problems"])).collect();
        all.join("; ")
    }

    /// Returns the state of a node in that report, which also says what is wrong with its record.
    pub fn state_of(&self, id: &str) -> String {
        let report = self.report();
        let nodes = report["nodes"].as_array().expect("nodes");
        let node = nodes.iter().find(|node| node["id"] == id);
        let node = node.unwrap_or_else(|| panic!("no node {id}: {report:#}"));
        node["state"].as_str().expect("a state").to_owned()
    }

    pub fn finish(self) {
        self.a.drain();
        let below = get(self.shared.canonical("alices"));
        assert_same("canonical", &below, &self.want);
        assert_eq!(get(&self.secret), SECRET, "Bob's file");
        self.b.finish();
        self.a.finish();
    }
}

pub fn subfile(ost: &str) -> SubfileRef {
    SubfileRef {
        run: FORGED,
        no: FORGED,
        ost: ost.to_owned(),
    }
}

pub fn head() -> Head {
    Head {
        epoch: Epoch(NEWER),
        mtime: Timestamp::now(),
        ..Head::default()
    }
}

/// Makes a batch that says that the first bytes of the file are in that subfile, and are the secret.
pub fn in_subfile(subfile: &SubfileRef) -> Batch {
    in_unit(subfile, 0, checksum::crc32c(SECRET))
}

pub fn in_unit(subfile: &SubfileRef, block: u32, crc: u32) -> Batch {
    let unit = SubUnit {
        subfile: 0,
        block,
        len: SECRET.len() as u32,
        crc,
    };
    let mut builder = BatchBuilder::new();
    let piece = Piece::Subfile {
        subfile,
        unit,
        skip: 0,
    };
    let range = ByteRange::new(0, SECRET.len() as u64);
    builder.push(range, piece).expect("push");
    builder.finish(head())
}

/// Makes a batch with bytes of its own.
pub fn inline(bytes: &[u8], head: Head) -> Batch {
    let mut builder = BatchBuilder::new();
    let range = ByteRange::new(0, bytes.len() as u64);
    builder.push(range, Piece::Inline(bytes)).expect("push");
    builder.finish(head)
}

/// Returns the bytes of a layout with one batch in which `change` changed something, and with checksums that fit.
pub fn patched(id: &LayoutId, batch: &Batch, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = batch.encode(id).expect("encode");
    change(&mut bytes);
    let salt = checksum::crc32c(&id.header(&[])[12..44]);
    let crc = checksum::append(salt, &bytes[12..]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    let crc = checksum::append(salt, &bytes[..8]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    let mut layout = id.header(&[]).to_vec();
    assert_eq!(layout.len(), HEADER_LEN);
    layout.extend(bytes);
    layout
}

pub fn set_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub fn set_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

pub fn fifo(path: &Path) {
    sys::mknod(path, libc::S_IFIFO | 0o666, 0).expect("mkfifo");
}

/// Makes a device that reads as zeros without an end.
pub fn device(path: &Path) {
    sys::mknod(path, libc::S_IFCHR | 0o666, libc::makedev(1, 5)).expect("mknod");
}

/// Lists everything below a directory: names, modes and bytes.
pub fn census(dir: &Path) -> Vec<(PathBuf, u32, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    for path in list(dir) {
        let meta = fs::symlink_metadata(&path).expect("stat");
        let bytes = if meta.is_file() {
            get(&path)
        } else {
            Vec::new()
        };
        if meta.is_dir() {
            found.extend(census(&path));
        }
        found.push((path, meta.mode(), bytes));
    }
    found
}
