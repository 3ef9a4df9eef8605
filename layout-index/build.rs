//! Tells the code which RocksDB it is linked with: the C interface has no call for that, and a
//! store must say who wrote its index.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-env-changed=ROCKSDB_LIB_DIR");
    println!("cargo:rerun-if-env-changed=ROCKSDB_INCLUDE_DIR");
    let version = match env::var_os("ROCKSDB_LIB_DIR") {
        Some(_) => system_version(),
        // The copy that comes with librocksdb-sys 0.11.0+8.1.1.
        None => "8.1.1".to_string(),
    };
    println!("cargo:rustc-env=FOREBAY_ROCKSDB_VERSION={version}");
}

fn system_version() -> String {
    let include = env::var_os("ROCKSDB_INCLUDE_DIR").map_or("/usr/include".into(), PathBuf::from);
    let header = include.join("rocksdb/version.h");
    println!("cargo:rerun-if-changed={}", header.display());
    let text = fs::read_to_string(&header)
        .unwrap_or_else(|e| panic!("{}: {e}; install librocksdb-dev", header.display()));
    let number = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(&format!("#define {name} ")))
            .map(|n| n.trim().to_string())
            .unwrap_or_else(|| panic!("{} does not define {name}", header.display()))
    };
    format!(
        "{}.{}.{}",
        number("ROCKSDB_MAJOR"),
        number("ROCKSDB_MINOR"),
        number("ROCKSDB_PATCH")
    )
}
