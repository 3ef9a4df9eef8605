//! Tests of `forebay mount`: what each refusal says, mounting over the backing itself, and what a mount counts.

use forebay_tests::cli::{OK, USAGE, assert_refused, code, str};
use forebay_tests::status::Status;
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// S6.4: a store has one daemon; the first mount is not disturbed.
#[test]
fn a_second_mount_on_the_same_store_is_refused() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.start();
    put(test_mount.path("f"), b"first");
    let (other, backing) = (
        test_mount.root().join("other"),
        test_mount.root().join("backing2"),
    );
    fs::create_dir(&other).expect("mkdir");
    fs::create_dir(&backing).expect("mkdir");
    for backing in [test_mount.backing(), &backing] {
        let out = test_mount.run([
            "mount",
            str(&other),
            "--store",
            str(test_mount.store()),
            "--backing",
            str(backing),
        ]);
        assert_refused(&out, None, &[str(test_mount.store())]);
        assert!(!sys::is_mounted(&other));
    }
    assert_eq!(get(test_mount.path("f")), b"first");
    test_mount.finish();
}

/// S6.4: undrained data of one backing does not go into another.
#[test]
fn a_store_of_another_backing_is_refused() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.start();
    put(test_mount.path("f"), b"belongs here");
    test_mount.umount_with(&["--keep"]);
    let other = test_mount.root().join("backing2");
    fs::create_dir(&other).expect("mkdir");
    let out = test_mount.run([
        "mount",
        str(test_mount.mnt()),
        "--store",
        str(test_mount.store()),
        "--backing",
        str(&other),
    ]);
    assert_refused(&out, None, &[str(test_mount.backing())]);
    let out = test_mount.run([
        "recover",
        "--store",
        str(test_mount.store()),
        "--backing",
        str(&other),
    ]);
    assert_refused(&out, None, &[str(test_mount.backing())]);
    test_mount.start();
    assert_eq!(get(test_mount.path("f")), b"belongs here");
    test_mount.finish();
}

/// S8.12: the message names each missing directory.
#[test]
fn missing_directories_are_named() {
    let test_mount = TestMount::new(Drain::Never);
    let none = test_mount.root().join("none");
    let mount = |dir: &Path, store: &Path, backing: &Path| {
        test_mount.run([
            "mount",
            str(dir),
            "--store",
            str(store),
            "--backing",
            str(backing),
        ])
    };
    let out = mount(&none, test_mount.store(), test_mount.backing());
    assert_refused(&out, Some(USAGE), &[str(&none), "does not exist"]);
    let out = mount(test_mount.mnt(), test_mount.store(), &none);
    assert_refused(&out, Some(USAGE), &[str(&none), "does not exist"]);
    let out = mount(test_mount.mnt(), &none.join("store"), test_mount.backing());
    assert_refused(&out, Some(USAGE), &[str(&none), "does not exist"]);
    put(test_mount.root().join("file"), b"");
    let out = mount(
        &test_mount.root().join("file"),
        test_mount.store(),
        test_mount.backing(),
    );
    assert_refused(&out, Some(USAGE), &["is not a directory"]);
    let out = test_mount.run(["mount", str(test_mount.mnt())]);
    assert_refused(&out, Some(USAGE), &["--store"]);
}

/// S8.12: a store, a backing and a mount point that contain each other are refused.
#[test]
fn a_store_inside_the_backing_is_refused() {
    let test_mount = TestMount::new(Drain::Never);
    let mount = |store: &Path, backing: &Path| {
        test_mount.run([
            "mount",
            str(test_mount.mnt()),
            "--store",
            str(store),
            "--backing",
            str(backing),
        ])
    };
    let inside = test_mount.backing().join("store");
    assert_refused(
        &mount(&inside, test_mount.backing()),
        Some(USAGE),
        &["inside the backing"],
    );
    let link = test_mount.root().join("link");
    std::os::unix::fs::symlink(test_mount.backing(), &link).expect("symlink");
    assert_refused(
        &mount(&link.join("store"), test_mount.backing()),
        Some(USAGE),
        &["inside the backing"],
    );
    let below = test_mount.mnt().join("store");
    assert_refused(
        &mount(&below, test_mount.backing()),
        Some(USAGE),
        &["inside the mount point"],
    );
    fs::create_dir(test_mount.store()).expect("mkdir");
    fs::create_dir(test_mount.store().join("b")).expect("mkdir");
    let out = mount(test_mount.store(), &test_mount.store().join("b"));
    assert_refused(&out, Some(USAGE), &["inside the store"]);
    assert!(!inside.exists(), "nothing was made");
}

/// S8.2: a store that other users can look into is refused.
#[test]
fn an_open_store_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let test_mount = TestMount::new(Drain::Never);
    fs::create_dir(test_mount.store()).expect("mkdir");
    fs::set_permissions(test_mount.store(), fs::Permissions::from_mode(0o755)).expect("chmod");
    put(
        test_mount.store().join("FOREBAY"),
        b"others could have written this",
    );
    let out = test_mount.mount_command().output().expect("start forebay");
    assert_refused(&out, None, &["chmod 700"]);
}

