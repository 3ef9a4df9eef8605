//! `forebay status --backing` shows what all nodes say in the shared directory, without a mount.
//!
//! It shows all nodes (and since when nothing was heard of each), the files that have published data which is not in
//! the files below, the nodes that drain them, and what was closed and not published (docs/OPERATIONS.md). It is all
//! that can be looked at while S2.2, S2.3 or S2.8 are waited for, and it names what it cannot read (S5.3, S8.12).

mod nodes_adopt_rig;
mod nodes_pair;

use forebay_tests::cli::{DENIED, OK, USAGE, assert_refused, code};
use forebay_tests::sys;
use forebay_tests::test_mount::{Drain, TestMount, assert_same, get, open_rw, put, text};
use forebay_tests::users::{ALICE, as_user};
use nodes_adopt_rig::*;
use nodes_pair::{MIB, Shared, json, texts, until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;

fn status(login: &TestMount, shared: &Shared, options: &[&str]) -> Output {
    let backing = shared.backing();
    let mut args = vec!["status".as_ref(), "--backing".as_ref(), backing.as_os_str()];
    args.extend(options.iter().map(std::ffi::OsStr::new));
    login.run(args)
}

fn in_json(login: &TestMount, shared: &Shared) -> Value {
    let out = status(login, shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let report = json(&out);
    // Every key that a script may ask for is there, whether it has a value or not.
    for node in report["nodes"].as_array().expect("nodes") {
        for key in ["id", "name", "state", "lease_seconds", "heard_seconds_ago"] {
            assert!(node.get(key).is_some(), "{key} is missing: {node:#}");
        }
    }
    for file in report["files"].as_array().expect("files") {
        for key in [
            "id",
            "path",
            "epoch",
            "published",
            "announced",
            "drained_by",
            "domains_done",
            "domains",
            "problems",
        ] {
            assert!(file.get(key).is_some(), "{key} is missing: {file:#}");
        }
        for one in file["published"].as_array().expect("published") {
            for key in ["node", "batches", "bytes"] {
                assert!(one.get(key).is_some(), "{key} is missing: {file:#}");
            }
        }
    }
    report
}

fn in_text(login: &TestMount, shared: &Shared) -> String {
    let out = status(login, shared, &[]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    assert!(out.stderr.is_empty(), "{}", text(&out));
    String::from_utf8(out.stdout).expect("it is text")
}

fn node<'a>(report: &'a Value, name: &str) -> &'a Value {
    let nodes = report["nodes"].as_array().expect("a list");
    let found = nodes.iter().find(|node| node["name"] == name);
    found.unwrap_or_else(|| panic!("node {name} is missing: {report:#}"))
}

fn file<'a>(report: &'a Value, path: &str) -> &'a Value {
    let files = report["files"].as_array().expect("a list");
    let found = files.iter().find(|file| file["path"] == path);
    found.unwrap_or_else(|| panic!("file {path} is missing: {report:#}"))
}

/// Returns the directory that a file of the report has in the shared directory.
fn dir_of(shared: &Shared, file: &Value) -> PathBuf {
    let id = file["id"].as_str().expect("an id");
    let dirs = shared.file_dirs();
    let dir = dirs.into_iter().find(|dir| nodes_pair::name_of(dir) == id);
    dir.expect("its directory")
}

fn layout_in(dir: &Path) -> PathBuf {
    let names = nodes_pair::list(dir).into_iter();
    let mut layouts = names.filter(|path| nodes_pair::name_of(path).starts_with("l."));
    let layout = layouts.next().expect("its layout");
    assert_eq!(layouts.next(), None, "one layout");
    layout
}

