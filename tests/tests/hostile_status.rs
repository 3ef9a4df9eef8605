//! Root asks for status, and another user has prepared what root finds: entries in runtime directories, stores,
//! sockets (S4.7, S4.9, S8.2, S8.8, S8.12, S8.13). Root's `forebay status` opens and follows nothing of that, and
//! waits for none of it.

use forebay_tests::bystander::Bystander;
use forebay_tests::cli::{FAILED, NO_DAEMON, OK, STILL_DIRTY, assert_refused, code, str};
use forebay_tests::test_mount::{Drain, TestMount, put, text};
use forebay_tests::users::as_user;
use forebay_tests::wait::{in_background, within};
use forebay_tests::{sys, wait_until};
use nix::sys::stat::Mode;
use std::fs;
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// A user id that no other test uses.
const MALLORY: u32 = 65031;
const AT_ONCE: Duration = Duration::from_secs(5);
/// Longer than the time that root gives a user's process to answer.
const BOUNDED: Duration = Duration::from_secs(30);

/// A runtime directory of MALLORY's at its real place, where root might look.
struct Planted(PathBuf);

impl Planted {
    fn make() -> Self {
        let dir = PathBuf::from(format!("/tmp/forebay-{MALLORY}"));
        let made = fs::DirBuilder::new().mode(0o700).create(&dir);
        made.expect("make the runtime directory");
        chown(&dir, Some(MALLORY), Some(MALLORY)).expect("chown");
        Planted(dir)
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("remove {}: {e}", self.0.display());
        }
    }
}

/// Returns the path of a mount's file in a runtime directory, named as the daemon names it.
fn entry(dir: &Path, mount: &Path, end: &str) -> PathBuf {
    let hash = mount.as_os_str().as_bytes().iter();
    let hash = hash.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    dir.join(format!("{hash:016x}.{end}"))
}

