//! Compares two directories that must hold the same, and runs tools that understand what is in their files.

use forebay_tests::prereq;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Compares names, sizes and bytes; the first difference is named.
pub fn assert_same_tree(expected: &Path, found: &Path, whose: &str) {
    let (want, have) = (names(expected), names(found));
    assert_eq!(want, have, "{whose} has other names");
    assert!(!want.is_empty(), "there is nothing to compare");
    for name in want {
        let read = |dir: &Path| {
            let path = dir.join(&name);
            std::fs::read(&path).unwrap_or_else(|e| panic!("{whose}: {}: {e}", path.display()))
        };
        let (a, b) = (read(expected), read(found));
        assert_eq!(a.len(), b.len(), "{whose}: the size of {name}");
        if let Some(at) = (0..a.len()).find(|i| a[*i] != b[*i]) {
            let wrong = (at..a.len()).filter(|i| a[*i] != b[*i]).count();
            panic!(
                "{whose}: {name} differs in {wrong} bytes, first at offset {at}: 0x{:02x}, expected 0x{:02x}",
                b[at], a[at]
            );
        }
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    entries
        .map(|entry| entry.expect("list a directory").file_name())
        .map(|name| name.into_string().expect("test names are plain text"))
        .collect()
}

/// A program that reads a format for itself, without Forebay and without MPI.
#[derive(Clone, Copy, Debug)]
pub enum Tool {
    Hdf5,
    Pnetcdf,
}

impl Tool {
    /// Returns what the tool prints of a file, without the file's name.
    pub fn dump(self, file: &Path) -> String {
        let (name, package) = match self {
            Tool::Hdf5 => ("h5dump", "hdf5-tools"),
            Tool::Pnetcdf => ("ncmpidump", "pnetcdf-bin"),
        };
        let mut command = Command::new(prereq::program(name, package));
        let text = run(command.arg(file));
        let path = file.to_str().expect("test paths are plain text");
        let stem = file.file_name().and_then(|name| name.to_str());
        let text = text.replace(path, "FILE");
        match self {
            Tool::Hdf5 => text,
            // "netcdf NAME {"
            Tool::Pnetcdf => {
                text.replace(&format!("netcdf {} ", stem.unwrap_or("")), "netcdf FILE ")
            }
        }
    }

    /// Compares the contents of two files with the format's own tool.
    pub fn assert_same(self, expected: &Path, found: &Path) {
        if let Tool::Hdf5 = self {
            let mut command = Command::new(prereq::program("h5diff", "hdf5-tools"));
            run(command.arg("--report").arg(expected).arg(found));
        }
        let (want, have) = (self.dump(expected), self.dump(found));
        assert!(
            want.len() > 100,
            "there is nothing in {}",
            expected.display()
        );
        if let Some((a, b)) = want.lines().zip(have.lines()).find(|(a, b)| a != b) {
            panic!("{}: a line is\n  {b}\nexpected\n  {a}", found.display());
        }
        assert_eq!(want.len(), have.len(), "{}: it ends early", found.display());
    }
}

fn run(command: &mut Command) -> String {
    let done = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        done.status.success(),
        "{command:?} said {}:\n{}{}",
        done.status,
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8_lossy(&done.stdout).into_owned()
}
