//! OSTs that are directories on the tested disk, and the way of a file's bytes through subfiles on them. The order
//! of steps is the flusher's, but they run on the caller's thread, so that a script decides what happens between two
//! of them.

use crate::drain::STRIPE;
use layout_index::checksum::crc32c;
use layout_index::extent::{BLOCK, SubUnit};
use layout_index::{
    ByteRange, Disk, DiskFile, File, Piece, Plan, Result, Store, StoreError, Subfile, SubfileRow,
    Subfiled, Subfiles,
};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of OSTs. A file has a subfile on each.
pub const OSTS: u32 = 2;

#[derive(Clone, Debug)]
pub struct Osts {
    disk: Arc<dyn Disk>,
    root: PathBuf,
}

/// Bytes that are in subfiles, but neither synced nor recorded.
#[derive(Debug, Default)]
pub struct Copied {
    pub units: Vec<Subfiled>,
    written: Vec<(Arc<Subfile>, Arc<dyn DiskFile>)>,
}

impl Subfiles for Osts {
    fn open(&self, row: &SubfileRow) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(&self.dir(row.ost).join(&row.name))
    }
}

impl Osts {
    pub fn new(disk: Arc<dyn Disk>, root: &Path) -> Osts {
        Osts {
            disk,
            root: root.into(),
        }
    }

    fn dir(&self, ost: u32) -> PathBuf {
        self.root.join(format!("ost{ost}"))
    }

    pub fn create_dirs(&self) -> io::Result<()> {
        for ost in 0..OSTS {
            self.disk.create_dir(&self.dir(ost))?;
        }
        self.disk.sync_dir(&self.root)
    }

    /// Copies up to `max` stripes, spread over the OSTs in turn. `Clean` and `Full` mean that this cannot be done
    /// now.
    pub fn copy(&self, store: &Store, file: &File, max: usize) -> Result<Copied> {
        let mut copied = Copied::default();
        for stripe in file.log_stripes(STRIPE, 0, max)? {
            let ost = (stripe.range.start / STRIPE) as u32 % OSTS;
            let snapshot = file.log_snapshot(stripe.range)?;
            for piece in &snapshot.pieces {
                let unit = self.append(store, file, ost, piece, &mut copied)?;
                copied.units.push(Subfiled {
                    range: piece.range,
                    upto: snapshot.upto,
                    unit,
                    skip: 0,
                });
            }
        }
        Ok(copied)
    }

    fn append(
        &self,
        store: &Store,
        file: &File,
        ost: u32,
        piece: &Piece,
        copied: &mut Copied,
    ) -> Result<SubUnit> {
        let mut buf = vec![0; piece.range.len() as usize];
        let plan = Plan {
            range: piece.range,
            size: piece.range.end,
            pieces: vec![piece.clone()],
        };
        file.read(&plan, &mut buf, None)?;
        let known = file.subfiles().into_iter().find(|s| s.row().ost == ost);
        let subfile = match known {
            Some(known) => known,
            None => self.make(store, file, ost)?,
        };
        let path = self.dir(ost).join(&subfile.row().name);
        let append = || {
            let open = subfile.file(self)?;
            let at = subfile.reserve(&*open, piece.range.len())?;
            let at = at.ok_or_else(|| io::Error::other("the subfile is full"))?;
            open.write_at(&[IoSlice::new(&buf)], at)?;
            Ok((open, at))
        };
        let (open, at) = append().map_err(|e| StoreError::io("append to", path, e))?;
        let unit = SubUnit {
            subfile: subfile.no(),
            block: (at / BLOCK) as u32,
            len: buf.len() as u32,
            crc: crc32c(&buf),
        };
        if copied.written.iter().all(|(s, _)| s.no() != subfile.no()) {
            copied.written.push((subfile, open));
        }
        Ok(unit)
    }

    fn make(&self, store: &Store, file: &File, ost: u32) -> Result<Arc<Subfile>> {
        let (row, path, made) = loop {
            let no = store.new_subfile_no();
            let row = SubfileRow {
                no,
                ost,
                ost_name: format!("ost{ost}"),
                name: format!("{}{no:08x}", store.subfile_run()),
                uid: 0,
            };
            let path = self.dir(ost).join(&row.name);
            match self.disk.create(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                made => break (row, path, made),
            }
        };
        let made = made.and_then(|made| self.disk.sync_dir(&self.dir(ost)).map(|()| made));
        let made = made.map_err(|e| StoreError::io("make", &path, e))?;
        let subfile = Arc::new(Subfile::made(row, made));
        match file.add_subfile(subfile.clone()) {
            Ok(()) => Ok(subfile),
            Err(error) => match self.disk.remove(&path) {
                // A subfile that stays is an orphan.
                Ok(()) | Err(_) => Err(error),
            },
        }
    }

    /// Removes the subfiles that may be removed. Those that an error leaves there are found at the next start.
    pub fn remove_retired(&self, store: &Store) -> Result<()> {
        for gone in store.take_retired_subfiles()? {
            let path = self.dir(gone.row().ost).join(&gone.row().name);
            match self.disk.remove(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(|e| StoreError::io("remove", path, e))?,
            }
        }
        Ok(())
    }

    /// Removes orphans, as the flusher does when it starts.
    pub fn remove_orphans(&self, store: &Store) -> Result<()> {
        for ost in 0..OSTS {
            for name in self.names(ost)? {
                if !name.to_str().is_some_and(|name| store.is_orphan(name)) {
                    continue;
                }
                let path = self.dir(ost).join(name);
                let removed = self.disk.remove(&path);
                removed.map_err(|e| StoreError::io("remove", path, e))?;
            }
        }
        Ok(())
    }

    pub fn names(&self, ost: u32) -> Result<Vec<PathBuf>> {
        let dir = self.dir(ost);
        let names = self.disk.list(&dir);
        names.map_err(|e| StoreError::io("list", dir, e))
    }
}

impl Copied {
    pub fn range(&self) -> Option<ByteRange> {
        self.units.first().map(|unit| unit.range)
    }

    /// Syncs the subfiles and makes the log give up its copy. Returns the number of bytes that were moved.
    pub fn record(&self, file: &File) -> Result<u64> {
        for (subfile, open) in &self.written {
            let name = &subfile.row().name;
            open.sync().map_err(|e| StoreError::io("sync", name, e))?;
        }
        file.subfiled(&self.units)
    }
}
