//! Throughline's protocol: bytes in, decisions out. The rules are those of `docs/PROTOCOL.md`.
//!
//! Pure: no I/O, no clock, no async, no threads, no randomness source. Time, entropy and bytes come in as values, so every
//! decision can be replayed. The modules from the ground up: identifiers and limits, the strict codec, the blob types
//! and their line of types ([`block`]), selection ([`fork`]) and the streaming verifier ([`verify`]), the formats of wires and files,
//! and the engines that drive sync and handoff.

pub mod blob;
pub mod block;
pub mod build;
pub mod car;
pub mod clock;
pub mod code;
pub mod codec;
pub mod content;
pub mod control;
pub mod entry;
pub mod evidence;
pub mod fork;
pub mod handoff;
pub mod id;
pub mod limits;
pub mod payload;
mod public_key;
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
