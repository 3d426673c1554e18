//! Transcripts of other tools: reading them into entries. `docs/PROTOCOL.md` §Payloads.
//!
//! Everything here is a pure function of bytes that the caller read. It opens no file, follows no path that a
//! transcript names, asks no clock and makes up no id: the same source gives the same drafts on every machine.

pub mod import;
