//! Files of the mount are opened by handle (`open_by_handle_at`), also when the kernel has forgotten them.

use forebay_tests::sys::{self, errno};
use forebay_tests::test_mount::{Drain, TestMount, put};
use forebay_tests::wait::{LONG, wait_until};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

const ROOM: usize = 128;

#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    data: [u8; ROOM],
}

fn handle_of(path: &Path) -> Handle {
    let mut handle = Handle {
        bytes: ROOM as u32,
        kind: 0,
        data: [0; ROOM],
    };
    let (path, mut mount) = (sys::c_path(path), 0i32);
    // SAFETY: the path ends in zero; `handle` says how much room it has.
    let rc = unsafe {
        let call = libc::SYS_name_to_handle_at;
        libc::syscall(
            call,
            libc::AT_FDCWD,
            path.as_ptr(),
            &mut handle,
            &mut mount,
            0,
        )
    };
    assert_eq!(rc, 0, "name_to_handle_at: {}", io::Error::last_os_error());
    handle
}

fn open(mount: &File, handle: &Handle, flags: i32) -> io::Result<File> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the descriptor is open, and the kernel reads as much of `handle` as `handle.bytes` says.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            handle,
            flags,
        )
    };
    match fd {
        0.. => Ok(unsafe {
            // SAFETY: a new descriptor that has no other owner.
            File::from_raw_fd(fd as i32)
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel forget everything that is not in use.
fn forget_all() {
    std::fs::write("/proc/sys/vm/drop_caches", "2").expect("drop caches");
}

fn content(mount: &File, handle: &Handle) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(mount, handle, libc::O_RDONLY)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// S1.13: the handle of a file leads to the file, drained or not, that of a directory to the directory, and that of
/// a removed file to nothing.
#[test]
fn handles_outlive_the_kernels_memory() {
    for nodes in ["one", "many"] {
        let mut test_mount = TestMount::new(Drain::Immediate);
        test_mount.set("nodes", nodes);
        test_mount.start();
        let mount = File::open(test_mount.mnt()).expect("open the mount");
        std::fs::create_dir_all(test_mount.path("d/e")).expect("mkdir");
        for name in ["f", "d/e/g", "gone"] {
            put(test_mount.path(name), name.as_bytes());
        }
        test_mount.drain();
        put(test_mount.path("undrained"), b"undrained");
        let handle = |name: &str| handle_of(&test_mount.path(name));
        let [f, g, gone, undrained, dir] = ["f", "d/e/g", "gone", "undrained", "d/e"].map(handle);
        for round in 0..3 {
            forget_all();
            assert_eq!(content(&mount, &f).expect("open f"), b"f", "round {round}");
            assert_eq!(content(&mount, &g).expect("open g"), b"d/e/g");
            assert_eq!(content(&mount, &undrained).expect("open"), b"undrained");
            forget_all();
            let dir = open(&mount, &dir, libc::O_RDONLY | libc::O_DIRECTORY).expect("open d/e");
            let path = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()));
            assert_eq!(path.expect("its path"), test_mount.path("d/e"));
        }
        std::fs::remove_file(test_mount.path("gone")).expect("remove");
        wait_until("the removed file is gone", LONG, || {
            forget_all();
            let gone = content(&mount, &gone).err()?;
            (errno::<()>(Err(gone), "open a removed file") == libc::ESTALE).then_some(())
        });
        drop(mount);
        test_mount.finish();
    }
}
