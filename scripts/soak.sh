#!/bin/bash
# The tests whose length is a number, at length: kill -9 under load, and the reference models of one node
# and of several. The model of several nodes mostly waits, so several runs of it go side by side.
#
#   FOREBAY_CYCLES     kill -9 cycles of one node, for each drain policy
#   FOREBAY_OPS        operations of the model of one node, for each drain policy
#   FOREBAY_NODES_OPS  operations of the model of several nodes, of all runs together
#   FOREBAY_RUNS       how many runs of it go side by side
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
export FOREBAY_CYCLES=${FOREBAY_CYCLES:-200} FOREBAY_OPS=${FOREBAY_OPS:-200000}
nodes_ops=${FOREBAY_NODES_OPS:-2000000} runs=${FOREBAY_RUNS:-6}

$CARGO build --release --locked --workspace --bins
scripts/tools.sh
echo "soak: $FOREBAY_CYCLES cycles of kills and $FOREBAY_OPS operations per policy, $nodes_ops operations of several nodes"
$CARGO test --release --locked --workspace --test kill --test model -- --include-ignored --nocapture --test-threads=1
$CARGO test --release --locked --workspace --test nodes_model --no-run

logs=$(mktemp -d)
seed=${FOREBAY_SEED:-$(date +%s)}
started=$SECONDS
declare -A pids
for ((run = 1; run <= runs; run++)); do
    FOREBAY_SEED=$((seed + run)) FOREBAY_OPS=$((nodes_ops / runs)) $CARGO test --release --locked --workspace \
        --test nodes_model -- --nocapture >"$logs/$run.log" 2>&1 &
    pids[$run]=$!
done
trap 'kill "${pids[@]}" 2>/dev/null || true' INT TERM
failed=0
for ((run = 1; run <= runs; run++)); do
    wait "${pids[$run]}" || failed=1
    echo "several nodes, seed $((seed + run)): $(grep -h '^all parts' "$logs/$run.log" || tail -n 40 "$logs/$run.log")"
done
awk -v seconds=$((SECONDS - started)) '/^all parts/ {operations += $3; checks += $5; kills += $7}
    END {printf "several nodes: %d operations, %d checks, %d kills, in %d min %02d s\n",
        operations, checks, kills, seconds / 60, seconds % 60}' "$logs"/*.log
rm -rf "$logs"
exit $failed
