//! Knows what every byte must be after a kill, and checks whether it is.

use super::{Act, Note, SHARED, content};
use std::collections::BTreeMap;
use std::path::Path;

/// Whether the log holds the byte, as far as the notes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logged {
    No,
    Yes,
    /// Written by an operation that was cut short, zeroed by growing the file, or a zero that may have been
    /// written where nothing was, and is no data then (S2.11).
    Maybe,
}

#[derive(Clone, Debug, Default)]
struct Known {
    data: Vec<u8>,
    logged: Vec<Logged>,
}

impl Known {
    fn count(&self, what: Logged) -> u64 {
        self.logged.iter().filter(|l| **l == what).count() as u64
    }
}

/// An operation that had begun and not returned when the daemon died.
#[derive(Clone, Debug)]
struct Pending {
    worker: u64,
    seq: u64,
    file: String,
    act: Act,
}

/// The acknowledged state of all files.
pub struct Judge {
    seed: u64,
    files: BTreeMap<String, Known>,
    pending: Vec<Pending>,
    /// Acknowledged operations of each file, newest last, with the number of the daemon's run.
    history: BTreeMap<String, Vec<String>>,
    lives: u64,
    /// Number of the next operation of each worker.
    next: BTreeMap<u64, u64>,
    pub acknowledged: u64,
}

