//! Verification: from signed bytes to a segment of a chain that may be adopted. `docs/PROTOCOL.md` §Verification.
//!
//! Streaming, flat in memory, resumable. [`VerifiedSegment`] is the only thing that a store takes in, and only this module can make
//! one:
//!
//! ```compile_fail,E0451
//! use throughline_protocol::verify::{Base, ChainState, VerifiedSegment};
//!
//! // Its fields are private and it has no constructor: a segment exists only if it was verified.
//! fn forge(after: ChainState) -> VerifiedSegment {
//!     VerifiedSegment { base: Base::Nothing, entries: Vec::new(), after, after_bytes: Default::default() }
//! }
//! ```
//!
//! Anything else about it is open:
//!
//! ```
//! use throughline_protocol::verify::{Base, VerifiedSegment};
//!
//! fn begins_a_session(segment: &VerifiedSegment) -> bool {
//!     segment.base() == Base::Nothing && !segment.entries().is_empty()
//! }
//! ```

mod audit;
mod inventory;
mod links;
mod report;
mod segment;
mod state;
mod state_bytes;
mod stream;
mod trail;
mod verdict;

pub use crate::fork::{Controls, Cut};
pub use audit::{Auditor, NotLinear, RETAINED_MAX};
pub use inventory::{BlocksRead, Inventory, LACKING_MAX, LinkCounts, Links};
pub use links::{Ancestry, NoIndex, UNSETTLED_MAX, UnsettledLink, WINDOW_MAX};
pub use report::{
    Branch, Check, Checks, Counts, EPOCHS_MAX, Flaw, Fork, MODELS_MAX, ModelPart, Problem, Rank, Report,
    SignerPart, Tail, TailKind, Verdict,
};
pub use segment::{Base, VerifiedEntry, VerifiedSegment};
pub use state::{ChainState, Outcome};
pub use stream::{Collect, Prechecked, Progress, Pushed, Verifier};
pub use verdict::verdict_of;
