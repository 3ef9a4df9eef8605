use super::*;
use crate::ost::Directories;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;

const LONG: Duration = Duration::from_secs(20);

/// Directories of which some hang and some give errors, to be changed while it runs.
#[derive(Debug)]
struct Scripted {
    below: Directories,
    script: Mutex<Script>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Script {
    list_hangs: bool,
    list_fails: bool,
    hang: HashSet<u32>,
    fail: HashMap<u32, i32>,
    creates: HashMap<u32, usize>,
    waiting: usize,
}

impl Scripted {
    fn new(dirs: &[tempfile::TempDir], script: Script) -> Arc<Scripted> {
        let paths: Vec<PathBuf> = dirs.iter().map(|d| d.path().to_owned()).collect();
        Arc::new(Scripted {
            below: Directories::new(paths),
            script: Mutex::new(script),
            changed: Condvar::new(),
        })
    }

    fn set(&self, how: impl FnOnce(&mut Script)) {
        how(&mut self.script.lock());
        self.changed.notify_all();
    }

    fn creates(&self, ost: u32) -> usize {
        let script = self.script.lock();
        script.creates.get(&ost).copied().unwrap_or(0)
    }

    fn wait_while(&self, so: impl Fn(&Script) -> bool) {
        let mut script = self.script.lock();
        script.waiting += 1;
        self.changed.wait_while(&mut script, |s| so(s));
        script.waiting -= 1;
        self.changed.notify_all();
    }
}

impl Provider for Scripted {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn osts(&self) -> Result<Vec<Ost>, OstError> {
        self.wait_while(|s| s.list_hangs);
        if self.script.lock().list_fails {
            return Err(OstError {
                ost: "the master".into(),
                what: "asking for the OSTs",
                source: io::Error::from_raw_os_error(libc::ECONNREFUSED),
            });
        }
        self.below.osts()
    }

    fn create(&self, ost: &Ost, name: &str, direct: bool) -> Result<File, OstError> {
        *self.script.lock().creates.entry(ost.index).or_default() += 1;
        self.wait_while(|s| s.hang.contains(&ost.index));
        if let Some(errno) = self.script.lock().fail.get(&ost.index) {
            let source = io::Error::from_raw_os_error(*errno);
            return Err(OstError::new(ost, "making a file", source));
        }
        self.below.create(ost, name, direct)
    }

    fn open(&self, ost: &Ost, name: &str) -> Result<File, OstError> {
        self.below.open(ost, name)
    }

    fn modified(&self, ost: &Ost, name: &str) -> Result<std::time::SystemTime, OstError> {
        self.below.modified(ost, name)
    }

    fn list(&self, ost: &Ost) -> Result<Vec<String>, OstError> {
        self.below.list(ost)
    }

