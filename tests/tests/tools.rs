//! Plain tools on the mount: each does what it does in a plain directory.
//!
//! A script runs in a plain directory and on a mount. The files that it left are looked at on that mount, on another
//! node and, after the drain, in the canonical directory. Its output and these files must be the same everywhere;
//! where bytes alone do not show that, the tool itself is asked.

mod nodes_pair;

use forebay_tests::prereq;
use forebay_tests::test_mount::{Drain, TestMount, text};
use forebay_tests::tree::{self, Tree};
use forebay_tests::wait::{LONG, wait_until};
use nodes_pair::Shared;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether times are compared in what a script left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Times {
    /// The script gives files their times, so times are compared.
    Count,
    Differ,
}

struct Nodes {
    a: TestMount,
    b: TestMount,
    shared: Shared,
}

impl Nodes {
    fn start() -> Nodes {
        let shared = Shared::plain();
        let [a, b] = ["a", "b"].map(|name| {
            let mut mount = shared.node(name, Drain::Immediate);
            mount.start();
            mount
        });
        Nodes { a, b, shared }
    }

    fn finish(mut self) {
        self.a.umount();
        self.b.umount();
    }
}

/// A tree to work with: sizes around every boundary there is, links of both kinds, odd names and modes, and holes.
const SAMPLE: &str = r#"
mkdir -p src/deep/er src/empty
for n in 0 1 4095 4096 4097 65536 1048576 1048577; do
    head -c $n /dev/zero | tr '\0' x > src/size.$n
done
head -c 3000000 /dev/urandom > /dev/null
seq 1 200000 > src/deep/numbers
ln src/deep/numbers src/deep/er/same
ln -s ../deep/numbers src/empty/link
ln -s nowhere src/dangling
printf '#!/bin/sh\necho ran\n' > src/deep/program
chmod 755 src/deep/program
printf secret > src/private
chmod 600 src/private
printf 'a b' > 'src/a name with spaces'
truncate -s 5M src/holes
printf middle | dd of=src/holes bs=1 seek=2500000 conv=notrunc status=none
find src -type f -exec touch -d @1000000000 {} +
"#;

fn bash(dir: &Path, script: &str) -> String {
    let out = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .env("HOME", dir)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        // These variables are those of the make that runs the tests.
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .env_remove("MFLAGS")
        .output()
        .expect("start bash");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "in {}: {}", dir.display(), text(&out));
    said
}

/// Runs the script on a plain directory and on the first node.
fn the_same(times: Times, skip: &[&str], script: &str) {
    the_same_answers(times, skip, script, "true");
}

/// The same, and `ask`, which changes nothing, finds the same in what the script left, wherever it looks.
fn the_same_answers(times: Times, skip: &[&str], script: &str, ask: &str) {
    let script = format!("{SAMPLE}\n{script}");
    let plain = tempfile::tempdir().expect("a directory");
    let said = bash(plain.path(), &script);
    let skip = |name: &str| skip.contains(&name) || name == ".forebay";
    let look = |dir: &Path| -> Tree {
        let tree = tree::read(dir, skip);
        match times {
            Times::Count => tree,
            Times::Differ => tree::without_times(tree),
        }
    };
    let want = look(plain.path());
    assert!(want.len() > 10, "the script left something");
    let answer = bash(plain.path(), ask);
    let assert_so = |whose: &str, dir: &Path| {
        tree::assert_alike(whose, &look(dir), &want);
        assert_eq!(bash(dir, ask), answer, "{whose}: {ask}");
    };

    let nodes = Nodes::start();
    assert_eq!(bash(nodes.a.mnt(), &script), said, "what it printed");
    assert_so("on the node", nodes.a.mnt());
    assert_so("on another node", nodes.b.mnt());
    nodes.a.drain();
    nodes.b.drain();
    assert_so("canonical", &nodes.shared.backing());
    nodes.finish();
}

#[test]
fn tar() {
    the_same(
        Times::Count,
        &[],
        "mkdir out
         tar -C src -cf - . | tar -C out -xpf -
         tar --sort=name --mtime=@0 -cf all.tar out
         tar -df all.tar --warning=no-timestamp || true
         tar -tvf all.tar | awk '{print $1, $3, $6}'
         rm -r src
         touch -d @1 all.tar",
    );
}

