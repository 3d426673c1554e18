//! Placeholder.
pub mod config;
pub mod dirs;
pub mod keys;
pub mod net;
pub mod api;
pub mod outcome;
