//! The drain through subfiles, on OSTs that are directories, with OSTs that fail and hang.
//!
//! Promises S1 (a read returns the last completed write, whatever tier holds it), S4 (after drain
//! the canonical file is what the overlay showed), S6 (subfiles go only after the canonical file
//! is synced, log space only after the data is safe elsewhere), S9 (storage targets).

use flusher::{Policy, Selection, Subfiles, Verdict};
use layout_index::Publisher;
use layout_index::{ByteRange, Intro, Store, Timestamp};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use subfile_rig::*;

mod scripted_osts;
mod subfile_rig;

/// S9.1, S9.3, S9.5: while the canonical file cannot be reached, the data leaves the log all the
/// same, reads as before, belongs to its owner, and no other file waits.
#[test]
fn data_is_in_subfiles_while_the_canonical_file_hangs() {
    let bench = Bench::new(3);
    let file = bench.file(ID);
    let model = strided(&file);
    bench.close_canonicals(true);
    let (flusher, _) = bench.flusher(Subfiles::Always);
    let drain = flusher.drain(Selection::All);
    eventually("the log to be empty", || bench.store.totals().in_log == 0);
    assert!(bench.store.totals().undrained > 0);
    let there = bench.subfiles();
    let mut osts: Vec<usize> = there.iter().map(|(n, ..)| *n).collect();
    osts.sort();
    assert_eq!(osts, [0, 1, 2], "one subfile on each OST");
    if nix::unistd::geteuid().is_root() {
        assert!(there.iter().all(|(.., uid)| *uid == 1234), "{there:?}");
    }
    assert!(read(&file, model.len()) == model, "read from subfiles");

    eventually("the hang to be noticed", || {
        let errors = flusher.progress().errors;
        errors
            .iter()
            .any(|e| e.error.message.contains("has not answered"))
    });
    assert!(
        file.error().is_none(),
        "a hang is not an error of the job's"
    );
    // A caller goes on waiting: the file system may be slow and not dead.
    let soon_enough = Some(Instant::now() + Duration::from_secs(4));
    let waited = flusher.drain(Selection::All).wait(soon_enough);
    assert_eq!(waited, Verdict::StillDirty);
    // The application goes on, and its new data leaves the log too.
    let mut model = model;
    put(&file, &mut model, 100, &[5; 9000]);
    drain.progress();
    eventually("new data to leave the log", || {
        bench.store.totals().in_log == 0
    });

    // The call that hung goes on, slowly: that is no longer a failure, and worth waiting for.
    flusher.set_rate_limit(Some(1 << 20));
    bench.close_canonicals(false);
    eventually("the hang to end", || flusher.progress().errors.is_empty());
    assert!(!file.is_clean(), "it was drained before anybody could wait");
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
    eventually("the subfiles to go", || bench.subfiles().is_empty());
}

/// Reads, overwrites, truncates and punches go on while data is moved.
#[test]
fn random_changes_end_as_the_model_says() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let bench = Bench::new(3);
        let file = bench.file(ID);
        let (flusher, _) = bench.flusher(Subfiles::Always);
        flusher.set_policy(Policy::Immediate);
        let mut model = Vec::new();
        for _ in 0..300 {
            let offset = rng.random_range(0..20 * STRIPE as usize);
            let len = rng.random_range(1..3 * STRIPE as usize);
            if file.is_clean() {
                let intro = Intro {
                    size: bench.below(ID).len() as u64,
                    mtime: Timestamp::now(),
                    uid: 0,
                    gid: 0,
                    handle: Vec::new(),
                    path: b"file-7".to_vec(),
                };
                file.exclusive().begin(intro).unwrap();
            }
            let exclusive = file.exclusive();
            if exclusive.is_clean() {
                continue;
            }
            match rng.random_range(0..10) {
                0 => {
                    exclusive.truncate(offset as u64, Timestamp::now()).unwrap();
                    model.resize(offset, 0);
                }
                1 => {
                    let end = model.len().min(offset + len);
                    let range = ByteRange::new(offset as u64, (offset + len) as u64);
                    exclusive.zero(range, false, Timestamp::now()).unwrap();
                    if offset < end {
                        model[offset..end].fill(0);
                    }
                }
                _ => {
                    drop(exclusive);
                    let data = vec![rng.random(); len];
                    match file.write(1, offset as u64, &data) {
                        Err(layout_index::StoreError::Clean) => continue,
                        other => other.unwrap(),
                    }
                    if model.len() < offset + len {
                        model.resize(offset + len, 0);
                    }
                    model[offset..offset + len].copy_from_slice(&data);
                }
            }
        }
        assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
        assert!(bench.below(ID) == model, "seed {seed}");
        drop(flusher);
        assert_eq!(bench.subfiles(), [], "seed {seed}: all subfiles are gone");
    }
}

