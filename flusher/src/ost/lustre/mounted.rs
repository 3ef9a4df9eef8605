//! Finds out from the mount table which Lustre a directory is on.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns the name of the file system; `None` if the directory is not on a Lustre client mount.
pub fn fsname(dir: BorrowedFd<'_>) -> io::Result<Option<String>> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd()))?;
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mount_id(&info).and_then(|id| of_mount(&table, id)))
}

fn mount_id(fdinfo: &str) -> Option<u64> {
    let line = fdinfo.lines().find_map(|l| l.strip_prefix("mnt_id:"))?;
    line.trim().parse().ok()
}

/// The source field of the mount table is `NID[,NID…][:NID…]:/FSNAME[/PART]`.
fn of_mount(mountinfo: &str, id: u64) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let (mount, fs) = line.split_once(" - ")?;
        if mount.split(' ').next()?.parse() != Ok(id) {
            return None;
        }
        let mut fs = fs.split(' ');
        let (kind, source) = (fs.next()?, fs.next()?);
        if kind != "lustre" {
            return None;
        }
        let (_, path) = source.rsplit_once(":/")?;
        let name = path.split('/').next()?;
        (!name.is_empty()).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:1 / / rw - ext4 /dev/vda1 rw
90 22 0:60 / /lustre/scratch rw,flock engine:3 - lustre 10.0.0.1@tcp,10.0.0.1@o2ib:10.0.0.2@tcp:/scratch rw,flock
91 22 0:61 /p /lustre/home rw - lustre mgs@tcp:/home-2/project rw
92 22 0:62 / /sim rw - fuse.pfs-sim sim:/scratch rw
93 22 0:63 / /odd rw - lustre mgs@tcp:/ rw
";

    #[test]
    fn the_name_is_in_the_source_of_the_mount() {
        assert_eq!(of_mount(TABLE, 90).as_deref(), Some("scratch"));
        assert_eq!(of_mount(TABLE, 91).as_deref(), Some("home-2"));
        for none in [22, 92, 93, 9] {
            assert_eq!(of_mount(TABLE, none), None, "{none}");
        }
        assert_eq!(
            mount_id("pos:\t0\nflags:\t012\nmnt_id:\t29\nino:\t4\n"),
            Some(29)
        );
        assert_eq!(mount_id("pos:\t0\n"), None);
    }

    #[test]
    fn a_local_directory_is_on_no_lustre() {
        use std::os::fd::AsFd;
        let dir = std::fs::File::open("/").unwrap();
        assert_eq!(fsname(dir.as_fd()).unwrap(), None);
    }
}