/// S8.12: the message about nonsense in the configuration names the file and the key or the value.
#[test]
fn nonsense_in_the_configuration_is_named() {
    let test_mount = TestMount::new(Drain::Never);
    let file = test_mount.root().join("bad.toml");
    let mount = |content: &str| {
        put(&file, content);
        test_mount.run([
            "mount",
            str(test_mount.mnt()),
            "--store",
            str(test_mount.store()),
            "--backing",
            str(test_mount.backing()),
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
    let out = test_mount.run([
        "mount",
        str(test_mount.mnt()),
        "--store",
        str(test_mount.store()),
        "--config",
        "/none.toml",
    ]);
    assert_refused(&out, Some(USAGE), &["/none.toml"]);
}

/// S6.4: a store that a later version, or a later RocksDB, wrote is left alone.
#[test]
fn a_store_of_another_version_is_refused() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.start();
    put(test_mount.path("f"), b"x");
    test_mount.umount_with(&["--keep"]);
    let superblock = test_mount.store().join("FOREBAY");
    let old = fs::read_to_string(&superblock).expect("read the superblock");
    for (key, value) in [("format", "999"), ("rocksdb", "\"999.1.2\"")] {
        let line = old.lines().find(|line| line.starts_with(key));
        let line = line.unwrap_or_else(|| panic!("{key} is not in the superblock:\n{old}"));
        put(&superblock, old.replace(line, &format!("{key} = {value}")));
        let out = test_mount.mount_command().output().expect("start forebay");
        assert_refused(&out, None, &["999", str(test_mount.store())]);
        assert!(!sys::is_mounted(test_mount.mnt()));
    }
    put(&superblock, "no superblock at all");
    let out = test_mount.mount_command().output().expect("start forebay");
    assert_refused(&out, None, &["FOREBAY"]);
    put(&superblock, old);
    test_mount.start();
    assert_eq!(get(test_mount.path("f")), b"x");
    test_mount.finish();
}

/// S1.1, S4.2: Forebay can be mounted over the backing itself, in the background; the mount is gone when `umount`
/// returns.
#[test]
fn mounting_over_the_backing_itself() {
    let test_mount = TestMount::new(Drain::Never);
    let dir = test_mount.backing().to_owned();
    put(dir.join("old"), b"was there before");
    let out = test_mount.run([
        "mount",
        str(&dir),
        "--store",
        str(test_mount.store()),
        "--drain",
        "never",
    ]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let guard = Detach(&dir);
    assert!(sys::is_mounted(&dir), "mount returns when it is mounted");
    assert_eq!(get(dir.join("old")), b"was there before");
    put(dir.join("new"), vec![1; 100_000]);
    let status = Status::parse(&test_mount.run(["status", str(&dir), "--json"]));
    assert!(Path::new(&format!("/proc/{}", status.pid())).exists());
    assert_eq!(status.undrained(), 100_000);
    let out = test_mount.run(["umount", str(&dir)]);
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

/// S8.12: the help of every command has examples, and an unknown command is an error.
#[test]
fn help_has_examples() {
    let test_mount = TestMount::new(Drain::Never);
    for command in [
        "mount", "umount", "status", "drain", "layout", "probe", "recover",
    ] {
        let out = test_mount.run([command, "--help"]);
        assert_eq!(code(&out), OK);
        assert!(
            text(&out).contains("Examples"),
            "{command} --help has no examples"
        );
    }
    assert_eq!(code(&test_mount.run(["no-such-command"])), USAGE);
}

/// The operations in `status --json` are the requests that were answered, no more and no fewer.
#[test]
fn status_counts_operations() {
    let mut test_mount = TestMount::new(Drain::Never);
    test_mount.start();
    let file = open_rw(test_mount.path("f"));
    let block = [7; 5000];
    for n in 0..10 {
        file.write_all_at(&block, n * 5000).expect("write");
    }
    for n in 0..3 {
        let mut read = [0; 1000];
        file.read_exact_at(&mut read, n * 9000).expect("read");
    }
    file.sync_all().expect("fsync");
    fs::metadata(test_mount.path("missing")).expect_err("there is no such file");
    drop(file);

    let status = test_mount.status();
    let of = |op: &str| {
        ["count", "errors", "bytes"]
            .map(|field| status.number(&format!("/operations/{op}/{field}")))
    };
    assert_eq!(of("create"), [1, 0, 0]);
    assert_eq!(of("write"), [10, 0, 50_000]);
    assert_eq!(of("read"), [3, 0, 3000]);
    assert_eq!(of("fsync"), [1, 0, 0]);
    assert_eq!(of("flush"), [1, 0, 0]);
    let [lookups, missing, _] = of("lookup");
    assert!(missing >= 1 && lookups >= missing, "{lookups}, {missing}");
    let operations = status.at("/operations").as_object().expect("an object");
    assert!(!operations.contains_key("symlink"), "it was not called");
    for (op, stats) in operations {
        let seconds = |field: &str| stats[field].as_f64().expect("seconds");
        let (p50, p99) = (seconds("p50"), seconds("p99"));
        assert!(0.0 < p50 && p50 <= p99 && p99 < 60.0, "{op}: {p50}, {p99}");
    }
    assert_eq!(status.at("/operations/write/class"), "nodes");
    test_mount.finish();
}
