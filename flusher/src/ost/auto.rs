//! Chooses the provider: the one that was asked for, or the one for the backing's file system.
//!
//! Called before anything is mounted over the backing, which is why the backing is an open
//! directory and not a path.
//!
//! If a provider was asked for and cannot be used, that is an error. `auto` asks for nothing: if a
//! file system is recognised and its OSTs cannot be used after all (its master is out of reach, or
//! only root may read its list), the log says so and the mount works without OSTs, as on any other
//! file system.

use super::{
    Directories, Kind, Lustre, MooseFs, OstError, Provider, lustre, lustre_abi, moosefs_master,
    place,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    #[error(
        "the OSTs of {0} are found, not named: leave out --ost, or use --ost-provider directories"
    )]
    Named(Kind),
    #[error("--ost-provider directories has no OSTs: name each of them with --ost DIR")]
    NoneNamed,
    #[error(
        "{0} is not on Lustre (its file system has the type {1:#x}): choose another --ost-provider"
    )]
    NotLustre(String, i64),
    #[error("{0} is not on a MooseFS client mount: choose another --ost-provider")]
    NotMooseFs(String),
    #[error("{0}: {1}")]
    MooseFs(String, #[source] moosefs_master::Error),
    #[error(transparent)]
    Ost(#[from] OstError),
    #[error("{0}: {1}")]
    Io(String, #[source] io::Error),
}

/// Checks whether `kind` and `osts` go together at all; [`provider`] calls this too.
pub fn check(kind: Kind, osts: &[PathBuf]) -> Result<(), ProviderError> {
    match kind {
        Kind::Lustre | Kind::Moosefs if !osts.is_empty() => Err(ProviderError::Named(kind)),
        Kind::Directories if osts.is_empty() => Err(ProviderError::NoneNamed),
        _ => Ok(()),
    }
}

/// Makes the provider. `osts` are the directories that were named. `None` if there are no OSTs to
/// place files on.
pub fn provider(
    kind: Kind,
    backing: BorrowedFd<'_>,
    osts: &[PathBuf],
) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
    check(kind, osts)?;
    let provider: Arc<dyn Provider> = match kind {
        Kind::None => return Ok(None),
        Kind::Auto if osts.is_empty() => {
            return Ok(recognise(backing).unwrap_or_else(|e| {
                tracing::warn!("the backing has OSTs, and they cannot be used: {e}");
                None
            }));
        }
        Kind::Auto | Kind::Directories => Arc::new(Directories::new(osts.to_vec())),
        Kind::Lustre => {
            let found = fs_type(backing)?;
            let simulated = std::env::var_os(lustre::ROOT_VARIABLE).is_some();
            if found != lustre_abi::LL_SUPER_MAGIC && !simulated {
                return Err(ProviderError::NotLustre(place::name_of(backing), found));
            }
            Arc::new(open_lustre(backing)?)
        }
        Kind::Moosefs => match open_moosefs(backing)? {
            Some(moosefs) => Arc::new(moosefs),
            None => return Err(ProviderError::NotMooseFs(place::name_of(backing))),
        },
    };
    Ok(Some(provider))
}

/// Returns the provider that `auto` finds for the backing, or an error that says why it cannot be
/// used.
pub fn recognise(backing: BorrowedFd<'_>) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
    let found: Arc<dyn Provider> = match kind_of(fs_type(backing)?) {
        Kind::Lustre => Arc::new(open_lustre(backing)?),
        Kind::Moosefs => match open_moosefs(backing)? {
            Some(moosefs) => Arc::new(moosefs),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    found.osts()?;
    Ok(Some(found))
}

/// Returns what a file system of this type may be. A FUSE file system is then asked whether it is
/// MooseFS.
fn kind_of(fs_type: i64) -> Kind {
    match fs_type {
        lustre_abi::LL_SUPER_MAGIC => Kind::Lustre,
        moosefs_master::FUSE_SUPER_MAGIC => Kind::Moosefs,
        _ => Kind::None,
    }
}

fn open_lustre(backing: BorrowedFd<'_>) -> Result<Lustre, ProviderError> {
    Lustre::open(backing).map_err(|e| ProviderError::Io(place::name_of(backing), e))
}

fn open_moosefs(backing: BorrowedFd<'_>) -> Result<Option<MooseFs>, ProviderError> {
    MooseFs::open(backing).map_err(|e| ProviderError::MooseFs(place::name_of(backing), e))
}

/// Returns the file system's type as `statfs` gives it.
fn fs_type(dir: BorrowedFd<'_>) -> Result<i64, ProviderError> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the descriptor is open and the buffer is a statfs.
    if unsafe { libc::fstatfs(dir.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        let error = io::Error::last_os_error();
        return Err(ProviderError::Io(place::name_of(dir), error));
    }
    // SAFETY: the call succeeded, so the kernel filled it.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_type)
}

#[cfg(test)]
mod tests;
