//! Mounting: what each refusal says, and mounting over the backing itself.

use forebay_tests::bay::{Bay, Drain, assert_same, get, put, text};
use forebay_tests::cli::{OK, USAGE, assert_refused, code, str};
use forebay_tests::status::Status;
use forebay_tests::sys;
use std::fs;
use std::path::Path;

/// S6.4: a store has one daemon; the first mount is not disturbed.
#[test]
fn a_second_mount_on_the_same_store_is_refused() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), b"first");
    let (other, backing) = (bay.root().join("other"), bay.root().join("backing2"));
    fs::create_dir(&other).expect("mkdir");
    fs::create_dir(&backing).expect("mkdir");
    for backing in [bay.backing(), &backing] {
        let out = bay.run([
            "mount",
            str(&other),
            "--store",
            str(bay.store()),
            "--backing",
            str(backing),
        ]);
        assert_refused(&out, None, &[str(bay.store())]);
        assert!(!sys::is_mounted(&other));
    }
    assert_eq!(get(bay.path("f")), b"first");
    bay.finish();
}

/// S6.4: undrained data of one backing does not go into another.
#[test]
fn a_store_of_another_backing_is_refused() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), b"belongs here");
    bay.umount_with(&["--keep"]);
    let other = bay.root().join("backing2");
    fs::create_dir(&other).expect("mkdir");
    let out = bay.run([
        "mount",
        str(bay.mnt()),
        "--store",
        str(bay.store()),
        "--backing",
        str(&other),
    ]);
    assert_refused(&out, None, &[str(bay.backing())]);
    let out = bay.run([
        "recover",
        "--store",
        str(bay.store()),
        "--backing",
        str(&other),
    ]);
    assert_refused(&out, None, &[str(bay.backing())]);
    bay.start();
    assert_eq!(get(bay.path("f")), b"belongs here");
    bay.finish();
}

/// S8.12: each missing directory is named.
#[test]
fn missing_directories_are_named() {
    let bay = Bay::new(Drain::Never);
    let none = bay.root().join("none");
    let mount = |dir: &Path, store: &Path, backing: &Path| {
        bay.run([
            "mount",
            str(dir),
            "--store",
            str(store),
            "--backing",
            str(backing),
        ])
    };
    let out = mount(&none, bay.store(), bay.backing());
    assert_refused(&out, Some(USAGE), &[str(&none), "does not exist"]);
    let out = mount(bay.mnt(), bay.store(), &none);
    assert_refused(&out, Some(USAGE), &[str(&none), "does not exist"]);
    let out = mount(bay.mnt(), &none.join("store"), bay.backing());
    assert_refused(&out, Some(USAGE), &[str(&none), "does not exist"]);
    put(bay.root().join("file"), b"");
    let out = mount(&bay.root().join("file"), bay.store(), bay.backing());
    assert_refused(&out, Some(USAGE), &["is not a directory"]);
    let out = bay.run(["mount", str(bay.mnt())]);
    assert_refused(&out, Some(USAGE), &["--store"]);
}

/// S8.12: directories that contain each other.
#[test]
fn a_store_inside_the_backing_is_refused() {
    let bay = Bay::new(Drain::Never);
    let mount = |store: &Path, backing: &Path| {
        bay.run([
            "mount",
            str(bay.mnt()),
            "--store",
            str(store),
            "--backing",
            str(backing),
        ])
    };
    let inside = bay.backing().join("store");
    assert_refused(
        &mount(&inside, bay.backing()),
        Some(USAGE),
        &["inside the backing"],
    );
    let link = bay.root().join("link");
    std::os::unix::fs::symlink(bay.backing(), &link).expect("symlink");
    assert_refused(
        &mount(&link.join("store"), bay.backing()),
        Some(USAGE),
        &["inside the backing"],
    );
    let below = bay.mnt().join("store");
    assert_refused(
        &mount(&below, bay.backing()),
        Some(USAGE),
        &["inside the mount point"],
    );
    fs::create_dir(bay.store()).expect("mkdir");
    fs::create_dir(bay.store().join("b")).expect("mkdir");
    let out = mount(bay.store(), &bay.store().join("b"));
    assert_refused(&out, Some(USAGE), &["inside the store"]);
    assert!(!inside.exists(), "nothing was made");
}

