//! Files of evidence as they are read, checked and told, with a node and without one.

use serde_json::{Value, json};
use throughline_protocol::evidence::{Accusation, EXHIBIT_BYTES_MAX, Exhibit};
use throughline_protocol::id::EntryCid;
use throughline_protocol::sign::VerifyingKeys;

use crate::api::error::Answer;
use crate::core::shape;
use crate::report::Required;

/// Checks a file of evidence.
///
/// # Errors
/// As [`Exhibit::check`].
pub(crate) fn check(bytes: Vec<u8>) -> Answer<Exhibit> {
    Ok(Exhibit::check(bytes, &mut VerifyingKeys::default())?)
}

/// What a file shows, as an object.
#[must_use]
pub(crate) fn json_of(exhibit: &Exhibit) -> Value {
    let Accusation { kind, epoch, signer } = exhibit.accusation();
    let sides: Vec<Value> = exhibit
        .sides()
        .iter()
        .map(|side| {
            let mut mark = shape::mark(&side.mark);
            mark["signer"] = side.signer.to_string().into();
            mark["claimedTs"] = shape::rfc3339(side.ts).into();
            mark
        })
        .collect();
    json!({
        "v": 1, "kind": "evidence", "session": exhibit.session().to_string(), "id": exhibit.id().to_string(),
        "shows": kind.word(), "code": kind.code().name(), "epoch": epoch.get(), "signer": signer.to_string(),
        "entries": sides, "at": exhibit.meet().as_ref().map(shape::mark),
        "tombstone": exhibit.tombstone().map(|hash| EntryCid::from_digest(hash).to_string()),
        "keptThrough": exhibit.kept_through().map(|seq| seq.get()),
        "sizeBytes": exhibit.bytes().len(), "blobs": exhibit.entries().len() + exhibit.controls().len(),
    })
}

/// The answer of `verify` for a file of evidence: what the file alone shows.
#[must_use]
pub(crate) fn verified(exhibit: &Exhibit) -> Value {
    let mut answer = crate::report::verify(&exhibit.report(), "file", Required::Nothing);
    answer["evidence"] = json_of(exhibit);
    answer
}

/// Whether a file is evidence; none of a session has two roots. It is read whole: it is small, or it is none.
///
/// # Errors
/// When the file cannot be read.
pub(crate) fn read_if_evidence(
    file: &mut (impl std::io::Read + std::io::Seek),
) -> std::io::Result<Option<Vec<u8>>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let start = file.stream_position()?;
    file.by_ref().take(512).read_to_end(&mut bytes)?;
    if throughline_protocol::evidence::has_two_roots(&bytes) == Some(true) {
        // One byte more than there may be: then it is refused for its size.
        file.take(EXHIBIT_BYTES_MAX as u64).read_to_end(&mut bytes)?;
        return Ok(Some(bytes));
    }
    file.seek(std::io::SeekFrom::Start(start))?;
    Ok(None)
}