/// S9.4
#[test]
fn an_ost_that_hangs_or_fails_is_left_and_its_data_goes_elsewhere() {
    for mood in [
        Mood::Hangs,
        Mood::Fails(libc::EIO),
        Mood::Fails(libc::ENOSPC),
        Mood::Fails(libc::EROFS),
    ] {
        let bench = Bench::new(3);
        bench.set_mood(1, mood);
        let file = bench.file(ID);
        let model = strided(&file);
        bench.close_canonicals(true);
        let (flusher, targets) = bench.flusher(Subfiles::Always);
        flusher.drain(Selection::All);
        eventually("the log to be empty", || bench.store.totals().in_log == 0);
        assert!(read(&file, model.len()) == model);
        // The data does not wait until the OST is dropped.
        eventually(&format!("{mood:?}: the OST to be dropped"), || {
            targets.status().osts[1].state.is_dropped()
        });
        let said = targets.status().osts[1].error.clone().unwrap_or_default();
        assert!(!said.is_empty(), "{mood:?}");
        assert!(bench.subfiles().iter().all(|(n, ..)| *n != 1));
        // The OST works again and is tried again.
        bench.set_mood(1, Mood::Well);
        eventually("the OST to be taken back", || {
            targets.tick(Instant::now());
            targets.is_usable(1)
        });
        bench.close_canonicals(false);
        assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
        assert!(bench.below(ID) == model);
    }
}

/// S9.4
#[test]
fn with_no_ost_left_the_data_goes_straight_to_the_canonical_file() {
    let bench = Bench::new(2);
    for n in 0..2 {
        bench.set_mood(n, Mood::Fails(libc::EIO));
    }
    let file = bench.file(ID);
    let model = strided(&file);
    let (flusher, _) = bench.flusher(Subfiles::Always);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
}

/// A quota is the user's, not the OST's: the OST is not dropped.
#[test]
fn a_used_up_quota_drops_no_ost() {
    let bench = Bench::new(2);
    for n in 0..2 {
        bench.set_mood(n, Mood::Fails(libc::EDQUOT));
    }
    let file = bench.file(ID);
    let model = strided(&file);
    let (flusher, targets) = bench.flusher(Subfiles::Always);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
    assert!(targets.is_usable(0) && targets.is_usable(1));
}

