//! OSTs: where subfiles can be placed, how fast each of them is, and which are worth using.
//!
//! ```text
//! provider (directories, Lustre, MooseFS) ─▶ list of OSTs ─▶ probe ─▶ select ─▶ subfiles
//! ```
//!
//! A [`Provider`] knows one kind of parallel file system and nothing else: it lists the OSTs and
//! makes a file whose bytes are all on one of them. Everything above it is the same for all. A
//! [`Fleet`] keeps what is known of the OSTs while data is moved, and deals data over them.
//!
//! [`provider`] chooses one by what was asked for and what the backing is. What it takes to talk
//! to each: `place` walks to the files below a directory, [`lustre_abi`] has Lustre's layouts as
//! bytes and its list of OSTs as text, [`moosefs_master`] asks a MooseFS master for targets, classes and chunks.

mod auto;
mod directories;
mod error;
mod fleet;
mod lustre;
pub mod lustre_abi;
mod moosefs;
pub mod moosefs_master;
mod place;
mod probe;
mod select;
mod settings;

pub use auto::{ProviderError, check, provider, recognise};
pub use directories::Directories;
pub use error::OstError;
pub use fleet::{Dealt, Fleet, FleetStatus, InFlight, Offer, OstState, OstStatus};
pub use lustre::Lustre;
pub use moosefs::MooseFs;
pub(crate) use probe::is_probe;
pub use probe::{Measured, Options as ProbeOptions, Probed, probe};
pub use select::{Choice, DELTA, select};
pub use settings::{Kind, OstSettings};

use layout_index::{DiskFile, RealFile};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::SystemTime;

/// One storage target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ost {
    /// Its number, as the file system has it, or its place in the list.
    pub index: u32,
    /// What people call it: a directory, `scratch-OST0003`, a label.
    pub name: String,
}

/// How a file comes to be on one OST. Called from threads that may wait.
pub trait Provider: Send + Sync + Debug {
    /// `directories`, `lustre`, `moosefs`.
    fn kind(&self) -> &'static str;

    /// All OSTs, usable or not, in the order of their numbers.
    fn osts(&self) -> Result<Vec<Ost>, OstError>;

    /// Makes a new file of mode 0600 with all of its bytes on `ost`, open for reading and
    /// writing. `name` is one component; a file of that name must not be there. `direct` asks for
    /// O_DIRECT.
    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<File, OstError>;

    /// How a file that was made or opened here is read and written. Tests fail single calls of it.
    fn disk(&self, _ost: &Ost, _name: &str, file: File) -> Arc<dyn DiskFile> {
        Arc::new(RealFile(file))
    }

    /// Opens a file that [`Provider::create`] made, for reading and writing. What is there must be
    /// a regular file with one name: anything else is refused as EINVAL, unopened.
    fn open(&self, ost: &Ost, name: &str) -> Result<File, OstError>;

    /// When such a file was last written. It is not opened for that: another node may be about to say where
    /// a file that it has just made is to be, and an open would decide it.
    fn modified(&self, ost: &Ost, name: &str) -> Result<SystemTime, OstError>;

    /// The names of all files on `ost` that [`Provider::create`] made, on any node, and that were
    /// not removed.
    fn list(&self, ost: &Ost) -> Result<Vec<String>, OstError>;

    /// Removes a file that [`Provider::create`] made. One that is gone already is no error.
    fn remove(&self, ost: &Ost, name: &str) -> Result<(), OstError>;

    /// Flags to add when a canonical file is created, so that [`Provider::stripe`] can still
    /// choose its place.
    fn create_flags(&self) -> i32 {
        0
    }

    /// Spreads `file`, a canonical file that has no bytes yet, over `osts` in units of `unit`
    /// bytes; without OSTs, wherever the file system likes. A file that was made with
    /// [`Provider::create_flags`] takes no bytes through the same descriptor before this. False where the file system has no such call or the file its place already: the
    /// file is as good as any then, only not where it was wished.
    fn stripe(&self, _file: BorrowedFd<'_>, _osts: &[Ost], _unit: u64) -> Result<bool, OstError> {
        Ok(false)
    }

    /// How `file`, a canonical file, is spread. `None` where the file system does not say.
    fn striping(&self, _file: BorrowedFd<'_>) -> Result<Option<Striping>, OstError> {
        Ok(None)
    }
}

/// Units of `unit` bytes lie on `count` objects in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    pub unit: u64,
    pub count: u32,
}
