//! What would leave a machine with a session that becomes public: counted as a peer would read it, nothing is sent anywhere.

use serde_json::{Value, json};
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::id::SessionId;

use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::link::Api;
use crate::cli::{upload, view};

/// What would leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaving {
    /// The genesis and the entries above it.
    pub(super) entries: u64,
    /// Payloads, which hold the words.
    pub(super) payloads: u64,
    /// Blocks of files and configs.
    pub(super) files: u64,
    /// Of the session's file.
    pub(super) bytes: u64,
}

impl Leaving {
    /// As `left` of the answer.
    pub(super) fn to_json(self) -> Value {
        json!({"entries": self.entries, "payloads": self.payloads, "fileBlocks": self.files, "bytes": self.bytes})
    }
}

/// Counts what a peer could ask for from then on, by reading it as a peer would: as the session's CAR, pending entries and all.
///
/// # Errors
/// When the session cannot be read.
pub(super) fn count(api: &Api<'_>, session: SessionId) -> Answer<Leaving> {
    let path = view::path(&format!("/v1/sessions/{session}/entries"), &[("payloads", Some("all"))]);
    let mut reply = api.open(Call::get(&path).header("accept", upload::CAR))?;
    let (mut reader, mut leaving) = (SessionReader::new(), Leaving::default());
    while let Some(piece) = api.chunk(&mut reply)? {
        leaving.bytes = leaving.bytes.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        reader.push(&piece);
        while let Some(item) = reader.next() {
            match item.map_err(Problem::from)? {
                SessionItem::Genesis(_) | SessionItem::Entry(_) => leaving.entries += 1,
                SessionItem::Payload { .. } => leaving.payloads += 1,
                SessionItem::Config { .. } | SessionItem::File { .. } => leaving.files += 1,
                SessionItem::Control(_) => {}
            }
        }
    }
    Ok(leaving)
}
