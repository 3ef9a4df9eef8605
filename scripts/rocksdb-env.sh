# Source this: exports ROCKSDB_LIB_DIR when the system's RocksDB fits the crate, and clears it
# otherwise, which makes the crate build its own copy (docs/decisions/0001-rocksdb.md).
# `source rocksdb-env.sh bundled` clears it always.

# The crate declares RocksDB 8.1's C functions. From 7.8 to 9.x all that Forebay calls are there
# and declared alike; later ones changed some.
_forebay_rocksdb_fits() {
    local major=${1%%.*} rest=${1#*.}
    local minor=${rest%%.*}
    [[ $major =~ ^[0-9]+$ && $minor =~ ^[0-9]+$ ]] || return 1
    (((major == 7 && minor >= 8) || major == 8 || major == 9))
}

# _forebay_system_rocksdb: prints the directory of the system's library if it fits.
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
    # Its sources are older than compilers that want this said.
    export CXXFLAGS="${CXXFLAGS:-} -include cstdint"
fi
