use super::*;

struct Dirs {
    root: tempfile::TempDir,
}

impl Dirs {
    fn new() -> Dirs {
        let root = tempfile::tempdir().unwrap();
        for name in ["backing", "mnt"] {
            std::fs::create_dir(root.path().join(name)).unwrap();
        }
        Dirs { root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn spec(&self, nodes: usize) -> Spec {
        Spec::new(nodes)
            .backing(self.path("backing"))
            .dir(self.path("state"))
            .forebay("/bin/sh")
    }
}

fn refused(spec: &Spec, words: &[&str]) {
    let failure = Plan::of_paths(spec).expect_err("it was taken");
    for word in words {
        assert!(failure.message.contains(word), "{word}: {failure}");
    }
}

#[test]
fn what_cannot_work_is_refused_by_name() {
    let dirs = Dirs::new();
    refused(&dirs.spec(0), &["0 nodes", "1 to 200"]);
    refused(&dirs.spec(201), &["201 nodes"]);
    let missing = dirs.path("missing");
    refused(
        &dirs.spec(1).backing(&missing),
        &["missing", "make it first"],
    );
    refused(&dirs.spec(1).backing("/etc/passwd"), &["not a directory"]);
    refused(
        &dirs.spec(1).mount(&missing),
        &["the mount point", "make it"],
    );
    refused(&dirs.spec(1).config(&missing), &["the configuration"]);
    refused(&dirs.spec(1).forebay(&missing), &["the forebay program"]);
    let inside = dirs.path("backing/state");
    refused(&dirs.spec(1).dir(inside), &["is inside the backing"]);
    let spec = dirs.spec(1).mount(dirs.path("mnt"));
    refused(
        &spec.dir(dirs.path("mnt/x")),
        &["is inside the mount point"],
    );
    refused(&dirs.spec(1).dir(dirs.path("a b")), &["a space or a colon"]);
    refused(&dirs.spec(1).dir(dirs.path("a:b")), &["a space or a colon"]);
    let long = dirs.path(&"x".repeat(80));
    refused(&dirs.spec(1).dir(long), &["too long", "at most 80"]);
    let orphan = dirs.path("no/such/state");
    refused(
        &dirs.spec(1).dir(orphan),
        &["parent of the state directory"],
    );
    let (here, there) = (dirs.path("backing"), dirs.path("mnt"));
    refused(
        &dirs.spec(2).bind(2, &here, &there),
        &["on node 2", "has 2"],
    );
    refused(
        &dirs.spec(1).bind(0, &missing, &there),
        &["the bound directory", "missing"],
    );
    refused(
        &dirs.spec(1).bind(0, &here, &missing),
        &["the place to bind over", "make it"],
    );
    let mut without = dirs.spec(1);
    without.backing = None;
    refused(&without, &["--backing"]);
}

#[test]
fn a_store_takes_its_part_of_the_disk_unless_told() {
    let dirs = Dirs::new();
    assert!(!says_store_size(None, &["--drain".into()]).unwrap());
    assert!(says_store_size(None, &["--store-size=1GiB".into()]).unwrap());
    let config = dirs.path("forebay.toml");
    std::fs::write(&config, "drain = \"never\"\n# store-size\n").unwrap();
    assert!(!says_store_size(Some(&config), &[]).unwrap());
    std::fs::write(&config, "store-size = \"1GiB\"\n").unwrap();
    assert!(says_store_size(Some(&config), &[]).unwrap());
    let number = |nodes| store_share(&dirs.path("state"), nodes).unwrap()[1].parse::<u64>();
    let (one, four) = (number(1).unwrap(), number(4).unwrap());
    assert!(four <= one / 3, "{four} of {one}");
}
