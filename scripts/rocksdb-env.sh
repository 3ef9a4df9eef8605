# Source this file. It exports ROCKSDB_LIB_DIR if the system's RocksDB fits the crate, and otherwise unsets
# it, which makes the crate build its own copy (docs/decisions/0001-rocksdb.md).
# `source rocksdb-env.sh bundled` always unsets it.

# The crate declares the C functions of RocksDB 8.1. From 7.8 to 9.x all functions that Forebay calls exist
# with the same declarations; later versions changed some.
_forebay_rocksdb_fits() {
    local major=${1%%.*} rest=${1#*.}
    local minor=${rest%%.*}
    [[ $major =~ ^[0-9]+$ && $minor =~ ^[0-9]+$ ]] || return 1
    (((major == 7 && minor >= 8) || major == 8 || major == 9))
}

# Prints the directory of the system's library if it fits.
_forebay_system_rocksdb() {
    local version libdir
    command -v pkg-config >/dev/null || return 1
    version=$(pkg-config --modversion rocksdb 2>/dev/null) || return 1
    libdir=$(pkg-config --variable=libdir rocksdb 2>/dev/null) || return 1
    # The build reads the version that goes into the superblock from this header.
    [ -e "$libdir/librocksdb.so" ] && [ -e /usr/include/rocksdb/version.h ] || return 1
    if ! _forebay_rocksdb_fits "$version"; then
        echo "RocksDB $version of this system does not fit (7.8 to 9.x does)" >&2
        return 1
    fi
    echo "$libdir"
}

if [ "${1:-}" = bundled ]; then
    unset ROCKSDB_LIB_DIR
elif [ -z "${ROCKSDB_LIB_DIR:-}" ] && ROCKSDB_LIB_DIR=$(_forebay_system_rocksdb); then
    export ROCKSDB_LIB_DIR
elif [ -z "${ROCKSDB_LIB_DIR:-}" ]; then
    unset ROCKSDB_LIB_DIR
    echo "no system RocksDB that fits: building the bundled one, which takes a while" >&2
fi
if [ -z "${ROCKSDB_LIB_DIR:-}" ]; then
    # Its sources are older than compilers that need this include.
    export CXXFLAGS="${CXXFLAGS:-} -include cstdint"
fi
