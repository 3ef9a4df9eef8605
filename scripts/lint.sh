#!/bin/bash
# Formatting, clippy and shell syntax. Clippy runs in the release profile, so that it shares build
# scripts (bindgen over RocksDB's header) with the build and the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}

$CARGO fmt --all -- --check
$CARGO clippy --release --locked --workspace --all-targets --quiet -- -D warnings
for script in .ci/run scripts/*.sh tests/demo/*.sh tests/src/moosefs/*.sh; do
    bash -n "$script"
done
echo "lint: clean"
