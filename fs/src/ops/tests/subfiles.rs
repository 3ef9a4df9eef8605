//! Reads of bytes that are in a subfile, during a drain.

use super::*;
use layout_index::checksum::crc32c;
use layout_index::extent::SubUnit;
use layout_index::{Disk, Subfile, SubfileRow, Subfiled, Subfiles};
use parking_lot::Mutex;
use std::path::Path;

type Meanwhile = Box<dyn FnOnce() + Send>;

/// A storage target made of a directory.
struct Target {
    dir: PathBuf,
    /// Runs between the first request for a subfile and its opening.
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl Subfiles for Target {
    fn open(&self, row: &SubfileRow) -> io::Result<Arc<dyn DiskFile>> {
        // The lock is not held during this call: the drain opens subfiles, too.
        let meanwhile = self.meanwhile.lock().take();
        if let Some(meanwhile) = meanwhile {
            std::thread::spawn(meanwhile).join().unwrap();
        }
        RealDisk.open(&self.dir.join(&row.name))
    }
}

/// Moves `bytes`, which are all of the file, from the log to a subfile in `dir`. Afterwards the subfile is
/// not open, as after a restart.
fn move_out(w: &World, file: &File, bytes: &[u8], dir: &Path) {
    let store = w.fs.store();
    let no = store.new_subfile_no();
    let row = SubfileRow {
        no,
        ost: 0,
        ost_name: "here".into(),
        name: format!("{}{no:08x}", store.subfile_run()),
        uid: me().uid,
    };
    let disk = RealDisk.create(&dir.join(&row.name)).unwrap();
    let subfile = Arc::new(Subfile::made(row, disk.clone()));
    file.add_subfile(subfile.clone()).unwrap();
    disk.write_at(&[IoSlice::new(bytes)], 0).unwrap();
    disk.sync().unwrap();
    let range = ByteRange::new(0, bytes.len() as u64);
    let moved = file.subfiled(&[Subfiled {
        range,
        upto: file.log_snapshot(range).unwrap().upto,
        unit: SubUnit {
            subfile: no,
            block: 0,
            len: bytes.len() as u32,
            crc: crc32c(bytes),
        },
        skip: 0,
    }]);
    assert_eq!(moved.unwrap(), range.len());
    assert_eq!(file.in_log(), 0);
    let lost = io::Error::from_raw_os_error(libc::ESTALE);
    assert!(subfile.reopen_after(&lost, &disk));
}

/// S9.1: "A subfile that went away because it was drained makes the reader look again, never fail."
#[test]
fn a_subfile_that_is_drained_and_removed_under_a_read_makes_it_look_again() {
    let w = Arc::new(world());
    let dir = tempfile::tempdir().unwrap();
    let (node, fh) = w.create("f");
    let file = w.store_file(node);
    let bytes: Vec<u8> = (0..5000).map(|n| (n % 251) as u8).collect();
    w.write(fh, 0, &bytes);
    move_out(&w, &file, &bytes, dir.path());

    let (there, drained, place) = (w.clone(), file.clone(), dir.path().to_owned());
    let meanwhile: Meanwhile = Box::new(move || {
        there.drain(&drained);
        for gone in there.fs.store().take_retired_subfiles().unwrap() {
            std::fs::remove_file(place.join(&gone.row().name)).unwrap();
        }
    });
    let target = Target {
        dir: dir.path().to_owned(),
        meanwhile: Mutex::new(Some(meanwhile)),
    };
    w.fs.store().set_subfiles(Arc::new(target));
    assert!(w.read(fh, 0, 9000) == bytes, "other bytes");
    assert!(file.is_clean(), "it was not drained under the read");
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "the subfile was there to be read");
}
