//! One integration binary: it links once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod api;
mod cli;
mod demo;
mod differential;
mod finding;
mod fuzz;
mod hostile;
mod import;
mod importing;
mod journeys;
mod keeping;
mod refusals;
mod schemas;
mod starting;
mod store;
mod store_full;
mod support;
mod tidy;
mod vectors;
mod verdicts;
