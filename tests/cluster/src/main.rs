//! The `forebay-cluster` program. What it does is in the library, where tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay_cluster::cli::main()
}
