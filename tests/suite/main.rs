//! One integration binary: it links once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod import;
mod store;
mod vectors;
