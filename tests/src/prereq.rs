//! Checks what the machine must have. A test that cannot run fails, and says which command helps: a skipped
//! test proves nothing.

use std::path::{Path, PathBuf};

/// Checks for root, `/dev/fuse` and `fusermount3`: what every mount test needs.
pub fn mounting() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "the mount tests need root (they mount, change users and kill daemons): sudo make test"
    );
    assert!(
        Path::new("/dev/fuse").exists(),
        "/dev/fuse is missing; load the driver: modprobe fuse"
    );
    program("fusermount3", "fuse3");
}

/// Checks what mounts by an ordinary user need in addition: udev opens the device to all users, but bare
/// machines do not.
pub fn user_mounting() {
    use std::os::unix::fs::MetadataExt;
    mounting();
    let mode = std::fs::metadata("/dev/fuse").map_or(0, |meta| meta.mode());
    assert!(
        mode & 0o666 == 0o666,
        "/dev/fuse is not open to ordinary users; do what udev would: chmod 0666 /dev/fuse"
    );
}

/// Finds `name` on the `PATH`.
pub fn program(name: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("{name} is missing; install it: apt-get install {package}"))
}

/// Directory of this build's programs: `target/<profile>`.
fn build_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("a process knows its program");
    let dir = exe.parent().expect("a program is in a directory");
    match dir.file_name() {
        Some(name) if name == "deps" => dir.parent().expect("deps has a parent").to_owned(),
        _ => dir.to_owned(),
    }
}

/// Path of the `forebay` program: `FOREBAY_BIN`, or the one beside the tests.
pub fn forebay() -> PathBuf {
    if let Some(path) = std::env::var_os("FOREBAY_BIN") {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "FOREBAY_BIN={path:?} is not a file");
        return path;
    }
    let path = build_dir().join("forebay");
    assert!(
        path.is_file(),
        "{} is missing; build it: make build",
        path.display()
    );
    path
}

/// Path of a helper program of this package.
pub fn helper(name: &str) -> PathBuf {
    let path = build_dir().join(name);
    assert!(
        path.is_file(),
        "{} is missing; build it: cargo build -p forebay-tests --bins (same profile)",
        path.display()
    );
    path
}

/// Path of a test program from crates.io that cannot be linked (it has no library), installed beside the
/// build in `target/tools/bin`.
pub fn tool(name: &str, version: &str) -> PathBuf {
    let root = match std::env::var_os("FOREBAY_TOOLS") {
        Some(dir) => PathBuf::from(dir),
        None => build_dir()
            .parent()
            .expect("a profile is in the target directory")
            .join("tools"),
    };
    let path = root.join("bin").join(name);
    assert!(
        path.is_file(),
        "{} is missing; install it: cargo install --locked {name} --version {version} --root {}",
        path.display(),
        root.display()
    );
    path
}