impl Judge {
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            files: BTreeMap::new(),
            pending: Vec::new(),
            history: BTreeMap::new(),
            lives: 0,
            next: BTreeMap::new(),
            acknowledged: 0,
        }
    }

    pub fn first(&self, worker: u64) -> u64 {
        self.next.get(&worker).copied().unwrap_or(0)
    }

    /// Reads a worker's notes of one cycle.
    pub fn hear(&mut self, worker: u64, notes: &str) {
        let mut begun: Option<Pending> = None;
        for line in notes.lines() {
            match serde_json::from_str(line).expect("a note is JSON") {
                Note::Begin { seq, file, act } => {
                    assert!(begun.is_none(), "worker {worker} began two things at once");
                    self.next.insert(worker, seq + 1);
                    begun = Some(Pending {
                        worker,
                        seq,
                        file,
                        act,
                    });
                }
                Note::Done { seq } => {
                    let done = begun.take().expect("done after begun");
                    assert_eq!(done.seq, seq, "worker {worker} finished something else");
                    self.acknowledged += 1;
                    self.apply(&done);
                }
            }
        }
        self.pending.extend(begun);
    }

    fn apply(&mut self, done: &Pending) {
        let history = self.history.entry(done.file.clone()).or_default();
        history.push(format!("life {}: #{} {:?}", self.lives, done.seq, done.act));
        match &done.act {
            Act::Unlink => {
                self.files.remove(&done.file);
            }
            Act::Sync => {
                self.files.entry(done.file.clone()).or_default();
            }
            Act::Truncate { size } => {
                let known = self.files.entry(done.file.clone()).or_default();
                known.data.resize(*size as usize, 0);
                known.logged.resize(*size as usize, Logged::Maybe);
            }
            Act::Write { at, len } => {
                let data = content(self.seed, done.worker, done.seq, *len);
                let known = self.files.entry(done.file.clone()).or_default();
                let (start, end) = (*at as usize, (*at + *len) as usize);
                if end > known.data.len() {
                    known.data.resize(end, 0);
                    known.logged.resize(end, Logged::No);
                }
                known.data[start..end].copy_from_slice(&data);
                let may_be_nothing = data.iter().all(|byte| *byte == 0);
                for logged in &mut known.logged[start..end] {
                    *logged = match *logged {
                        Logged::No | Logged::Maybe if may_be_nothing => Logged::Maybe,
                        _ => Logged::Yes,
                    };
                }
            }
        }
    }

    /// Compares every file below `root` with what was acknowledged, and accepts what it finds of operations
    /// that were cut short as the new state. Returns what is wrong.
    pub fn inspect(&mut self, root: &Path) -> Result<(), String> {
        let pending = std::mem::take(&mut self.pending);
        self.lives += 1;
        let mut names: Vec<String> = self.files.keys().cloned().collect();
        names.extend(pending.iter().map(|p| p.file.clone()));
        names.sort();
        names.dedup();
        for name in names {
            let cut: Vec<&Pending> = pending.iter().filter(|p| p.file == name).collect();
            let found = match std::fs::read(root.join(&name)) {
                Ok(data) => Some(data),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
                Err(e) => return Err(format!("{name}: {e}")),
            };
            self.inspect_file(&name, &cut, found).map_err(|e| {
                let history = self.history.get(&name).map_or(&[][..], Vec::as_slice);
                let recent = &history[history.len().saturating_sub(30)..];
                format!(
                    "{name}: {e} (cut short: {cut:?})\n  {}",
                    recent.join("\n  ")
                )
            })?;
        }
        Ok(())
    }

    fn inspect_file(
        &mut self,
        name: &str,
        cut: &[&Pending],
        found: Option<Vec<u8>>,
    ) -> Result<(), String> {
        let known = self.files.get(name).cloned();
        let Some(found) = found else {
            let may_be_gone = known.is_none() || cut.iter().any(|p| p.act == Act::Unlink);
            self.files.remove(name);
            return if may_be_gone {
                Ok(())
            } else {
                Err("is gone".into())
            };
        };
        if known.is_none() && cut.iter().all(|p| p.act == Act::Unlink) {
            return Err("is back after it was removed".into());
        }
        let mut known = known.unwrap_or_default();
        self.check_size(&known, cut, found.len())?;
        let mut may = known.data.clone();
        may.resize(found.len(), 0);
        known.logged.resize(found.len(), Logged::Maybe);
        let mut open: Vec<Option<u8>> = vec![None; found.len()];
        for p in cut {
            let Act::Write { at, len } = p.act else {
                continue;
            };
            let data = content(self.seed, p.worker, p.seq, len);
            for (i, byte) in data.into_iter().enumerate() {
                let i = i + at as usize;
                if i < found.len() {
                    open[i] = Some(byte);
                    known.logged[i] = Logged::Maybe;
                }
            }
        }
        for i in 0..found.len() {
            if found[i] != may[i] && open[i] != Some(found[i]) {
                return Err(format!(
                    "byte {i} is {:02x}, acknowledged was {:02x}{}",
                    found[i],
                    may[i],
                    match open[i] {
                        Some(byte) => format!(", and {byte:02x} was being written"),
                        None => String::new(),
                    }
                ));
            }
        }
        known.data = found;
        self.files.insert(name.into(), known);
        Ok(())
    }

    /// Checks the size of a file: a truncate that was cut short is done or not done; a write may have grown
    /// the file.
    fn check_size(&self, known: &Known, cut: &[&Pending], found: usize) -> Result<(), String> {
        let old = known.data.len();
        let truncated = cut
            .iter()
            .any(|p| matches!(p.act, Act::Truncate { size } if size as usize == found));
        let written = cut
            .iter()
            .filter_map(|p| match p.act {
                Act::Write { at, len } => Some((at + len) as usize),
                _ => None,
            })
            .max()
            .unwrap_or(0);
        if found == old || truncated || (old < found && found <= written) {
            return Ok(());
        }
        Err(format!("is {found} bytes long, acknowledged was {old}"))
    }

    /// Largest number of bytes that the log may hold.
    pub fn most_undrained(&self) -> u64 {
        let may = |k: &Known| k.count(Logged::Yes) + k.count(Logged::Maybe);
        self.files.values().map(may).sum()
    }

    /// Files that certainly have bytes in the log if nothing has been drained, with the number of these
    /// bytes.
    pub fn dirty_files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files
            .iter()
            .map(|(name, known)| (name.as_str(), known.count(Logged::Yes)))
            .filter(|(_, sure)| *sure > 0)
    }

    pub fn exists(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    pub fn has_shared(&self) -> bool {
        self.exists(SHARED)
    }

    /// Compares the drained files. They must match exactly: no operation is open any more.
    pub fn verify(&self, place: &str, root: &Path) {
        assert!(self.pending.is_empty(), "inspect the files first");
        for (name, known) in &self.files {
            let got = crate::test_mount::get(root.join(name));
            crate::test_mount::assert_same(&format!("{name} in the {place}"), &got, &known.data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(list: &[Note]) -> String {
        list.iter()
            .map(|n| serde_json::to_string(n).expect("serialise") + "\n")
            .collect()
    }

    fn begin(seq: u64, act: Act) -> Note {
        Note::Begin {
            seq,
            file: "f".into(),
            act,
        }
    }

    fn judge_of(list: &[Note]) -> Judge {
        let mut judge = Judge::new(7);
        judge.hear(1, &notes(list));
        judge
    }

    /// The judge must be able to fail a test: S5.1 rests on it.
    #[test]
    fn sees_lost_and_stale_bytes() {
        let dir = tempfile::tempdir().expect("a directory");
        let two = [
            begin(0, Act::Write { at: 0, len: 100 }),
            Note::Done { seq: 0 },
            begin(1, Act::Write { at: 50, len: 100 }),
        ];
        let old = content(7, 1, 0, 100);
        let new = content(7, 1, 1, 100);
        let put = |data: &[u8]| std::fs::write(dir.path().join("f"), data).expect("write");

        put(&old);
        judge_of(&two)
            .inspect(dir.path())
            .expect("not begun is fine");
        let mut both = old[..50].to_vec();
        both.extend(&new);
        put(&both);
        judge_of(&two).inspect(dir.path()).expect("done is fine");
        let mut lost = old.clone();
        lost[3] ^= 1;
        put(&lost);
        judge_of(&two).inspect(dir.path()).expect_err("a lost byte");
        put(&old[..99]);
        judge_of(&two).inspect(dir.path()).expect_err("a lost tail");
        put(&both[..149]);
        judge_of(&two)
            .inspect(dir.path())
            .expect("a part of what was cut short is fine");
        std::fs::remove_file(dir.path().join("f")).expect("remove");
        judge_of(&two).inspect(dir.path()).expect_err("a lost file");
    }

    /// S2.11: zeros that are written where nothing was need not be in the log; zeros over existing bytes are
    /// in the log.
    #[test]
    fn counts_on_zeros_only_over_data() {
        let zero = (0..).find(|seq| content(7, 1, *seq, 1) == [0]);
        let seq = zero.expect("one byte in 256 is a zero");
        let write = |seq, at, len| [begin(seq, Act::Write { at, len }), Note::Done { seq }];
        let sure = |list: &[Note]| judge_of(list).files["f"].count(Logged::Yes);
        let mut list = write(seq, 3, 1).to_vec();
        assert_eq!(
            sure(&list),
            0,
            "the zero may have been written into nothing"
        );
        list.extend(write(seq + 1, 0, 5));
        assert_eq!(sure(&list), 5);
        list.extend(write(seq, 3, 1));
        assert_eq!(sure(&list), 5, "the zero replaces a byte");
    }

    #[test]
    fn sees_a_file_that_came_back() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("f"), b"x").expect("write");
        let mut judge = judge_of(&[
            begin(0, Act::Write { at: 0, len: 1 }),
            Note::Done { seq: 0 },
            begin(1, Act::Unlink),
            Note::Done { seq: 1 },
            begin(2, Act::Unlink),
        ]);
        judge.inspect(dir.path()).expect_err("it is back");
    }
}
