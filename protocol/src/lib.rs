//! Throughline's protocol: bytes in, decisions out.
pub mod code;
pub mod codec;
pub mod id;
pub mod limits;
