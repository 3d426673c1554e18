//! Acts of a node that may take long, with how far they are: what [`super::progress`] shows.

use serde_json::Value;
use throughline_protocol::code::Code;

use super::events::Stream;
use super::link::Api;
use super::progress::{Counter, Entries};
use super::view;
use crate::api::client::Call;
use crate::api::error::{Answer, Problem};

/// Asks for an act, and counts what its node tells meanwhile.
///
/// # Errors
/// Those of the act; `E_UNREACHABLE` when the node ends before it.
pub(crate) fn watched(api: &Api<'_>, path: &str, body: &Value, counter: &Counter) -> Answer<Value> {
    let mut reply = api.open(Call::post(path, body).header("accept", "text/event-stream"))?;
    let mut stream = Stream::default();
    while let Some(bytes) = api.chunk(&mut reply)? {
        for mut event in stream.feed(&bytes) {
            match view::text(&event, "/kind") {
                "progress" => counter.entries(Entries {
                    done: view::number(&event, "/done"),
                    total: view::number(&event, "/total"),
                    bytes: view::number(&event, "/bytes"),
                    blocks: view::number(&event, "/blocks"),
                    blocks_total: view::number(&event, "/blocksTotal"),
                }),
                "problem" => {
                    if let Some(event) = event.as_object_mut() {
                        // What makes it an event is no fact of the refusal.
                        event.retain(|key, _| key != "v" && key != "kind");
                    }
                    return Err(Problem::from_json(&event).unwrap_or_else(|| Code::Internal.into()));
                }
                _ => return Ok(event),
            }
        }
    }
    Err(Problem::new(Code::Unreachable, "the node stopped answering before the act ended"))
}
