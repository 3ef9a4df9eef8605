//! OSTs that are directories and do what a test's script says.

// Each test uses only a part of this.
#![allow(dead_code)]

use flusher::ost::{Directories, Ost, OstError, Place, Provider};
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Directories of which some hang and some give errors; a test changes this while they are in use.
#[derive(Debug)]
pub struct Scripted {
    below: Directories,
    script: Mutex<Script>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub struct Script {
    pub list_hangs: bool,
    pub list_fails: bool,
    pub hang: HashSet<u32>,
    pub fail: HashMap<u32, i32>,
    pub creates: HashMap<u32, usize>,
    pub waiting: usize,
}

impl Scripted {
    pub fn new(paths: Vec<PathBuf>, script: Script) -> Arc<Scripted> {
        Arc::new(Scripted {
            below: Directories::new(paths),
            script: Mutex::new(script),
            changed: Condvar::new(),
        })
    }

    pub fn set(&self, how: impl FnOnce(&mut Script)) {
        how(&mut self.script.lock());
        self.changed.notify_all();
    }

    pub fn creates(&self, ost: u32) -> usize {
        let script = self.script.lock();
        script.creates.get(&ost).copied().unwrap_or(0)
    }

    /// Returns how many calls hang now.
    pub fn waiting(&self) -> usize {
        self.script.lock().waiting
    }

    fn wait_while(&self, so: impl Fn(&Script) -> bool) {
        let mut script = self.script.lock();
        script.waiting += 1;
        self.changed.wait_while(&mut script, |s| so(s));
        script.waiting -= 1;
        self.changed.notify_all();
    }
}

impl Provider for Scripted {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn osts(&self) -> Result<Vec<Ost>, OstError> {
        self.wait_while(|s| s.list_hangs);
        if self.script.lock().list_fails {
            return Err(OstError {
                ost: "the master".into(),
                what: "asking for the OSTs",
                source: io::Error::from_raw_os_error(libc::ECONNREFUSED),
            });
        }
        self.below.osts()
    }

    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<File, OstError> {
        *self.script.lock().creates.entry(ost.index).or_default() += 1;
        self.wait_while(|s| s.hang.contains(&ost.index));
        if let Some(errno) = self.script.lock().fail.get(&ost.index) {
            let source = io::Error::from_raw_os_error(*errno);
            return Err(OstError::new(ost, "making a file", source));
        }
        self.below.create(ost, name, direct)
    }

    fn place(&self, ost: &Ost) -> io::Result<Place> {
        self.below.place(ost)
    }

    fn place_failed(&self, ost: &Ost, place: &Place, error: io::Error) -> io::Error {
        self.below.place_failed(ost, place, error)
    }
}
