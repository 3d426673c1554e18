//! Bodies of the HTTP append: what a client states becomes an entry and a payload that any verifier takes.

use throughline_protocol::entry::{Body, Note};
use throughline_protocol::payload::Payload;
use throughline_protocol::testing::{SessionBuilder, salt};
use throughline_protocol::view::{EntryDraft, entry_to_json};

use super::{Files, records, text};

pub(super) fn check(files: &Files) {
    let file = files.json("session/frames.json");
    let mut session = SessionBuilder::new("http");
    let mut kinds = Vec::new();
    for record in records(&file["http_bodies"], 3) {
        // The third body is a frame of the append protocol, without its length.
        if text(record, "contentType") != "application/json" {
            continue;
        }
        let body: serde_json::Value = serde_json::from_str(text(record, "body")).unwrap();
        let stated = body["entries"].as_array().cloned().unwrap_or_else(|| vec![body["entry"].clone()]);
        for json in stated {
            let draft = EntryDraft::from_json(&json).unwrap();
            assert_eq!(draft.to_json(), json);
            kinds.push(draft.body.type_name());
            let title_note = matches!(draft.body, Body::Note(Note::Title));

            let server = session.server1.clone();
            let (mut entry, _) = session.draft(&server, draft.body.clone(), None);
            let built =
                draft.payload.as_ref().map(|payload| payload.build(&draft.body, salt("http")).unwrap());
            let (bytes, named) = built.unwrap();
            entry.payload = Some(named);
            session.push(&server, entry, Some(bytes.clone().into())).unwrap();
            let entry = &session.head().entry;
            let payload = Payload::check(entry.value(), bytes).unwrap();
            assert_eq!(payload.title().is_some(), title_note);

            // The whole entry shows every field that was stated.
            let shown = entry_to_json(entry, Some(&payload));
            for (key, value) in json.as_object().unwrap() {
                assert_eq!(&shown[key], value, "{key}");
            }
            assert_eq!(shown["cid"], entry.cid().to_string());
            assert_eq!(shown["signer"], server.key.principal().to_string());
        }
    }
    assert_eq!(kinds, ["SessionUserMessage", "SessionModelResponse", "SessionNote"]);
}
