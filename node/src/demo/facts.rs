//! Reading what a node answered. A field that is not there is a failed demo, not an empty figure.

use serde_json::Value;
use throughline_protocol::code::Code;

use crate::api::error::{Answer, Problem};

fn missing(value: &Value, pointer: &str) -> Problem {
    Problem::new(Code::Internal, format!("expected {pointer} in the answer, got {value}"))
}

/// The text at a pointer.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Answer<&'a str> {
    value.pointer(pointer).and_then(Value::as_str).ok_or_else(|| missing(value, pointer))
}

/// The number at a pointer.
pub(super) fn number(value: &Value, pointer: &str) -> Answer<u64> {
    value.pointer(pointer).and_then(Value::as_u64).ok_or_else(|| missing(value, pointer))
}

/// The value at a pointer.
pub(super) fn at<'a>(value: &'a Value, pointer: &str) -> Answer<&'a Value> {
    value.pointer(pointer).ok_or_else(|| missing(value, pointer))
}

/// The list at a pointer.
pub(super) fn list<'a>(value: &'a Value, pointer: &str) -> Answer<&'a [Value]> {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).ok_or_else(|| missing(value, pointer))
}

/// Checks what the story tells next.
///
/// # Errors
/// `E_INTERNAL` with `what` when it is not so: then the demo must not say so.
pub(super) fn hold(is_so: bool, what: &str, answer: &Value) -> Answer<()> {
    if is_so { Ok(()) } else { Err(Problem::new(Code::Internal, format!("expected {what}, got {answer}"))) }
}
