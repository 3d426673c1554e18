//! A server that was left without being asked brings back what it wrote alone: [`Node::cut_words`].

use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Seq, SessionId};
use throughline_protocol::payload::{Payload, Words};
use throughline_protocol::verify::Prechecked;
use throughline_protocol::view::EntryDraft;
use throughline_store::PayloadState;

use super::testbench::{Bench, append};
use super::wires::copy;
use crate::core::{AppendRequest, Arrived, Node};

/// Appends a drafted entry as the holder and returns its CID.
fn state(node: &Node, session: SessionId, entry: &Value) -> String {
    let base = node.reader().unwrap().session(session).unwrap().unwrap().tip.cid;
    let entries = vec![EntryDraft::from_json(entry).unwrap()];
    let request = AppendRequest { session, base: Some(base), entries, key: None, dry_run: false };
    node.append(&request).unwrap().answer["entries"][0]["cid"].as_str().unwrap().to_owned()
}

/// A response that asks for a tool, and the call: A alone has them.
fn write_a_tail(bench: &Bench, session: SessionId) {
    append(&bench.a, session, "a question that only A has").unwrap();
    let response = state(
        &bench.a,
        session,
        &json!({
            "type": "SessionModelResponse", "model": {"provider": "p", "id": "m-1"},
            "calls": [{"callId": "c1", "name": "bash"}],
            "content": [{"type": "text", "text": "I look."},
                {"type": "toolCall", "callId": "c1", "name": "bash", "input": "{}"}],
        }),
    );
    state(
        &bench.a,
        session,
        &json!({
            "type": "SessionToolCall", "callId": "c1", "name": "bash", "response": response, "output": "three files",
        }),
    );
}

/// The owner hands over on what D has.
fn hand_over(bench: &Bench, session: SessionId, to: &Node) {
    let mut facts = bench.d.signing_base(session).unwrap();
    facts["epoch"] = json!(facts["epoch"].as_u64().unwrap() + 1);
    facts["holder"] = json!(to.principal().to_string());
    let handoff = bench.handoff(&facts);
    let entries = vec![Prechecked::of(handoff, None).unwrap()];
    bench.d.take_in(session, Arrived { entries, ..Arrived::default() }).unwrap();
    for node in [&bench.a, &bench.b] {
        copy(&bench.d, node, session);
    }
}

/// Who is said to have said what, of the entries above a seq.
fn words(node: &Node, session: SessionId, above: u64) -> Vec<(String, String)> {
    let reader = node.reader().unwrap();
    let tip = reader.session(session).unwrap().unwrap().tip.seq;
    let from = Seq::new(above + 1).unwrap();
    let entries = reader.entries(session, from, tip).unwrap();
    entries
        .map(|stored| {
            let stored = stored.unwrap();
            let entry = Decoded::<Entry>::decode(stored.bytes).unwrap();
            let PayloadState::Present(bytes) = reader.payload(stored.payload.unwrap()).unwrap() else {
                panic!("expected the words of {}", stored.seq)
            };
            let payload = Payload::check(entry.value(), bytes).unwrap();
            let said_by = if let Words::UserMessage(words) = payload.words() {
                words.participant.as_ref().map(|who| who.id.clone())
            } else {
                None
            };
            let kind = entry.value().body.type_name();
            (said_by.map_or_else(|| kind.to_owned(), |who| format!("{kind} of {who}")), payload.text())
        })
        .collect()
}

#[test]
fn a_server_that_holds_a_session_again_signs_what_was_cut_as_what_it_was() {
    let bench = Bench::new();
    let session = bench.session(1);
    write_a_tail(&bench, session);
    hand_over(&bench, session, &bench.b);
    // Neither the holder nor a device: what it has stays, and it is told whose act helps.
    let refused = bench.a.cut_words(session).unwrap_err();
    assert_eq!(refused.code(), Code::Retired);
    hand_over(&bench, session, &bench.a);
    let above = bench.a.reader().unwrap().session(session).unwrap().unwrap().tip.seq.get();

    let what = bench.a.cut_words(session).unwrap();
    let tried = what.answer(&[], true);
    assert_eq!((tried["entries"].as_array().unwrap().len(), &tried["signedAs"]), (3, &json!("holder")));
    let made = bench.a.return_as_holder(&what).unwrap();
    assert_eq!(what.answer(&made, false)["pending"], 0);
    let signer = bench.a.principal().to_string();
    let expected = [
        (format!("SessionUserMessage of {signer}"), "a question that only A has"),
        ("SessionModelResponse".to_owned(), "I look."),
        ("SessionToolCall".to_owned(), "three files"),
    ];
    let said = words(&bench.a, session, above);
    assert_eq!(said, expected.map(|(by, text)| (by, text.to_owned())));
    // A second run finds nothing to do, and others take it.
    let again = bench.a.cut_words(session).unwrap().answer(&[], true);
    assert_eq!((&again["entries"], &again["returnedBefore"]), (&json!([]), &json!(3)));
    assert!(copy(&bench.a, &bench.b, session));
    assert_eq!(words(&bench.b, session, above), said);
}

#[test]
fn a_device_that_was_left_sends_what_was_cut_to_the_holder_as_messages() {
    let bench = Bench::new();
    let session = bench.session(1);
    write_a_tail(&bench, session);
    hand_over(&bench, session, &bench.b);
    bench.grant(bench.a.principal(), Role::Agent);
    let above = bench.b.reader().unwrap().session(session).unwrap().unwrap().tip.seq.get();

    let what = bench.a.cut_words(session).unwrap();
    assert!(what.is_for_the_holder());
    let signed = bench.a.return_as_device(&what).unwrap();
    // The line breaks after the first one was put in order.
    bench.b.append_signed(&signed[0].1).unwrap();
    copy(&bench.b, &bench.a, session);
    let rest = bench.a.cut_words(session).unwrap();
    assert_eq!(rest.answer(&[], true)["returnedBefore"], 1);
    for (_, append) in bench.a.return_as_device(&rest).unwrap() {
        bench.b.append_signed(&append).unwrap();
    }
    let signer = bench.a.principal().to_string();
    let expected = [
        (format!("SessionUserMessage of {signer}"), "a question that only A has"),
        ("SessionUserMessage of m-1".to_owned(), "I look."),
        ("SessionUserMessage of bash".to_owned(), "three files"),
    ];
    assert_eq!(words(&bench.b, session, above), expected.map(|(by, text)| (by, text.to_owned())));
    // One that was in order already and whose answer was lost is the same message.
    let replayed = bench.b.append_signed(&signed[0].1).unwrap();
    assert!(replayed.replayed);
}
