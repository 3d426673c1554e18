//! What an entry's own bytes decide, for faults that no vector has.

use super::*;
use crate::block::Decoded;
use crate::testing::SessionBuilder;

/// The code that canonical bytes of `map`, with a signature that nobody checks, are refused with.
fn refused(map: Map<'_>) -> Code {
    let bytes = encode_map(&map.with("sig", vec![0; SIGNATURE_BYTES]));
    Decoded::<Entry>::decode(bytes).unwrap_err().code
}

/// The newest entry of a session, as a map.
fn head(session: &SessionBuilder) -> Map<'static> {
    session.head().entry.value().to_map(&[0; SIGNATURE_BYTES]).into_owned()
}

#[test]
fn a_genesis_does_not_name_its_signer_as_holder() {
    let session = SessionBuilder::with_genesis("holder", |genesis| genesis.holder = None);
    assert_eq!(refused(head(&session).with("holder", session.owner.key.principal())), Code::CborNoncanon);
    // Missing fields come first.
    let mut map = head(&session).with("holder", session.owner.key.principal());
    map.remove("nonce");
    assert_eq!(refused(map), Code::SchemaMissing);
}

#[test]
fn extension_fields_hold_no_null_at_any_depth() {
    let session = SessionBuilder::new("null");
    let deep = Map::new().with("list", vec![Value::Map(Map::new().with("a", Value::Null))]);
    for ext in [Map::new().with("a", Value::Null), deep] {
        assert_eq!(refused(head(&session).with("x", ext)), Code::SchemaNull);
    }
    let kept = Map::new().with("empty", "").with("zero", 0).with("none", Vec::<Value<'_>>::new());
    let bytes = encode_map(&head(&session).with("x", kept));
    assert!(Decoded::<Entry>::decode(bytes).is_ok());
}

#[test]
fn the_calls_of_a_response_have_different_ids() {
    let mut session = SessionBuilder::new("calls");
    let server = session.server1.clone();
    session.response(&server, "two", &["a", "b"]);
    let call = |id: &'static str| Value::Map(Map::new().with("name", "bash").with("callId", id));
    assert_eq!(
        refused(head(&session).with("calls", vec![call("a"), call("b"), call("a")])),
        Code::SchemaExclusive
    );
}

/// Found by comparing the verifiers: with two faults in one blob, the first of the text's order is told.
#[test]
fn the_first_of_two_faults_is_told() {
    let mut session = SessionBuilder::new("faults");
    let owner = session.owner.clone();
    session.user(&owner, "hello");
    assert_eq!(refused(head(&session).with("v", "")), Code::CborNoncanon);
    assert_eq!(refused(head(&session).with("v", "1")), Code::SchemaType);
    let reference = |cid: Value<'static>, size: i64| Map::new().with("cid", cid).with("size", size);
    assert_eq!(refused(head(&session).with("payload", reference(true.into(), 0))), Code::SchemaType);
    assert_eq!(refused(head(&session).with("payload", reference(true.into(), 1 << 40))), Code::SchemaType);
    // A message needs words: an empty reference lacks its fields. Where there need be none, it is to be left out.
    assert_eq!(refused(head(&session).with("payload", Map::new())), Code::SchemaMissing);
    let genesis = SessionBuilder::new("faults");
    assert_eq!(refused(head(&genesis).with("payload", Map::new())), Code::CborNoncanon);
}
