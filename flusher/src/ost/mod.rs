//! OSTs: where subfiles can be placed, how fast each of them is, and which are worth using.
//!
//! ```text
//! provider (directories, Lustre, MooseFS) ─▶ list of OSTs ─▶ probe ─▶ select ─▶ subfiles
//! ```
//!
//! A [`Provider`] knows one kind of parallel file system and nothing else: it lists the OSTs and
//! makes a file whose bytes are all on one of them. Everything above it is the same for all kinds.
//! A [`Targets`] keeps what is known of the OSTs while data is moved, and assigns data to them.
//!
//! [`provider`] chooses a provider by what was asked for and what the backing is. The modules that
//! talk to each kind: `place` walks to the files below a directory, [`lustre_abi`] has Lustre's
//! striping as bytes and its list of OSTs as text, [`moosefs_master`] asks a MooseFS master for
//! targets, classes and chunks.

mod auto;
mod directories;
mod error;
mod lustre;
pub mod lustre_abi;
mod moosefs;
pub mod moosefs_master;
mod place;
mod probe;
mod select;
mod settings;
mod targets;

pub use auto::{ProviderError, check, provider, recognise};
pub use directories::Directories;
pub use error::OstError;
pub use lustre::Lustre;
pub use moosefs::MooseFs;
pub use place::Place;
pub(crate) use probe::is_probe;
pub use probe::{Measured, Options as ProbeOptions, Probed, probe};
pub use select::{Choice, DELTA, select};
pub use settings::{Kind, OstSettings};
pub use targets::{InFlight, Offer, OstState, OstStatus, Picked, Targets, TargetsStatus};

use layout_index::{DiskFile, RealFile};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::SystemTime;

/// One storage target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ost {
    /// Its number in the file system, or its position in the list.
    pub index: u32,
    /// The name that users know it by: a directory, `scratch-OST0003`, a label.
    pub name: String,
}

/// Places files on OSTs. Called from threads that may wait.
pub trait Provider: Send + Sync + Debug {
    /// Name of the provider: `directories`, `lustre`, `moosefs`.
    fn kind(&self) -> &'static str;

    /// Lists all OSTs, usable or not, in the order of their numbers.
    fn osts(&self) -> Result<Vec<Ost>, OstError>;

    /// Makes a new file of mode 0600 with all of its bytes on `ost`, open for reading and
    /// writing. `name` is one component; a file of that name must not be there. `direct` asks for
    /// O_DIRECT.
    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<File, OstError>;

    /// Wraps a file that was made or opened here for reading and writing. Tests use this to make
    /// single calls fail.
    fn disk(&self, _ost: &Ost, _name: &str, file: File) -> Arc<dyn DiskFile> {
        Arc::new(RealFile(file))
    }

    /// Returns where the files of an OST are.
    fn place(&self, ost: &Ost) -> io::Result<Place>;

    /// Called when a call about a place has failed; returns the error to report.
    fn place_failed(&self, _ost: &Ost, _place: &Place, error: io::Error) -> io::Error {
        error
    }

    /// Opens a file that [`Provider::create`] made, for reading and writing. It must be a regular
    /// file with one name: anything else is refused with EINVAL and not opened.
    fn open(&self, ost: &Ost, name: &str) -> Result<File, OstError> {
        at_place(self, ost, "opening a file", |place| place.open(name))
    }

    /// Returns when such a file was last written. This does not open the file: another node may
    /// have just made it and be about to choose its place, and an open would decide that.
    fn modified(&self, ost: &Ost, name: &str) -> Result<SystemTime, OstError> {
        at_place(self, ost, "looking at a file", |place| place.modified(name))
    }

    /// Lists the names of all files on `ost` that [`Provider::create`] made, on any node, and that
    /// were not removed.
    fn list(&self, ost: &Ost) -> Result<Vec<String>, OstError> {
        at_place(self, ost, "listing its files", Place::list)
    }

    /// Removes a file that [`Provider::create`] made. One that is gone already is no error.
    fn remove(&self, ost: &Ost, name: &str) -> Result<(), OstError> {
        at_place(self, ost, "removing a file", |place| place.remove(name))
    }

    /// Flags to add when a canonical file is created, so that [`Provider::stripe`] can still
    /// choose its place.
    fn create_flags(&self) -> i32 {
        0
    }

    /// Stripes `file`, a canonical file that has no bytes yet, over `osts` in units of `unit`
    /// bytes; without OSTs, wherever the file system likes. A file that was made with
    /// [`Provider::create_flags`] takes no bytes through the same descriptor before this call.
    /// Returns false if the file system has no such call or the file has its place already: the
    /// file is then as good as any, only not where it was wanted.
    fn stripe(&self, _file: BorrowedFd<'_>, _osts: &[Ost], _unit: u64) -> Result<bool, OstError> {
        Ok(false)
    }

    /// Returns how `file`, a canonical file, is striped. `None` if the file system does not say.
    fn striping(&self, _file: BorrowedFd<'_>) -> Result<Option<Striping>, OstError> {
        Ok(None)
    }
}

fn at_place<T>(
    provider: &(impl Provider + ?Sized),
    ost: &Ost,
    what: &'static str,
    call: impl FnOnce(&Place) -> io::Result<T>,
) -> Result<T, OstError> {
    let done = provider
        .place(ost)
        .and_then(|place| call(&place).map_err(|e| provider.place_failed(ost, &place, e)));
    done.map_err(|e| OstError::new(ost, what, e))
}

/// Units of `unit` bytes lie on `count` objects in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Striping {
    pub unit: u64,
    pub count: u32,
}
