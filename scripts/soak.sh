#!/bin/bash
# The tests whose length is a number, at length: kill -9 under load, and the reference models of one node
# and of several.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
export FOREBAY_CYCLES=${FOREBAY_CYCLES:-200} FOREBAY_OPS=${FOREBAY_OPS:-200000}

$CARGO build --release --locked --workspace --bins
scripts/tools.sh
echo "soak: $FOREBAY_CYCLES kills, $FOREBAY_OPS operations per policy"
exec $CARGO test --release --locked -p forebay-tests --test kill --test model --test nodes_model -- \
    --include-ignored --nocapture --test-threads=1
