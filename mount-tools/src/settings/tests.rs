use super::*;
use crate::args::{Cli, Command};
use clap::Parser;
use layout_index::policy::Absorb;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        for name in ["scratch", "ost"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Place { dir }
    }

    fn at(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn resolve(&self, more: &[&str]) -> Result<MountSettings> {
        let mut line = vec!["forebay".to_owned(), "mount".to_owned(), self.at("scratch")];
        line.extend(
            more.iter()
                .map(|arg| arg.replace('@', self.dir.path().to_str().unwrap())),
        );
        match Cli::try_parse_from(line).unwrap().command {
            Command::Mount(args) => MountSettings::resolve(&args, false),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn defaults_are_filled_in() {
    let place = Place::new();
    let settings = place
        .resolve(&["--store", "@/store", "--ost", "@/ost"])
        .unwrap();
    assert_eq!(settings.backing, settings.mount);
    assert_eq!(settings.log_file, Some(settings.store.join("forebay.log")));
    assert_eq!(settings.index_memory, INDEX_MEMORY);
    assert_eq!(settings.drain.rate_limit, None);
    assert!(settings.shared_locks);
    assert_eq!(settings.files.absorb, Absorb::On);
    assert!(!settings.options.allow_other);
    assert!((1..=64).contains(&settings.threads));
    assert!(!settings.node.is_empty());
}

#[test]
fn one_deadline_for_targets_and_for_the_files_on_them() {
    let place = Place::new();
    let given = ["--store", "@/store", "--ost-deadline", "3s"];
    let settings = place.resolve(&given).unwrap();
    assert_eq!(settings.target_settings.deadline.as_secs(), 3);
    assert_eq!(settings.drain.patience.as_secs(), 3);
}

#[test]
fn refusals_name_what_is_wrong() {
    let place = Place::new();
    for (more, text) in [
        (&[][..], "no store"),
        (&["--store", "@/scratch/s"], "inside the backing"),
        (&["--store", "@/gone/s"], "parent"),
        (&["--store", "@/s", "--backing", "@/gone"], "the backing"),
        (&["--store", "@/s", "--ost", "@/gone"], "storage target"),
        (&["--store", "@/s", "--node", "a/b"], "node name"),
        (&["--store", "@/s", "--stripe", "5000"], "multiple of 4096"),
        (
            &["--store", "@/s", "--threads", "0"],
            "threads = 0 is too small",
        ),
        (
            &["--store", "@/s", "--drain-concurrency", "1000"],
            "too large",
        ),
        (&["--store", "@/s", "-o", "sparkle"], "\"sparkle\""),
        (&["--store", "@/s", "-o", "ro=yes"], "\"ro=yes\""),
        (&["--store", "@/s", "-o", "suid"], "root only"),
        (&["--store", "@/s", "--config", "@/none.toml"], "none.toml"),
    ] {
        let failure = place.resolve(more).unwrap_err();
        assert!(failure.message.contains(text), "{more:?}: {failure}");
        assert_eq!(failure.code, crate::exit_codes::Code::Usage);
    }
}

#[test]
fn options_are_read_in_order() {
    let given: Vec<String> = ["ro", "allow_other", "rw", "fsname=x", "noatime", ""]
        .map(String::from)
        .to_vec();
    let options = options(&given, false).unwrap();
    assert!(options.allow_other && !options.read_only);
    assert_eq!(options.fsname.as_deref(), Some("x"));
}

#[test]
fn a_store_is_private() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let place = Place::new();
    let store = PathBuf::from(place.at("store"));
    make_store(&store).unwrap();
    assert_eq!(std::fs::metadata(&store).unwrap().mode() & 0o777, 0o700);
    make_store(&store).unwrap();
    let open = || std::fs::set_permissions(&store, PermissionsExt::from_mode(0o755)).unwrap();
    open();
    make_store(&store).unwrap();
    let mode = std::fs::metadata(&store).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700, "it was empty");
    std::fs::write(store.join("file"), "").unwrap();
    open();
    assert!(
        make_store(&store)
            .unwrap_err()
            .message
            .contains("chmod 700")
    );
}
