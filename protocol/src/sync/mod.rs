//! Getting a session from others: what to fetch from whom, and whether an answer is what was asked for.
//! `docs/PROTOCOL.md` §Chain sync.
//!
//! ```text
//!  heads, gossip ─▶ Engine ─ Range ─▶ driver ─ frames ─▶ RangeCheck ─ entries in order ─▶ chain verifier
//!                     ▲                                      │                                │
//!                     └───────── Progress, Ended ────────────┴────────── Adopt ◀──────────────┘
//! ```
//!
//! [`Engine`] decides for which sessions something is fetched, from which peer, and when again after a failure.
//! [`RangeCheck`] decides frame by frame whether one range answer keeps to the protocol. Neither verifies a signature
//! nor judges authority: what they pass on is ordered and linked by hash, and no more. Both are pure; time comes in as
//! a value and work goes out as one.

pub mod engine;
pub mod range;

pub use crate::handoff::{Point, RequestId};
pub use engine::Engine;
pub use range::RangeCheck;