fn words(mount: &Path, store: &Path) -> String {
    format!(r#"{{"pid":1,"node":"evil","mount":{mount:?},"store":{store:?},"backing":"/"}}"#)
}

/// Makes a store whose index cannot be opened without waiting.
fn trap(dir: &Path) {
    fs::DirBuilder::new()
        .mode(0o700)
        .create(dir)
        .expect("mkdir");
    fs::create_dir(dir.join("index")).expect("mkdir");
    fs::create_dir(dir.join("log")).expect("mkdir");
    put(
        dir.join("FOREBAY"),
        "format = 3\nrocksdb = \"1.0\"\nnode = \"evil\"\nbacking = \"/\"\nkey = 1\nid = 2\n",
    );
    let fifo = dir.join("index/CURRENT");
    nix::unistd::mkfifo(&fifo, Mode::from_bits_retain(0o600)).expect("mkfifo");
}

/// Runs `forebay` as root, in a background thread, so that it cannot hang the test.
fn root_asks(args: &[&str], limit: Duration) -> Output {
    let mut command = Command::new(forebay_tests::prereq::forebay());
    command.args(args).env_remove("FOREBAY_RUNTIME_DIR");
    command.env_remove("XDG_RUNTIME_DIR").env("NO_COLOR", "1");
    sys::die_with_parent(&mut command);
    let asked = in_background(move || command.output().expect("start forebay"));
    within("root's forebay status", limit, asked)
}

/// S8.13: root ignores what a user has written about the user's own mounts.
#[test]
fn root_does_not_believe_what_others_left_in_tmp() {
    let mut test_mount = TestMount::new(Drain::Immediate);
    test_mount.start();
    let bystander = Bystander::beside(&test_mount);
    let planted = Planted::make();
    let (mount, store) = (
        test_mount.root().join("nowhere"),
        test_mount.root().join("trap"),
    );
    let (links, real) = (
        test_mount.root().join("links"),
        test_mount.root().join("roots"),
    );
    fs::create_dir(&real).expect("mkdir");
    put(real.join("FOREBAY"), "root's own");
    as_user(MALLORY, &[], || {
        trap(&store);
        put(entry(&planted.0, &mount, "json"), words(&mount, &store));
        std::os::unix::fs::symlink(&real, &links).expect("symlink");
        let other = test_mount.root().join("elsewhere");
        put(entry(&planted.0, &other, "json"), words(&other, &links));
        let fifo = entry(&planted.0, Path::new("/fifo"), "json");
        nix::unistd::mkfifo(&fifo, Mode::from_bits_retain(0o600)).expect("mkfifo");
    });
    for args in [
        vec!["status"],
        vec!["status", "--json"],
        vec!["status", str(&mount)],
        vec!["umount", str(&mount)],
    ] {
        let out = root_asks(&args, AT_ONCE);
        let said = text(&out);
        for word in ["evil", "nowhere/", str(&store), str(&links)] {
            assert!(!said.contains(word), "{args:?} believes {word}:\n{said}");
        }
    }
    bystander.is_not_disturbed(1);
    bystander.was_not_disturbed();
    test_mount.finish();
}

/// S8.13: root looks at a store of another user with that user's rights, and for a limited time only.
#[test]
fn another_users_store_is_looked_at_as_that_user() {
    let mut test_mount = TestMount::new(Drain::Immediate);
    test_mount.start();
    let bystander = Bystander::beside(&test_mount);
    let (store, secret) = (
        test_mount.root().join("trap"),
        test_mount.root().join("secret"),
    );
    as_user(MALLORY, &[], || trap(&store));
    let out = root_asks(&["status", "--store", str(&store)], BOUNDED);
    assert_ne!(code(&out), OK, "{}", text(&out));
    assert!(text(&out).contains("65031"), "{}", text(&out));
    // A link to a directory that only root may read.
    fs::DirBuilder::new()
        .mode(0o700)
        .create(&secret)
        .expect("mkdir");
    put(secret.join("CURRENT"), "root's secret\n");
    as_user(MALLORY, &[], || {
        fs::remove_dir_all(store.join("index")).expect("remove");
        std::os::unix::fs::symlink(&secret, store.join("index")).expect("symlink");
    });
    let out = root_asks(&["status", "--store", str(&store)], BOUNDED);
    assert_ne!(code(&out), OK, "{}", text(&out));
    assert!(!text(&out).contains("secret\n"), "{}", text(&out));
    let made: Vec<_> = fs::read_dir(&secret).expect("list").collect();
    assert_eq!(made.len(), 1, "nothing was made there: {made:?}");
    bystander.was_not_disturbed();
    test_mount.finish();
}

/// The directories of an ordinary user, and a copy of the program that the user may start. Root may not look into
/// the user's mount.
struct OfUser {
    uid: u32,
    root: PathBuf,
    runtime: PathBuf,
    mnt: PathBuf,
    store: PathBuf,
    program: PathBuf,
    /// Dropped last.
    _test_mount: TestMount,
}

impl OfUser {
    fn new() -> OfUser {
        forebay_tests::prereq::user_mounting();
        let test_mount = TestMount::new(Drain::Never);
        let user = nix::unistd::User::from_name("nobody");
        let uid = user.expect("look up").expect("nobody exists").uid.as_raw();
        let root = test_mount.root().join("user");
        for name in ["", "mnt", "backing", "run", "run/forebay"] {
            fs::create_dir(root.join(name)).expect("mkdir");
            fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o700)).expect("chmod");
            chown(root.join(name), Some(uid), Some(uid)).expect("chown");
        }
        let program = test_mount.root().join("forebay");
        sys::copy_program(&forebay_tests::prereq::forebay(), &program).expect("copy the program");
        OfUser {
            uid,
            runtime: root.join("run/forebay"),
            mnt: root.join("mnt"),
            store: root.join("store"),
            root,
            program,
            _test_mount: test_mount,
        }
    }

    fn ask(&self, who: u32, args: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .current_dir("/")
            .env("FOREBAY_RUNTIME_DIR", &self.runtime);
        let asked = in_background(move || as_user(who, &[], || command.output().expect("start")));
        within("forebay", BOUNDED, asked)
    }

    fn mount(&self) {
        let backing = self.root.join("backing");
        let mut args = vec!["mount", str(&self.mnt), "--store", str(&self.store)];
        args.extend(["--backing", str(&backing), "--drain", "never"]);
        args.extend(["--nodes", "one"]);
        let out = self.ask(self.uid, &args);
        assert_eq!(code(&out), OK, "{}", text(&out));
    }

    fn status(&self, who: u32) -> Output {
        self.ask(who, &["status", "--json", str(&self.mnt)])
    }

    fn write(&self, name: &str, data: Vec<u8>) {
        as_user(self.uid, &[], || put(self.mnt.join(name), data));
    }

    /// Kills the daemon and returns the report that root then gets.
    fn kill(&self) -> serde_json::Value {
        let pid = report(&self.status(0))["pid"].as_i64().expect("a pid") as i32;
        let pid = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("kill");
        // A killed daemon counts as dead before it is reaped; the test goes on when the process is gone.
        wait_until("the daemon is reaped", BOUNDED, || {
            let process = PathBuf::from(format!("/proc/{pid}"));
            (!process.exists()).then_some(())
        });
        wait_until("the daemon is gone", BOUNDED, || {
            let found = serde_json::from_slice(&self.status(0).stdout);
            let found: serde_json::Value = found.ok()?;
            (found["source"] == "store").then_some(found)
        })
    }
}

