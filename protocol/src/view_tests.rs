use super::*;
use crate::content::{Block, Content};
use crate::entry::{Note, Origin, UserMessage};
use crate::payload::{UserWords, Words};
use serde_json::json;

fn code(json: &Json) -> Code {
    EntryDraft::from_json(json).unwrap_err().code
}

#[test]
fn a_triggered_message_as_a_client_states_it() {
    let stated = json!({
        "type": "SessionUserMessage",
        "origin": "trigger",
        "body": [{"id": "b1", "type": "Paragraph", "text": "Nightly run.", "annotations": [], "children": []}],
    });
    let draft = EntryDraft::from_json(&stated).unwrap();
    assert_eq!(
        draft.body,
        Body::UserMessage(UserMessage { origin: Some(Origin::Trigger), ..UserMessage::default() })
    );
    let words = UserWords { body: vec![Block::paragraph("b1", "Nightly run.")], ..UserWords::default() };
    assert_eq!(draft.payload, Some(PayloadDraft::new(Words::UserMessage(words))));
    assert_eq!(draft.to_json(), stated);
}

#[test]
fn a_response_keeps_input_as_text() {
    let stated = json!({
        "type": "SessionModelResponse",
        "model": {"id": "claude-x", "provider": "anthropic", "api": "messages"},
        "calls": [{"callId": "toolu_08", "name": "bash"}],
        "stopReason": "tool_use",
        "content": [
            {"type": "text", "text": "Running."},
            {"type": "toolCall", "callId": "toolu_08", "name": "bash", "input": "{\"n\": 1.50}"},
        ],
        "x": {"note": "kept"},
    });
    let draft = EntryDraft::from_json(&stated).unwrap();
    let Some(Words::ModelResponse(words)) = draft.payload.as_ref().map(|payload| &payload.words) else {
        panic!("{draft:?}");
    };
    let Content::ToolCall(call) = &words.content[1] else { panic!("{words:?}") };
    assert_eq!(call.input, "{\"n\": 1.50}");
    assert_eq!(draft.ext, Some(Map::new().with("note", "kept")));
    assert_eq!(draft.to_json(), stated);
}

#[test]
fn links_bytes_and_principals_have_their_text() {
    let cid = EntryCid::of(b"entry").to_string();
    let source = json!({"format": "claude-code", "file": cid, "line": 3});
    let relayed = json!({
        "type": "SessionUserMessage", "origin": "relayed", "envelope": "YWN0aW9u", "body": [], "answers": cid,
        "source": source, "attachments": [{"cid": cid, "mediaType": "text/plain", "size": 5}],
    });
    let draft = EntryDraft::from_json(&relayed).unwrap();
    let Body::UserMessage(message) = &draft.body else { panic!("{draft:?}") };
    assert_eq!((message.answers, message.envelope), (Some(EntryCid::of(b"entry")), Some(sha256(b"action"))));
    assert_eq!(draft.to_json(), relayed);

    let holder = Principal::from_key([7; 32]).to_string();
    let handoff = json!({"type": "SessionHandoff", "holder": holder, "tombstones": [cid]});
    assert_eq!(EntryDraft::from_json(&handoff).unwrap().to_json(), handoff);
    let note = json!({"type": "SessionNote", "kind": "rewind", "to": cid});
    let draft = EntryDraft::from_json(&note).unwrap();
    assert_eq!((draft.body, draft.payload), (Body::Note(Note::Rewind { to: EntryCid::of(b"entry") }), None));
}

#[test]
fn what_the_type_does_not_have_is_refused() {
    let message = |key: &str, value: Json| {
        let mut json = json!({"type": "SessionUserMessage", "body": []});
        json[key] = value;
        code(&json)
    };
    assert_eq!(message("mood", json!("calm")), Code::SchemaUnknown);
    assert_eq!(message("seq", json!(4)), Code::SchemaUnknown);
    assert_eq!(message("payload", json!({"size": 4})), Code::SchemaUnknown);
    assert_eq!(message("salt", json!("AAAA")), Code::SchemaUnknown);
    assert_eq!(message("context", Json::Null), Code::SchemaNull);
    assert_eq!(message("answers", json!("bafy")), Code::Cid);
    assert_eq!(message("envelope", json!("YWN0aW9u")), Code::SchemaExclusive);
    assert_eq!(message("envelope", json!("YWN0aW9")), Code::SchemaText);
    assert_eq!(message("x", json!({"ratio": 0.5})), Code::CborFloat);
    assert_eq!(message("x", json!({"large": 9_007_199_254_740_992_u64})), Code::CborIntrange);
    assert_eq!(message("x", json!({"large": u64::MAX})), Code::CborIntrange);
    assert_eq!(code(&json!({"type": "SessionUserMessage"})), Code::SchemaMissing);
    assert_eq!(code(&json!({"type": "Ref"})), Code::Type);
    assert_eq!(code(&json!({"type": "SessionNote", "kind": "close", "title": "x"})), Code::SchemaUnknown);
    assert_eq!(code(&json!([])), Code::SchemaType);
    let deep = (0..100).fold(json!(1), |json, _| json!([json]));
    assert_eq!(message("x", deep), Code::CborDepth);
}
