//! Throughline's protocol: bytes in, decisions out.
pub mod blob;
pub mod block;
pub mod build;
pub mod car;
pub mod code;
pub mod codec;
pub mod content;
pub mod control;
pub mod entry;
pub mod fork;
pub mod handoff;
pub mod id;
pub mod limits;
pub mod payload;
pub mod schema;
pub mod seed;
pub mod sign;
pub mod skip;
pub mod sync;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod ticket;
pub mod transcript;
pub mod unixfs;
pub mod verify;
pub mod view;
pub mod wire;
