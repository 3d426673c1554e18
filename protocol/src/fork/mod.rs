//! Which history counts: the rules of the chain, and selection over a set of blobs. `docs/PROTOCOL.md` §Selection.
//!
//! [`Set::select`] is a pure function of a set: the order and time of arrival, the clock and the machine play no part. It
//! decides what is *in* (structure and cited authority, in `rules`), what of it is *valid* (causal revocation), and which
//! entry is the head. It never decides whether a signature is good: it takes [`crate::block::Signed`] blobs only.
//!
//! The rules are one function, `rules::link`, that the streaming verifier of [`crate::verify`] calls too: a chain cannot be
//! judged in two ways.

mod controls;
mod refs;
mod rules;
mod select;
mod set;
mod skeleton;
mod tree;

pub use controls::{BlobHash, Controls, Inserted};
pub(crate) use refs::Anchor;
pub use refs::{AnchoredBy, Pins, check_publishes, check_ref, check_tombstone};
pub use rules::{Ending, Holds, Position, SessionFacts, Standing};
pub(crate) use rules::{Lineage, Linked, Opening, begin, check_signed_as_holder, link, role_under};
pub use select::{Cut, Evidence, Mark, Selection, State};
pub use set::{Judged, Set};
pub use skeleton::Skeleton;
