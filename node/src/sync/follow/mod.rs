//! Keeping up: heads and control blobs are compared with connected peers, on connecting, on a timer and when somebody tells
//! news. `docs/PROTOCOL.md` §Streams.
//!
//! ```text
//!  connected, timer, announcement ─▶ hint(peer) ─heads─▶ owners that differ ─▶ control blobs ─▶ judged again
//!                                                    └─▶ heads that are news ─▶ fetch ─▶ anchor, announce
//! ```
//!
//! Only sessions that this node has a reason to keep are followed: those it holds of its own owner, pinned ones, and on a
//! device all of the owner's that a peer shows. Nothing else is ever fetched because a stranger tells of it.

mod anchor;
mod announce;
mod asking;
mod interest;
mod pull;

pub(super) use anchor::Anchors;
pub use announce::Told;
pub(super) use announce::{Outbox, run as run_announcer, tell_controls};
pub(super) use asking::{Asking, Transferring, hint, left};
pub(super) use interest::{follows_owner, is_kept};
pub(super) use pull::{Topics, notice_digests, run as run_pulse};
pub(super) use throughline_protocol::sync::engine::Scope;
