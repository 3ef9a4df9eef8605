//! Extended attributes, and `lustre.lov`, which is a layout.

use crate::Errno;
use crate::lov;
use crate::node::{Body, Node};
use crate::ops::Pfs;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

const LARGEST: usize = 65536;

/// Refuses `system.` attributes. Access control lists would change the meaning of a mode, so they
/// are not supported; a program that gets this error sets the mode instead.
fn must_be_plain(name: &OsStr) -> Result<(), Errno> {
    if name.as_bytes().starts_with(b"system.") {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(())
}

impl Pfs {
    pub fn set_xattr(&self, ino: u64, name: &OsStr, value: &[u8], flags: i32) -> Result<(), Errno> {
        must_be_plain(name)?;
        let node = self.node(ino)?;
        if name == lov::NAME {
            return self.set_layout(&node, value);
        }
        if value.len() > LARGEST {
            return Err(Errno::E2BIG);
        }
        let mut attrs = node.attrs.lock();
        match (flags, attrs.xattrs.contains_key(name)) {
            (libc::XATTR_CREATE, true) => return Err(Errno::EEXIST),
            (libc::XATTR_REPLACE, false) => return Err(Errno::ENODATA),
            _ => {}
        }
        attrs.xattrs.insert(name.into(), value.to_vec());
        attrs.ctime = SystemTime::now();
        Ok(())
    }

    /// Sets the layout of a file, or the striping for new files in a directory. If the file has
    /// objects, it keeps its layout and no error is returned, as on Lustre, because `cp` and `tar`
    /// copy this attribute too. A caller that needs to know has to read it back.
    fn set_layout(&self, node: &Node, value: &[u8]) -> Result<(), Errno> {
        let wish = lov::parse(value)?;
        match &node.body {
            Body::Dir(default) => {
                wish.check(self.cluster.osts.len())?;
                *default.lock() = wish;
            }
            Body::File(file) => {
                file.set_layout(&wish, |wish| self.cluster.place(wish))?;
            }
            Body::Link(_) | Body::Special => return Err(Errno::EOPNOTSUPP),
        }
        node.attrs.lock().ctime = SystemTime::now();
        Ok(())
    }

    fn layout_value(&self, node: &Node) -> Option<Vec<u8>> {
        match &node.body {
            Body::Dir(default) => {
                let wish = default.lock();
                (*wish != Default::default()).then(|| lov::of_wish(&wish))
            }
            Body::File(file) => file.layout().map(|layout| lov::of_file(node.ino, &layout)),
            Body::Link(_) | Body::Special => None,
        }
    }

    pub fn get_xattr(&self, ino: u64, name: &OsStr) -> Result<Vec<u8>, Errno> {
        must_be_plain(name)?;
        let node = self.node(ino)?;
        if name == lov::NAME {
            return self.layout_value(&node).ok_or(Errno::ENODATA);
        }
        let attrs = node.attrs.lock();
        attrs.xattrs.get(name).cloned().ok_or(Errno::ENODATA)
    }

    /// Returns the names, each followed by a NUL.
    pub fn list_xattrs(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        let node = self.node(ino)?;
        let mut names: Vec<OsString> = node.attrs.lock().xattrs.keys().cloned().collect();
        if self.layout_value(&node).is_some() {
            names.push(lov::NAME.into());
        }
        let mut list = Vec::new();
        for name in names {
            list.extend(name.as_bytes());
            list.push(0);
        }
        Ok(list)
    }

    /// Removes an attribute. A directory without its layout uses the mount's again; a file keeps
    /// its layout.
    pub fn remove_xattr(&self, ino: u64, name: &OsStr) -> Result<(), Errno> {
        let node = self.node(ino)?;
        if name == lov::NAME {
            return match &node.body {
                Body::Dir(default) => {
                    *default.lock() = Default::default();
                    Ok(())
                }
                _ => Err(Errno::EOPNOTSUPP),
            };
        }
        let mut attrs = node.attrs.lock();
        attrs.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        attrs.ctime = SystemTime::now();
        Ok(())
    }
}
