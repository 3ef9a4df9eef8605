//! OSTs that fail, hang and fill up, and the answers of the control file to bad commands.

mod common;

use common::{
    Bench, KIB, MIB, errno, nothing_starts, open, pattern, quick, read, same, wait_until, write,
};
use pfs_sim::{Builder, Change, Failure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Makes two files, each on its own OST.
fn two(builder: Builder) -> (Bench, [File; 2]) {
    let bench = Bench::new(1, builder.osts(2).stripe("64K", 1));
    let files = [open(&bench.path("on0")), open(&bench.path("on1"))];
    for file in &files {
        write(file, &pattern(1, 100_000), 0);
    }
    (bench, files)
}

fn fail(bench: &Bench, ost: usize, how: Failure) {
    let change = Change::default().fail(how);
    bench.sim.set(ost, change).expect("set the failure");
}

#[test]
fn errors_are_those_asked_for_and_end() {
    let (bench, files) = two(quick());
    for (how, want, reads) in [
        (Failure::Eio, libc::EIO, false),
        (Failure::Enospc, libc::ENOSPC, true),
        (Failure::Edquot, libc::EDQUOT, true),
        (Failure::Erofs, libc::EROFS, true),
    ] {
        fail(&bench, 0, how);
        let before = read(&files[1], 10, 0);
        assert_eq!(errno(files[0].write_at(b"lost", 0)), want);
        assert_eq!(errno(files[0].set_len(10)), want);
        let mut buf = [0; 10];
        match files[0].read_at(&mut buf, 0) {
            Ok(_) => assert!(reads, "{how:?}"),
            Err(e) => assert_eq!((reads, e.raw_os_error()), (false, Some(want))),
        }
        assert_eq!(files[0].sync_all().is_ok(), reads, "{how:?}");
        write(&files[1], b"fine", 0);
        write(&files[1], &before, 0);
        fail(&bench, 0, Failure::None);
        same(
            "nothing was lost",
            &read(&files[0], 100_000, 0),
            &pattern(1, 100_000),
        );
        write(&files[0], &pattern(1, 10), 0);
    }
    let counters = bench.sim.counters().expect("counters");
    assert!(counters.osts[0].tally.errors >= 4);
    assert_eq!(counters.osts[1].tally.errors, 0);
}

#[test]
fn a_hang_holds_only_its_own() {
    let (bench, files) = two(quick());
    fail(&bench, 0, Failure::Hang);
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| write(&files[0], b"late", 0));
        wait_until("the request is pending", || {
            bench.sim.counters().expect("counters").osts[0].pending == 1
        });
        // These are more writes than the mount has event loops: the hanging request blocks none of
        // them.
        for i in 0..50 {
            write(&files[1], b"on time", i * 10);
        }
        assert_eq!(read(&files[1], 7, 0), b"on time");
        assert!(!hung.is_finished());
        fail(&bench, 0, Failure::None);
        hung.join().expect("it completes");
    });
    assert_eq!(read(&files[0], 4, 0), b"late");
}

/// Unmounting and ending do not wait for a hanging request: it gets EIO.
#[test]
fn a_hang_does_not_stop_the_end() {
    let (bench, files) = two(quick());
    fail(&bench, 0, Failure::Hang);
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| errno(files[0].write_at(b"never", 0)));
        wait_until("the request is pending", || {
            bench.sim.counters().expect("counters").osts[0].pending == 1
        });
        let mount = bench.sim.mounts()[0].clone();
        let begin = Instant::now();
        bench.sim.stop().expect("it ends");
        assert!(begin.elapsed() < Duration::from_secs(8), "killed at last");
        assert_eq!(hung.join().expect("it returns"), libc::EIO);
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!table.contains(mount.to_str().expect("text")));
    });
}

/// An error after the acknowledgement is returned by the next sync, once, and by a close.
#[test]
fn late_errors_are_told() {
    let (bench, mut files) = two(quick().write_behind("1M"));
    // A close of a copied descriptor would get the error and use it up.
    let _alone = nothing_starts();
    for by_close in [false, true] {
        fail(&bench, 0, Failure::Hang);
        write(&files[0], b"acknowledged", 0);
        fail(&bench, 0, Failure::Eio);
        wait_until("it failed", || {
            bench.sim.counters().expect("counters").osts[0].pending == 0
        });
        fail(&bench, 0, Failure::None);
        if by_close {
            let file = std::mem::replace(&mut files[0], open(&bench.path("on0")));
            let closed = nix::unistd::close(file).map_err(Into::into);
            assert_eq!(errno(closed), libc::EIO);
        } else {
            assert_eq!(errno(files[0].sync_all()), libc::EIO);
        }
        files[0].sync_all().expect("it was told");
    }
}