/// Returns the cells of one table: the heads, and every row under them. Fails if a column does not line up, or a
/// line ends with blanks.
fn table(said: &str, first: &str) -> Vec<Vec<String>> {
    let heads = ["node", "id", "state", "lease", "heard of"];
    let heads = match first {
        "node" => heads,
        _ => ["file", "epoch", "published", "announced by", "drained by"],
    };
    let right = ["lease", "heard of", "epoch"];
    let mut lines = said
        .lines()
        .skip_while(|line| !line.trim_start().starts_with(first));
    let head = lines
        .next()
        .unwrap_or_else(|| panic!("no table of {first}: {said}"));
    let mut rows = vec![head];
    // A table ends where the next one begins; notes are indented deeper than rows.
    rows.extend(lines.take_while(|line| {
        let row = line.trim_start();
        line.starts_with("  ") && !row.starts_with("file ") && !row.starts_with("Nothing ")
    }));
    rows.retain(|line| !line.starts_with("    "));
    // Each column's start, or its end if it is aligned to the right.
    let mut edges = Vec::new();
    for name in heads {
        let at = head
            .find(name)
            .unwrap_or_else(|| panic!("no {name}: {said}"));
        edges.push(match right.contains(&name) {
            true => at + name.len(),
            false => at,
        });
    }
    let mut cells = Vec::new();
    for line in &rows {
        assert_eq!(line.trim_end(), *line, "blanks at the end: {said}");
        let mut row = Vec::new();
        for (n, name) in heads.iter().enumerate() {
            let text = match right.contains(name) {
                true => {
                    let end = edges[n].min(line.len());
                    assert!(
                        line[end..].is_empty() || line[end..].starts_with("  "),
                        "{name} does not line up: {said}"
                    );
                    line[..end].rsplit("  ").next().unwrap_or("")
                }
                false => {
                    let start = edges[n].min(line.len());
                    assert!(
                        n == 0 || line[..start].ends_with("  ") || start == line.len(),
                        "{name} does not line up: {said}"
                    );
                    line[start..].split("  ").next().unwrap_or("")
                }
            };
            row.push(text.trim().to_owned());
        }
        cells.push(row);
    }
    assert_eq!(cells[0], heads, "{said}");
    cells
}

fn row(rows: &[Vec<String>], first: &str) -> Vec<String> {
    let found = rows.iter().find(|row| row[0] == first);
    found
        .unwrap_or_else(|| panic!("no row {first}: {rows:?}"))
        .clone()
}

/// One node has published and one has only announced; then both are dead, and nothing of that is forgotten.
#[test]
fn what_is_published_and_what_is_announced() {
    let shared = Shared::plain();
    let (mut a, mut b) = (publisher(&shared, "a"), shared.mortal("beta", Drain::Never));
    expects_deaths(&mut b);
    a.start();
    b.start();
    let login = login();
    assert!(
        in_text(&login, &shared)
            .ends_with("Nothing is published that the files below do not have.\n")
    );
    fs::create_dir(a.path("run")).expect("mkdir");
    let published = data(1, 3 * MIB);
    put(a.path("run/published"), &published);
    put(b.path("announced"), data(2, MIB));
    // The other node announces a second part of the file.
    write_at(&b, "run/published", MIB, &data(3, 5000));

    let report = in_json(&login, &shared);
    assert_eq!(report["backing"], shared.backing().to_str().expect("text"));
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(2));
    for name in ["a", "beta"] {
        let node = node(&report, name);
        assert_eq!(node["id"], shared.id_of(name));
        assert_eq!(node["state"], "mounted");
        assert_eq!(node["lease_seconds"], 6.0);
        let heard = node["heard_seconds_ago"].as_f64().expect("a number");
        assert!((0.0..60.0).contains(&heard), "heard of {heard} s ago");
    }
    assert_eq!(
        report["files"].as_array().map(Vec::len),
        Some(2),
        "{report:#}"
    );
    let of_a = file(&report, "run/published");
    assert_eq!(of_a["published"][0]["node"], "a");
    assert_eq!(of_a["published"][0]["bytes"], published.len());
    assert!(
        of_a["published"][0]["batches"].as_u64() >= Some(1),
        "{of_a:#}"
    );
    assert!(of_a["epoch"].as_u64() >= Some(1), "{of_a:#}");
    assert_eq!(texts(&of_a["announced"]), ["beta"]);
    assert_eq!(of_a["drained_by"], Value::Null);
    assert_eq!(of_a["domains"], Value::Null);
    // Nothing that is published leads to the other file: it is known by its inode.
    let ino = fs::metadata(shared.canonical("announced"))
        .expect("stat")
        .ino();
    let id = format!("{ino:x}.");
    let files = report["files"].as_array().expect("a list");
    let of_b = files.iter().find(|file| {
        file["id"]
            .as_str()
            .is_some_and(|text| text.starts_with(&id))
    });
    let of_b = of_b.unwrap_or_else(|| panic!("no file {id}: {report:#}"));
    assert_eq!(texts(&of_b["announced"]), ["beta"]);
    assert_eq!(of_b["published"].as_array().map(Vec::len), Some(0));

    let said = in_text(&login, &shared);
    assert!(
        said.starts_with(shared.backing().to_str().expect("text")),
        "{said}"
    );
    let nodes = table(&said, "node");
    assert_eq!(nodes.len(), 3, "{said}");
    for name in ["a", "beta"] {
        let row = row(&nodes, name);
        assert_eq!(
            row[1..4],
            [shared.id_of(name), "mounted".into(), "6.0 s".into()]
        );
        assert!(row[4].ends_with(" s ago"), "{said}");
    }
    let files = table(&said, "file");
    assert_eq!(files.len(), 3, "{said}");
    let published_row = row(&files, "run/published");
    assert_eq!(published_row[2..], ["a 3.00 MiB", "beta", "-"], "{said}");
    let announced = of_b["id"].as_str().expect("text");
    assert_eq!(row(&files, announced)[2..], ["", "beta", "-"], "{said}");

    a.kill();
    b.kill();
    until("no heartbeat for a lease", || {
        let report = in_json(&login, &shared);
        let ago = |name: &str| node(&report, name)["heard_seconds_ago"].as_f64();
        ago("a") > Some(3.0) && ago("beta") > Some(3.0)
    });
    let dead = in_json(&login, &shared);
    assert_eq!(dead["files"], report["files"], "what they said stays");
    // Both nodes are back and have drained: no node has anything to say of any file.
    a.start();
    b.start();
    a.drain();
    b.drain();
    let clean = in_json(&login, &shared);
    assert_eq!(
        clean["files"].as_array().map(Vec::len),
        Some(0),
        "{clean:#}"
    );
    a.finish();
    b.finish();
    let left = in_json(&login, &shared);
    assert_eq!(node(&left, "a")["state"], "left");
    assert_eq!(
        row(&table(&in_text(&login, &shared), "node"), "beta")[2],
        "left"
    );
}

