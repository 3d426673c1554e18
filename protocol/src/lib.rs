//! Throughline's protocol: bytes in, decisions out.
pub mod code;
pub mod id;
pub mod limits;
