use super::*;
use crate::ost::Directories;
use crate::scripted_osts::{Script, Scripted};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn directories(paths: &[&Path]) -> (Arc<dyn Provider>, Vec<Ost>) {
    let paths: Vec<PathBuf> = paths.iter().map(|p| p.to_path_buf()).collect();
    let provider: Arc<dyn Provider> = Arc::new(Directories::new(paths));
    let osts = provider.osts().unwrap();
    (provider, osts)
}

fn small() -> Options {
    Options {
        size: 2 << 20,
        ..Options::default()
    }
}

fn leftovers(dir: &Path) -> usize {
    let place = dir.join(".forebay/subfiles");
    std::fs::read_dir(place).map_or(0, |entries| entries.count())
}

#[test]
fn directories_are_measured_and_left_as_they_were() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let (provider, osts) = directories(&[dirs[0].path(), dirs[1].path()]);
    let probed = probe(&provider, &osts, small());
    assert_eq!(probed.len(), 2);
    for (n, one) in probed.iter().enumerate() {
        assert_eq!(one.ost.index as usize, n);
        let measured = one.result.as_ref().unwrap();
        assert_eq!(measured.bytes, 2 << 20);
        assert!(measured.bandwidth > 0.0 && measured.latency > Duration::ZERO);
        assert_eq!(leftovers(dirs[n].path()), 0);
    }
}

/// Two nodes that probe at the same time do not disturb each other.
#[test]
fn probes_at_the_same_time_do_not_meet() {
    let dir = tempfile::tempdir().unwrap();
    let (provider, osts) = directories(&[dir.path()]);
    std::thread::scope(|scope| {
        let both = [(); 8].map(|()| scope.spawn(|| probe(&provider, &osts, small())));
        for one in both {
            assert!(one.join().unwrap()[0].result.is_ok());
        }
    });
    assert_eq!(leftovers(dir.path()), 0);
}

#[test]
fn a_missing_directory_is_named_and_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("not-mounted");
    let (provider, osts) = directories(&[&missing, dir.path()]);
    let probed = probe(&provider, &osts, small());
    let said = probed[0].result.as_ref().unwrap_err().to_string();
    assert!(
        said.contains("not-mounted") && said.contains("is the target mounted?"),
        "{said}"
    );
    assert!(probed[1].result.is_ok());
    assert!(!missing.exists());
}

#[test]
fn a_link_in_the_place_of_the_subfiles_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), dir.path().join(".forebay")).unwrap();
    let (provider, osts) = directories(&[dir.path()]);
    assert!(probe(&provider, &osts, small())[0].result.is_err());
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn one_that_hangs_costs_no_more_than_the_deadline() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let script = Script {
        hang: HashSet::from([1]),
        ..Script::default()
    };
    let scripted = Scripted::new(dirs.iter().map(|d| d.path().into()).collect(), script);
    let provider: Arc<dyn Provider> = scripted.clone();
    let osts = provider.osts().unwrap();
    let options = Options {
        deadline: Duration::from_secs(2),
        ..small()
    };
    let probed = probe(&provider, &osts, options);
    let said = probed[1].result.as_ref().unwrap_err().to_string();
    assert!(said.contains("it hangs"), "{said}");
    assert!(probed[0].result.is_ok(), "{:?}", probed[0].result);
    scripted.set(|s| s.hang.clear());
}
