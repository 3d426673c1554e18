//! Getting a session from others: whom to ask and when, and whether an answer is what was asked for.
//! `docs/PROTOCOL.md` §Streams.
//!
//! ```text
//!  hints ─▶ Engine ─ Compare ─▶ driver ─ heads, ranges ─▶ RangeCheck ─ entries in order ─▶ chain verifier
//!              ▲                  │
//!              └── Compared, … ───┘
//! ```
//!
//! [`Engine`] decides with whom heads are compared, and which of those that are told are worth a transfer.
//! [`RangeCheck`] decides frame by frame whether one range answer keeps to the protocol, [`controls`] which control blobs an
//! answer brings, [`choice`] who is asked where not all can be. None of them verifies a signature
//! nor judges authority: what they pass on is ordered and linked by hash, and no more. Both are pure; time comes in as
//! a value and work goes out as one.

pub mod choice;
mod claims;
pub mod controls;
pub mod engine;
pub mod range;

pub use crate::handoff::{Point, RequestId};
pub use engine::Engine;
pub use range::RangeCheck;
