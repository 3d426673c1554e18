//! Making inputs that are off by one thing, and judging them.

use std::sync::Arc;

use throughline_protocol::blob::SignedAny;
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::build::sign;
use throughline_protocol::car::{EntryBlocks, SessionWriter};
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

/// What became of one input, and the file that hands it to another verifier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// A code, a verdict, or a word of the row; `ok` for what is taken.
    pub(crate) word: String,
    /// The input inside a session's CAR; none where it is no blob.
    pub(crate) file: Option<Vec<u8>>,
}

impl Outcome {
    /// The same, with its input as a file.
    pub(super) fn in_file(self, file: Vec<u8>) -> Self {
        Outcome { file: Some(file), ..self }
    }

    /// One word if something is so, else another.
    pub(super) fn either(is_so: bool, word: &str, other: &str) -> Self {
        if is_so { word } else { other }.into()
    }
}

impl From<&str> for Outcome {
    fn from(word: &str) -> Self {
        Outcome { word: word.to_owned(), file: None }
    }
}

impl PartialEq<&str> for Outcome {
    fn eq(&self, word: &&str) -> bool {
        self.word == *word
    }
}

/// The word for what became of something.
pub(super) fn word<T>(result: Result<T, Reject>) -> Outcome {
    result.map_or_else(|reject| code(reject.code), |_| "ok".into())
}

pub(super) fn code(code: Code) -> Outcome {
    code.name().into()
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

/// What becomes of the bytes of one signed blob by themselves. In the file they stand in place of the session's newest entry.
pub(super) fn judged(session: &SessionBuilder, bytes: impl Into<Arc<[u8]>>) -> Outcome {
    let bytes = bytes.into();
    let (_, before) = session.entries().split_last().unwrap();
    let mut blocks: Vec<EntryBlocks<'_>> = before.iter().map(blocks).collect();
    blocks.push(EntryBlocks { entry: &bytes, payload: None, config: None, files: &[] });
    let file = car(blocks, session.controls());
    word(SignedAny::check(Arc::clone(&bytes), &mut VerifyingKeys::default())).in_file(file)
}

/// A session's blobs and some more, as a file that ends with its root.
pub(super) fn file(session: &SessionBuilder, entries: &[&Built], more: &[Signed<Control>]) -> Vec<u8> {
    let all = session.entries().iter().chain(entries.iter().copied());
    car(all.map(blocks).collect(), session.controls().iter().chain(more))
}

fn blocks(built: &Built) -> EntryBlocks<'_> {
    EntryBlocks { entry: built.entry.bytes(), payload: built.payload.as_deref(), config: None, files: &[] }
}

/// Entries in the order of a file, by seq and CID; bytes that are no entry stand last. The last one is the root.
fn car<'a>(
    mut entries: Vec<EntryBlocks<'_>>,
    controls: impl IntoIterator<Item = &'a Signed<Control>>,
) -> Vec<u8> {
    let place = |bytes: &[u8]| Decoded::<Entry>::decode(bytes).map(|entry| entry.value().seq()).ok();
    entries[1..].sort_by_key(|blocks| {
        let seq = place(blocks.entry);
        (seq.is_none(), seq, EntryCid::of(blocks.entry))
    });
    let root = EntryCid::of(entries.last().unwrap().entry);
    let controls = controls.into_iter().map(|control| (control.value(), &control.bytes()[..]));
    let mut out = Vec::new();
    let mut writer = SessionWriter::begin(&mut out, root, &entries[0], controls);
    entries[1..].iter().for_each(|blocks| writer.entry(&mut out, blocks));
    out
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
pub(super) fn linked(session: &SessionBuilder, more: &[Signed<Control>], entry: &Signed<Entry>) -> Outcome {
    let in_set = set(session, std::slice::from_ref(entry), more).explain(entry.cid());
    let in_set = in_set.map_or_else(|| Outcome::from("ok"), |reject| code(reject.code));
    let mut verifier = Verifier::begin(controls(session, more));
    for built in session.entries() {
        let pushed = verifier.push(Arc::clone(built.entry.bytes()), None).unwrap();
        assert!(matches!(pushed, Pushed::Linked(..)));
    }
    let in_stream = word(verifier.push(Arc::clone(entry.bytes()), None));
    assert_eq!(in_set.word, in_stream.word, "a set and a stream do not agree");
    let built = Built { entry: entry.clone(), payload: None };
    in_set.in_file(file(session, &[&built], more))
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
pub(super) fn verdict(session: &SessionBuilder, entries: &[&Built], more: &[Signed<Control>]) -> Outcome {
    Outcome::from(audit(session, entries, more, None).verdict.word()).in_file(file(session, entries, more))
}
