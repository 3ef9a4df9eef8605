#!/bin/bash
# The script of `make test` and `make check`. Uses one profile (release), so that nothing compiles twice. Runs lint,
# then the unit tests and the tests on real mounts concurrently (scripts/run-tests.py, which ends with the totals).
#   test.sh            everything
#   test.sh --check    the unit tests and the fast suites
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
started=$SECONDS

scripts/lint.sh
# Programs that the tests on real mounts start.
$CARGO build --release --locked --workspace --bins
scripts/tools.sh

built=$(mktemp)
trap 'rm -f "$built"' EXIT
$CARGO test --release --locked --workspace --no-run --message-format=json-render-diagnostics >"$built"
echo "lint and build: $(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s"
scripts/run-tests.py "$built" "$@"