#[test]
fn a_full_ost_is_full() {
    let bench = Bench::new(1, quick().osts(2).stripe("64K", 2).capacity("256K"));
    let file = open(&bench.path("f"));
    write(&file, &[1; 512 << 10], 0);
    assert_eq!(errno(file.write_at(&[1; 4096], 512 * KIB)), libc::ENOSPC);
    write(&file, &[2; 4096], 0);
    let full = nix::sys::statvfs::statvfs(&bench.sim.mounts()[0]).expect("statvfs");
    assert_eq!(full.blocks() * full.fragment_size(), 512 * KIB);
    assert_eq!(full.blocks_free(), 0);

    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, punch, 64 * KIB, 64 * KIB).expect("punch");
    assert_eq!(read(&file, 8, 64 * KIB), [0; 8]);
    // The next file starts on the second OST, which alone has room, so a write over both OSTs ends
    // short.
    let one = open(&bench.path("one"));
    let n = one.write_at(&[3; 128 << 10], 0).expect("a short write");
    assert_eq!(n as u64, 64 * KIB);
    assert_eq!(errno(one.write_at(&[3; 4096], 64 * KIB)), libc::ENOSPC);
    assert_eq!(one.metadata().expect("stat").len(), 64 * KIB);

    let error = errno(fallocate(&one, 0, 0, MIB));
    assert_eq!(error, libc::ENOSPC);
    drop((file, one));
    std::fs::remove_file(bench.path("f")).expect("unlink");
    wait_until("the space is free", || {
        let free = nix::sys::statvfs::statvfs(&bench.sim.mounts()[0]).expect("statvfs");
        free.blocks_free() == 448 / 4
    });
}

fn fallocate(file: &File, mode: i32, offset: u64, len: u64) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: takes a descriptor that lives as long as `file`, and numbers.
    let rc = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) };
    if rc == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// A file without a name keeps its bytes and its space until it is closed.
#[test]
fn unlinked_but_open() {
    let bench = Bench::new(1, quick().osts(1).capacity("1M"));
    let file = open(&bench.path("f"));
    write(&file, &pattern(3, 100_000), 0);
    std::fs::remove_file(bench.path("f")).expect("unlink");
    same("the bytes", &read(&file, 100_000, 0), &pattern(3, 100_000));
    assert!(bench.sim.counters().expect("counters").osts[0].used > 0);
    drop(file);
    wait_until("the space is free", || {
        bench.sim.counters().expect("counters").osts[0].used == 0
    });
}

#[test]
fn bad_commands_are_explained() {
    let bench = Bench::new(1, quick().osts(2));
    let control = bench.sim.own_file("control");
    for (command, word) in [
        (r#"{"ost":2,"bandwidth":"1M"}"#, "no OST 2"),
        (r#"{"ost":0,"bandwidth":"quick"}"#, "quick"),
        (r#"{"ost":0,"speed":"1M"}"#, "speed"),
        ("hello", "hello"),
    ] {
        assert_eq!(errno(std::fs::write(&control, command)), libc::EINVAL);
        let said = std::fs::read_to_string(&control).expect("read");
        assert!(said.contains(word), "{command}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let before = bench.sim.config().expect("config");
    std::fs::write(
        &control,
        "{\"ost\":0,\"queue\":3}\n\n{\"ost\":1,\"queue\":4}\n",
    )
    .expect("two");
    assert_eq!(std::fs::read_to_string(&control).expect("read"), "ok\n");
    let after = bench.sim.config().expect("config");
    let queues = |config: &pfs_sim::Config| -> Vec<usize> {
        config.osts.iter().map(|ost| ost.settings.queue).collect()
    };
    assert_eq!((queues(&before), queues(&after)), (vec![8, 8], vec![3, 4]));
    let refused = bench.sim.set(7, Change::default().queue(1));
    let refused = refused.expect_err("no such OST").to_string();
    assert!(refused.contains("no OST 7"), "{refused}");
}
