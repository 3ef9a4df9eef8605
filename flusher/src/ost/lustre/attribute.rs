//! The attribute `lustre.lov` of an open file.

use crate::ost::lustre_abi::{MAX_LAYOUT, XATTR_LUSTRE_LOV};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn name() -> io::Result<CString> {
    CString::new(XATTR_LUSTRE_LOV).map_err(io::Error::other)
}

pub fn set(file: BorrowedFd<'_>, value: &[u8]) -> io::Result<()> {
    let name = name()?;
    // SAFETY: an open descriptor, a name that ends with NUL, and a value with its length.
    let rc = unsafe {
        libc::fsetxattr(
            file.as_raw_fd(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `None` if the file has no striping yet.
pub fn get(file: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let name = name()?;
    let mut value = vec![0; MAX_LAYOUT];
    // SAFETY: an open descriptor, a name that ends with NUL, and memory with its length.
    let got = unsafe {
        libc::fgetxattr(
            file.as_raw_fd(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    match usize::try_from(got) {
        Ok(0) => Ok(None),
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(_) => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            e => Err(e),
        },
    }
}