/// S9.7, `subfiles = auto`: data goes straight to the canonical file, unless another node writes
/// the file too.
#[test]
fn auto_makes_subfiles_only_for_files_that_others_write() {
    let bench = Bench::new(2);
    let (alone, shared) = (bench.file(ID), bench.file(OTHER));
    let (one, two) = (strided(&alone), strided(&shared));
    // Another node has published bytes of OTHER.
    let elsewhere = open_store(bench.dir.path(), "n1");
    let theirs = elsewhere.file(OTHER);
    begin(&theirs, OTHER);
    let end = two.len() - 1000;
    theirs.write(1, end as u64, &two[end..]).unwrap();
    let their_flusher = bench.flusher_among(&elsewhere, Subfiles::Auto);
    their_flusher.publish(&theirs).unwrap();
    assert!(theirs.is_clean() && !theirs.is_settled());
    bench.close_canonicals(true);

    let flusher = bench.flusher_among(&bench.store, Subfiles::Auto);
    flusher.drain(Selection::All);
    eventually("the shared file to leave the log", || shared.is_clean());
    assert!(!shared.is_settled());
    assert_eq!(alone.subfiles().len(), 0);
    assert!(alone.in_log() > 0);

    bench.close_canonicals(false);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert_eq!(
        their_flusher.drain(Selection::All).wait(soon()),
        Verdict::Drained
    );
    assert!(bench.below(ID) == one && bench.below(OTHER) == two);
    let files = bench.backing().join(".forebay/files");
    eventually("nothing to be said of either", || walk(&files).is_empty());
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// S9.6: subfiles that a killed daemon made and did not record, or whose end it recorded, are
/// removed at the next start. Files of other stores, and subfiles that are in use, stay.
#[test]
fn orphans_are_removed_at_the_start_and_others_are_not() {
    let bench = Bench::new(2);
    let file = bench.file(ID);
    let model = strided(&file);
    bench.close_canonicals(true);
    let (flusher, _) = bench.flusher(Subfiles::Always);
    flusher.drain(Selection::All);
    eventually("the log to be empty", || bench.store.totals().in_log == 0);
    let used = bench.subfiles();
    let store = killed(&bench);
    assert_eq!(store.subfile_prefix(), bench.store.subfile_prefix());

    let place = bench.dir.path().join("ost0/.forebay/subfiles");
    let orphan = place.join(format!("{}00000000-00000001", store.subfile_prefix()));
    let foreign = place.join("00000000deadbeef-00000001");
    let taken = |path: &Path| used.iter().any(|(_, used, _)| used == path);
    assert!(!taken(&orphan), "no run has this number");
    for path in [&orphan, &foreign] {
        std::fs::write(path, b"x").unwrap();
    }
    let (_flusher, _) = bench.flusher_of(&store, Subfiles::Always);
    eventually("the orphan to go", || !orphan.exists());
    assert!(foreign.exists(), "another store's subfile");
    for (_, path, _) in &used {
        assert!(path.exists(), "{path:?} is in use");
    }
    assert!(read(&store.file(ID), model.len()) == model);
    bench.close_canonicals(false);
}

/// S9.6: "what a killed probe left, when it is an hour old". A probe file that may still be written
/// stays, and so do files whose names only look similar.
#[test]
fn old_files_of_probes_are_removed_at_the_start() {
    let bench = Bench::new(1);
    let place = bench.dir.path().join("ost0/.forebay/subfiles");
    std::fs::create_dir_all(&place).unwrap();
    let put = |name: &str, minutes: u64| {
        let path = place.join(name);
        let file = std::fs::File::create(&path).unwrap();
        let age = Duration::from_secs(60 * minutes);
        file.set_modified(SystemTime::now() - age).unwrap();
        path
    };
    let old = put("probe-0123456789abcdef", 61);
    let stay = [
        put("probe-fedcba9876543210", 55),
        put("probe-0123456789abcde", 61),
        put("probe-0123456789abcdef0", 61),
        put("probe-0123456789ABCDEF", 61),
        put("a-probe-0123456789abcdef", 61),
    ];
    let (flusher, _) = bench.flusher(Subfiles::Always);
    eventually("the old one to go", || !old.exists());
    // This waits for the thread that removes files.
    drop(flusher);
    for path in &stay {
        assert!(path.exists(), "{path:?} is gone");
    }
}

/// Opens a copy of the store as a kill would leave it. The daemon itself goes on, and the test
/// ignores it from then on.
fn killed(bench: &Bench) -> Arc<Store> {
    bench.store.sync().unwrap();
    let killed = bench.dir.path().join("killed");
    copy(&bench.dir.path().join("store-n0"), &killed.join("store-n0"));
    open_store_for(&killed, &bench.backing(), "n0")
}

/// A store whose data is all in subfiles, with the canonical file still empty.
fn all_in_subfiles(bench: &Bench) -> (Arc<Store>, Vec<u8>) {
    let file = bench.file(ID);
    let model = strided(&file);
    bench.close_canonicals(true);
    let (flusher, _) = bench.flusher(Subfiles::Always);
    flusher.drain(Selection::All);
    eventually("the log to be empty", || bench.store.totals().in_log == 0);
    let store = killed(bench);
    (store, model)
}

/// S9.4: a target that is away holds up only the data on it, and the error names it. The rest of
/// the file drains.
#[test]
fn a_target_that_is_away_holds_up_only_what_is_on_it() {
    let bench = Bench::new(3);
    let (store, model) = all_in_subfiles(&bench);
    let (_, lost, _) = bench
        .subfiles()
        .into_iter()
        .find(|(ost, ..)| *ost == 1)
        .unwrap();
    let aside = bench.dir.path().join("aside");
    std::fs::rename(&lost, &aside).unwrap();
    let later = Bench::over(&bench);
    let (flusher, _) = later.flusher_of(&store, Subfiles::Never);
    flusher.drain(Selection::All);
    let file = store.file(ID);
    eventually("the rest to drain", || {
        let undrained = file.count_undrained(None).unwrap();
        undrained > 0 && undrained <= std::fs::metadata(&aside).unwrap().len()
    });
    eventually("the error", || file.error().is_some());
    let said = file.error().unwrap().message;
    assert!(said.contains("ost1") && said.contains("the rest"), "{said}");
    std::fs::rename(&aside, &lost).unwrap();
    eventually("all to drain", || file.is_clean());
    assert!(later.below(ID) == model);
    bench.close_canonicals(false);
}

/// S6: a subfile that another node has removed because it took this node for dead (`forebay drain
/// --adopt`, after all that was published of it was drained) gets no more data: only this process
/// would find it again.
#[test]
fn a_subfile_without_a_name_gets_nothing_more() {
    let bench = Bench::new(1);
    let file = bench.file(ID);
    let mut model = Vec::new();
    put(&file, &mut model, 0, &vec![1; 300_000]);
    bench.close_canonicals(true);
    let (flusher, _) = bench.flusher(Subfiles::Always);
    let drain = flusher.drain(Selection::All);
    let moved = || bench.store.totals().in_log == 0;
    eventually("the log to be empty", moved);
    for (_, path, _) in bench.subfiles() {
        std::fs::remove_file(path).unwrap();
    }
    // None of the bytes that were in it count any more, and the dirty period goes on.
    put(&file, &mut model, 0, &vec![2; 300_000]);
    drain.progress();
    eventually("new data to leave the log", moved);
    assert_eq!(bench.subfiles().len(), 1, "it is in another one");
    let store = killed(&bench);
    let later = Bench::over(&bench);
    let (_flusher, _) = later.flusher_of(&store, Subfiles::Never);
    assert!(read(&store.file(ID), model.len()) == model);
    bench.close_canonicals(false);
}

/// S8, S9.3: a file of the right name that belongs to another user is not the subfile.
#[test]
fn a_subfile_of_another_owner_is_refused() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test gives files away: run it as root"
    );
    let bench = Bench::new(1);
    let (store, model) = all_in_subfiles(&bench);
    let (_, path, _) = bench.subfiles().pop().unwrap();
    std::os::unix::fs::chown(&path, Some(4321), None).unwrap();
    let later = Bench::over(&bench);
    let (_flusher, _) = later.flusher_of(&store, Subfiles::Never);
    let file = store.file(ID);
    let plan = file.plan(ByteRange::new(0, 100)).unwrap();
    let error = file.read(&plan, &mut [0; 100], None).unwrap_err();
    assert!(error.to_string().contains("another user"), "{error}");
    std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
    assert!(read(&file, model.len()) == model);
    bench.close_canonicals(false);
}

