use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

const CALLER: Caller = Caller {
    uid: 1000,
    gid: 100,
    pid: 4,
};

fn status(uid: u32, gid: u32) -> String {
    format!(
        "Name:\tx\nUid:\t0\t0\t0\t{uid}\nGid:\t0\t0\t0\t{gid}\nFDSize:\t64\nGroups:\t100 4242 7 \nX:\t1\n"
    )
}

#[test]
fn groups_come_from_the_matching_process_only() {
    assert_eq!(
        parse_groups(&status(1000, 100), &CALLER),
        Some(vec![100, 4242, 7])
    );
    assert_eq!(parse_groups(&status(1001, 100), &CALLER), None);
    assert_eq!(parse_groups(&status(1000, 101), &CALLER), None);
    assert_eq!(parse_groups("Uid:\t1000\n", &CALLER), None);
}

#[test]
fn own_groups_are_read() {
    let caller = Caller {
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        pid: std::process::id(),
    };
    let want: Vec<u32> = nix::unistd::getgroups()
        .unwrap()
        .into_iter()
        .map(|g| g.as_raw())
        .collect();
    assert_eq!(groups_of(&caller), want);
}

fn effective() -> u64 {
    get_caps().unwrap().0
}

#[test]
fn a_guard_takes_rights_away_and_gives_them_back() {
    if !switches() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let before = effective();

    let user = Creds {
        uid: 1234,
        gid: 2345,
        groups: vec![3456],
    };
    {
        let _guard = user.enter().unwrap();
        assert_eq!(effective(), 0);
        let e = std::fs::read(&secret).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::PermissionDenied);
        let made = dir.path().join("made");
        std::fs::write(&made, "y").unwrap();
        let meta = std::fs::metadata(&made).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1234, 2345));
    }
    assert_eq!(std::fs::read(&secret).unwrap(), b"x");
    assert_eq!(effective(), before);

    // Other threads are never affected, and the supplementary groups count.
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o640)).unwrap();
    nix::unistd::chown(&secret, None, Some(nix::unistd::Gid::from_raw(3456))).unwrap();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|s| {
        let other = s.spawn(|| {
            barrier.wait();
            assert_eq!(effective(), before);
            barrier.wait();
        });
        let guard = user.enter().unwrap();
        assert_eq!(std::fs::read(&secret).unwrap(), b"x");
        barrier.wait();
        barrier.wait();
        drop(guard);
        other.join().unwrap();
    });
}

#[test]
fn kept_capabilities_stay() {
    if !switches() || effective() & CAP_FSETID == 0 {
        return;
    }
    let guard = Creds::owner(1234, 2345).enter_keeping(CAP_FSETID).unwrap();
    assert_eq!(effective(), CAP_FSETID);
    drop(guard);
}

#[test]
fn root_keeps_its_rights_but_uses_its_group() {
    if !switches() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("made");
    let guard = Creds::owner(0, 777).enter().unwrap();
    std::fs::write(&made, "y").unwrap();
    drop(guard);
    assert_eq!(std::fs::metadata(&made).unwrap().gid(), 777);
}

#[test]
fn umask_is_the_callers() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            for (umask, want) in [(0o027, 0o640), (0, 0o666), (0o777, 0)] {
                let path = dir.path().join(format!("{umask:o}"));
                with_umask(umask, 0o666, |mode| {
                    use std::os::unix::fs::OpenOptionsExt;
                    std::fs::OpenOptions::new()
                        .write(true)
                        .create_new(true)
                        .mode(mode)
                        .open(&path)
                        .unwrap()
                });
                let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
                assert_eq!(mode, want, "umask {umask:o}");
            }
        })
        .join()
        .unwrap();
    });
}

#[test]
fn a_callers_umask_does_not_stay_on_the_thread() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, "").unwrap();
        std::fs::metadata(&path).unwrap().mode() & 0o777
    };
    let before = made("before");
    std::thread::scope(|s| {
        s.spawn(|| {
            with_umask(0o777, 0o666, |_| ());
            assert_eq!(made("after"), before);
            let broke = std::panic::catch_unwind(|| with_umask(0o777, 0, |_| panic!("on purpose")));
            assert!(broke.is_err());
            assert_eq!(made("after a panic"), before);
        })
        .join()
        .unwrap();
    });
}
