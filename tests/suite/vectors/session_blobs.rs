//! 85 blobs of ten sessions, made byte for byte by our builders: each is taken apart into typed values, the signature and the
//! payload's bytes are dropped, and both are made again from the key's seed and the salt's label.

use serde_json::Value as Json;
use throughline_protocol::blob::{Blob, SignedAny};
use throughline_protocol::block::Signed;
use throughline_protocol::build::{Writable, sign};
use throughline_protocol::code::Code;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::id::{Cid, Codec, EntryCid};
use throughline_protocol::payload::{ConfigBlock, Payload, PayloadDraft};
use throughline_protocol::sign::{SigningKey, VerifyingKeys};
use throughline_protocol::testing;
use throughline_protocol::view::EntryDraft;

use super::{Files, hex, hex_array, records, text};

pub(super) fn check(files: &Files) {
    let file = files.json("session/blobs.json");
    for record in records(&file["keys"], 12) {
        let key = testing::key(text(record, "name"));
        assert_eq!(key.principal().to_string(), text(record, "principal"));
        assert_eq!(testing::seed(text(record, "name")), hex_array::<32>(record, "seed_hex"));
    }
    for record in records(&file["vectors"], 85) {
        check_blob(record, session_of(&file, text(record, "name")));
    }
    for record in records(&file["blocks"], 6) {
        check_block(record);
    }
}

/// The label of the session that an entry stands in.
fn session_of<'a>(file: &'a Json, name: &str) -> Option<&'a str> {
    let sessions = file["sessions"].as_array().unwrap();
    let session = sessions
        .iter()
        .find(|session| session["entries"].as_array().unwrap().iter().any(|entry| entry == name));
    session.map(|session| text(session, "label"))
}

fn check_blob(record: &Json, session: Option<&str>) {
    let (name, bytes) = (text(record, "name"), hex(record, "bytes_hex"));
    let key = testing::key(text(record, "signer"));
    match SignedAny::check(bytes.as_slice(), &mut VerifyingKeys::default()).unwrap() {
        SignedAny::Control(blob) => check_again(record, &blob, &key),
        SignedAny::Seed(blob) => check_again(record, &blob, &key),
        SignedAny::Entry(entry) => {
            check_again(record, &entry, &key);
            if let Body::Genesis(genesis) = &entry.value().body {
                assert_eq!(genesis.nonce, testing::nonce(session.unwrap()), "{name}");
            }
            match (&entry.value().payload, &record["payload"]) {
                (None, Json::Null) => check_stated(name, &entry, None),
                (Some(_), payload) => check_payload(name, &entry, payload),
                (None, payload) => panic!("{name}: {payload}"),
            }
        }
    }
}

/// Signing the value again gives the bytes, and they have the CIDs of the record.
fn check_again<T: Writable + Clone>(record: &Json, blob: &Signed<T>, key: &SigningKey) {
    let name = text(record, "name");
    assert_eq!(blob.value().signer(), key.principal(), "{name}");
    assert_eq!(blob.value().write(&[0; 64]), hex(record, "unsigned_bytes_hex"), "{name}");
    assert_eq!(blob.value().write(&hex_array(record, "sig_hex")), hex(record, "bytes_hex"), "{name}");
    let again = sign(blob.value().clone(), key).unwrap();
    assert_eq!(again.bytes()[..], hex(record, "bytes_hex")[..], "{name}");
    assert_eq!(again.cid().to_string(), text(record, "cid"), "{name}");
    if let Some(cid) = record["cid_blake2b"].as_str() {
        assert_eq!(Cid::blake2b(Codec::DagCbor, again.bytes()).to_string(), cid, "{name}");
    }
}

fn check_payload(name: &str, entry: &Signed<Entry>, record: &Json) {
    let bytes = hex(record, "bytes_hex");
    let payload = Payload::check(entry.value(), bytes.as_slice()).unwrap();
    let salt = testing::salt(text(record, "salt_label"));
    assert_eq!(payload.salt(), &salt, "{name}");
    let draft = PayloadDraft { words: payload.words().clone(), ext: payload.ext().cloned() };
    let (again, named) = draft.build(&entry.value().body, salt).unwrap();
    assert_eq!(again, bytes, "{name}");
    assert_eq!(named.cid.to_string(), text(record, "cid"), "{name}");
    assert_eq!(Some(named.size), record["size"].as_u64(), "{name}");
    assert_eq!(Some(named), entry.value().payload, "{name}");
    check_stated(name, entry, Some(PayloadDraft { ext: None, ..draft }));
    let mut damaged = bytes;
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(Payload::check(entry.value(), damaged).unwrap_err().code, Code::CidMismatch, "{name}");
}

/// What a client would have to state to get this entry is read back as the same entry.
fn check_stated(name: &str, entry: &Signed<Entry>, payload: Option<PayloadDraft>) {
    let value = entry.value();
    let draft = EntryDraft { body: value.body.clone(), payload, ext: value.ext.clone() };
    let stated = draft.to_json();
    let read = EntryDraft::from_json(&stated).unwrap();
    assert_eq!((&read.body, &read.payload), (&draft.body, &draft.payload), "{name}");
    // A link in an extension field stays the text it was stated as; all else comes back as it was.
    assert_eq!(read.to_json(), stated, "{name}");
}

fn check_block(record: &Json) {
    let (label, bytes) = (text(record, "label"), hex(record, "bytes_hex"));
    let cid: Cid = text(record, "cid").parse().unwrap();
    assert!(cid.matches(&bytes), "{label}");
    assert_eq!(Some(bytes.len() as u64), record["size"].as_u64(), "{label}");
    match cid.codec() {
        Codec::Raw => assert_eq!(testing::raw_block(label), (cid, bytes), "{label}"),
        Codec::DagCbor => {
            let config = ConfigBlock::check(EntryCid::try_from(cid).unwrap(), &bytes).unwrap();
            assert_eq!(config.salt, testing::salt(text(record, "salt_label")), "{label}");
            assert_eq!(config.build().unwrap(), (bytes, EntryCid::try_from(cid).unwrap()), "{label}");
        }
        // An empty UnixFS directory: nothing of ours reads it.
        Codec::DagPb => assert_eq!(Blob::decode(bytes).unwrap_err().code, Code::CborTrailing, "{label}"),
    }
}
