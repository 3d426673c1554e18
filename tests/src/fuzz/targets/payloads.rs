//! Words: payload blocks of every kind of entry, config blocks, and entries as clients state them in JSON.

use std::sync::LazyLock;

use throughline_protocol::entry::{Body, Entry, Note, PayloadRef};
use throughline_protocol::id::EntryCid;
use throughline_protocol::limits;
use throughline_protocol::payload::{ConfigBlock, Payload, PayloadDraft};
use throughline_protocol::testing::SessionBuilder;
use throughline_protocol::view::{self, EntryDraft};

use super::{check_reject, choice, same_bytes};

/// One entry of every kind that has words.
pub(in crate::fuzz) static KINDS: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let mut session = SessionBuilder::new("fuzz");
    let (owner, server) = (session.owner.clone(), session.server1.clone());
    session.user(&owner, "asks");
    let response = session.response(&server, "answers", &["c1"]);
    session.tool(&server, response, "c1", "output");
    let mut entries: Vec<Entry> = session.entries().iter().map(|built| built.entry.value().clone()).collect();
    let notes = [
        Note::Title,
        Note::Error,
        Note::Import,
        Note::Rewind { to: response },
        Note::Compaction { from: response, to: response },
    ];
    for note in notes {
        entries.push(session.draft(&server, Body::Note(note), None).0);
    }
    entries
});

/// The first byte chooses the kind of entry; the rest is its payload.
pub(in crate::fuzz) fn payload(data: &[u8]) {
    let Some((kind, bytes)) = choice(data) else { return };
    let mut entry = KINDS[kind % KINDS.len()].clone();
    entry.payload = Some(PayloadRef { cid: EntryCid::of(bytes), size: bytes.len() as u64 });
    match Payload::check(&entry, bytes) {
        Ok(payload) => check_payload(&entry, &payload, bytes),
        Err(reject) => check_reject(&reject),
    }
    match ConfigBlock::check(EntryCid::of(bytes), bytes) {
        Ok(config) => assert_eq!(config.build().expect("its own fields").0, bytes),
        Err(reject) => check_reject(&reject),
    }
}

fn check_payload(entry: &Entry, payload: &Payload, bytes: &[u8]) {
    assert!(bytes.len() <= limits::PAYLOAD_BYTES_MAX);
    assert_eq!(payload.bytes()[..], *bytes);
    let draft = PayloadDraft { words: payload.words().clone(), ext: payload.ext().cloned() };
    let (again, named) = draft.build(&entry.body, *payload.salt()).expect("its own words");
    same_bytes(&again, bytes);
    assert_eq!(Some(named), entry.payload);
    let _ = (payload.text(), payload.title(), payload.source(), payload.import_report());
    let shown = view::view(entry, EntryCid::of(b"entry"), Some(payload));
    assert!(shown.is_object());
}

/// An entry as a client states it: what is understood is stated again in the same words, and can be built.
pub(in crate::fuzz) fn draft(data: &[u8]) {
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(data) else { return };
    let draft = match EntryDraft::from_json(&json) {
        Ok(draft) => draft,
        Err(reject) => return check_reject(&reject),
    };
    let stated = draft.to_json();
    assert_eq!(EntryDraft::from_json(&stated).as_ref(), Ok(&draft), "stated as {stated}");
    if let Some(payload) = &draft.payload {
        match payload.build(&draft.body, [7; 32]) {
            Ok((bytes, named)) => {
                assert_eq!((EntryCid::of(&bytes), bytes.len() as u64), (named.cid, named.size))
            }
            Err(reject) => check_reject(&reject),
        }
    }
}
