//! Making inputs that are off by one thing, and judging them.

use std::sync::Arc;

use throughline_protocol::blob::SignedAny;
use throughline_protocol::block::Signed;
use throughline_protocol::build::sign;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::codec::{self, Map};
use throughline_protocol::content::Block;
use throughline_protocol::control::{Capability, Control, Role};
use throughline_protocol::entry::{Body, Entry, Origin, UserMessage};
use throughline_protocol::fork::{Controls, Set};
use throughline_protocol::id::{EntryCid, Principal};
use throughline_protocol::limits;
use throughline_protocol::payload::{UserWords, Words};
use throughline_protocol::sign::{SigningKey, VerifyingKeys};
use throughline_protocol::testing::{self, Built, Party, SessionBuilder};
use throughline_protocol::verify::{Auditor, Pushed, Report, Verifier};

/// The word for what became of something.
pub(super) fn word<T>(result: Result<T, Reject>) -> String {
    result.map_or_else(|reject| code(reject.code), |_| "ok".to_owned())
}

pub(super) fn code(code: Code) -> String {
    code.name().to_owned()
}

/// A session of `turns` messages of the owner, each answered by the server.
pub(super) fn session(label: &str, turns: usize) -> SessionBuilder {
    let mut session = SessionBuilder::new(label);
    turn(&mut session, turns);
    session
}

pub(super) fn turn(session: &mut SessionBuilder, turns: usize) {
    let (owner, server) = (session.owner.clone(), session.server1.clone());
    for turn in 0..turns {
        session.user(&owner, &format!("question {turn}"));
        session.response(&server, &format!("answer {turn}"), &["call"]);
    }
}

/// The fields of a signed blob.
pub(super) fn fields(bytes: &[u8]) -> Map<'static> {
    let (value, _) = codec::decode(bytes, limits::PAYLOAD_DEPTH_MAX).unwrap();
    value.as_map().unwrap().clone().into_owned()
}

/// The fields of a session's newest entry.
pub(super) fn head(session: &SessionBuilder) -> Map<'static> {
    fields(session.head().entry.bytes())
}

/// The bytes of fields whose signature is right.
pub(super) fn signed(map: &Map<'static>, key: &SigningKey) -> Vec<u8> {
    let unsigned = codec::encode_map(&map.clone().with("sig", vec![0; 64]));
    codec::encode_map(&map.clone().with("sig", key.sign(&unsigned).to_vec()))
}

/// What becomes of the bytes of one signed blob by themselves.
pub(super) fn judged(bytes: impl Into<Arc<[u8]>>) -> String {
    word(SignedAny::check(bytes, &mut VerifyingKeys::default()))
}

/// A user message of `party` on the newest entry, changed before it is signed.
pub(super) fn message(
    session: &SessionBuilder,
    party: &Party,
    change: impl FnOnce(&mut Entry),
) -> Signed<Entry> {
    let is_server = [&session.server1, &session.server2]
        .iter()
        .any(|server| server.key.principal() == party.key.principal());
    let body = UserMessage { origin: is_server.then_some(Origin::Trigger), ..UserMessage::default() };
    let words = UserWords { body: vec![Block::paragraph("b1", "more")], ..UserWords::default() };
    let (mut entry, _) = session.draft(party, Body::UserMessage(body), Some(Words::UserMessage(words)));
    change(&mut entry);
    sign(entry, &party.key).unwrap()
}

/// An entry of `party` without words, changed before it is signed.
pub(super) fn bare(
    session: &SessionBuilder,
    party: &Party,
    body: Body,
    change: impl FnOnce(&mut Entry),
) -> Signed<Entry> {
    let (mut entry, _) = session.draft(party, body, None);
    change(&mut entry);
    sign(entry, &party.key).unwrap()
}

/// The named key under a capability, which is what it cites.
pub(super) fn under(name: &str, capability: &Signed<Control>) -> Party {
    Party { key: testing::key(name), capability: Some(capability.clone()) }
}

/// A writer capability of the account for `server1`, changed before `owner` signs it.
pub(super) fn grant(owner: &SigningKey, change: impl FnOnce(&mut Capability)) -> Signed<Control> {
    let mut capability = Capability {
        ts: testing::ts(1),
        signer: owner.principal(),
        delegate: principal("server1"),
        role: Some(Role::Writer.word().to_owned()),
        path: None,
        label: None,
        audience: None,
    };
    change(&mut capability);
    sign(Control::Capability(capability), owner).unwrap()
}

pub(super) fn principal(name: &str) -> Principal {
    testing::key(name).principal()
}

pub(super) fn controls(session: &SessionBuilder, more: &[Signed<Control>]) -> Controls {
    let mut controls = Controls::new();
    session.controls().iter().chain(more).for_each(|control| {
        controls.insert(control);
    });
    controls
}

/// A set of a session's blobs and some more.
pub(super) fn set(session: &SessionBuilder, entries: &[Signed<Entry>], more: &[Signed<Control>]) -> Set {
    let mut set = Set::with_controls(session.session(), controls(session, more));
    session.entries().iter().map(|built| &built.entry).chain(entries).for_each(|entry| {
        set.insert_entry(entry);
    });
    set
}

/// What becomes of an entry after the newest one: in a set and in a stream, which must agree.
pub(super) fn linked(session: &SessionBuilder, more: &[Signed<Control>], entry: &Signed<Entry>) -> String {
    let in_set = set(session, std::slice::from_ref(entry), more).explain(entry.cid());
    let in_set = in_set.map_or_else(|| "ok".to_owned(), |reject| code(reject.code));
    let mut verifier = Verifier::begin(controls(session, more));
    for built in session.entries() {
        let pushed = verifier.push(Arc::clone(built.entry.bytes()), None).unwrap();
        assert!(matches!(pushed, Pushed::Linked(..)));
    }
    let in_stream = word(verifier.push(Arc::clone(entry.bytes()), None));
    assert_eq!(in_set, in_stream, "a set and a stream do not agree");
    in_set
}

/// What an auditor reports of a session's blobs and some more.
pub(super) fn audit(
    session: &SessionBuilder,
    entries: &[&Built],
    more: &[Signed<Control>],
    told: Option<EntryCid>,
) -> Report {
    let mut auditor = Auditor::new().of_session(session.session());
    if let Some(told) = told {
        auditor = auditor.told(told);
    }
    session.controls().iter().chain(more).for_each(|control| auditor.checked_control(control).unwrap());
    session.entries().iter().chain(entries.iter().copied()).for_each(|built| {
        auditor.entry(Arc::clone(built.entry.bytes()), built.payload.clone()).unwrap();
    });
    auditor.report()
}

/// The verdict on a session's blobs and some more.
pub(super) fn verdict(session: &SessionBuilder, entries: &[&Built]) -> String {
    audit(session, entries, &[], None).verdict.word().to_owned()
}
