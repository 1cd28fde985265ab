//! All integration tests in one binary, with one module per capability.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_wrap,
    reason = "a test that fails is a test that panics"
)]
#![allow(clippy::disallowed_methods, reason = "tests may use the system clock")]

mod support;

mod architecture;
mod archives;
mod caching;
mod cli;
mod conformance;
mod costs;
mod crashes;
mod docs;
mod doctor;
mod durability;
mod editors;
mod errors;
mod faults;
mod finding;
mod libraries;
mod listing;
mod model;
mod model_writes;
mod publishing;
mod reading;
mod roles;
mod semantics;
mod skill_costs;
mod skills;
mod sources;
mod specification;
mod tenancy;
mod together;
mod writing;
