//! The files below `.pfs-sim` in the root of every mount: counters, settings, commands, and the
//! OSTs as a Lustre client shows them.
//!
//! No listing of the root contains them, so that a copy or a checksum of a tree does not include
//! them. Their content is made when they are opened. Their inode numbers are `BASE` and above.

use crate::ops::Pfs;

const BASE: u64 = 1 << 62;
const PER_OST: u64 = 8;
const FIRST_OST: u64 = BASE + 16;

pub const NAME: &str = ".pfs-sim";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Root,
    Counters,
    Config,
    Control,
    TargetObd,
    Osc,
    Ost(usize),
    /// The sizes are in KiB.
    Total(usize),
    Free(usize),
    Available(usize),
}

use Kind::*;

const IN_ROOT: [(&str, Kind); 5] = [
    ("counters", Counters),
    ("config", Config),
    ("control", Control),
    ("target_obd", TargetObd),
    ("osc", Osc),
];

fn in_ost(ost: usize) -> [(&'static str, Kind); 3] {
    [
        ("kbytestotal", Total(ost)),
        ("kbytesfree", Free(ost)),
        ("kbytesavail", Available(ost)),
    ]
}

impl Kind {
    fn ino(self) -> u64 {
        let of = |ost: usize, n: u64| FIRST_OST + ost as u64 * PER_OST + n;
        match self {
            Root => BASE,
            Counters => BASE + 1,
            Config => BASE + 2,
            Control => BASE + 3,
            TargetObd => BASE + 4,
            Osc => BASE + 5,
            Ost(ost) => of(ost, 0),
            Total(ost) => of(ost, 1),
            Free(ost) => of(ost, 2),
            Available(ost) => of(ost, 3),
        }
    }

    fn of(ino: u64) -> Option<Kind> {
        if ino >= FIRST_OST {
            let ost = ((ino - FIRST_OST) / PER_OST) as usize;
            let kinds = [Ost(ost), Total(ost), Free(ost), Available(ost)];
            return kinds.into_iter().find(|kind| kind.ino() == ino);
        }
        let all = IN_ROOT.into_iter().map(|(_, kind)| kind);
        all.chain([Root]).find(|kind| kind.ino() == ino)
    }

    fn mode(self) -> u32 {
        match self {
            Root | Osc | Ost(_) => libc::S_IFDIR | 0o555,
            Control => libc::S_IFREG | 0o600,
            _ => libc::S_IFREG | 0o444,
        }
    }
}

pub fn is_virtual(ino: u64) -> bool {
    ino >= BASE
}

/// Returns whether writes to this file are commands.
pub fn is_control(ino: u64) -> bool {
    ino == Control.ino()
}

/// Returns the number of `.pfs-sim` itself.
pub fn root() -> u64 {
    Root.ino()
}

/// Returns type and permissions.
pub fn mode(ino: u64) -> Option<u32> {
    Kind::of(ino).map(Kind::mode)
}

/// One entry of a virtual directory: its number and name.
pub type Listed = (u64, String);

impl Pfs {
    pub fn virtual_entries(&self, ino: u64) -> Option<Vec<Listed>> {
        let named = |list: &[(&str, Kind)]| {
            let entries = list.iter();
            entries
                .map(|(name, kind)| (kind.ino(), (*name).to_owned()))
                .collect()
        };
        match Kind::of(ino)? {
            Root => Some(named(&IN_ROOT)),
            Ost(ost) => Some(named(&in_ost(ost))),
            Osc => Some(
                self.cluster
                    .osts
                    .iter()
                    .enumerate()
                    .map(|(index, ost)| {
                        let name = ost.name.trim_end_matches("_UUID");
                        (Ost(index).ino(), format!("{name}-osc-sim"))
                    })
                    .collect(),
            ),
            _ => None,
        }
    }

    pub fn virtual_lookup(&self, parent: u64, name: &str) -> Option<u64> {
        let entries = self.virtual_entries(parent)?;
        let found = entries.into_iter().find(|(_, entry)| entry == name);
        found.map(|(ino, _)| ino)
    }

    /// Returns the content of a file; `None` for directories.
    pub fn virtual_content(&self, ino: u64) -> Option<Vec<u8>> {
        let text = match Kind::of(ino)? {
            Counters => json(&self.counters()),
            Config => json(&self.config()),
            Control => self.outcome.lock().clone(),
            TargetObd => self.target_obd(),
            Total(ost) => kib(self.cluster.osts.get(ost)?.lock().settings.capacity),
            Free(ost) | Available(ost) => kib(self.cluster.osts.get(ost)?.lock().free()),
            Root | Osc | Ost(_) => return None,
        };
        Some(text.into_bytes())
    }
}

fn kib(bytes: u64) -> String {
    format!("{}\n", bytes / 1024)
}

/// Serialising these types cannot fail: they have no maps with keys that are not strings.
fn json(value: &impl serde::Serialize) -> String {
    match serde_json::to_string_pretty(value) {
        Ok(text) => text + "\n",
        Err(e) => format!("{{\"error\": \"{e}\"}}\n"),
    }
}
