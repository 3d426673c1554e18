//! What peers send: frames of each protocol, peer proofs, announcements.

use throughline_protocol::block::Signed;
use throughline_protocol::control::Capability;
use throughline_protocol::limits;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::testing::{BASE_TS_MS, key, ts};
use throughline_protocol::wire::announce::{self, Message as Announcement, News};
use throughline_protocol::wire::append::{AppendAnswer, AppendRequest};
use throughline_protocol::wire::chain::{ChainAnswer, ChainRequest};
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest};
use throughline_protocol::wire::proof::{self, Ends};
use throughline_protocol::wire::{Message, frame};

use super::check_reject;

/// A stream: a length, a body, and what follows. The body alone is tried as well, so that mutants need no right length.
fn stream<Request, Answer>(data: &[u8])
where
    Request: Message + PartialEq + std::fmt::Debug,
    Answer: Message + PartialEq + std::fmt::Debug,
{
    match frame::read_length(data) {
        Ok(Some(length)) => {
            assert!(length.body_bytes <= limits::FRAME_BYTES_MAX);
            assert!(length.header_bytes <= frame::HEADER_BYTES_MAX);
            if let Some(body) = data[length.header_bytes..].get(..length.body_bytes) {
                let written = frame::encode(body).expect("a body that fits");
                assert_eq!(written, data[..length.header_bytes + length.body_bytes]);
                message::<Request>(body);
                message::<Answer>(body);
            }
        }
        Ok(None) => assert!(data.len() < frame::HEADER_BYTES_MAX),
        Err(reject) => check_reject(&reject),
    }
    message::<Request>(data);
    message::<Answer>(data);
}

/// A message that is understood says the same when it is written again. Keys that are not known are lost in that, so the bytes
/// may differ once, and never again.
fn message<M: Message + PartialEq + std::fmt::Debug>(body: &[u8]) {
    let message = match M::decode_body(body) {
        Ok(message) => message,
        Err(reject) => return check_reject(&reject),
    };
    let written = message.encode_body();
    let again = M::decode_body(&written).expect("its own bytes");
    assert_eq!(again, message);
    assert_eq!(again.encode_body(), written);
    assert!(written.len() <= body.len(), "an unknown key is left out, nothing is added");
    assert!(message.encode_frame().expect("a body that fits").ends_with(&written));
}

pub(in crate::fuzz) fn chain(data: &[u8]) {
    stream::<ChainRequest, ChainAnswer>(data);
}

pub(in crate::fuzz) fn append(data: &[u8]) {
    stream::<AppendRequest, AppendAnswer>(data);
}

pub(in crate::fuzz) fn handoff(data: &[u8]) {
    stream::<HandoffRequest, HandoffAnswer>(data);
}

/// A peer proof is a signed capability of its own kind, for one connection and ten minutes.
pub(in crate::fuzz) fn proof(data: &[u8]) {
    let ends = Ends { mine: key("server1").principal(), theirs: key("server2").principal() };
    let now = ts(0);
    assert_eq!(now.get(), BASE_TS_MS);
    match proof::check(data, &mut VerifyingKeys::default(), ends, now) {
        Ok(principal) => {
            let signed = Signed::<Capability>::check(data, &mut VerifyingKeys::default());
            let capability = signed.expect("a proof is a signed capability");
            assert_eq!(capability.value().signer, principal);
            assert_eq!(capability.value().delegate, ends.theirs);
            assert!(capability.value().grant().is_err(), "a proof grants nothing");
            let elsewhere = Ends { mine: key("reader").principal(), ..ends };
            assert!(proof::check(data, &mut VerifyingKeys::default(), elsewhere, now).is_err());
        }
        Err(refused) => check_reject(&refused.into()),
    }
}

/// A gossip message on the topic of `account`.
pub(in crate::fuzz) fn announcement(data: &[u8]) {
    message::<Announcement>(data);
    let owner = key("account").principal();
    match announce::check(owner, data, &mut VerifyingKeys::default()) {
        Ok(checked) => {
            assert!(data.len() <= limits::ANNOUNCEMENT_BYTES_MAX);
            assert!(checked.control.len() <= limits::ANNOUNCEMENT_CONTROL_MAX);
            let named = match &checked.news {
                News::Head { reference, .. } => reference.value().owner(),
                News::Handoff { entry, .. } => entry.value().owner(),
                News::Tombstone(tombstone) => tombstone.value().signer,
                News::Evidence(exhibit) => exhibit.owner(),
            };
            assert_eq!(named, owner);
            assert_eq!(announce::topic_owner(&announce::topic(named)), Some(owner));
            let stranger = key("stranger").principal();
            assert!(announce::check(stranger, data, &mut VerifyingKeys::default()).is_err());
        }
        Err(reject) => check_reject(&reject),
    }
}
