//! Tests that need no file system with Lustre's striping. The others are in `tests/ost_errors.rs`
//! and `tests/ost_lustre.rs`, on a simulated file system.

use super::*;

fn write_list(root: &Path, place: &str, mount: &str, text: &str) {
    let dir = root.join(place).join(mount);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("target_obd"), text).unwrap();
}

fn provider(root: &Path) -> Lustre {
    let dir = File::open(root).unwrap();
    Lustre::with_root(dir.as_fd(), root.to_owned()).unwrap()
}

const TWO: &str = "1: scratch-OST0001_UUID INACTIVE\n0: scratch-OST0000_UUID ACTIVE\n";

#[test]
fn osts_come_from_the_clients_files_in_order_also_inactive_ones() {
    let root = tempfile::tempdir().unwrap();
    write_list(
        root.path(),
        "sys/kernel/debug/lustre/lov",
        "scratch-clilov-ffff88",
        TWO,
    );
    let lustre = provider(root.path());
    let osts = lustre.osts().unwrap();
    let seen: Vec<_> = osts.iter().map(|o| (o.index, o.name.as_str())).collect();
    assert_eq!(seen, [(0, "scratch-OST0000"), (1, "scratch-OST0001")]);
    let said = lustre.create(&osts[1], "a", false).unwrap_err().to_string();
    assert!(
        said.starts_with("OST 1 (scratch-OST0001): making a file: the client has it as INACTIVE"),
        "{said}"
    );
    let unknown = Ost {
        index: 7,
        name: "x".into(),
    };
    let said = lustre.create(&unknown, "a", false).unwrap_err().to_string();
    assert!(said.contains("no OST of that number"), "{said}");
    assert!(!root.path().join(".forebay").exists());
}

#[test]
fn no_list_several_lists_and_a_broken_one_are_told_apart() {
    let root = tempfile::tempdir().unwrap();
    let lustre = provider(root.path());
    let said = || lustre.osts().unwrap_err().to_string();
    assert!(
        said().contains("no list of OSTs") && said().contains("is it mounted"),
        "{}",
        said()
    );
    write_list(root.path(), "proc/fs/lustre/lov", "a-clilov-1", TWO);
    // Two mounts of one file system are not ambiguous.
    write_list(root.path(), "proc/fs/lustre/lov", "a-clilov-2", TWO);
    assert_eq!(lustre.osts().unwrap().len(), 2);
    write_list(root.path(), "sys/fs/lustre/lov", "b-c-clilov-3", TWO);
    assert!(said().contains("several (a, b-c)"), "{}", said());
    std::fs::remove_dir_all(root.path().join("sys")).unwrap();
    write_list(
        root.path(),
        "proc/fs/lustre/lov",
        "a-clilov-1",
        "what is this\n",
    );
    assert!(said().contains("line 1 of the OST list"), "{}", said());
}

/// On a directory of an ordinary file system no file is left behind.
#[test]
fn a_file_system_without_layouts_is_refused_in_one_sentence() {
    let root = tempfile::tempdir().unwrap();
    write_list(root.path(), "proc/fs/lustre/lov", "a-clilov-1", TWO);
    let lustre = provider(root.path());
    let osts = lustre.osts().unwrap();
    let said = lustre.create(&osts[0], "a", false).unwrap_err().to_string();
    assert!(said.contains("does not take Lustre's layouts"), "{said}");
    assert_eq!(lustre.list(&osts[0]).unwrap(), [""; 0]);
    let canonical = tempfile::tempfile().unwrap();
    assert!(!lustre.stripe(canonical.as_fd(), &osts, 1 << 20).unwrap());
    let said = lustre.stripe(canonical.as_fd(), &osts, 4096).unwrap_err();
    assert!(said.to_string().contains("multiple of 65536"), "{said}");
}
