use super::*;
use crate::ost::Directories;
use crate::scripted_osts::{Script, Scripted};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;

const LONG: Duration = Duration::from_secs(20);

fn paths(dirs: &[tempfile::TempDir]) -> Vec<PathBuf> {
    dirs.iter().map(|d| d.path().to_owned()).collect()
}

fn dirs(n: usize) -> Vec<tempfile::TempDir> {
    (0..n).map(|_| tempfile::tempdir().unwrap()).collect()
}

/// With this delta any difference in speed between directories of one disk is accepted.
fn settings() -> OstSettings {
    let mut settings = OstSettings {
        delta: 1.0,
        deadline: Duration::from_millis(100),
        retry_after: Duration::from_millis(50),
        ..OstSettings::default()
    };
    settings.probe.size = 2 << 20;
    settings.probe.deadline = Duration::from_secs(5);
    settings
}

fn eventually(what: &str, so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        sleep(Duration::from_millis(5));
    }
}

fn ready(targets: &Targets) -> bool {
    targets.wait_ready(Instant::now() + LONG)
}

fn indices(osts: &[Ost]) -> Vec<u32> {
    let mut indices: Vec<u32> = osts.iter().map(|o| o.index).collect();
    indices.sort();
    indices
}

fn state(targets: &Targets, ost: usize) -> OstState {
    targets.status().osts[ost].state
}

fn leftovers(dir: &Path) -> usize {
    std::fs::read_dir(dir.join(".forebay/subfiles")).map_or(0, |entries| entries.count())
}

#[test]
fn real_directories_are_listed_probed_and_dealt_to() {
    let dirs = dirs(3);
    let paths = dirs.iter().map(|d| d.path().to_owned()).collect();
    let targets = Targets::start(Arc::new(Directories::new(paths)), settings());
    assert_eq!(indices(&targets.chosen()), [0, 1, 2]);
    assert!(ready(&targets));
    assert_eq!(indices(&targets.chosen()), [0, 1, 2]);
    let status = targets.status();
    assert_eq!(status.provider, "directories");
    assert!(!status.probing && status.error.is_none() && status.probe_seconds > 0.0);
    assert!(status.probed_seconds_ago.is_some());
    for (ost, dir) in status.osts.iter().zip(&dirs) {
        assert_eq!(ost.state, OstState::Chosen);
        assert_eq!(ost.name, dir.path().display().to_string());
        assert!(ost.bandwidth.is_some_and(|b| b > 0.0));
        assert_eq!(leftovers(dir.path()), 0);
    }
    let picked = targets.pick(1 << 20, &[0, 2]).unwrap();
    assert_eq!(picked.ost.index, 1);
    let io = targets.begin(1, 1 << 20);
    assert_eq!(targets.status().osts[1].in_flight, 1 << 20);
    io.done();
    let after = &targets.status().osts[1];
    assert_eq!((after.written, after.in_flight), (1 << 20, 0));
    assert_eq!(targets.provider().kind(), "directories");
    assert_eq!(targets.settings().probe.size, 2 << 20);
}

#[test]
fn a_missing_directory_is_dropped_with_its_sentence() {
    let dirs = dirs(1);
    let paths = vec![dirs[0].path().to_owned(), dirs[0].path().join("missing")];
    let targets = Targets::start(Arc::new(Directories::new(paths)), settings());
    assert!(ready(&targets));
    assert_eq!(indices(&targets.chosen()), [0]);
    let said = targets.status().osts[1].error.clone().unwrap();
    assert!(said.contains("is the target mounted?"), "{said}");
    // The target is mounted, and comes back by itself.
    std::fs::create_dir(dirs[0].path().join("missing")).unwrap();
    eventually("it is used again", || {
        targets.tick(Instant::now());
        targets.is_usable(1)
    });
}

#[test]
fn data_is_dealt_while_the_first_probe_hangs() {
    let dirs = dirs(3);
    let mut settings = settings();
    settings.probe.deadline = LONG;
    let provider = Scripted::new(
        paths(&dirs),
        Script {
            hang: [1].into(),
            ..Script::default()
        },
    );
    let targets = Targets::start(provider.clone(), settings);
    assert!(!targets.wait_ready(Instant::now()));
    assert!(targets.status().probing);
    let picked: Vec<u32> = (0..6)
        .map(|_| targets.pick(1 << 20, &[]).unwrap().ost.index)
        .collect();
    assert_eq!(picked, [0, 1, 2, 0, 1, 2]);
    provider.set(|s| s.hang.clear());
    assert!(ready(&targets));
}

