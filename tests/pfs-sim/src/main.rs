//! The `pfs-sim` program. Its code is in the library, where tests can call it.

use std::process::ExitCode;

fn main() -> ExitCode {
    pfs_sim::cli::main()
}