fn report(out: &Output) -> serde_json::Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(out)))
}

/// S4.9: root can take a user's dead mount away, although the kernel does not let root look into it, but not a mount
/// that is alive.
#[test]
fn root_takes_a_users_dead_mount_away() {
    let user = OfUser::new();
    let _guard = Detach(&user.mnt);
    let umount = || user.ask(0, &["umount", str(&user.mnt)]);
    user.mount();
    user.write("f", vec![3; 100_000]);
    user.kill();
    let out = umount();
    assert_eq!(code(&out), STILL_DIRTY, "{}", text(&out));
    assert!(text(&out).contains("in 1 file stay"), "{}", text(&out));
    assert!(!sys::is_mounted(&user.mnt));

    user.mount();
    let out = user.ask(user.uid, &["drain", "--wait", str(&user.mnt)]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    // A daemon that does not answer is not dead.
    let socket = entry(&user.runtime, &user.mnt, "sock");
    let hidden = socket.with_extension("hidden");
    fs::rename(&socket, &hidden).expect("rename");
    let out = umount();
    assert_eq!(code(&out), NO_DAEMON, "{}", text(&out));
    assert!(sys::is_mounted(&user.mnt));
    fs::rename(&hidden, &socket).expect("rename");
    user.kill();
    let out = umount();
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(!sys::is_mounted(&user.mnt));
}

/// S4.7, S8.12: a daemon that breaks the connection off when it is asked for its state is not taken for one that is
/// gone.
#[test]
fn a_mount_beside_a_daemon_that_breaks_off_is_refused() {
    let test_mount = TestMount::new(Drain::Never);
    let runtime = test_mount.root().join("run");
    let listener = UnixListener::bind(entry(&runtime, test_mount.mnt(), "sock")).expect("bind");
    let other = test_mount.root().join("store2");
    put(
        entry(&runtime, test_mount.mnt(), "json"),
        words(test_mount.mnt(), &other),
    );
    let hung_up = in_background(move || {
        let (asked, _) = listener.accept().expect("accept");
        asked.shutdown(Shutdown::Both).expect("hang up");
        // A closed listener would look like the socket of a daemon that has ended.
        listener
    });
    let out = test_mount.mount_command().output().expect("start forebay");
    assert_refused(&out, Some(FAILED), &["broke off"]);
    drop(within("it was asked", BOUNDED, hung_up));
    assert!(!sys::is_mounted(test_mount.mnt()));
}

/// S8.8, S8.13: root sees a user's mount by asking as that user, whether the mount is alive, dead or forged.
#[test]
fn root_asks_a_users_mount_as_that_user() {
    let user = OfUser::new();
    let (mnt, runtime, uid) = (&user.mnt, &user.runtime, user.uid);
    user.mount();
    let _guard = Detach(mnt);
    user.write("f", vec![3; 100_000]);
    let alive = report(&user.status(0));
    assert_eq!(alive["source"], "daemon", "{alive}");
    assert_eq!(alive["bytes"]["undrained"], 100_000, "{alive}");
    let list = user.ask(0, &["status"]);
    assert!(text(&list).contains(str(mnt)), "{}", text(&list));
    assert!(!text(&list).contains("node "), "not asked: {}", text(&list));

    let dead = user.kill();
    assert_eq!(dead["bytes"]["undrained"], 100_000, "{dead}");

    // The user's socket takes connections and never answers.
    let socket = entry(runtime, mnt, "sock");
    let trapped = user.root.join("trap");
    let listener = as_user(uid, &[], || {
        fs::remove_file(&socket).expect("remove");
        trap(&trapped);
        put(entry(runtime, mnt, "json"), words(mnt, &trapped));
        UnixListener::bind(&socket).expect("bind")
    });
    let out = user.status(0);
    assert_ne!(code(&out), OK, "{}", text(&out));
    drop(listener);
    let out = user.status(0);
    assert_ne!(code(&out), OK, "{}", text(&out));
}

struct Detach<'a>(&'a Path);

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        if let Err(e) = sys::detach(self.0) {
            eprintln!("detach {}: {e}", self.0.display());
        }
    }
}
