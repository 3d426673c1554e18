//! Placeholder.
pub mod config;
pub mod dirs;
pub mod keys;
pub mod net;