/// S8.2: a store that others can look into is refused.
#[test]
fn an_open_store_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let bay = Bay::new(Drain::Never);
    fs::create_dir(bay.store()).expect("mkdir");
    fs::set_permissions(bay.store(), fs::Permissions::from_mode(0o755)).expect("chmod");
    put(
        bay.store().join("FOREBAY"),
        b"others could have written this",
    );
    let out = bay.mount_command().output().expect("start forebay");
    assert_refused(&out, None, &["chmod 700"]);
}

/// S8.12: nonsense in the configuration names file, line and key.
#[test]
fn nonsense_in_the_configuration_is_named() {
    let bay = Bay::new(Drain::Never);
    let file = bay.root().join("bad.toml");
    let mount = |content: &str| {
        put(&file, content);
        bay.run([
            "mount",
            str(bay.mnt()),
            "--store",
            str(bay.store()),
            "--backing",
            str(bay.backing()),
            "--config",
            str(&file),
        ])
    };
    assert_refused(
        &mount("drain = \"sometimes\"\n"),
        Some(USAGE),
        &["bad.toml", "sometimes"],
    );
    assert_refused(
        &mount("\ndrainn = \"never\"\n"),
        Some(USAGE),
        &["bad.toml", "drainn"],
    );
    assert_refused(&mount("stripe = 5000\n"), Some(USAGE), &["stripe"]);
    assert_refused(&mount("= ="), Some(USAGE), &["bad.toml"]);
    let out = bay.run([
        "mount",
        str(bay.mnt()),
        "--store",
        str(bay.store()),
        "--config",
        "/none.toml",
    ]);
    assert_refused(&out, Some(USAGE), &["/none.toml"]);
}

/// S6.4: a store that a later version, or a later RocksDB, wrote is left alone.
#[test]
fn a_store_of_another_version_is_refused() {
    let mut bay = Bay::new(Drain::Never);
    bay.start();
    put(bay.path("f"), b"x");
    bay.umount_with(&["--keep"]);
    let superblock = bay.store().join("FOREBAY");
    let old = fs::read_to_string(&superblock).expect("read the superblock");
    for (key, value) in [("format", "999"), ("rocksdb", "\"999.1.2\"")] {
        let line = old.lines().find(|line| line.starts_with(key));
        let line = line.unwrap_or_else(|| panic!("{key} is not in the superblock:\n{old}"));
        put(&superblock, old.replace(line, &format!("{key} = {value}")));
        let out = bay.mount_command().output().expect("start forebay");
        assert_refused(&out, None, &["999", str(bay.store())]);
        assert!(!sys::is_mounted(bay.mnt()));
    }
    put(&superblock, "no superblock at all");
    let out = bay.mount_command().output().expect("start forebay");
    assert_refused(&out, None, &["FOREBAY"]);
    put(&superblock, old);
    bay.start();
    assert_eq!(get(bay.path("f")), b"x");
    bay.finish();
}

/// S1.1, S4.2: mounted over the backing itself, in the background; gone when umount returns.
#[test]
fn mounting_over_the_backing_itself() {
    let bay = Bay::new(Drain::Never);
    let dir = bay.backing().to_owned();
    put(dir.join("old"), b"was there before");
    let out = bay.run([
        "mount",
        str(&dir),
        "--store",
        str(bay.store()),
        "--drain",
        "never",
    ]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let guard = Detach(&dir);
    assert!(sys::is_mounted(&dir), "mount returns when it is mounted");
    assert_eq!(get(dir.join("old")), b"was there before");
    put(dir.join("new"), vec![1; 100_000]);
    let status = Status::parse(&bay.run(["status", str(&dir), "--json"]));
    assert!(Path::new(&format!("/proc/{}", status.pid())).exists());
    assert_eq!(status.undrained(), 100_000);
    let out = bay.run(["umount", str(&dir)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(!sys::is_mounted(&dir));
    assert_same("canonical", &get(dir.join("new")), &[1; 100_000]);
    drop(guard);
}

struct Detach<'a>(&'a Path);

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        if let Err(e) = sys::detach(self.0) {
            eprintln!("umount -l {}: {e}", self.0.display());
        }
    }
}

/// S8.12: help has examples, and a wrong word is an error.
#[test]
fn help_has_examples() {
    let bay = Bay::new(Drain::Never);
    for command in [
        "mount", "umount", "status", "drain", "layout", "probe", "recover",
    ] {
        let out = bay.run([command, "--help"]);
        assert_eq!(code(&out), OK);
        assert!(
            text(&out).contains("Examples"),
            "{command} --help has no examples"
        );
    }
    assert_eq!(code(&bay.run(["no-such-command"])), USAGE);
}
