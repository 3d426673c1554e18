//! The words of a tail: what a server signed after it was left, or under a grant that was revoked. They count no more where they
//! stand; `fork --bring-back` says them again, as new messages on the head that counts.
//!
//! A message says who signed it first (`participant`), and which entry it was (`clientMessageId`): so it is said again once, whoever
//! asks twice. What a model answered is not said again: only a holder speaks for a model.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use throughline_protocol::block::Signed;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::fork::{Judged, Selection};
use throughline_protocol::id::{EntryCid, Seq};
use throughline_protocol::payload::{Payload, Words};
use throughline_protocol::view;
use throughline_store::{Reader, SessionRow};

use super::scene::from_store;
use super::shape;
use crate::api::error::Answer;

/// Entries of a tail that one answer holds; once they are brought back, the next answer holds the next.
const TOLD_MAX: usize = 256;
/// Characters of an entry's words in a list.
const LINE_CHARS: usize = 80;

/// The tail of a session: how much of it is words to say again, and those that were not yet.
pub(super) fn tail_of(
    reader: &Reader,
    row: &SessionRow,
    (judged, selection): (&Judged<'_>, &Selection),
) -> Answer<Value> {
    let mut cut: Vec<(Seq, EntryCid)> = selection
        .fenced
        .iter()
        .chain(&selection.revoked_tail)
        .filter_map(|cid| Some((judged.mark(*cid)?.seq, *cid)))
        .collect();
    cut.sort_unstable();
    let said = if cut.is_empty() { BTreeSet::new() } else { said_again(reader, row)? };
    let (mut brought, mut others, mut absent, mut more) = (0, 0, 0, false);
    let mut words = Vec::new();
    for (seq, cid) in &cut {
        let Some((_, stored)) = reader.entry(*cid)? else { continue };
        let signed = from_store(stored.bytes)?;
        if !matches!(signed.value().body, Body::UserMessage(_) | Body::ToolCall(_)) {
            others += 1;
            continue;
        }
        if said.contains(&name_of(*cid)) {
            brought += 1;
            continue;
        }
        match shape::payload_of(reader, &signed)? {
            (Some(_), _) if words.len() == TOLD_MAX => more = true,
            (Some(payload), _) => words.push(json!({
                "cid": cid.to_string(), "seq": seq.get(), "type": signed.value().body.type_name(),
                "signer": signed.value().signer.to_string(),
                "text": payload.text().chars().take(LINE_CHARS).collect::<String>(),
                "entry": again(&signed, &payload),
            })),
            (None, _) => absent += 1,
        }
    }
    Ok(json!({
        "entries": cut.len(), "brought": brought, "others": others, "absent": absent, "more": more, "words": words,
    }))
}

/// The id of the message that says an entry again.
fn name_of(cid: EntryCid) -> String {
    format!("tail-{cid}")
}

/// The messages of the main chain that say entries of a tail again, by their ids.
fn said_again(reader: &Reader, row: &SessionRow) -> Answer<BTreeSet<String>> {
    let mut said = BTreeSet::new();
    for stored in reader.entries(row.session, Seq::ZERO, row.tip.seq)? {
        let signed = from_store(stored?.bytes)?;
        if !matches!(signed.value().body, Body::UserMessage(_)) {
            continue;
        }
        if let (Some(payload), _) = shape::payload_of(reader, &signed)?
            && let Words::UserMessage(words) = payload.words()
        {
            said.extend(words.client_message_id.clone().filter(|id| id.starts_with("tail-")));
        }
    }
    Ok(said)
}

/// The message that says an entry's words again, as a client states it.
fn again(signed: &Signed<Entry>, payload: &Payload) -> Value {
    let shown = view::entry_to_json(signed, Some(payload));
    let (body, role) = match &signed.value().body {
        Body::ToolCall(call) => (json!([paragraph(&format!("{}: {}", call.name, payload.text()))]), "tool"),
        _ => (shown["body"].clone(), "user"),
    };
    let mut entry = json!({
        "type": "SessionUserMessage", "origin": "import", "body": body, "clientMessageId": name_of(signed.cid()),
        "participant": {"id": signed.value().signer.to_string(), "role": role},
    });
    for key in ["participant", "context", "attachments"] {
        if !shown[key].is_null() {
            entry[key] = shown[key].clone();
        }
    }
    entry
}

fn paragraph(text: &str) -> Value {
    json!({"id": "b1", "type": "Paragraph", "text": text, "children": []})
}
