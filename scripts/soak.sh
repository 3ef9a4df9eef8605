#!/bin/bash
# The tests whose length is a number, at length: kill -9 under load, the reference models of one node and of
# several, and a store disk that others fill. The model of several nodes mostly waits, so several runs of it go side by side.
# Fails if one of them does, or if fewer kills or operations than LEAST_* were seen.
#
#   FOREBAY_CYCLES       kill -9 cycles of one node, for each drain policy
#   FOREBAY_OPS          operations of the model of one node, for each drain policy
#   FOREBAY_NODES_OPS    operations of the model of several nodes, of all runs together
#   FOREBAY_RUNS         how many runs of it go side by side
#   FOREBAY_DISK_CYCLES  how often the disk of the store is filled and freed
#   FOREBAY_SEED         seed of the first run of the model of several nodes
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
export FOREBAY_CYCLES=${FOREBAY_CYCLES:-200} FOREBAY_OPS=${FOREBAY_OPS:-200000} FOREBAY_DISK_CYCLES=${FOREBAY_DISK_CYCLES:-50}
nodes_ops=${FOREBAY_NODES_OPS:-2000000} runs=${FOREBAY_RUNS:-8}
seed=${FOREBAY_SEED:-$(date +%s)}
unset FOREBAY_SEED
LEAST_KILLS=2000
LEAST_OPERATIONS=2000000

$CARGO build --release --locked --workspace --bins
scripts/tools.sh
$CARGO test --release --locked --workspace --test nodes_model --no-run
echo "soak: $FOREBAY_CYCLES cycles of kills and $FOREBAY_OPS operations per policy, $nodes_ops operations of several nodes, \
$FOREBAY_DISK_CYCLES fillings of a store disk"

logs=$(mktemp -d)
declare -A pids
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
started=$SECONDS
failed=0
$CARGO test --release --locked --workspace --test kill --test model --test store_disk -- \
    --include-ignored --nocapture --test-threads=1 2>&1 | tee "$logs/one.log" || failed=1
took_one=$((SECONDS - started))

started=$SECONDS
for ((run = 1; run <= runs; run++)); do
    FOREBAY_SEED=$((seed + run)) FOREBAY_OPS=$(((nodes_ops + runs - 1) / runs)) $CARGO test --release --locked --workspace \
        --test nodes_model -- --nocapture >"$logs/nodes-$run.log" 2>&1 &
    pids[$run]=$!
done
for ((run = 1; run <= runs; run++)); do
    wait "${pids[$run]}" || failed=1
    unset "pids[$run]"
    echo "several nodes, seed $((seed + run)): $(grep -h '^all parts' "$logs/nodes-$run.log" || tail -n 60 "$logs/nodes-$run.log")"
done
took_nodes=$((SECONDS - started))

summary=$(awk -v one=$took_one -v nodes=$took_nodes -v least_kills=$LEAST_KILLS -v least=$LEAST_OPERATIONS '
    /^kill, drain .* kills, / {for (i = 2; i <= NF; i++) if ($i ~ /^kills,/) cycles += $(i - 1)}
    /^all parts/ {operations += $3; checks += $5; kills += $7}
    END {
        printf "soak: one node: %d kills in %d min %02d s; several nodes: %d operations, %d checks, %d kills, in %d min %02d s\n",
            cycles, one / 60, one % 60, operations, checks, kills, nodes / 60, nodes % 60
        if (cycles + kills < least_kills || operations < least) print "soak: too few"
    }' "$logs"/*.log)
echo "$summary"
[[ $summary == *"too few"* ]] && failed=1
[[ $failed == 0 ]] || echo "soak: FAILED"
exit $failed
