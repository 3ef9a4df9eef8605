#!/bin/bash
# Everything that `make test` runs, in one profile (release) so that nothing compiles twice:
# lint, then unit tests, then the tests on real mounts. Ends with the totals.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
started=$SECONDS

scripts/lint.sh
# What the tests on real mounts start.
$CARGO build --release --locked --workspace --bins
scripts/tools.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
$CARGO test --release --locked --workspace --no-fail-fast 2>&1 | tee "$log" || status=$?

awk -v seconds=$((SECONDS - started)) -v status=$status '
    /^test result: / {
        for (i = 1; i < NF; i++) {
            if ($(i + 1) ~ /^passed/) passed += $i
            if ($(i + 1) ~ /^failed/) failed += $i
            if ($(i + 1) ~ /^ignored/) ignored += $i
        }
        suites++
    }
    /^test .* \.\.\. FAILED$/ { broken[++n] = $2 }
    END {
        printf "\n%d suites: %d passed, %d failed, %d ignored, in %d min %02d s\n",
            suites, passed, failed, ignored, seconds / 60, seconds % 60
        for (i = 1; i <= n; i++) print "  failed: " broken[i]
        if (status != 0 && failed == 0) print "  cargo stopped before the tests could finish: see above"
        if (suites == 0) exit 1
    }' "$log"
exit $status