    fn remove(&self, ost: &Ost, name: &str) -> Result<(), OstError> {
        self.below.remove(ost, name)
    }
}

fn dirs(n: usize) -> Vec<tempfile::TempDir> {
    (0..n).map(|_| tempfile::tempdir().unwrap()).collect()
}

/// Any difference in speed between directories of one disk is accepted.
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

fn ready(fleet: &Fleet) -> bool {
    fleet.wait_ready(Instant::now() + LONG)
}

fn indices(osts: &[Ost]) -> Vec<u32> {
    let mut indices: Vec<u32> = osts.iter().map(|o| o.index).collect();
    indices.sort();
    indices
}

fn state(fleet: &Fleet, ost: usize) -> OstState {
    fleet.status().osts[ost].state
}

fn leftovers(dir: &Path) -> usize {
    std::fs::read_dir(dir.join(".forebay/subfiles")).map_or(0, |entries| entries.count())
}

#[test]
fn real_directories_are_listed_probed_and_dealt_to() {
    let dirs = dirs(3);
    let paths = dirs.iter().map(|d| d.path().to_owned()).collect();
    let fleet = Fleet::start(Arc::new(Directories::new(paths)), settings());
    assert_eq!(indices(&fleet.chosen()), [0, 1, 2]);
    assert!(ready(&fleet));
    assert_eq!(indices(&fleet.chosen()), [0, 1, 2]);
    let status = fleet.status();
    assert_eq!(status.provider, "directories");
    assert!(!status.probing && status.error.is_none() && status.probe_seconds > 0.0);
    assert!(status.probed_seconds_ago.is_some());
    for (ost, dir) in status.osts.iter().zip(&dirs) {
        assert_eq!(ost.state, OstState::Chosen);
        assert_eq!(ost.name, dir.path().display().to_string());
        assert!(ost.bandwidth.is_some_and(|b| b > 0.0));
        assert_eq!(leftovers(dir.path()), 0);
    }
    let dealt = fleet.deal(1 << 20, &[0, 2]).unwrap();
    assert_eq!(dealt.ost.index, 1);
    let io = fleet.begin(1, 1 << 20);
    assert_eq!(fleet.status().osts[1].in_flight, 1 << 20);
    io.done();
    let after = &fleet.status().osts[1];
    assert_eq!((after.written, after.in_flight), (1 << 20, 0));
    assert_eq!(fleet.provider().kind(), "directories");
    assert_eq!(fleet.settings().probe.size, 2 << 20);
}

#[test]
fn a_missing_directory_is_dropped_with_its_sentence() {
    let dirs = dirs(1);
    let paths = vec![dirs[0].path().to_owned(), dirs[0].path().join("missing")];
    let fleet = Fleet::start(Arc::new(Directories::new(paths)), settings());
    assert!(ready(&fleet));
    assert_eq!(indices(&fleet.chosen()), [0]);
    let said = fleet.status().osts[1].error.clone().unwrap();
    assert!(said.contains("is the target mounted?"), "{said}");
    // It is mounted, and comes back by itself.
    std::fs::create_dir(dirs[0].path().join("missing")).unwrap();
    eventually("it is used again", || {
        fleet.tick(Instant::now());
        fleet.is_usable(1)
    });
}

#[test]
fn data_is_dealt_while_the_first_probe_hangs() {
    let dirs = dirs(3);
    let mut settings = settings();
    settings.probe.deadline = LONG;
    let provider = Scripted::new(
        &dirs,
        Script {
            hang: [1].into(),
            ..Script::default()
        },
    );
    let fleet = Fleet::start(provider.clone(), settings);
    assert!(!fleet.wait_ready(Instant::now()));
    assert!(fleet.status().probing);
    let dealt: Vec<u32> = (0..6)
        .map(|_| fleet.deal(1 << 20, &[]).unwrap().ost.index)
        .collect();
    assert_eq!(dealt, [0, 1, 2, 0, 1, 2]);
    provider.set(|s| s.hang.clear());
    assert!(ready(&fleet));
}

#[test]
fn one_that_hangs_is_dropped_and_returns_when_it_answers() {
    let dirs = dirs(2);
    let mut settings = settings();
    settings.probe.deadline = Duration::from_secs(2);
    let provider = Scripted::new(
        &dirs,
        Script {
            hang: [1].into(),
            ..Script::default()
        },
    );
    let fleet = Fleet::start(provider.clone(), settings);
    assert!(ready(&fleet));
    assert_eq!(state(&fleet, 1), OstState::Stalled);
    assert_eq!(indices(&fleet.chosen()), [0]);
    // However often it is due, nobody is sent after the one that hangs there.
    let later = Instant::now() + Duration::from_secs(3600);
    for hour in 0..10 {
        fleet.tick(later + Duration::from_secs(3600) * hour);
    }
    assert_eq!(provider.creates(1), 1);
    assert_eq!(fleet.status().osts[1].retry_in, Some(16.0 * 0.05));
    provider.set(|s| s.hang.clear());
    eventually("it is used again", || {
        fleet.tick(Instant::now() + Duration::from_secs(3600 * 24));
        fleet.is_usable(1)
    });
    assert_eq!(state(&fleet, 1), OstState::Chosen);
}

/// Neither does the fleet live on for a thread that hangs, nor does ending it wait for one.
#[test]
fn a_probe_that_hangs_does_not_keep_the_fleet() {
    let dirs = dirs(1);
    let mut settings = settings();
    settings.probe.deadline = LONG * 10;
    let script = Script {
        hang: [0].into(),
        ..Script::default()
    };
    let provider = Scripted::new(&dirs, script);
    let fleet = Fleet::start(provider.clone(), settings);
    eventually("the probe is there", || provider.script.lock().waiting == 1);
    let io = fleet.begin(0, 1);
    let gone = Arc::downgrade(&fleet);
    drop(fleet);
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
    let provider = Scripted::new(&dirs, script);
    let began = Instant::now();
    let fleet = Fleet::start(provider.clone(), settings());
    assert!(began.elapsed() < LONG);
    assert!(fleet.status().probing);
    assert!(fleet.deal(1, &[]).is_none());
    provider.set(|s| {
        s.list_hangs = false;
        s.list_fails = true;
    });
    assert!(ready(&fleet));
    let said = fleet.status().error.unwrap();
    assert!(said.contains("the master: asking for the OSTs"), "{said}");
    provider.set(|s| s.list_fails = false);
    eventually("the list is there", || {
        fleet.tick(Instant::now());
        fleet.deal(1, &[]).is_some()
    });
    eventually("the probe is over", || {
        fleet.status().osts[0].bandwidth.is_some()
    });
    assert_eq!(fleet.status().error, None);
}

#[test]
fn an_io_in_flight_for_too_long_drops_its_ost_for_the_next_unit() {
    let dirs = dirs(2);
    let fleet = Fleet::start(Scripted::new(&dirs, Script::default()), settings());
    assert!(ready(&fleet));
    let stuck = fleet.begin(0, 1 << 20);
    fleet.tick(Instant::now() + Duration::from_millis(101));
    assert_eq!(state(&fleet, 0), OstState::Stalled);
    assert!(!fleet.is_usable(0));
    for _ in 0..4 {
        assert_eq!(fleet.deal(1 << 20, &[]).unwrap().ost.index, 1);
    }
    stuck.done();
    eventually("it is used again", || {
        fleet.tick(Instant::now());
        fleet.is_usable(0)
    });
}

#[test]
fn an_error_drops_and_a_quota_does_not() {
    let dirs = dirs(2);
    let provider = Scripted::new(&dirs, Script::default());
    let fleet = Fleet::start(provider.clone(), settings());
    assert!(ready(&fleet));
    let error = |errno: i32| {
        let dealt = fleet.deal(1, &[1]).unwrap();
        OstError::new(&dealt.ost, "writing", io::Error::from_raw_os_error(errno))
    };
    fleet.begin(0, 1 << 20).failed(&error(libc::EDQUOT));
    assert!(fleet.is_usable(0));
    drop(fleet.begin(0, 1 << 20));
    assert!(fleet.is_usable(0));
    let full = error(libc::ENOSPC);
    provider.set(|s| {
        s.fail.insert(0, libc::ENOSPC);
    });
    fleet.begin(0, 1 << 20).failed(&full);
    assert_eq!(state(&fleet, 0), OstState::Full);
    assert_eq!(fleet.status().osts[0].error, Some(full.to_string()));
    let before = provider.creates(0);
    eventually("it is tried and still full", || {
        fleet.tick(Instant::now());
        provider.creates(0) > before + 1
    });
    assert_eq!(state(&fleet, 0), OstState::Full);
    provider.set(|s| s.fail.clear());
    eventually("it is used again", || {
        fleet.tick(Instant::now());
        fleet.is_usable(0)
    });
}

#[test]
fn all_are_probed_again_when_the_probe_is_old_but_not_the_dropped() {
    let dirs = dirs(2);
    let provider = Scripted::new(&dirs, Script::default());
    let mut settings = settings();
    settings.probe_age = Duration::from_secs(1000);
    settings.retry_after = Duration::from_secs(5000);
    let fleet = Fleet::start(provider.clone(), settings);
    assert!(ready(&fleet));
    let io = fleet.begin(1, 1);
    io.failed_with(Some(libc::EIO), "broken".into());
    fleet.tick(Instant::now() + Duration::from_secs(999));
    assert_eq!((provider.creates(0), provider.creates(1)), (1, 1));
    fleet.tick(Instant::now() + Duration::from_secs(1001));
    eventually("the second probe", || !fleet.status().probing);
    assert_eq!((provider.creates(0), provider.creates(1)), (2, 1));
    assert_eq!(fleet.status().osts[1].error.as_deref(), Some("broken"));
}

#[test]
fn without_probing_nothing_is_written_but_a_try_of_one_block() {
    let dirs = dirs(2);
    let provider = Scripted::new(&dirs, Script::default());
    let without = OstSettings {
        probing: false,
        ..settings()
    };
    let fleet = Fleet::start(provider.clone(), without);
    assert!(ready(&fleet));
    assert_eq!((provider.creates(0), provider.creates(1)), (0, 0));
    assert_eq!(indices(&fleet.chosen()), [0, 1]);
    assert_eq!(fleet.status().probed_seconds_ago, None);
    let io = fleet.begin(0, 1);
    io.failed_with(Some(libc::EIO), "broken".into());
    assert_eq!(indices(&fleet.chosen()), [1]);
    eventually("it is used again", || {
        fleet.tick(Instant::now());
        fleet.is_usable(0)
    });
    assert_eq!((provider.creates(0), provider.creates(1)), (1, 0));
    assert_eq!(fleet.status().osts[0].bandwidth, None);
}

/// Eight threads that write with and without errors while it is looked at and probed.
#[test]
fn used_by_many_threads_at_once() {
    let dirs = dirs(3);
    let provider = Scripted::new(&dirs, Script::default());
    let mut settings = settings();
    settings.probe_age = Duration::from_millis(20);
    let fleet = Fleet::start(provider, settings);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let fleet = &fleet;
            scope.spawn(move || {
                for n in 0..500 {
                    let Some(dealt) = fleet.deal(1 << 20, &[]) else {
                        fleet.tick(Instant::now());
                        continue;
                    };
                    let io = fleet.begin(dealt.ost.index, 1 << 20);
                    match (thread + n) % 100 {
                        0 => io.failed_with(Some(libc::EIO), "broken".into()),
                        1 => drop(io),
                        2 => {
                            fleet.tick(Instant::now());
                            io.done();
                        }
                        _ => io.done(),
                    }
                }
            });
        }
    });
    eventually("all are back", || {
        fleet.tick(Instant::now());
        fleet.status().osts.iter().all(|o| !o.state.is_dropped())
    });
    let status = fleet.status();
    assert!(status.osts.iter().all(|o| o.in_flight == 0));
    assert!(status.osts.iter().map(|o| o.written).sum::<u64>() > 0);
}

