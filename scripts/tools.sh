#!/bin/bash
# Installs test programs from crates.io that have no library to link: below the target directory, once, in the
# versions that the lists of exclusions were made for.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-cargo}
root=$(realpath -m "${CARGO_TARGET_DIR:-target}")/tools

for tool in fsx@0.3.2 pjdfstest@0.2.2; do
    grep -qs "^\"${tool/@/ } " "$root/.crates.toml" && continue
    $CARGO install --quiet --locked "$tool" --root "$root"
done