/// While a file is drained, the report says by which node, and how many of its domains are done.
#[test]
fn a_round_that_is_under_way() {
    let shared = Shared::plain();
    let mut nodes = ["a", "b"].map(|name| {
        let mut node = publisher(&shared, name);
        node.set("drain-rate", "2MiB").set("subfiles", "always");
        node.start();
        node
    });
    let want = data(4, 6 * MIB);
    put(nodes[0].path("f"), &want[..3 * MIB]);
    write_at(&nodes[1], "f", 3 * MIB, &want[3 * MIB..]);
    let login = login();
    let mount = nodes[0].mnt().to_owned();
    nodes[0].run(["drain".as_ref(), mount.as_os_str()]);
    let mut seen = Vec::new();
    until("the round is over", || {
        let report = in_json(&login, &shared);
        let file = &report["files"][0];
        // The other node's layout stays until that node refreshes.
        if file["published"].as_array().is_none_or(Vec::is_empty) {
            return true;
        }
        let said = in_text(&login, &shared);
        if let (Some(done), Some(all)) = (file["domains_done"].as_u64(), file["domains"].as_u64()) {
            assert!(done <= all, "{file:#}");
            assert_eq!(file["drained_by"], "a", "{file:#}");
            seen.push((done, all));
        }
        if let Some(line) = said.lines().find(|line| line.contains(" domains)")) {
            assert!(line.contains("a (") && line.contains(" of "), "{said}");
            table(&said, "file");
        }
        false
    });
    assert!(
        seen.iter().any(|(done, all)| done < all),
        "never under way: {seen:?}"
    );
    assert!(seen.is_sorted(), "domains that are done stay so: {seen:?}");
    for node in &mut nodes {
        node.drain();
    }
    assert_same("canonical", &get(shared.canonical("f")), &want);
    nodes.into_iter().for_each(TestMount::finish);
}

