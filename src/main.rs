//! The `skillfs` program: parses, calls the library, exits.

use std::process::ExitCode;

/// A request makes some hundred small allocations: this one halves their cost.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    skillfs::cli::main()
}
