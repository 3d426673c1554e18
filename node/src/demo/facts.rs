//! Reading what a node answered. A field that is not there is a failed demo, not an empty figure.

use std::time::Duration;

use serde_json::Value;
use throughline_protocol::code::Code;
use tokio::time::timeout;

use crate::api::client::{Call, Client};
use crate::api::error::{Answer, Problem};

/// The longest that the demo waits for something to get around. It only ends what hangs.
const WAIT_MAX: Duration = Duration::from_secs(60);

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

/// Waits until a node knows `delegate`'s grants to be in this state: what the owner signs gets around by itself.
///
/// # Errors
/// `E_TIMEOUT` when it does not get there.
pub(super) async fn await_grants(node: &Client, delegate: &str, state: &str) -> Answer<()> {
    let path = format!("/v1/capabilities?delegate={delegate}&state={state}");
    let known = async {
        // From the first event on, so that one which came before this question is not missed.
        let mut events = node.open(Call::get("/v1/events").header("last-event-id", "0")).await?;
        while events.chunk().await?.is_some() {
            if !list(&node.ask(Call::get(&path)).await?, "/items")?.is_empty() {
                return Ok(());
            }
        }
        Err(Problem::new(Code::Unreachable, "the node ended"))
    };
    let late = |_| Problem::new(Code::Timeout, format!("no {state} grant of {delegate} within {WAIT_MAX:?}"));
    timeout(WAIT_MAX, known).await.map_err(late)?
}
