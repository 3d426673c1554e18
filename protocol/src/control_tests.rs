use super::*;
use crate::block::Decoded;
use crate::testing::{Reach, SessionBuilder};

/// The code that canonical bytes of `map` are refused with; its signature is not checked.
fn refused(map: &Map<'_>) -> Code {
    Decoded::<Control>::decode(encode_map(map)).unwrap_err().code
}

/// A blob as a map, with a signature of zeros.
fn map_of(control: &Control) -> Map<'static> {
    let bytes = control.to_bytes(&[0; SIGNATURE_BYTES]);
    let (value, _) = crate::codec::decode(&bytes, limits::ENTRY_DEPTH_MAX).unwrap();
    value.as_map().unwrap().clone().into_owned()
}

#[test]
fn extension_fields_are_for_our_own_type_and_hold_no_null() {
    let mut session = SessionBuilder::new("ext");
    let owner = session.owner.clone();
    let reference = session.reference(&owner, 0, Reach::Anchors);
    let grant = session.server1.capability.clone().unwrap();
    let tombstone = session.tombstone(&grant, Vec::new());
    let with =
        |control: &Control, value: Value<'static>| map_of(control).with("x", Map::new().with("a", value));
    for seeds in [&reference, &grant] {
        assert_eq!(refused(&with(seeds.value(), Value::Int(1))), Code::SchemaUnknown);
    }
    assert!(Decoded::<Control>::decode(encode_map(&with(tombstone.value(), Value::Int(1)))).is_ok());
    assert_eq!(refused(&with(tombstone.value(), Value::Null)), Code::SchemaNull);
}

#[test]
fn versions_are_for_our_own_type() {
    let mut session = SessionBuilder::new("version");
    let owner = session.owner.clone();
    let reference = session.reference(&owner, 0, Reach::Anchors);
    let grant = session.server1.capability.clone().unwrap();
    let tombstone = session.tombstone(&grant, Vec::new());
    for seeds in [&reference, &grant] {
        assert_eq!(refused(&map_of(seeds.value()).with("v", 2)), Code::SchemaUnknown);
    }
    assert_eq!(refused(&map_of(tombstone.value()).with("v", 2)), Code::Version);
}
