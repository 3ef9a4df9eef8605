//! Lustre: all OSTs are behind one directory, and a file's striping says where it is.
//!
//! A subfile is created without objects, told to have one stripe on its OST, and then asked where
//! it is: setting the striping of a file that has objects already does nothing and returns no
//! error. All this uses the attribute `lustre.lov`, which takes and gives the same bytes as
//! Lustre's own calls and, unlike these, passes through other file systems. `<dir>/.forebay/
//! subfiles/<index>/` has the files of one OST, so that they can be listed without asking for the
//! striping of each.
//!
//! # Which OSTs there are
//!
//! The client lists them in a file of its own, `…/lov/<fsname>-clilov-…/target_obd` below `/proc`
//! or `/sys`. It is read each time the list is needed, because administrators switch OSTs off and
//! on. Inactive OSTs stay in the list, because there may be subfiles on them; no new file is made
//! there.
//!
//! The name of the file system is in the mount table. If the mount table has no Lustre there (a
//! simulation over FUSE), the only file system that has such files is used.
//!
//! `FOREBAY_LUSTRE_ROOT` is for tests and simulations: a directory to look in instead of `/`. With
//! it, the directory need not be on a real Lustre.

use super::lustre_abi::{self as abi, Layout, Placement};
use super::place::{self, Place};
use super::{Ost, OstError, Provider, Striping};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

mod attribute;
mod mounted;

pub const ROOT_VARIABLE: &str = "FOREBAY_LUSTRE_ROOT";

/// Stripe size of a subfile, which has one stripe only: any size would do.
const SUBFILE_STRIPE: u32 = 1 << 20;

#[derive(Debug)]
pub struct Lustre {
    dir: Arc<OwnedFd>,
    /// Path of `dir` for error messages.
    path: String,
    root: PathBuf,
}

impl Lustre {
    /// `dir` is a directory of the file system that was opened before anything is mounted over it.
    pub fn open(dir: BorrowedFd<'_>) -> io::Result<Lustre> {
        let root = std::env::var_os(ROOT_VARIABLE);
        Self::with_root(dir, root.map_or_else(|| "/".into(), PathBuf::from))
    }

    /// The same, with the client's files below `root`.
    pub fn with_root(dir: BorrowedFd<'_>, root: PathBuf) -> io::Result<Lustre> {
        Ok(Lustre {
            dir: Arc::new(dir.try_clone_to_owned()?),
            path: place::name_of(dir),
            root,
        })
    }

    fn client_list(&self) -> io::Result<Vec<abi::Ost>> {
        let mut lists = abi::ost_lists(&self.root);
        let (name, paths) = match mounted::fsname(self.dir.as_fd())? {
            Some(name) => {
                let paths = lists.remove(&name).unwrap_or_default();
                (name, paths)
            }
            None if lists.len() > 1 => return Err(several(&lists.into_keys().collect::<Vec<_>>())),
            None => lists.pop_first().unwrap_or_default(),
        };
        let Some(path) = paths.first() else {
            return Err(no_list(&self.root, &name));
        };
        let text = std::fs::read_to_string(path)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        let mut osts = abi::parse_osts(&text)
            .map_err(|e| io::Error::other(format!("{}: {e}", path.display())))?;
        osts.sort_by_key(|ost| ost.index);
        Ok(osts)
    }

    fn make(&self, ost: &Ost, name: &str, direct: bool) -> io::Result<File> {
        let known = self.client_list()?;
        match known.iter().find(|known| known.index == ost.index) {
            Some(known) if known.active => {}
            Some(_) => return Err(io::Error::other(INACTIVE)),
            None => return Err(io::Error::other("the client knows no OST of that number")),
        }
        let number = u16::try_from(ost.index).map_err(io::Error::other)?;
        let wish = Placement::OneOst {
            ost: number,
            stripe_size: SUBFILE_STRIPE,
        };
        let wish = wish.encode().map_err(io::Error::other)?;
        let flags = abi::O_LOV_DELAY_CREATE | if direct { libc::O_DIRECT } else { 0 };
        let place = self.place(ost)?;
        let file = place.create(name, flags)?;
        match place_on_ost(&file, &wish, ost.index) {
            Ok(()) => Ok(file),
            Err(e) => {
                drop(file);
                place.remove(name)?;
                Err(e)
            }
        }
    }
}

const INACTIVE: &str = "the client has it as INACTIVE: an administrator has to activate it \
                        (lctl set_param osc.*.active=1) before it takes new files";

fn several(names: &[String]) -> io::Error {
    io::Error::other(format!(
        "the mount table does not tell which Lustre this is, and there are several ({}): \
         use a directory of a Lustre mount, or name the OSTs as directories (--ost)",
        names.join(", ")
    ))
}

