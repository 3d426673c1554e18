use proptest::prelude::*;

use super::*;
use crate::id::Codec;

fn value() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-((1_i64 << 53) - 1)..(1_i64 << 53)).prop_map(Value::Int),
        prop::collection::vec(any::<u8>(), 0..80).prop_map(|bytes| Value::Bytes(bytes.into())),
        ".{0,40}".prop_map(Value::from),
        any::<[u8; 4]>().prop_map(|bytes| Value::Link(Cid::sha256(Codec::DagCbor, &bytes))),
        any::<[u8; 4]>().prop_map(|bytes| Value::Link(Cid::blake2b(Codec::Raw, &bytes))),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            prop::collection::vec((".{0,12}", inner), 0..8).prop_map(|pairs| Value::Map(
                pairs.into_iter().map(|(key, value)| (Cow::Owned(key), value)).collect()
            )),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(value in value()) {
        let bytes = encode(&value);
        let (read, _) = decode(&bytes, 16).unwrap();
        prop_assert_eq!(&read, &value);
    }

    #[test]
    fn what_is_read_is_written_back(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok((value, _)) = decode(&bytes, 16) {
            prop_assert_eq!(encode(&value), bytes);
        }
    }

    #[test]
    fn a_mutated_encoding_is_refused_or_canonical(value in value(), at in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let mut bytes = encode(&value);
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok((value, _)) = decode(&bytes, 16) {
            prop_assert_eq!(encode(&value), bytes);
        }
    }

    /// The general codec of the IPLD world agrees on every value of our profile.
    #[test]
    fn the_general_codec_agrees(value in value()) {
        let bytes = encode(&value);
        let general: ipld_core::ipld::Ipld = serde_ipld_dagcbor::from_slice(&bytes).unwrap();
        prop_assert_eq!(serde_ipld_dagcbor::to_vec(&general).unwrap(), bytes);
    }
}

#[test]
fn facts_are_reported() {
    let map = Map::new().with("é", Value::Null).with("l", Cid::sha256(Codec::DagCbor, b""));
    let bytes = encode_map(&map);
    let (_, facts) = decode(&bytes, 16).unwrap();
    assert_eq!(facts, Facts { links: 1, non_ascii_key: true, null: true });
}

#[test]
fn the_top_is_level_one() {
    let nested = |levels: usize| {
        let mut bytes = vec![0x81; levels - 1];
        bytes.push(0x01);
        bytes
    };
    assert!(decode(&nested(16), 16).is_ok());
    assert_eq!(decode(&nested(17), 16).unwrap_err().code, Code::CborDepth);
}
