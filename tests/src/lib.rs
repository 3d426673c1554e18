//! What more than one test binary needs: the fuzz targets with their stable runner, the comparison with the second verifier, and the
//! mutations that both share. The suite itself is `suite/main.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold has to stop the run"
)]

pub mod differ;
pub mod fuzz;
pub mod mutate;
pub mod with_files;