/// Content that cannot be read is named, with the node or file that it belongs to, and the rest is shown all the
/// same.
#[test]
fn what_is_damaged_is_named() {
    let shared = Shared::plain();
    let mut a = publisher(&shared, "a");
    a.allow_log("damaged");
    a.start();
    put(a.path("sound"), data(5, 2000));
    put(a.path("broken"), data(6, 2000));
    put(a.path("odd"), data(7, 2000));
    a.kill();
    let login = login();
    let before = in_json(&login, &shared);
    let dir = dir_of(&shared, file(&before, "broken"));
    let layout = layout_in(&dir);
    let mut bytes = get(&layout);
    let whole = bytes.clone();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    put(&layout, &bytes);
    put(dir.join("no-name-of-ours"), "");
    put(
        shared.shared_dir().join("nodes/00000000000000aa"),
        "nonsense",
    );
    // A process that opened this would wait for ever.
    let odd = dir_of(&shared, file(&before, "odd")).join("l.00000000000000bb.1");
    sys::mknod(&odd, libc::S_IFIFO | 0o600, 0).expect("mkfifo");

    let report = in_json(&login, &shared);
    let problems = texts(&file(&report, "broken")["problems"]).join("; ");
    for words in [
        "a layout of node a has a batch at byte 192",
        "no-name-of-ours",
    ] {
        assert!(problems.contains(words), "{words:?} is missing: {problems}");
    }
    assert_eq!(
        file(&report, "sound")["problems"].as_array().map(Vec::len),
        Some(0)
    );
    assert_eq!(file(&report, "sound")["published"][0]["bytes"], 2000);
    let problems = texts(&file(&report, "odd")["problems"]).join("; ");
    assert!(problems.contains("l.00000000000000bb.1"), "{problems}");
    assert_eq!(file(&report, "odd")["published"][0]["bytes"], 2000);
    let nodes = report["nodes"].as_array().expect("a list");
    let record = nodes.iter().find(|n| n["id"] == "00000000000000aa");
    let state = record.expect("the damaged record")["state"].as_str();
    assert!(
        state.is_some_and(|s| s.contains("is damaged")),
        "{report:#}"
    );
    let said = in_text(&login, &shared);
    table(&said, "file");
    assert!(
        said.contains("    a layout of node a has a batch at byte 192"),
        "{said}"
    );
    assert!(said.contains("nodes/00000000000000aa is damaged"), "{said}");

    fs::remove_file(odd).expect("remove");
    // The command has named it and changed nothing.
    assert_eq!(get(&layout), bytes);
    put(&layout, whole);
    fs::remove_file(dir.join("no-name-of-ours")).expect("remove");
    fs::remove_file(shared.shared_dir().join("nodes/00000000000000aa")).expect("remove");
    assert_eq!(in_json(&login, &shared)["files"], before["files"]);
}

/// S5.3, S8.12: a layout that was cut within a batch is named by `status`, by adoption (which drains the whole
/// batches) and by its own node when that is back, which checks its own layouts only.
#[test]
fn what_was_cut_is_named() {
    let shared = Shared::plain();
    let mut a = publisher(&shared, "a");
    a.start();
    let (whole, lost) = (data(8, 2000), data(9, 1000));
    put(a.path("whole"), &whole);
    put(a.path("cut"), &whole);
    write_at(&a, "cut", 2000, &lost);
    a.kill();
    let login = login();
    let before = in_json(&login, &shared);
    assert_eq!(file(&before, "cut")["published"][0]["bytes"], 3000);
    let layout = layout_in(&dir_of(&shared, file(&before, "cut")));
    let bytes = get(&layout);
    let end = bytes.len() - 1;
    put(&layout, &bytes[..end]);

    let says = format!("a layout of node a ends within a batch at byte {end}");
    let report = in_json(&login, &shared);
    let problems = texts(&file(&report, "cut")["problems"]).join("; ");
    assert!(problems.contains(&says), "{problems}");
    assert_eq!(file(&report, "cut")["published"][0]["bytes"], 2000);
    assert_eq!(
        file(&report, "whole")["problems"].as_array().map(Vec::len),
        Some(0)
    );
    let said = in_text(&login, &shared);
    table(&said, "file");
    assert!(said.contains(&format!("    {says}")), "{said}");

    let out = adopt(&login, &shared, &["--json"]);
    assert_eq!(code(&out), OK, "{}", text(&out));
    let report = json(&out);
    assert_eq!(texts(&report["adopted"]), ["cut", "whole"]);
    let problems = texts(&report["problems"]).join("; ");
    assert!(problems.contains(&says), "{problems}");
    for name in ["cut", "whole"] {
        assert_same(name, &get(shared.canonical(name)), &whole);
    }
    a.start();
    let own = format!("this node's layout of it ends within a batch at byte {end}");
    nodes_pair::until_logged(&a, &[&own]);
    a.finish();
}

/// A backing that no node ever mounted, one that is not there, and a user who may not look: one sentence for each.
#[test]
fn nothing_to_see() {
    let (shared, login) = (Shared::plain(), login());
    let said = in_text(&login, &shared);
    assert!(said.ends_with("  No node has ever mounted it.\n"), "{said}");
    let report = in_json(&login, &shared);
    assert_eq!(report["nodes"].as_array().map(Vec::len), Some(0));
    let missing = shared.backing().join("no-such");
    let out = login.run(["status".as_ref(), "--backing".as_ref(), missing.as_os_str()]);
    assert_refused(&out, Some(USAGE), &["no-such", "does not exist"]);

    let mut a = publisher(&shared, "a");
    a.start();
    let open = open_rw(a.path("f"));
    sys::write_all_at(&open, b"x", 0).expect("write");
    drop(open);
    let out = as_user(ALICE, &[], || status(&login, &shared, &[]));
    assert_refused(&out, Some(DENIED), &["only root"]);
    a.finish();
}