fn no_list(root: &Path, fsname: &str) -> io::Error {
    let which = match fsname {
        "" => String::new(),
        name => format!(" of {name}"),
    };
    io::Error::new(
        io::ErrorKind::NotFound,
        format!(
            "the Lustre client shows no list of OSTs{which} (looked for lov/*/target_obd in {} below \
             {}): is it mounted, and may this user read there?",
            abi::OST_LIST_PLACES
                .map(|p| p.trim_end_matches("/lov"))
                .join(", "),
            root.display()
        ),
    )
}

/// Sets the striping of a file without objects, and checks that the file got it.
fn place_on_ost(file: &File, wish: &[u8], ost: u32) -> io::Result<()> {
    attribute::set(file.as_fd(), wish).map_err(|e| match e.raw_os_error() {
        Some(libc::EOPNOTSUPP) => io::Error::other(NOT_LUSTRE),
        // EINVAL has another meaning here: elsewhere it stands for a missing O_DIRECT.
        Some(libc::EINVAL) => io::Error::other(REFUSED),
        _ => e,
    })?;
    let osts = layout(file.as_fd())?.map(|layout| layout.osts());
    match osts {
        Some(osts) if osts == [ost] => Ok(()),
        Some(osts) => Err(io::Error::other(format!(
            "Lustre put the file on {osts:?} instead: is the OST switched off on the metadata \
             server, or full?"
        ))),
        None => Err(io::Error::other(
            "Lustre accepted the layout and did not set it: is the client older than 2.4?",
        )),
    }
}

const NOT_LUSTRE: &str = "the file system does not take Lustre's layouts: choose another \
                          --ost-provider, or name the OSTs as directories (--ost)";

const REFUSED: &str = "Lustre refuses to place a file there: is the OST gone, or switched off on \
                       the metadata server?";

/// Returns the striping of a file; `None` if the file has no objects yet.
fn layout(file: BorrowedFd<'_>) -> io::Result<Option<Layout>> {
    match attribute::get(file)? {
        Some(bytes) => Layout::decode(&bytes).map(Some).map_err(io::Error::other),
        None => Ok(None),
    }
}

fn stripe(file: BorrowedFd<'_>, osts: &[u32], unit: u64) -> io::Result<bool> {
    let stripe_size = u32::try_from(unit)
        .map_err(|_| io::Error::other(format!("a stripe of {unit} bytes is too large")))?;
    let wish = match osts {
        [] => Placement::Default,
        osts => Placement::Osts {
            stripe_size,
            osts: osts.to_vec(),
        },
    };
    let wish = wish.encode().map_err(io::Error::other)?;
    let placed = match attribute::get(file) {
        Ok(bytes) => bytes.is_some(),
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(false),
        Err(e) => return Err(e),
    };
    if placed {
        return Ok(false);
    }
    attribute::set(file, &wish)?;
    if osts.is_empty() {
        return Ok(true);
    }
    // Another client may have been faster: then the file has the striping that that client set.
    Ok(layout(file)?.is_some_and(|got| got.osts() == osts && got.stripe_size == stripe_size))
}

impl Provider for Lustre {
    fn kind(&self) -> &'static str {
        "lustre"
    }

    fn osts(&self) -> Result<Vec<Ost>, OstError> {
        let known = self.client_list().map_err(|source| OstError {
            ost: self.path.clone(),
            what: "listing the OSTs",
            source,
        })?;
        let named = |ost: abi::Ost| Ost {
            index: ost.index,
            name: ost.uuid.trim_end_matches("_UUID").to_owned(),
        };
        Ok(known.into_iter().map(named).collect())
    }

    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<File, OstError> {
        let made = self.make(ost, name, direct);
        made.map_err(|e| OstError::new(ost, "making a file", e))
    }

    fn place(&self, ost: &Ost) -> io::Result<Place> {
        Ok(Place::with_own(self.dir.clone(), ost.index))
    }

    fn create_flags(&self) -> i32 {
        abi::O_LOV_DELAY_CREATE
    }

    fn stripe(&self, file: BorrowedFd<'_>, osts: &[Ost], unit: u64) -> Result<bool, OstError> {
        let numbers: Vec<u32> = osts.iter().map(|ost| ost.index).collect();
        stripe(file, &numbers, unit).map_err(|source| OstError {
            ost: format!("OSTs {numbers:?} of {}", self.path),
            what: "striping a file over them",
            source,
        })
    }

    fn striping(&self, file: BorrowedFd<'_>) -> Result<Option<Striping>, OstError> {
        let layout = layout(file).map_err(|source| OstError {
            ost: self.path.clone(),
            what: "asking where a file is",
            source,
        })?;
        Ok(layout.map(|layout| Striping {
            unit: layout.stripe_size.into(),
            count: layout.stripe_count.into(),
        }))
    }
}

#[cfg(test)]
mod tests;
