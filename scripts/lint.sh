#!/bin/bash
# Checks formatting, clippy, shell and Python syntax. Clippy runs in the release profile, so that it shares
# build scripts (bindgen over RocksDB's header) with the build and the tests. Long files are listed but do not
# fail the check: they are a sign that a file may have more than one subject.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}

$CARGO fmt --all -- --check
$CARGO clippy --release --locked --workspace --all-targets --quiet -- -D warnings
for script in .ci/run scripts/*.sh tests/demo/*.sh tests/src/moosefs/*.sh; do
    bash -n "$script"
done
python3 - scripts/*.py <<'CHECK'
import ast, sys
for path in sys.argv[1:]:
    ast.parse(open(path, encoding="utf-8").read(), path)
CHECK
git ls-files '*.rs' | xargs wc -l | awk '$2 != "total" && $1 > 500 {print "lint: " $2 " has " $1 " lines: has it one subject?"}'
echo "lint: clean"
