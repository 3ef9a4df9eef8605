//! Kills the daemon with `kill -9` at random moments under load, mounts again and checks every byte.
//!
//! Checks S5, S5.1, S5.4, S6, S6.1, S6.3, S9.2 and S9.6. There are 20 kills per policy unless `FOREBAY_CYCLES` says
//! otherwise. `FOREBAY_SEED` replays the operations, but not the moment of the kill, which depends on the machine.

use forebay_tests::kill::judge::Judge;
use forebay_tests::rng::{self, Rng};
use forebay_tests::test_mount::{Drain, TestMount};
use forebay_tests::{prereq, sys};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const WORKERS: u64 = 3;

/// S5.1, S6.1 and S6.3: the drain is cut off in the middle as well.
#[test]
fn kill_while_draining_loses_nothing() {
    run(Drain::Immediate, 0);
}

/// S5.1, S6.1 and S6.3 on the way through subfiles; S9.6: what a killed daemon left on the storage targets is
/// removed.
#[test]
fn kill_while_subfiling_loses_nothing() {
    run(Drain::Immediate, 3);
}

/// S5.1 and S5.4: nothing is drained, so the test knows what status must say.
#[test]
fn kill_with_everything_in_the_log_loses_nothing() {
    run(Drain::Never, 0);
}

fn run(drain: Drain, osts: usize) {
    let seed = rng::seed(&format!("kill, drain {}, {osts} OSTs", drain.key()));
    let cycles = rng::count("FOREBAY_CYCLES", 20);
    let mut mount = TestMount::with_limit(drain, Duration::from_secs(120 + cycles * 20));
    if osts > 0 {
        mount.with_osts(osts);
    }
    let mut rng = Rng::derive(seed, 1);
    let mut judge = Judge::new(seed);

    for cycle in 0..cycles {
        mount.start();
        load_until_kill(&mut mount, &mut judge, &mut rng, seed, cycle);
        // Now and then the daemon is killed again while it recovers.
        if rng.one_in(4) {
            mount.spawn();
            std::thread::sleep(Duration::from_micros(rng.below(80_000)));
            mount.kill();
        }
        mount.start();
        let seen = judge.inspect(mount.mnt());
        seen.unwrap_or_else(|e| panic!("after kill {cycle} (seed {seed}): {e}"));
        check_status(&mount, &judge, drain, cycle);
        mount.kill();
    }

    mount.start();
    judge.inspect(mount.mnt()).expect("after the last kill");
    mount.drain();
    let status = mount.status();
    assert_eq!(status.undrained(), 0, "after the drain: {:#}", status.0);
    judge.verify("mount", mount.mnt());
    mount.umount();
    judge.verify("backing", mount.backing());
    assert_eq!(mount.subfiles(), Vec::<PathBuf>::new(), "subfiles are left");
    println!(
        "kill, drain {}, {osts} OSTs: {cycles} kills, {} acknowledged operations, none lost",
        drain.key(),
        judge.acknowledged
    );
    mount.finish();
}

fn load_until_kill(mount: &mut TestMount, judge: &mut Judge, rng: &mut Rng, seed: u64, cycle: u64) {
    let mut writers: Vec<Writer> = (0..WORKERS)
        .map(|worker| Writer::start(mount, judge, worker, seed, cycle))
        .collect();
    // The kill comes after some acknowledged operations of one worker and a little later, so that it falls into
    // anything the daemon may be doing.
    let some = rng.within(5..120);
    writers[rng.below(WORKERS) as usize].wait_for(some);
    std::thread::sleep(Duration::from_micros(rng.below(30_000)));
    mount.kill();
    for writer in writers {
        writer.collect(judge);
    }
    assert!(!sys::is_mounted(mount.mnt()), "the dead mount is gone");
}

/// S5.4: checks pid, files and bytes, directly after recovery.
fn check_status(mount: &TestMount, judge: &Judge, drain: Drain, cycle: u64) {
    let status = mount.status();
    let most = judge.most_undrained();
    let undrained = status.undrained();
    assert_eq!(status.pid(), u64::from(mount.pid()), "the daemon's pid");
    assert!(
        undrained <= most,
        "kill {cycle}: status says {undrained} undrained, at most {most} were written: {:#}",
        status.0
    );
    let listed = status.files();
    for (name, _) in &listed {
        assert!(
            judge.exists(name),
            "kill {cycle}: status lists {name}, which is no file"
        );
    }
    if drain == Drain::Never {
        for (name, least) in judge.dirty_files() {
            let said = listed.iter().find(|(listed, _)| listed == name);
            assert!(
                said.is_some_and(|(_, said)| least <= *said),
                "kill {cycle}: at least {least} bytes of {name} were acknowledged, but {:#}",
                status.0
            );
        }
    }
}

struct Writer {
    worker: u64,
    notes: PathBuf,
    child: Child,
}

impl Writer {
    fn start(mount: &TestMount, judge: &Judge, worker: u64, seed: u64, cycle: u64) -> Self {
        let notes = mount.root().join(format!("notes-{cycle}-{worker}"));
        let child = Command::new(prereq::helper("kill-worker"))
            .arg(mount.mnt())
            .arg(&notes)
            .args([worker, WORKERS, seed, judge.first(worker)].map(|n| n.to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a writer");
        Self {
            worker,
            notes,
            child,
        }
    }

    /// Waits for this many acknowledged operations.
    fn wait_for(&mut self, operations: u64) {
        let mut dots = vec![0; operations as usize];
        let out = self.child.stdout.as_mut().expect("a pipe was asked for");
        out.read_exact(&mut dots)
            .expect("the writer goes on until the kill");
    }

    fn collect(mut self, judge: &mut Judge) {
        // Closing our end of the pipe ends a writer that waits for us to read its dots.
        drop(self.child.stdout.take());
        let status = self.child.wait().expect("wait for a writer");
        assert!(
            status.success(),
            "writer {} met an error other than the daemon's death: {status}",
            self.worker
        );
        let notes = std::fs::read_to_string(&self.notes).expect("read the notes");
        judge.hear(self.worker, &notes);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Err(e) = self.child.kill().and_then(|()| self.child.wait().map(drop))
        {
            eprintln!("end writer {}: {e}", self.worker);
        }
    }
}
