//! CIDs as text, and data with links and bytes, from the interoperability tests of atproto.
//!
//! Theirs is a wider syntax: any multibase. Ours has one text for one CID, so what is a CID in another base is refused.

use serde_json::Value as Json;
use throughline_protocol::codec::{Value, decode};
use throughline_protocol::id::Cid;
use throughline_protocol::limits::PAYLOAD_DEPTH_MAX;
use throughline_protocol::view::EntryDraft;

use super::{Faults, Files, item, records, text};

pub(super) fn check(files: &Files) {
    check_syntax(files);
    check_data(files);
    check_json(files);
}

/// Lines that are neither empty nor comments, as they stand: white space at their ends is what some are about.
fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

fn parsed(text: &str) -> &'static str {
    match text.parse::<Cid>() {
        Ok(cid) => {
            assert_eq!(cid.to_string(), text, "one CID has one text");
            "ok"
        }
        Err(reject) => reject.code.name(),
    }
}

fn check_syntax(files: &Files) {
    let mut faults = Faults::default();
    let valid = files.text("cid/atproto-cid_syntax_valid.txt");
    let valid = lines(&valid);
    assert_eq!(valid.len(), 8);
    for line in valid {
        // base32 is our text of a CID; the others are base58, base64, base16 and decimal.
        faults.equal(line, parsed(line), if line.starts_with("bafy") { "ok" } else { "E_CID" });
    }
    let invalid = files.text("cid/atproto-cid_syntax_invalid.txt");
    let invalid = lines(&invalid);
    assert_eq!(invalid.len(), 10);
    for line in invalid {
        faults.equal(line, parsed(line), if line.starts_with("Qm") { "E_CID_VERSION" } else { "E_CID" });
    }
    faults.assert_none();
}

/// Blocks, the JSON that they stand for, and their CIDs.
fn check_data(files: &Files) {
    let mut faults = Faults::default();
    for record in records(&files.json("cid/atproto-data-model-fixtures.json"), 3) {
        let name = text(record, "cid");
        let bytes = data_encoding::BASE64_NOPAD.decode(text(record, "cbor_base64").as_bytes()).unwrap();
        faults.equal(name, item(&bytes), "ok");
        faults.equal(name, parsed(name), "ok");
        faults.equal(name, name.parse::<Cid>().unwrap().matches(&bytes), true);
        let (value, _) = decode(&bytes, PAYLOAD_DEPTH_MAX).unwrap();
        faults.equal(name, &json(&value), &record["json"]);
    }
    faults.assert_none();
}

/// A value in their JSON: `$link` and `$bytes` stand for links and byte strings.
fn json(value: &Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Text(text) => Json::String(text.clone().into_owned()),
        Value::Bytes(bytes) => serde_json::json!({"$bytes": data_encoding::BASE64_NOPAD.encode(bytes)}),
        Value::Link(cid) => serde_json::json!({"$link": cid.to_string()}),
        Value::List(values) => values.iter().map(json).collect(),
        Value::Map(map) => {
            Json::Object(map.iter().map(|(key, value)| (key.to_owned(), json(value))).collect())
        }
    }
}

/// What their JSON may not hold, as the open map of an entry that a client states. Ours has other rules: a number must
/// be an integer, null stands nowhere, and a link, which ours writes as its text, must be one. `$type`, `$link` and
/// `$bytes` are no words of ours, so what is only a misuse of these is a map like any other.
fn check_json(files: &Files) {
    const REFUSED: &[(&str, &str)] = &[
        ("top-level not an object", "E_SCHEMA_TYPE"),
        ("float", "E_CBOR_FLOAT"),
        ("record with $type null", "E_SCHEMA_NULL"),
    ];
    let mut faults = Faults::default();
    let mut refused = 0;
    for record in records(&files.json("cid/atproto-data-model-invalid.json"), 12) {
        let name = text(record, "note");
        let entry = serde_json::json!({"type": "SessionNote", "kind": "close", "x": record["json"]});
        let got = EntryDraft::from_json(&entry).map_or_else(|reject| reject.code.name(), |_| "ok");
        let expected = REFUSED.iter().find(|(note, _)| *note == name).map_or("ok", |(_, code)| *code);
        refused += usize::from(expected != "ok");
        faults.equal(name, got, expected);
        // Where a link stands by itself it is read as one.
        if let Some(link) = record["json"].pointer("/lnk/$link").and_then(Json::as_str) {
            faults.equal(name, parsed(link), if link == "." { "E_CID" } else { "ok" });
        }
    }
    faults.equal("refused", refused, REFUSED.len());
    faults.assert_none();
}
