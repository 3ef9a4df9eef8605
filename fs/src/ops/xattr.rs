//! Extended attributes: those of the backing, accessed as the caller. Internal ones
//! (`user.forebay.internal.*`) do not exist for the mount's users; other `user.forebay.*` attributes (see
//! `policy`) are accepted only if they make sense. ACLs are attributes too: the backing stores and enforces
//! them, and the kernel reads them here to check permissions itself.

use super::Overlay;
use crate::backing::{Creds, sys};
use crate::errno::{FsError, Result};
use crate::types::{Caller, RESERVED_XATTR};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;

/// An answer to a get or list request: the kernel first asks how long the value will be.
#[derive(Debug, PartialEq, Eq)]
pub enum Xattr {
    Length(usize),
    Value(Vec<u8>),
}

fn parse(name: &OsStr) -> Result<(CString, bool)> {
    let reserved = name.as_bytes().starts_with(RESERVED_XATTR);
    let name = CString::new(name.as_bytes())
        .map_err(|_| FsError::Invalid("an attribute's name must not hold a zero byte"))?;
    Ok((name, reserved))
}

impl Overlay {
    pub fn getxattr(&self, caller: &Caller, node: u64, name: &OsStr, size: usize) -> Result<Xattr> {
        let (name, reserved) = parse(name)?;
        if reserved {
            return Err(FsError::NoAttribute);
        }
        let inode = self.inode(node)?;
        let creds = Creds::of(caller);
        let _as_caller = creds.enter()?;
        let mut value = vec![0; size];
        let len = match sys::getxattr(inode.fd(), &name, &mut value) {
            // The kernel looks for an ACL whenever a user other than root opens a file, and would refuse the
            // open on a backing that has no ACLs.
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) && is_acl(&name) => {
                return Err(FsError::NoAttribute);
            }
            other => other?,
        };
        if size == 0 {
            return Ok(Xattr::Length(len));
        }
        value.truncate(len);
        Ok(Xattr::Value(value))
    }

    pub fn listxattr(&self, caller: &Caller, node: u64, size: usize) -> Result<Xattr> {
        let inode = self.inode(node)?;
        let names = {
            let creds = Creds::of(caller);
            let _as_caller = creds.enter()?;
            let room = sys::listxattr(inode.fd(), &mut [])?;
            let mut names = vec![0; room];
            let len = sys::listxattr(inode.fd(), &mut names)?;
            names.truncate(len);
            visible(&names)
        };
        if size == 0 {
            Ok(Xattr::Length(names.len()))
        } else if names.len() > size {
            Err(std::io::Error::from_raw_os_error(libc::ERANGE).into())
        } else {
            Ok(Xattr::Value(names))
        }
    }

    pub fn setxattr(
        &self,
        caller: &Caller,
        node: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let (name, reserved) = parse(name)?;
        if reserved {
            return Err(FsError::Reserved);
        }
        let inode = self.inode(node)?;
        self.check_policy(caller, &inode, name.to_bytes(), Some(value))?;
        let creds = Creds::of(caller);
        {
            let _as_caller = creds.enter()?;
            sys::setxattr(inode.fd(), &name, value, flags)?;
        }
        inode.privileges_may_have_changed();
        inode.changed.forget();
        self.policy_changed(&inode, name.to_bytes());
        Ok(())
    }

    pub fn removexattr(&self, caller: &Caller, node: u64, name: &OsStr) -> Result<()> {
        let (name, reserved) = parse(name)?;
        if reserved {
            return Err(FsError::Reserved);
        }
        let inode = self.inode(node)?;
        self.check_policy(caller, &inode, name.to_bytes(), None)?;
        let creds = Creds::of(caller);
        let tried = {
            let _as_caller = creds.enter()?;
            sys::removexattr(inode.fd(), &name)
        };
        match tried {
            // The kernel removes capabilities in the name of the user who writes; see `attr`.
            Err(e)
                if e.raw_os_error() == Some(libc::EPERM)
                    && name.as_c_str() == super::attr::CAPABILITY =>
            {
                sys::removexattr(inode.fd(), &name)?;
            }
            other => other?,
        }
        inode.changed.forget();
        self.policy_changed(&inode, name.to_bytes());
        Ok(())
    }
}

fn is_acl(name: &CStr) -> bool {
    [c"system.posix_acl_access", c"system.posix_acl_default"].contains(&name)
}

/// Removes internal names from the list.
fn visible(names: &[u8]) -> Vec<u8> {
    names
        .split_inclusive(|b| *b == 0)
        .filter(|name| !name.starts_with(RESERVED_XATTR))
        .flatten()
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn internal_names_are_left_out() {
        let all = b"user.a\0user.forebay.internal.x\0user.forebay.drain\0security.y\0";
        assert_eq!(
            super::visible(all),
            b"user.a\0user.forebay.drain\0security.y\0"
        );
        assert_eq!(super::visible(b""), b"");
    }
}