/// No OST is given more than it does in a moment, and two units at least. A unit that waits goes to
/// whoever is ready first.
#[test]
fn an_ost_with_enough_to_do_is_offered_nothing_more() {
    let dirs = dirs(2);
    let fleet = Fleet::start(Scripted::new(&dirs, Script::default()), settings());
    assert!(ready(&fleet));
    // Far more than a directory takes in a moment.
    const HUGE: u64 = 1 << 50;
    let mut dealt = Vec::new();
    while let Offer::Dealt(one) = fleet.offer(HUGE) {
        dealt.push(one);
    }
    let of = |ost| dealt.iter().filter(|d| d.ost.index == ost).count();
    assert_eq!((of(0), of(1)), (2, 2));
    assert!(matches!(fleet.offer(HUGE), Offer::Busy));
    // An unwilling one is not better than waiting, unless somebody has to take it at once.
    assert!(fleet.deal(HUGE, &[]).is_some());

    let at = dealt.iter().position(|d| d.ost.index == 1).unwrap();
    let mut settled = std::pin::pin!(fleet.settled());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(settled.as_mut().poll(&mut context).is_pending());
    drop(dealt.swap_remove(at));
    assert!(settled.poll(&mut context).is_ready());
    let Offer::Dealt(next) = fleet.offer(HUGE) else {
        panic!("one is settled, so there is room");
    };
    assert_eq!(next.ost.index, 1);
    let nobody = Fleet::start(Scripted::new(&[], Script::default()), settings());
    assert!(matches!(nobody.offer(1), Offer::Nobody));
}
