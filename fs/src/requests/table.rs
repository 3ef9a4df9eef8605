//! Every operation that a transport may ask for, and what it may wait for.

/// What an operation may wait for, which decides where it runs ([`super::Requests`]). An operation may wait for
/// what the classes before its own wait for, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Runs on the thread that received the request.
    NeverWaits,
    /// The store's disk or the backing.
    Disk,
    /// Other nodes: data that they have announced, their turns, their publications.
    Nodes,
    /// Locks of other owners.
    Locks,
}

impl Class {
    pub const COUNT: usize = Class::Locks as usize + 1;

    pub fn name(self) -> &'static str {
        match self {
            Class::NeverWaits => "never-waits",
            Class::Disk => "disk",
            Class::Nodes => "nodes",
            Class::Locks => "locks",
        }
    }
}

macro_rules! operations {
    ($($op:ident $name:literal $class:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op {
            $($op,)*
        }

        impl Op {
            pub const ALL: &[Op] = &[$(Op::$op,)*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Op::$op => $name,)*
                }
            }

            pub const fn class(self) -> Class {
                match self {
                    $(Op::$op => Class::$class,)*
                }
            }
        }
    };
}

// Names resolve, attributes are shown and entries are made in class `Nodes`, because what another node has
// published of a file is part of its attributes, and because a lookup is held back while descriptors are short.
operations! {
    Lookup "lookup" Nodes,
    Forget "forget" NeverWaits,
    Getattr "getattr" Nodes,
    Setattr "setattr" Nodes,
    Readlink "readlink" Disk,
    Mknod "mknod" Nodes,
    Mkdir "mkdir" Nodes,
    Unlink "unlink" Nodes,
    Rmdir "rmdir" Nodes,
    Symlink "symlink" Nodes,
    Rename "rename" Nodes,
    Link "link" Nodes,
    Open "open" Nodes,
    Create "create" Nodes,
    Read "read" Nodes,
    Write "write" Nodes,
    Flush "flush" Nodes,
    Release "release" Nodes,
    Fsync "fsync" Nodes,
    Getlk "getlk" Locks,
    Setlk "setlk" Locks,
    Opendir "opendir" Disk,
    Readdir "readdir" Disk,
    Readdirplus "readdirplus" Nodes,
    Releasedir "releasedir" Disk,
    Fsyncdir "fsyncdir" Disk,
    Statfs "statfs" Disk,
    Setxattr "setxattr" Disk,
    Getxattr "getxattr" Disk,
    Listxattr "listxattr" Disk,
    Removexattr "removexattr" Disk,
    Access "access" Disk,
    Ioctl "ioctl" NeverWaits,
    Poll "poll" NeverWaits,
    Fallocate "fallocate" Nodes,
    Lseek "lseek" Nodes,
    CopyFileRange "copy_file_range" Nodes,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_operation_has_a_row_of_its_own() {
        let names: HashSet<_> = Op::ALL.iter().map(|op| op.name()).collect();
        assert_eq!(names.len(), Op::ALL.len());
        for (row, op) in Op::ALL.iter().enumerate() {
            assert_eq!(*op as usize, row, "{op:?}");
        }
    }
}
