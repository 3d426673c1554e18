//! Reading what a node answered. A field that is not there is a failed demo, not an empty figure.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use throughline_protocol::code::Code;
use tokio::time::timeout;

use crate::api::client::{Call, Client};
use crate::api::error::{Answer, Problem};

/// The longest that the demo waits for something to get around. It only ends what hangs.
const WAIT_MAX: Duration = Duration::from_secs(120);

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
/// As [`until`].
pub(super) async fn await_grants(node: &Client, delegate: &str, state: &str) -> Answer<()> {
    let path = format!("/v1/capabilities?delegate={delegate}&state={state}");
    let is_known = |grants: &Value| list(grants, "/items").is_ok_and(|items| !items.is_empty());
    until(node, &path, &format!("a grant of {delegate} that is {state}"), is_known).await
}

/// Waits until what a node answers at `path` is so. It is asked at every event of its log, from the first one on, so that what
/// happened before this question is not missed.
///
/// # Errors
/// `E_TIMEOUT` when it does not get there, with `what` was waited for and the last answer.
pub(super) async fn until(
    node: &Client,
    path: &str,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Answer<()> {
    let last = Mutex::new(Value::Null);
    let reached = async {
        let mut events = node.open(Call::get("/v1/events").header("last-event-id", "0")).await?;
        while events.chunk().await?.is_some() {
            // What is not there yet is refused: that is an answer, too.
            let answer = node.ask(Call::get(path)).await;
            if answer.as_ref().is_ok_and(&is_so) {
                return Ok(());
            }
            let shown = answer.unwrap_or_else(|problem| problem.to_json());
            *last.lock().unwrap_or_else(PoisonError::into_inner) = shown;
        }
        Err(Problem::new(Code::Unreachable, format!("the node ended before there was {what}")))
    };
    timeout(WAIT_MAX, reached).await.unwrap_or_else(|_| {
        let last = last.lock().unwrap_or_else(PoisonError::into_inner);
        Err(Problem::new(Code::Timeout, format!("expected {what} within {WAIT_MAX:?}, got {last}")))
    })
}
