//! What the entries of a bench say: turns of a message, a response with a tool call, and the call's result.

use throughline_protocol::content::{Block, CallPart, Content};
use throughline_protocol::entry::{
    Body, Call, Model, ModelResponse, Origin, Outcome, ToolCall, Usage, UserMessage,
};
use throughline_protocol::id::EntryCid;
use throughline_protocol::payload::{PayloadDraft, ResponseWords, ToolWords, UserWords, Words};
use throughline_protocol::view::EntryDraft;

/// A trigger's message of `size_bytes` of text; no two with different numbers are alike.
pub(super) fn message(number: u64, size_bytes: usize) -> EntryDraft {
    let body = Body::UserMessage(UserMessage { origin: Some(Origin::Trigger), ..UserMessage::default() });
    let text = filler(number, size_bytes);
    let words = UserWords { body: vec![Block::paragraph("b1", text)], ..UserWords::default() };
    draft(body, Words::UserMessage(words))
}

/// A response that asks for one call.
pub(super) fn response(number: u64) -> EntryDraft {
    let call_id = format!("call-{number}");
    let body = Body::ModelResponse(ModelResponse {
        model: Model { provider: "bench".to_owned(), id: "bench-1".to_owned(), api: None },
        calls: vec![Call { call_id: call_id.clone(), name: "bash".to_owned() }],
        usage: Usage { input: 1_200, output: 80, ..Usage::default() },
        stop_reason: Some("tool_use".to_owned()),
        status: None,
        config: None,
        duration_ms: 0,
    });
    let call = CallPart {
        call_id,
        name: "bash".to_owned(),
        input: r#"{"command":"cargo test"}"#.to_owned(),
        ..CallPart::default()
    };
    let content = vec![Content::text(filler(number, 200)), Content::ToolCall(call)];
    draft(body, Words::ModelResponse(ResponseWords { content, ..ResponseWords::default() }))
}

/// The result of the call that `asked` asked for as number `number`.
pub(super) fn result(number: u64, asked: EntryCid) -> EntryDraft {
    let body = Body::ToolCall(ToolCall {
        name: "bash".to_owned(),
        call_id: format!("call-{number}"),
        outcome: Outcome::Ok,
        response: Some(asked),
        produced: Vec::new(),
        child: None,
        duration_ms: 12,
    });
    let words = ToolWords { output: Some(filler(number, 400)), ..ToolWords::default() };
    draft(body, Words::ToolCall(words))
}

fn draft(body: Body, words: Words) -> EntryDraft {
    EntryDraft { body, payload: Some(PayloadDraft::new(words)), ext: None }
}

fn filler(number: u64, size_bytes: usize) -> String {
    let mut text = format!("{number}: ");
    while text.len() < size_bytes {
        text.push_str("the quick brown fox jumps over the lazy dog; ");
    }
    text.truncate(size_bytes);
    text
}
