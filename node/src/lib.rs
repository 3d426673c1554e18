//! A Throughline node: network, local API and command line. `docs/ARCHITECTURE.md` is the map.
//!
//! ```text
//! cli ─▶ api client ─▶ (HTTP, or in this process) ─▶ api server ─▶ core ─▶ store
//!                                                         └─▶ sync, moves ─▶ net
//! ```

mod address;
pub mod api;
pub mod bench;
pub mod cli;
pub mod config;
pub mod core;
pub mod demo;
pub mod dirs;
mod exhibit;
pub mod keys;
pub mod moves;
pub mod net;
pub mod outcome;
pub mod report;
pub mod runtime;
pub mod sync;
mod taken;
