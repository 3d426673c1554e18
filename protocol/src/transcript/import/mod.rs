//! Importing a transcript: source lines in, drafts of entries out. `docs/PROTOCOL.md` §Payloads.
//!
//! ```text
//!  lines ─▶ ClaudeCode ─▶ Draft (links are DraftIds) ─▶ Draft::assemble ─▶ (Body, PayloadDraft, salt) ─▶ signing, storing
//!                    └──▶ Report (every line accounted for, the segment's place in the file)
//! ```
//!
//! An importer decides what a source line becomes, how entries link to each other and which bytes are stored beside
//! them. It never signs, stores or reads a file, and it never invents what the source does not say: a call without a
//! result stays open.
//!
//! # Importing again
//!
//! A draft's salt is derived from its record ([`Draft::salt`]), so an import of the same bytes gives the same entries.
//! A file that grew is imported in *segments*: each import run stores the new bytes as one file and ends with an
//! `import` note that says where they lie. To go on after a segment, a caller makes a new importer and feeds the old
//! segments again, each followed by [`ClaudeCode::end_segment`], dropping what comes out; what a message looked like
//! when the file ended in the middle of it is thereby repeated exactly. Then it feeds the lines from
//! [`Report::next_offset`] on and appends those drafts. Entries that others appended to the session meanwhile do not
//! disturb this: a [`DraftId`] is resolved by finding the payload with its salt.

mod assemble;
mod claude_code;
mod clean;
mod draft;
mod fit;
mod json;
mod report;
mod time;

pub use assemble::{Assembled, Signing};
pub use claude_code::{ClaudeCode, FORMAT as CLAUDE_CODE, LINE_BYTES_MAX, Options, SourceRole};
pub use draft::{Blob, Child, ChildOf, Draft, DraftBody, DraftId, RecordKey, SessionKey};
pub use report::{Kept, Loss, Repair, Report, Span, Tally, Unlisted};