#[test]
fn rsync() {
    prereq::program("rsync", "rsync");
    the_same(
        Times::Count,
        &[],
        "rsync() { command rsync --omit-dir-times \"$@\"; }
         rsync -aH src/ copy/
         seq 5 >> src/deep/numbers; rm src/size.4097; touch -d @1000000100 src/deep/numbers
         rsync -aH --itemize-changes --delete src/ copy/
         rsync -aH --inplace --no-whole-file --checksum src/ copy/
         rsync -aHS --delete src/ sparse/
         rsync -aHn --itemize-changes --delete src/ copy/",
    );
}

/// The id of a commit depends on everything in the commit, and `fsck` computes all ids again.
#[test]
fn git() {
    prereq::program("git", "git");
    the_same_answers(
        Times::Differ,
        &[".git"],
        "export GIT_AUTHOR_DATE='2001-01-01T00:00:00Z' GIT_COMMITTER_DATE='2001-01-01T00:00:00Z'
         export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
         git config --global init.defaultBranch main
         rm -f .gitconfig.lock
         git init -q repo; cp -a src/. repo/; cd repo
         git add -A; git commit -qm first; git rev-parse HEAD
         for n in 1 2 3 4 5; do echo $n >> changes; git add changes; git commit -qm $n; done
         git status --porcelain
         cd ..; git clone -q repo clone; cd clone
         git mv size.1 moved; git commit -qam moved; git rev-parse HEAD
         git checkout -q -b side HEAD~3; echo side > side; git add side; git commit -qm side
         git merge -q -m merged main; git rev-parse HEAD
         git gc -q --prune=now; git fsck --strict 2>&1
         git push -q origin side; cd ../repo; git log --oneline --all | wc -l
         cd ..; rm .gitconfig",
        "for repository in clone repo; do
             git -C $repository fsck --strict 2>&1 | sort
             git -C $repository rev-parse HEAD side
         done",
    );
}

/// A build finds by times what is to be made again, and makes nothing else. The program that it built runs.
#[test]
fn a_build_with_make() {
    the_same_answers(
        Times::Differ,
        &["main.o", "prog"],
        r#"mkdir build; cd build
         for n in $(seq 1 24); do
             echo "int f$n(void) { return $n; }" > f$n.c
         done
         { for n in $(seq 1 24); do echo "int f$n(void);"; done
           echo '#include <stdio.h>'
           echo 'int main(void) { int sum = 0;'
           for n in $(seq 1 24); do echo "sum += f$n();"; done
           echo 'printf("%d\n", sum); return 0; }'; } > main.c
         printf 'OBJ := $(patsubst %%.c,%%.o,$(sort $(wildcard *.c)))\nprog: $(OBJ)\n\t@$(CC) -o $@ $^\n%%.o: %%.c\n\t@echo cc $<\n\t@$(CC) -c -o $@ $<\n' > Makefile
         make -j4 | sort; ./prog
         make
         sed -i 's/return 7/return 700/' f7.c
         touch -d '+2 seconds' f7.c
         make -j4; ./prog
         rm f*.o"#,
        "build/prog",
    );
}

/// A database keeps its guarantees by locks, syncs and the order of its writes.
#[test]
fn sqlite() {
    prereq::program("sqlite3", "sqlite3");
    the_same(
        Times::Differ,
        &["t.db", "w.db", "w.db-wal", "w.db-shm"],
        "sqlite3 t.db 'create table t (who, n, primary key (who, n)); create table c (n); insert into c values (0);'
         for who in 1 2 3 4; do
             (for n in $(seq 1 15); do
                 sqlite3 -cmd '.timeout 60000' t.db \"begin immediate; insert into t values ($who, $n); update c set n = n + 1; commit;\"
             done) &
         done
         wait
         sqlite3 t.db 'select count(*) from t; select n from c; pragma integrity_check;'
         sqlite3 w.db 'pragma journal_mode = wal; create table t (x); insert into t select value from generate_series(1, 20000);'
         sqlite3 w.db 'select sum(x) from t; pragma integrity_check; pragma wal_checkpoint(truncate);'
         sqlite3 t.db .dump | sort > dump; sqlite3 w.db .dump | md5sum",
    );
}

