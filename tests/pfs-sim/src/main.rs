//! The `pfs-sim` program. What it does is in the library, where tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    pfs_sim::cli::main()
}
