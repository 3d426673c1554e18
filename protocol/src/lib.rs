//! Throughline's protocol: bytes in, decisions out.
pub mod block;
pub mod code;
pub mod codec;
pub mod control;
pub mod entry;
pub mod fork;
pub mod id;
pub mod limits;
pub mod schema;
pub mod sign;
pub mod skip;
pub mod verify;
