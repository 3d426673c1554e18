//! The local HTTP API: one router for the socket, for TCP and for commands that run without a node.

pub mod client;
pub mod error;
pub mod gate;
pub mod listen;
pub mod token;
