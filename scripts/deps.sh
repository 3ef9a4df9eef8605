#!/bin/bash
# Installs what is missing, and only that. Ends quickly if nothing is missing.
#   deps.sh build         what building and mounting need
#   deps.sh build test    and what the tests need
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/rocksdb-env.sh bundled # for _forebay_rocksdb_fits

build_packages=(build-essential pkg-config libclang-dev fuse3)
test_packages=(attr acl mpich libmpich-dev openmpi-bin libopenmpi-dev e2fsprogs util-linux mount procps
    psmisc python3 python3-numpy strace iproute2 rsync git sqlite3
    moosefs-master moosefs-chunkserver moosefs-client moosefs-cli
    libhdf5-mpich-dev libhdf5-openmpi-dev hdf5-tools libpnetcdf-dev pnetcdf-bin)

fail() {
    echo "forebay: $*" >&2
    exit 1
}

installed() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

want_test=false
[[ " $* " == *" test "* ]] && want_test=true

command -v cargo >/dev/null ||
    fail "there is no Rust toolchain: install Rust 1.89 or newer and run this again"

if $want_test; then
    for component in rustfmt clippy; do
        program=cargo-$component
        [ $component = rustfmt ] && program=cargo-fmt
        command -v $program >/dev/null && $program --version >/dev/null 2>&1 && continue
        command -v rustup >/dev/null ||
            fail "the Rust toolchain has no $component: install it and run this again"
        rustup component add $component
    done
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    for program in cc c++ fusermount3; do
        command -v $program >/dev/null ||
            fail "$program is missing and this is not Debian: install a C++ compiler, libclang and fuse3 (and RocksDB 7.8 to 9.x with headers, to save its build)"
    done
    exit 0
fi

wanted=("${build_packages[@]}")
$want_test && wanted+=("${test_packages[@]}")
missing=()
for package in "${wanted[@]}"; do
    installed "$package" || missing+=("$package")
done
# The RocksDB package saves a long build but is not needed: the crate brings its own copy. The list stays
# empty if the package is installed already, or if the distribution's version is known and does not fit.
rocksdb=()
rocksdb_candidate() {
    apt-cache policy librocksdb-dev 2>/dev/null | awk '/Candidate:/ && $2 != "(none)" {print $2}'
}
if ! installed librocksdb-dev; then
    candidate=$(rocksdb_candidate)
    if [ -z "$candidate" ] || _forebay_rocksdb_fits "${candidate%%-*}"; then
        rocksdb=(librocksdb-dev)
    fi
fi

# The tests mount as an ordinary user. udev sets this mode where it runs.
if [[ " $* " == *" test "* && "$(id -u)" == 0 && -c /dev/fuse ]]; then
    chmod 0666 /dev/fuse
fi

[ ${#missing[@]} = 0 ] && [ ${#rocksdb[@]} = 0 ] && exit 0

if [ "$(id -u)" != 0 ]; then
    command="sudo apt-get update && sudo apt-get install --yes --no-install-recommends"
    if [ ${#missing[@]} = 0 ]; then
        echo "forebay: RocksDB will be built from source; to use the system's: $command ${rocksdb[*]}" >&2
        exit 0
    fi
    fail "these packages are missing; run this, then make again:
    $command ${missing[*]} ${rocksdb[*]}"
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
if [ ${#rocksdb[@]} != 0 ]; then
    candidate=$(rocksdb_candidate)
    [ -n "$candidate" ] && _forebay_rocksdb_fits "${candidate%%-*}" && missing+=("${rocksdb[@]}")
fi
if [ ${#missing[@]} != 0 ]; then
    echo "installing ${missing[*]}"
    apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}" >/dev/null
fi
