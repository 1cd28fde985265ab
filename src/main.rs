//! The `skillfs` program: parses, calls the library, exits.

use std::process::ExitCode;

fn main() -> ExitCode {
    skillfs::cli::main()
}
