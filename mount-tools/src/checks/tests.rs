use super::*;

fn message(result: Result<impl std::fmt::Debug>) -> String {
    result.unwrap_err().message
}

#[test]
fn store_and_backing_stay_apart() {
    let check = |s: &str, b: &str, m: &str| apart(Path::new(s), Path::new(b), Path::new(m));
    assert!(check("/nvme/store", "/scratch", "/scratch").is_ok());
    assert!(
        check("/scratch-store", "/scratch", "/mnt").is_ok(),
        "names that only begin alike"
    );
    assert!(check("/nvme", "/scratch/a", "/scratch").is_ok());
    for (s, b, m, text) in [
        (
            "/scratch/store",
            "/scratch",
            "/scratch",
            "inside the backing",
        ),
        ("/scratch", "/scratch", "/mnt", "inside the backing"),
        ("/nvme", "/nvme/back", "/mnt", "inside the store"),
        ("/mnt/store", "/scratch", "/mnt", "inside the mount point"),
        ("/nvme", "/scratch", "/scratch/fast", "contain itself"),
    ] {
        let got = message(check(s, b, m));
        assert!(got.contains(text), "{got}");
    }
}

#[test]
fn links_are_seen_through() {
    let dir = tempfile::tempdir().unwrap();
    let backing = dir.path().join("backing");
    std::fs::create_dir(&backing).unwrap();
    std::os::unix::fs::symlink(&backing, dir.path().join("link")).unwrap();
    let store = store_path(&dir.path().join("link/store")).unwrap();
    let backing = existing_dir(&backing, "the backing").unwrap();
    assert!(message(apart(&store, &backing, &backing)).contains("inside the backing"));
}

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let text = message(existing_dir(&gone, "the backing"));
    assert!(
        text.contains("the backing") && text.contains("does not exist"),
        "{text}"
    );
    let text = message(store_path(&gone.join("store")));
    assert!(text.contains("parent") && text.contains("gone"), "{text}");
    assert_eq!(store_path(&gone).unwrap().file_name(), gone.file_name());
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(message(existing_dir(&file, "the store")).contains("not a directory"));
}

#[test]
fn node_names() {
    for good in ["n0", "node-7.cluster_a"] {
        assert!(node_name(good).is_ok(), "{good}");
    }
    for bad in ["", "a/b", "..", ".x", "a b", "\u{1b}[31m", &"x".repeat(65)] {
        assert!(node_name(bad).is_err(), "{bad:?}");
    }
}