#[test]
fn one_that_hangs_is_dropped_and_returns_when_it_answers() {
    let dirs = dirs(2);
    let mut settings = settings();
    settings.probe.deadline = Duration::from_secs(2);
    let provider = Scripted::new(
        paths(&dirs),
        Script {
            hang: [1].into(),
            ..Script::default()
        },
    );
    let targets = Targets::start(provider.clone(), settings);
    assert!(ready(&targets));
    assert_eq!(state(&targets, 1), OstState::Stalled);
    assert_eq!(indices(&targets.chosen()), [0]);
    // However often the OST is due, no further probe is sent to it while one hangs there.
    let later = Instant::now() + Duration::from_secs(3600);
    for hour in 0..10 {
        targets.tick(later + Duration::from_secs(3600) * hour);
    }
    assert_eq!(provider.creates(1), 1);
    assert_eq!(targets.status().osts[1].retry_in, Some(16.0 * 0.05));
    provider.set(|s| s.hang.clear());
    eventually("it is used again", || {
        targets.tick(Instant::now() + Duration::from_secs(3600 * 24));
        targets.is_usable(1)
    });
    assert_eq!(state(&targets, 1), OstState::Chosen);
}

/// A thread that hangs does not keep the [`Targets`] alive, and dropping it does not wait for the thread.
#[test]
fn a_probe_that_hangs_does_not_keep_the_targets() {
    let dirs = dirs(1);
    let mut settings = settings();
    settings.probe.deadline = LONG * 10;
    let script = Script {
        hang: [0].into(),
        ..Script::default()
    };
    let provider = Scripted::new(paths(&dirs), script);
    let targets = Targets::start(provider.clone(), settings);
    eventually("the probe is there", || provider.waiting() == 1);
    let io = targets.begin(0, 1);
    let gone = Arc::downgrade(&targets);
    drop(targets);
    assert!(gone.upgrade().is_none());
    io.done();
    provider.set(|s| s.hang.clear());
    eventually("the thread ends", || Arc::strong_count(&provider) == 1);
    assert_eq!(leftovers(dirs[0].path()), 0);
}

#[test]
fn a_list_that_hangs_or_fails_is_told_and_asked_for_again() {
    let dirs = dirs(1);
    let script = Script {
        list_hangs: true,
        ..Script::default()
    };
    let provider = Scripted::new(paths(&dirs), script);
    let began = Instant::now();
    let targets = Targets::start(provider.clone(), settings());
    assert!(began.elapsed() < LONG);
    assert!(targets.status().probing);
    assert!(targets.pick(1, &[]).is_none());
    provider.set(|s| {
        s.list_hangs = false;
        s.list_fails = true;
    });
    assert!(ready(&targets));
    let said = targets.status().error.unwrap();
    assert!(said.contains("the master: asking for the OSTs"), "{said}");
    provider.set(|s| s.list_fails = false);
    eventually("the list is there", || {
        targets.tick(Instant::now());
        targets.pick(1, &[]).is_some()
    });
    eventually("the probe is over", || {
        targets.status().osts[0].bandwidth.is_some()
    });
    assert_eq!(targets.status().error, None);
}

#[test]
fn an_io_in_flight_for_too_long_drops_its_ost_for_the_next_unit() {
    let dirs = dirs(2);
    let targets = Targets::start(Scripted::new(paths(&dirs), Script::default()), settings());
    assert!(ready(&targets));
    let stuck = targets.begin(0, 1 << 20);
    targets.tick(Instant::now() + Duration::from_millis(101));
    assert_eq!(state(&targets, 0), OstState::Stalled);
    assert!(!targets.is_usable(0));
    for _ in 0..4 {
        assert_eq!(targets.pick(1 << 20, &[]).unwrap().ost.index, 1);
    }
    stuck.done();
    eventually("it is used again", || {
        targets.tick(Instant::now());
        targets.is_usable(0)
    });
}

#[test]
fn an_error_drops_and_a_quota_does_not() {
    let dirs = dirs(2);
    let provider = Scripted::new(paths(&dirs), Script::default());
    let targets = Targets::start(provider.clone(), settings());
    assert!(ready(&targets));
    let error = |errno: i32| {
        let picked = targets.pick(1, &[1]).unwrap();
        OstError::new(&picked.ost, "writing", io::Error::from_raw_os_error(errno))
    };
    targets.begin(0, 1 << 20).failed(&error(libc::EDQUOT));
    assert!(targets.is_usable(0));
    drop(targets.begin(0, 1 << 20));
    assert!(targets.is_usable(0));
    let full = error(libc::ENOSPC);
    provider.set(|s| {
        s.fail.insert(0, libc::ENOSPC);
    });
    targets.begin(0, 1 << 20).failed(&full);
    assert_eq!(state(&targets, 0), OstState::Full);
    assert_eq!(targets.status().osts[0].error, Some(full.to_string()));
    let before = provider.creates(0);
    eventually("it is tried and still full", || {
        targets.tick(Instant::now());
        provider.creates(0) > before + 1
    });
    assert_eq!(state(&targets, 0), OstState::Full);
    provider.set(|s| s.fail.clear());
    eventually("it is used again", || {
        targets.tick(Instant::now());
        targets.is_usable(0)
    });
}

