//! Prints the public API of a crate from its rustdoc JSON, one item per line, sorted.
//!
//! Blanket and auto trait implementations are left out: they follow from the items that are listed.

use std::process::ExitCode;

use public_api::Builder;

fn main() -> ExitCode {
    let Some(json) = std::env::args_os().nth(1) else {
        eprintln!("usage: public-api-list RUSTDOC_JSON");
        return ExitCode::from(2);
    };
    match Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true).build() {
        Ok(api) => {
            print!("{api}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
