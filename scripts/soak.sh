#!/bin/bash
# Runs the tests whose length is a number, at length: kill -9 under load, the reference models of one node
# and of several nodes, and a store disk that other programs fill. All of them mostly wait, so they run
# concurrently, and the model of several nodes in several runs.
# Fails if one of them fails, or if fewer kills or operations than LEAST_* were seen.
#
#   FOREBAY_CYCLES       kill -9 cycles of one node, for each drain policy
#   FOREBAY_OPS          operations of the model of one node, for each drain policy
#   FOREBAY_NODES_OPS    operations of the model of several nodes, of all runs together
#   FOREBAY_RUNS         number of concurrent runs of that model
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
for test in kill model store_disk nodes_model; do tests+=(--test "$test"); done
$CARGO test --release --locked --workspace "${tests[@]}" --no-run
echo "soak: $FOREBAY_CYCLES cycles of kills and $FOREBAY_OPS operations per policy, $nodes_ops operations of several nodes, \
$FOREBAY_DISK_CYCLES fillings of a store disk"

logs=$(mktemp -d)
declare -A pids
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
started=$SECONDS
failed=0

# start NAME COMMAND...: starts the command in the background, with its output in a file of that name.
start() {
    local name=$1
    shift
    "$@" >"$logs/$name.log" 2>&1 &
    pids[$name]=$!
}
for test in kill model store_disk; do
    start "$test" "$CARGO" test --release --locked --workspace --test "$test" -- --include-ignored --nocapture
done
for ((run = 1; run <= runs; run++)); do
    FOREBAY_SEED=$((seed + run)) FOREBAY_OPS=$(((nodes_ops + runs - 1) / runs)) \
        start "nodes-seed-$((seed + run))" "$CARGO" test --release --locked --workspace --test nodes_model -- --nocapture
done

while ((${#pids[@]} > 0)); do
    status=0
    wait -n -p ended "${pids[@]}" || status=$?
    for name in "${!pids[@]}"; do
        [[ ${pids[$name]} == "$ended" ]] && break
    done
    unset "pids[$name]"
    took="$(((SECONDS - started) / 60)) min $(((SECONDS - started) % 60)) s"
    if [[ $status == 0 ]]; then
        echo "$name: ok after $took"
        grep -hE '^(all parts|kill, drain .* kills, )|: [0-9]+ kills, ' "$logs/$name.log" || true
    else
        failed=1
        echo "$name: FAILED after $took"
        tail -n 200 "$logs/$name.log"
    fi
done

summary=$(awk -v took=$((SECONDS - started)) -v least_kills=$LEAST_KILLS -v least=$LEAST_OPERATIONS '
    {for (i = 2; i <= NF; i++) if (/kill, drain/ && $i ~ /^kills,/) cycles += $(i - 1)}
    /^all parts/ {operations += $3; checks += $5; kills += $7}
    END {
        printf "soak: one node: %d kills; several nodes: %d operations, %d checks, %d kills; in %d min %02d s\n",
            cycles, operations, checks, kills, took / 60, took % 60
        if (cycles + kills < least_kills || operations < least) print "soak: too few"
    }' "$logs"/*.log)
echo "$summary"
[[ $summary == *"too few"* ]] && failed=1
[[ $failed == 0 ]] || echo "soak: FAILED"
exit $failed
