//! Reading answers of the API. Fields are only ever added, so a missing one is read as nothing, not as an error.

use serde_json::Value;

/// The text at a JSON pointer, or "".
#[must_use]
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a JSON pointer, or 0.
#[must_use]
pub(crate) fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

/// Whether `true` stands at a JSON pointer.
#[must_use]
pub(crate) fn flag(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

/// The items of the array at a JSON pointer.
#[must_use]
pub(crate) fn items<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The value at a JSON pointer, or null.
#[must_use]
pub(crate) fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or(&Value::Null)
}

/// A path with query parameters; those without a value are left out.
#[must_use]
pub(crate) fn path(base: &str, query: &[(&str, Option<&str>)]) -> String {
    let mut out = base.to_owned();
    let mut mark = '?';
    for (key, value) in query {
        if let Some(value) = value {
            out.push(mark);
            out.push_str(key);
            out.push('=');
            out.push_str(&encode(value));
            mark = '&';
        }
    }
    out
}

/// Percent-encodes all but the unreserved characters (RFC 3986 §2.3).
#[must_use]
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_there_is_nothing() {
        let value = json!({"head": {"seq": 7, "cid": "b"}, "list": [1], "yes": true});
        assert_eq!((number(&value, "/head/seq"), text(&value, "/head/cid")), (7, "b"));
        assert_eq!((number(&value, "/head/cid"), text(&value, "/nothing")), (0, ""));
        assert_eq!((items(&value, "/list").len(), items(&value, "/head").len()), (1, 0));
        assert!(flag(&value, "/yes") && !flag(&value, "/no"));
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(
            path("/v1/resolve", &[("s", Some("hm://a b")), ("x", None), ("y", Some("1"))]),
            "/v1/resolve?s=hm%3A%2F%2Fa%20b&y=1"
        );
        assert_eq!(encode("ü/.."), "%C3%BC%2F..");
    }
}