#[test]
fn all_are_probed_again_when_the_probe_is_old_but_not_the_dropped() {
    let dirs = dirs(2);
    let provider = Scripted::new(paths(&dirs), Script::default());
    let mut settings = settings();
    settings.probe_age = Duration::from_secs(1000);
    settings.retry_after = Duration::from_secs(5000);
    let targets = Targets::start(provider.clone(), settings);
    assert!(ready(&targets));
    let io = targets.begin(1, 1);
    io.failed_with(Some(libc::EIO), "broken".into());
    targets.tick(Instant::now() + Duration::from_secs(999));
    assert_eq!((provider.creates(0), provider.creates(1)), (1, 1));
    targets.tick(Instant::now() + Duration::from_secs(1001));
    eventually("the second probe", || !targets.status().probing);
    assert_eq!((provider.creates(0), provider.creates(1)), (2, 1));
    assert_eq!(targets.status().osts[1].error.as_deref(), Some("broken"));
}

#[test]
fn without_probing_nothing_is_written_but_a_try_of_one_block() {
    let dirs = dirs(2);
    let provider = Scripted::new(paths(&dirs), Script::default());
    let without = OstSettings {
        probing: false,
        ..settings()
    };
    let targets = Targets::start(provider.clone(), without);
    assert!(ready(&targets));
    assert_eq!((provider.creates(0), provider.creates(1)), (0, 0));
    assert_eq!(indices(&targets.chosen()), [0, 1]);
    assert_eq!(targets.status().probed_seconds_ago, None);
    let io = targets.begin(0, 1);
    io.failed_with(Some(libc::EIO), "broken".into());
    assert_eq!(indices(&targets.chosen()), [1]);
    eventually("it is used again", || {
        targets.tick(Instant::now());
        targets.is_usable(0)
    });
    assert_eq!((provider.creates(0), provider.creates(1)), (1, 0));
    assert_eq!(targets.status().osts[0].bandwidth, None);
}

/// Eight threads write with and without errors while the status is read and its OSTs are
/// probed.
#[test]
fn used_by_many_threads_at_once() {
    let dirs = dirs(3);
    let provider = Scripted::new(paths(&dirs), Script::default());
    let mut settings = settings();
    settings.probe_age = Duration::from_millis(20);
    let targets = Targets::start(provider, settings);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let targets = &targets;
            scope.spawn(move || {
                for n in 0..500 {
                    let Some(picked) = targets.pick(1 << 20, &[]) else {
                        targets.tick(Instant::now());
                        continue;
                    };
                    let io = targets.begin(picked.ost.index, 1 << 20);
                    match (thread + n) % 100 {
                        0 => io.failed_with(Some(libc::EIO), "broken".into()),
                        1 => drop(io),
                        2 => {
                            targets.tick(Instant::now());
                            io.done();
                        }
                        _ => io.done(),
                    }
                }
            });
        }
    });
    eventually("all are back", || {
        targets.tick(Instant::now());
        targets.status().osts.iter().all(|o| !o.state.is_dropped())
    });
    let status = targets.status();
    assert!(status.osts.iter().all(|o| o.in_flight == 0));
    assert!(status.osts.iter().map(|o| o.written).sum::<u64>() > 0);
}

/// No OST is given more than it can do in a moment, but at least two units. A unit that waits goes
/// to the OST that is ready first.
#[test]
fn an_ost_with_enough_to_do_is_offered_nothing_more() {
    let dirs = dirs(2);
    let targets = Targets::start(Scripted::new(paths(&dirs), Script::default()), settings());
    assert!(ready(&targets));
    // Far more than a directory can take in a moment.
    const HUGE: u64 = 1 << 50;
    let mut picked = Vec::new();
    while let Offer::Picked(one) = targets.offer(HUGE) {
        picked.push(one);
    }
    let of = |ost| picked.iter().filter(|d| d.ost.index == ost).count();
    assert_eq!((of(0), of(1)), (2, 2));
    assert!(matches!(targets.offer(HUGE), Offer::Busy));
    // A busy OST is not better than waiting, unless the caller must place the unit at once.
    assert!(targets.pick(HUGE, &[]).is_some());

    let at = picked.iter().position(|d| d.ost.index == 1).unwrap();
    let mut settled = std::pin::pin!(targets.settled());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(settled.as_mut().poll(&mut context).is_pending());
    drop(picked.swap_remove(at));
    assert!(settled.poll(&mut context).is_ready());
    let Offer::Picked(next) = targets.offer(HUGE) else {
        panic!("one is settled, so there is room");
    };
    assert_eq!(next.ost.index, 1);
    let empty = Targets::start(Scripted::new(Vec::new(), Script::default()), settings());
    assert!(matches!(empty.offer(1), Offer::NoTarget));
}

/// `ost-deadline` and `ost-retry` also hold if no targets are named.
#[test]
fn the_backing_alone_has_the_settings_of_targets() {
    let dir = tempfile::tempdir().unwrap();
    let given = OstSettings {
        deadline: Duration::from_secs(71),
        retry_after: Duration::from_secs(73),
        ..OstSettings::default()
    };
    let targets = Targets::backing_alone(dir.path(), &given);
    let used = targets.settings();
    assert_eq!(used.deadline, given.deadline);
    assert_eq!(used.retry_after, given.retry_after);
    assert!(!used.probing && targets.chosen().len() == 1);
}
