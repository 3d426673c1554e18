//! RFC 8949, appendix A: what of CBOR our profile reads, and the code for each thing that it leaves out.

use serde_json::Value as Json;
use throughline_protocol::codec::{Value, decode};
use throughline_protocol::limits::PAYLOAD_DEPTH_MAX;

use super::{Faults, Files, hex, item, records, text};

/// Examples that are no DAG-CBOR of ours, by how they begin or, where that does not tell, whole.
const OUTSIDE: &[(&str, &str)] = &[
    // Above 2^53 − 1, below −(2^53 − 1).
    ("1bffffffffffffffff", "E_CBOR_INTRANGE"),
    ("3bffffffffffffffff", "E_CBOR_INTRANGE"),
    // Bignums, dates, encoded CBOR, URIs.
    ("c0", "E_CBOR_TAG"),
    ("c1", "E_CBOR_TAG"),
    ("c2", "E_CBOR_TAG"),
    ("c3", "E_CBOR_TAG"),
    ("d7", "E_CBOR_TAG"),
    ("d818", "E_CBOR_TAG"),
    ("d820", "E_CBOR_TAG"),
    // Halves, singles, doubles; NaN and the infinities among them.
    ("f9", "E_CBOR_FLOAT"),
    ("fa", "E_CBOR_FLOAT"),
    ("fb", "E_CBOR_FLOAT"),
    // undefined and the unassigned ones.
    ("f7", "E_CBOR_SIMPLE"),
    ("f0", "E_CBOR_SIMPLE"),
    ("f8", "E_CBOR_SIMPLE"),
    ("a201020304", "E_CBOR_KEYTYPE"),
    ("5f", "E_CBOR_INDEF"),
    ("7f", "E_CBOR_INDEF"),
    ("9f", "E_CBOR_INDEF"),
    ("bf", "E_CBOR_INDEF"),
    ("83018202039f0405ff", "E_CBOR_INDEF"),
    ("83019f0203ff820405", "E_CBOR_INDEF"),
    ("826161bf61626163ff", "E_CBOR_INDEF"),
];

pub(super) fn check(files: &Files) {
    let mut faults = Faults::default();
    let (mut read, mut met) = (0, vec![0; OUTSIDE.len()]);
    for record in records(&files.json("cbor/rfc8949-appendix_a.json"), 82) {
        let (name, bytes) = (text(record, "hex"), hex(record, "hex"));
        faults.equal(name, data_encoding::BASE64.encode(&bytes), text(record, "cbor").to_owned());
        match OUTSIDE.iter().position(|(begins, _)| name.starts_with(begins)) {
            Some(at) => {
                met[at] += 1;
                faults.equal(name, item(&bytes), OUTSIDE[at].1);
            }
            None => {
                read += 1;
                faults.equal(name, item(&bytes), "ok");
                let (value, _) = decode(&bytes, PAYLOAD_DEPTH_MAX).unwrap();
                faults.equal(name, is(&value, record), true);
            }
        }
    }
    faults.equal("read", read, 34);
    assert!(!met.contains(&0), "nothing begins so: {met:?}");
    faults.assert_none();
}

/// Whether a value is what the example decodes to: as JSON, or in diagnostic notation where JSON has no bytes.
fn is(value: &Value<'_>, record: &Json) -> bool {
    let Value::Bytes(bytes) = value else { return same(value, &record["decoded"]) };
    text(record, "diagnostic") == format!("h'{}'", data_encoding::HEXLOWER.encode(bytes))
}

/// Whether a value is this JSON.
fn same(value: &Value<'_>, json: &Json) -> bool {
    match (value, json) {
        (Value::Null, Json::Null) => true,
        (Value::Bool(value), Json::Bool(json)) => value == json,
        (Value::Int(value), Json::Number(json)) => json.as_i64() == Some(*value),
        (Value::Text(value), Json::String(json)) => value == json,
        (Value::List(values), Json::Array(list)) => {
            values.len() == list.len() && values.iter().zip(list).all(|(value, json)| same(value, json))
        }
        (Value::Map(map), Json::Object(object)) => {
            map.len() == object.len()
                && map.iter().all(|(key, value)| object.get(key).is_some_and(|json| same(value, json)))
        }
        _ => false,
    }
}
