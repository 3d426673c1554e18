//! 145 blobs and frames that are off by one thing: here those that are refused by what they are, without a chain.

use serde_json::Value as Json;
use throughline_protocol::blob::{Blob, SignedAny};
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::payload::Payload;
use throughline_protocol::sign::VerifyingKeys;

use super::{Faults, Files, hex, records, text};

/// Where a negative is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layer {
    /// By its own bytes, signature and payload.
    Alone,
    /// Only by a verifier that holds the session and the blobs under `needs`.
    Chain,
    /// As a frame of a stream.
    Wire,
}

/// The negatives that are well-formed, signed blobs: only their place makes them wrong.
const CHAIN: &[&str] = &[
    "genesis-server-with-holder",
    "genesis-server-public",
    "genesis-agent-other-account",
    "genesis-role-path-not-covering",
    "genesis-contributor",
    "seq-gap",
    "seq-repeat",
    "prev-other-session",
    "prev-capability",
    "genesis-link-other",
    "skip-wrong-ancestor",
    "skip-missing",
    "skip-other-session",
    "ts-below-prev",
    "after-seal",
    "handoff-after-seal",
    "response-not-ancestor",
    "rewind-to-not-ancestor",
    "tool-response-missing",
    "user-server-no-origin",
    "neither-space-nor-capability",
    "space-other-owner",
    "capability-other-issuer",
    "capability-audience",
    "capability-role-misspelt",
    "capability-writer-other-label",
    "capability-path-not-covering",
    "capability-path-dotdot",
    "capability-of-other-session",
    "capability-agent-with-path",
    "capability-other-delegate",
    "capability-not-held",
    "contributor-response",
    "contributor-tool-call",
    "reader-message",
    "device-response",
    "writer-not-holder",
    "epoch-jump",
    "handoff-same-epoch",
    "entry-next-epoch-without-handoff",
    "handoff-device-bare",
    "seal-count",
    "seal-first-ts",
    "seal-last-ts",
    "seal-participants-unsorted",
    "seal-participant-missing",
    "tombstone-by-device",
    "ref-generation",
    "ref-contributor",
    "ref-holder-public-internal",
    "ref-account-public-confidential",
    "class-opened-by-server",
];

/// Where a record of `session/negative.json` is refused.
pub(crate) fn layer(record: &Json) -> Layer {
    match text(record, "kind") {
        "frame" => Layer::Wire,
        _ if CHAIN.contains(&text(record, "name")) => Layer::Chain,
        _ => Layer::Alone,
    }
}

pub(super) fn check(files: &Files) {
    let file = files.json("session/negative.json");
    for record in records(&file["support"], 8) {
        let signed = SignedAny::check(hex(record, "bytes_hex"), &mut VerifyingKeys::default()).unwrap();
        assert_eq!(signed.cid().to_string(), text(record, "cid"));
    }
    let mut faults = Faults::default();
    for record in records(&file["vectors"], 145) {
        let name = text(record, "name");
        let expected = text(record, "expect").parse::<Code>().unwrap();
        match layer(record) {
            Layer::Alone => faults.equal(name, judge(record), Err(expected)),
            Layer::Chain => faults.equal(name, judge(record), Ok(())),
            Layer::Wire => {}
        }
    }
    faults.assert_none();
}

/// What becomes of the blob by itself: bytes, signature, and what it names.
fn judge(record: &Json) -> Result<(), Code> {
    let blob = Blob::decode(hex(record, "bytes_hex")).map_err(|reject| reject.code)?;
    match blob.verify(&mut VerifyingKeys::default()).map_err(|reject| reject.code)? {
        SignedAny::Entry(_) if record["payload"].is_null() => Ok(()),
        SignedAny::Entry(entry) => Payload::check(entry.value(), hex(&record["payload"], "bytes_hex"))
            .map(|_| ())
            .map_err(|reject| reject.code),
        SignedAny::Control(control) => match control.value() {
            Control::Ref(value) => value.session_head().map(|_| ()).map_err(|reject| reject.code),
            Control::Capability(_) | Control::Tombstone(_) => Ok(()),
        },
        SignedAny::Seed(_) => Ok(()),
    }
}
