//! DAG-CBOR as DAG-JSON, the text form that the IPLD specification gives it: links are `{"/": cid}`, bytes are
//! `{"/": {"bytes": base64}}` without padding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Map, Value as Json, json};
use throughline_protocol::codec::Value;

/// The DAG-JSON of a value.
#[must_use]
pub(crate) fn of(value: &Value<'_>) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(flag) => json!(flag),
        Value::Int(number) => json!(number),
        Value::Bytes(bytes) => json!({"/": {"bytes": STANDARD_NO_PAD.encode(bytes)}}),
        Value::Text(text) => json!(text),
        Value::List(items) => items.iter().map(of).collect(),
        Value::Map(map) => {
            map.iter().map(|(key, value)| (key.to_owned(), of(value))).collect::<Map<_, _>>().into()
        }
        Value::Link(cid) => json!({"/": cid.to_string()}),
    }
}

#[cfg(test)]
mod tests {
    use throughline_protocol::codec::Map as DagMap;
    use throughline_protocol::id::{Cid, Codec};

    use super::*;

    #[test]
    fn links_and_bytes_have_their_own_forms() {
        let cid = Cid::sha256(Codec::Raw, b"x");
        let map = DagMap::new()
            .with("a", Value::Link(cid))
            .with("b", &b"\xff\xfe"[..])
            .with("c", "t")
            .with("d", Value::Int(-3));
        let expected = json!({"a": {"/": cid.to_string()}, "b": {"/": {"bytes": "//4"}}, "c": "t", "d": -3});
        assert_eq!(of(&Value::Map(map)), expected);
    }
}