/// S3: two nodes write one database. Its journal must be a rollback journal, because shared memory is shared between
/// machines on no file system.
#[test]
fn sqlite_from_two_nodes() {
    prereq::program("sqlite3", "sqlite3");
    let nodes = Nodes::start();
    bash(
        nodes.a.mnt(),
        "sqlite3 t.db 'create table t (who, n, primary key (who, n)); create table c (n); insert into c values (0);'",
    );
    const EACH: u32 = 25;
    let writer = |mount: &TestMount, who: &str| {
        let script = format!(
            "for n in $(seq 1 {EACH}); do
                 sqlite3 -cmd '.timeout 60000' t.db \"begin immediate; insert into t values ('{who}', $n); update c set n = n + 1; commit;\"
             done"
        );
        let dir = mount.mnt().to_owned();
        forebay_tests::wait::in_background(move || bash(&dir, &script))
    };
    let both = [writer(&nodes.a, "a"), writer(&nodes.b, "b")];
    for writer in both {
        forebay_tests::wait::in_time("a writer", writer);
    }
    let want = format!("{0}\n{0}\nok\n", 2 * EACH);
    let ask = "sqlite3 t.db 'select count(*) from t; select n from c; pragma integrity_check;'";
    for mount in [&nodes.a, &nodes.b] {
        assert_eq!(bash(mount.mnt(), ask), want);
    }
    nodes.a.drain();
    nodes.b.drain();
    assert_eq!(bash(&nodes.shared.backing(), ask), want, "canonical");
    nodes.finish();
}

#[test]
fn numpy_memory_maps() {
    let numpy = Command::new("/usr/bin/python3")
        .args(["-c", "import numpy"])
        .output();
    assert!(
        numpy.is_ok_and(|out| out.status.success()),
        "/usr/bin/python3 has no numpy: apt-get install python3-numpy"
    );
    the_same(
        Times::Differ,
        &[],
        r#"/usr/bin/python3 - <<'END'
import numpy as np
a = np.memmap('m.dat', dtype='float64', mode='w+', shape=(300, 1000))
a[:] = np.arange(300000).reshape(300, 1000)
a[17, ::3] = -1
a.flush()
del a
b = np.memmap('m.dat', dtype='float64', mode='r', shape=(300, 1000))
print(b.sum(), b[17].min())
c = np.memmap('m.dat', dtype='float64', mode='r+', shape=(300, 1000))
c[100:200] *= 2
c.flush()
print(b.sum())
np.save('array.npy', c)
print(np.load('array.npy', mmap_mode='r').sum())
END"#,
    );
}

/// Bytes do not show holes; the blocks of five MiB with six bytes in them do (S1.2, S1.10).
#[test]
fn sparse_copies_and_direct_writes() {
    the_same_answers(
        Times::Differ,
        &[],
        "for how in always auto never; do cp --sparse=$how src/holes holes.$how; cmp src/holes holes.$how; done
         cp -a src/deep copied
         cp --reflink=auto src/deep/numbers cloned; cmp cloned src/deep/numbers
         dd if=src/size.1048576 of=direct bs=64k oflag=direct status=none
         dd if=direct iflag=direct bs=128k status=none | md5sum
         dd if=src/size.65536 of=direct bs=4k seek=100 oflag=direct conv=notrunc status=none
         dd if=src/size.4096 of=direct bs=512 seek=33 conv=notrunc,fsync status=none
         md5sum < direct
         mv direct moved; truncate -s 777777 moved; md5sum < moved
         split -b 300000 src/deep/numbers part.; cat part.* | cmp - src/deep/numbers
         sort -R --random-source=src/size.1048577 src/deep/numbers | sort -n | cmp - src/deep/numbers",
        "stat -c '%n takes %b blocks' holes.* >&2
         for how in always auto; do test $(stat -c %b holes.$how) -lt 256; done",
    );
}

/// A program that follows a file on one node sees what is appended to the file on another.
#[test]
fn tail_follows_from_another_node() {
    let nodes = Nodes::start();
    std::fs::write(nodes.a.path("log"), "first\n").expect("write");
    let mut tail = Command::new("tail")
        .args(["-n", "+1", "-f", "-s", "0.1"])
        .arg(nodes.b.path("log"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("start tail");
    let out = tail.stdout.take().expect("a pipe");
    let (said, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if said.send(line).is_err() {
                return;
            }
        }
    });
    let next = || wait_until("tail says something", LONG, || lines.try_recv().ok());
    assert_eq!(next(), "first");
    for n in 0..3 {
        let log = std::fs::File::options()
            .append(true)
            .open(nodes.a.path("log"));
        writeln!(log.expect("open"), "line {n}").expect("append");
        assert_eq!(next(), format!("line {n}"));
    }
    tail.kill().expect("end tail");
    tail.wait().expect("wait for tail");
    reader.join().expect("the reader");
    nodes.finish();
}
