//! All integration tests, in one binary: one module a capability.

mod support;

mod architecture;
mod cli;
mod conformance;
mod costs;
mod durability;
mod faults;
mod listing;
mod model;
mod reading;
mod semantics;
mod tenancy;
