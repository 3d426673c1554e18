//! Seed's documents, R-CO-8: both verifiers read the same ones and refuse the others by the same code.

use anyhow::{Result, ensure};
use throughline_protocol::blob::SignedAny;
use throughline_protocol::codec::{Map, Value, encode_map};
use throughline_protocol::id::{Cid, Codec};
use throughline_protocol::sign::{SigningKey, VerifyingKeys};
use throughline_protocol::testing;

use super::javascript;

fn document(type_name: &'static str) -> Map<'static> {
    Map::new().with("type", type_name).with("ts", 1_i64).with("signer", testing::key("account").principal())
}

fn signed(map: Map<'static>, key: &SigningKey) -> Vec<u8> {
    let unsigned = encode_map(&map.clone().with("sig", vec![0; 64]));
    encode_map(&map.with("sig", key.sign(&unsigned).to_vec()))
}

fn list(items: Vec<Value<'static>>) -> Value<'static> {
    Value::List(items)
}

fn map(key: &'static str, value: Value<'static>) -> Value<'static> {
    Value::Map(Map::new().with(key, value))
}

/// So many arrays, one in the other.
fn nested(levels: usize) -> Value<'static> {
    (0..levels).fold(Value::Null, |inner, _| list(vec![inner]))
}

fn comment() -> Map<'static> {
    document("Comment").with("path", "/doc").with("body", list(Vec::new()))
}

/// Documents, and what is to be said of each.
fn all() -> Vec<(&'static str, &'static str, Map<'static>)> {
    let raw = Value::Link(Cid::sha256(Codec::Raw, b"raw"));
    let entry = Value::Link(Cid::sha256(Codec::DagCbor, b"\xa0"));
    let (change, contact, profile) = (|| document("Change"), || document("Contact"), || document("Profile"));
    vec![
        ("bare", "ok Change", change()),
        ("a raw genesis", "ok Change", change().with("genesis", raw.clone())),
        ("raw deps", "ok Change", change().with("deps", list(vec![raw.clone()]))),
        ("an empty body", "ok Change", change().with("body", Map::new())),
        ("a body of null", "E_SCHEMA_NULL", change().with("body", Value::Null)),
        ("null in a body", "ok Change", change().with("body", map("ops", Value::Null))),
        ("a key of any text in a body", "ok Change", change().with("body", map("\u{fc}", Value::Null))),
        ("a key of any text at the top", "E_SCHEMA_KEY", change().with("\u{fc}", 1_i64)),
        ("an unknown field", "E_SCHEMA_UNKNOWN", change().with("other", 1_i64)),
        ("62 levels in a body", "ok Change", change().with("body", map("a", nested(61)))),
        ("65 levels", "E_CBOR_DEPTH", change().with("body", map("a", nested(62)))),
        ("a depth of zero", "E_CBOR_NONCANON", change().with("depth", 0_i64)),
        ("one link in a context", "E_SCHEMA_LEN", change().with("context", list(vec![entry.clone()]))),
        ("a raw link alone in a context", "E_SCHEMA_LEN", change().with("context", list(vec![raw.clone()]))),
        (
            "a raw link in a context",
            "E_CID_CODEC",
            change().with("context", list(vec![raw.clone(), entry.clone()])),
        ),
        ("a context", "ok Change", change().with("context", list(vec![entry.clone(), entry.clone()]))),
        (
            "three links",
            "E_SCHEMA_LEN",
            change().with("context", list(vec![raw.clone(), raw.clone(), raw.clone()])),
        ),
        ("bare", "ok Comment", comment()),
        ("an empty version", "ok Comment", comment().with("version", list(Vec::new()))),
        (
            "raw links",
            "ok Comment",
            comment().with("version", list(vec![raw.clone()])).with("threadRoot", raw.clone()),
        ),
        ("a reply to nothing", "E_SCHEMA_MISSING", comment().with("replyParent", raw.clone())),
        ("a body of nulls", "ok Comment", comment().with("body", list(vec![Value::Null]))),
        ("a body that is a map", "E_SCHEMA_TYPE", comment().with("body", Map::new())),
        (
            "body before visibility",
            "E_SCHEMA_NULL",
            comment().with("visibility", "Public").with("body", Value::Null),
        ),
        ("subscribed", "ok Contact", contact().with("subscribe", map("\u{fc}", Value::Null))),
        ("an empty subscribe", "E_CBOR_NONCANON", contact().with("subscribe", Map::new())),
        ("60 levels in a subscribe", "ok Contact", contact().with("subscribe", map("a", nested(58)))),
        ("bare", "ok Contact", contact()),
        ("an alias that is no key", "E_SCHEMA_TYPE", profile().with("alias", "me")),
        ("a name", "ok Profile", profile().with("name", "me")),
        ("an empty name", "E_CBOR_NONCANON", profile().with("name", "")),
        ("two faults: the header's first", "E_SCHEMA_TYPE", profile().with("signer", 1_i64).with("name", "")),
    ]
}

#[test]
fn seeds_documents_are_read_alike() -> Result<()> {
    let key = testing::key("account");
    let documents = all();
    let bytes: Vec<Vec<u8>> = documents.iter().map(|(_, _, map)| signed(map.clone(), &key)).collect();
    let mut faults = Vec::new();
    for ((name, expected, map), bytes) in documents.iter().zip(&bytes) {
        let type_name = map.get("type").and_then(Value::as_text).unwrap_or_default();
        let told = match SignedAny::check(bytes.clone(), &mut VerifyingKeys::default()) {
            Ok(_) => format!("ok {type_name}"),
            Err(reject) => reject.code.name().to_owned(),
        };
        if told != *expected {
            faults.push(format!("{name}: expected {expected}, got {told}"));
        }
    }
    let records: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    for (line, (name, expected, _)) in javascript(b'b', &records)?.into_iter().flatten().zip(&documents) {
        if line != *expected {
            faults.push(format!("{name}: expected {expected}, in JavaScript {line}"));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}
