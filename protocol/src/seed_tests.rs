use super::*;
use crate::block::Signed;
use crate::build::sign;
use crate::sign::{SigningKey, VerifyingKeys};

fn key() -> SigningKey {
    SigningKey::from_seed(&[3; 32])
}

fn fields(type_name: &'static str) -> Map<'static> {
    Map::new().with("ts", 5_i64).with("type", type_name).with("signer", key().principal())
}

fn code(fields: Map<'static>) -> Code {
    SeedBlob::new(fields).unwrap_err().code
}

#[test]
fn null_and_empty_values_stay_in_a_body() {
    let ops = Value::List(vec![Value::Map(Map::new().with("value", Value::Null).with("text", ""))]);
    let blob = SeedBlob::new(fields("Change").with("body", Map::new().with("ops", ops))).unwrap();
    let signed = sign(blob.clone(), &key()).unwrap();
    let again = Signed::<SeedBlob>::check(signed.bytes().clone(), &mut VerifyingKeys::default()).unwrap();
    assert_eq!(again.value(), &blob);
}

#[test]
fn the_top_is_closed_and_leaves_defaults_out() {
    assert_eq!(code(fields("Change").with("mood", "calm")), Code::SchemaUnknown);
    assert_eq!(code(fields("Change").with("v", 2_i64)), Code::SchemaUnknown);
    assert_eq!(code(fields("Change").with("depth", 0_i64)), Code::CborNoncanon);
    assert_eq!(code(fields("Change").with("body", Value::Null)), Code::SchemaNull);
    assert_eq!(code(fields("Profile").with("name", "")), Code::CborNoncanon);
    assert_eq!(code(fields("Movie")), Code::Type);
    assert_eq!(code(fields("Change").with("sig", &[0_u8; 64][..])), Code::SchemaExclusive);
}

#[test]
fn a_context_is_a_response_and_a_genesis() {
    let (response, genesis) = (EntryCid::of(b"response"), EntryCid::of(b"genesis"));
    let cited = |cids: &[EntryCid]| cids.iter().map(|cid| Value::from(*cid)).collect::<Vec<_>>();
    let expected = Context { response, session: SessionId::of_genesis(genesis) };
    let change = fields("Change").with("context", cited(&[response, genesis]));
    assert_eq!(SeedBlob::new(change).unwrap().context(), Some(expected));
    assert_eq!(code(fields("Change").with("context", cited(&[response]))), Code::SchemaLen);
    assert_eq!(code(fields("Change").with("context", cited(&[response, genesis, genesis]))), Code::SchemaLen);
    assert_eq!(code(fields("Profile").with("context", cited(&[response, genesis]))), Code::SchemaUnknown);

    let attribute = |index: &'static str, value: String| {
        let key = vec![Value::from("context"), Value::from(index)];
        Value::Map(Map::new().with("key", key).with("value", value))
    };
    let attributes = vec![
        attribute("0", format!("ipfs://{genesis}")),
        attribute("1", format!("ipfs://{genesis}")),
        attribute("0", format!("ipfs://{response}")),
    ];
    let ops = vec![Value::Map(Map::new().with("type", "SetAttributes").with("attrs", attributes))];
    let change = fields("Change").with("body", Map::new().with("ops", ops));
    assert_eq!(SeedBlob::new(change).unwrap().context(), Some(expected));
}

/// Found by comparing the verifiers: fields that are missing are told before what the others say, and `ts` before the rest.
#[test]
fn the_first_of_two_faults_is_told() {
    let refused = |fields: Map<'static>| {
        crate::block::Decoded::<SeedBlob>::decode(encode_map(&fields)).unwrap_err().code
    };
    let wrong_signer = fields("Change").with("signer", vec![0_u8; 31]);
    assert_eq!(refused(wrong_signer.clone()), Code::SchemaMissing);
    assert_eq!(refused(wrong_signer.clone().with("mood", "calm")), Code::SchemaUnknown);
    assert_eq!(refused(wrong_signer.with("sig", vec![0_u8; 64])), Code::KeyCodec);
    let signed = |fields: Map<'static>| refused(fields.with("sig", vec![0_u8; 64]));
    // The signer is of the header, which comes first.
    assert_eq!(signed(fields("Contact").with("signer", "me").with("id", 1_i64)), Code::SchemaType);
    assert_eq!(signed(fields("Contact").with("signer", vec![0_u8; 34]).with("id", 1_i64)), Code::KeyCodec);
    assert_eq!(refused(fields("Contact").with("é", 1_i64)), Code::SchemaKey);
    let one = Value::List(vec![Value::from("a")]);
    assert_eq!(signed(fields("Change").with("context", one)), Code::SchemaLen);
    let late = fields("Change").with("ts", 1_i64 << 48).with("context", Vec::<Value<'_>>::new());
    assert_eq!(code(late), Code::CborIntrange);
}
