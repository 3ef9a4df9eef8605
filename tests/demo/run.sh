#!/bin/bash
# The demo: a job of several processes on two nodes writes one shared file through the mounts of
# both, the file drains while you watch, and every byte of the result is compared with a reference
# that is computed independently.
#
# The nodes are namespaces of this machine, which needs root; MPI is not used. Everything is below
# one temporary directory on disk, which is removed at the end, also after an interruption. Set
# TOTAL, BLOCK, PROCESSES or DRAIN_RATE (bytes per second, of all nodes in sum) to try something
# else.
set -euo pipefail
cd "$(dirname "$0")/../.."

FOREBAY=$(realpath "${FOREBAY:-target/release/forebay}")
CLUSTER=$(realpath "${CLUSTER:-target/release/forebay-cluster}")
WRITER=$(realpath "${WRITER:-target/release/strided-writer}")
PROCESSES=${PROCESSES:-4}
BLOCK=${BLOCK:-47008}
TOTAL=${TOTAL:-536870912}
DRAIN_RATE=${DRAIN_RATE:-134217728}
NODES=2

if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "forebay: the nodes of the demo are namespaces, which needs root: run make demo as root" >&2
        exit 1
    }
    echo "The nodes are namespaces, which needs root: going on with sudo."
    exec sudo FOREBAY="$FOREBAY" CLUSTER="$CLUSTER" WRITER="$WRITER" PROCESSES="$PROCESSES" BLOCK="$BLOCK" \
        TOTAL="$TOTAL" DRAIN_RATE="$DRAIN_RATE" DEMO_DIR="${DEMO_DIR:-/var/tmp}" tests/demo/run.sh
fi

work=$(mktemp -d "${DEMO_DIR:-/var/tmp}/forebay-demo.XXXXXX")
scratch=$work/scratch
export FOREBAY_CLUSTER=$work/cluster FOREBAY_BIN=$FOREBAY

clean_up() {
    trap '' INT TERM
    cd /
    # The job and the reference may still be running.
    local pids
    pids=$(jobs -p)
    # shellcheck disable=SC2086
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    # Ends whatever is left of the nodes; the files are removed only if that succeeds.
    "$CLUSTER" down --discard >/dev/null && rm -rf "$work"
}
trap clean_up EXIT
trap 'echo; echo "interrupted: cleaning up" >&2; exit 130' INT
trap 'exit 143' TERM

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }
show() {
    echo "\$ $*" | sed "s|$CLUSTER|forebay-cluster|g; s|$FOREBAY|forebay|g; s|$work|\$DEMO|g"
    "$@"
}
# field NAME: prints a number from one flat JSON object on standard input.
field() { sed -n "s/.*\"$1\":\([0-9.eE+-]*\).*/\1/p"; }
now() { date +%s.%N; }
mb() { awk -v b="$1" 'BEGIN { printf "%.0f MB", b / 1e6 }'; }

# up RATE: stores, backing and four targets are directories of $work; RATE 0 means no limit.
# Draining on close keeps the two bandwidths of the result apart.
up() {
    show "$CLUSTER" up $NODES --backing "$scratch" --network host -- \
        --drain on-close --drain-rate $(($1 / NODES)) \
        --ost "$work/ost0" --ost "$work/ost1" --ost "$work/ost2" --ost "$work/ost3"
}
job() { "$WRITER" job "$1" --processes "$PROCESSES" --block "$BLOCK" --total "$TOTAL" --seed "$2" "${@:3}"; }
# The job starts on the first node, and its processes on both nodes in turn.
job_on_nodes() {
    "$CLUSTER" exec 0 -- "$WRITER" job "$1" --processes "$PROCESSES" --block "$BLOCK" --total "$TOTAL" \
        --seed "$2" --nodes $NODES --cluster "$CLUSTER"
}
same_as_reference() {
    "$WRITER" reference --total "$TOTAL" --seed "$2" | cmp - "$1"
}

mkdir "$scratch" "$work"/{ost0,ost1,ost2,ost3}

say "1. The job on the bare directory: $PROCESSES processes, blocks of $BLOCK bytes in turn, $(mb "$TOTAL"), fsync"
direct=$(job "$scratch/direct.dat" 1 --fsync)
direct_seconds=$(field seconds <<<"$direct")
rm "$scratch/direct.dat"
echo "took $direct_seconds s"

say "2. The same job on two nodes, with Forebay mounted over that directory on each"
echo "(the drain is held at $(mb "$DRAIN_RATE")/s here, as if the file system below were busy, so that you can watch)"
up "$DRAIN_RATE"
through=$(job_on_nodes "$scratch/shared.dat" 2)
drain_start=$(now)
absorb_seconds=$(field seconds <<<"$through")
absorb_rate=$(field bytes_per_second <<<"$through")
echo "took $absorb_seconds s: the job is done, half of its file is in the log of each node"

say "3. It drains in the background"
show "$CLUSTER" status
show "$CLUSTER" exec 0 -- "$FOREBAY" status "$scratch"
show "$CLUSTER" drain --wait
limited_seconds=$(awk -v a="$drain_start" -v b="$(now)" 'BEGIN { print b - a }')

say "4. With the nodes gone, the file below is byte for byte what the job wrote"
show "$CLUSTER" down
same_as_reference "$scratch/shared.dat" 2
sum=$(sha256sum <"$scratch/shared.dat" | cut -c1-16)
expected=$("$WRITER" reference --total "$TOTAL" --seed 2 | sha256sum | cut -c1-16)
echo "identical: $(stat -c %s "$scratch/shared.dat") bytes, sha256 $sum…, expected $expected…"

say "5. Once more with other content and the drain as fast as it goes"
up 0
job_on_nodes "$scratch/shared.dat" 3 >/dev/null
drain_start=$(now)
show "$CLUSTER" down
free_seconds=$(awk -v a="$drain_start" -v b="$(now)" 'BEGIN { print b - a }')
same_as_reference "$scratch/shared.dat" 3
echo "identical again"

say "Result"
awk -v total="$TOTAL" -v direct="$direct_seconds" -v absorb="$absorb_seconds" -v rate="$absorb_rate" \
    -v limited="$limited_seconds" -v free="$free_seconds" -v limit="$DRAIN_RATE" 'BEGIN {
    row = "  %-46s %7.0f MB/s  %7.2f s\n"
    printf row, "absorb bandwidth (what the job sees)", rate / 1e6, absorb
    printf row, "bare directory, with fsync", total / direct / 1e6, direct
    printf row, sprintf("drain bandwidth, writes held at %.0f MB/s", limit / 1e6), total / limited / 1e6, limited
    printf row, "drain bandwidth, no limit (synced, nodes down)", total / free / 1e6, free
    more = "  %-46s %7.1f x\n"
    printf more, sprintf("perceived speed-up, below at %.0f MB/s", limit / 1e6), total / limit / absorb
    printf more, "perceived speed-up, bare directory of this disk", direct / absorb
}'
echo "  (the drain writes each byte twice, because both nodes wrote the file: to a target, then to the file. The"
echo "  first speed-up compares the job with a file system below that takes $(mb "$DRAIN_RATE")/s from all nodes together,"
echo "  the second with this machine's own disk, which both stores and the backing share here)"