/// A store without any room still drains: moving data to subfiles needs a little room.
#[test]
fn a_full_store_drains() {
    let bench = Bench::with_capacity(3, 4 << 20);
    let file = bench.file(ID);
    let mut model = Vec::new();
    while file.write(1, model.len() as u64, &[9; 64 << 10]).is_ok() {
        model.resize(model.len() + (64 << 10), 9);
    }
    let (flusher, _) = bench.flusher(Subfiles::Always);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
}

/// S8.6: a FIFO that a user has put in the way is never opened, and the drain does not wait for it.
#[test]
fn a_fifo_in_the_shared_directory_is_not_opened() {
    let bench = Bench::new(1);
    let id = bench.store.subfile_prefix();
    let name = format!("n0.{}", id.trim_end_matches('-'));
    let group = format!("{:02x}", (ID.ino ^ ID.birth) & 0xff);
    let dir = bench
        .backing()
        .join(".forebay/files")
        .join(group)
        .join(ID.to_string());
    std::fs::create_dir_all(&dir).unwrap();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
    nix::unistd::mkfifo(&dir.join(name), mode).unwrap();
    let file = bench.file(ID);
    let model = strided(&file);
    let (flusher, _) = bench.flusher(Subfiles::Auto);
    assert_eq!(flusher.drain(Selection::All).wait(soon()), Verdict::Drained);
    assert!(bench.below(ID) == model);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let there = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &there);
        } else {
            std::fs::copy(entry.path(), there).unwrap();
        }
    }
}
