//! The `skillfs` program.

use std::process::ExitCode;

/// A request makes a few hundred small allocations; mimalloc halves their cost.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    skillfs_cli::main()
}
