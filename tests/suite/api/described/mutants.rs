//! Entries that differ in one place from an example: the schema takes what the decoder takes, and nothing else.

use serde_json::{Value, json};
use throughline_node::api::openapi;
use throughline_protocol::code::Code;
use throughline_protocol::view::EntryDraft;

use super::{described, examples};
use crate::support::schema::Schemas;

/// What is put in the place of a value.
fn values() -> Vec<Value> {
    let long = |count: usize| Value::String("a".repeat(count));
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!((1_u64 << 48) - 1),
        json!(1_u64 << 48),
        json!((1_u64 << 53) - 1),
        json!(1_u64 << 53),
        json!(1.5),
        json!(""),
        json!("a b"),
        json!("a\nb"),
        json!("ü"),
        json!("a\u{202e}b"),
        json!("YQ=="),
        long(128),
        long(129),
        long(256),
        long(257),
        json!([]),
        json!({}),
        json!({"a": 1}),
        json!([{"a": 1}]),
    ]
}

/// Every place of a value, as pointers.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, below)| places(below, &format!("{at}/{key}"), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// All that differs from an example in one place, and in what.
fn mutants(example: &Value) -> Vec<(String, Value)> {
    let (mut found, mut pointers) = (Vec::new(), Vec::new());
    places(example, "", &mut pointers);
    for pointer in &pointers {
        let here = example.pointer(pointer).unwrap();
        if here.is_object() {
            let mut more = example.clone();
            more.pointer_mut(pointer).unwrap()["unheardOf"] = json!("a");
            found.push((format!("{pointer}/unheardOf added"), more));
        }
        let Some((above, last)) = pointer.rsplit_once('/') else { continue };
        if example.pointer(above).is_some_and(Value::is_object) {
            let mut cut = example.clone();
            cut.pointer_mut(above).unwrap().as_object_mut().unwrap().remove(last);
            found.push((format!("{pointer} removed"), cut));
        }
        let mut replace = |what: String, value: Value| {
            let mut other = example.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            found.push((what, other));
        };
        for value in values() {
            replace(format!("{pointer} = {:.40}", value.to_string()), value);
        }
        if let Some(item) = here.as_array().and_then(|items| items.first()) {
            for count in [64, 65, 128, 129, 200, 201] {
                replace(format!("{pointer} of {count}"), vec![item.clone(); count].into());
            }
        }
    }
    found
}

/// What a schema cannot say, or says for servers alone.
fn is_beyond_schemas(what: &str, refused: Option<Code>) -> bool {
    let of_servers = ["/origin removed", "/response removed"].contains(&what);
    let by_code = refused.is_some_and(|code| {
        // A CID is more than its letters. Extension fields and open maps hold any value of the format, but no other.
        let value = matches!(code, Code::CborFloat | Code::CborIntrange | Code::SchemaNull);
        // Calls have ids of their own.
        let twice = code == Code::SchemaExclusive && what.contains(" of ");
        code.name().starts_with("E_CID") || value || twice
    });
    of_servers || by_code
}

#[test]
fn a_schema_takes_what_the_decoder_takes() {
    let document = openapi::document();
    let schemas = Schemas::of_document(document.clone());
    let (mut tried, mut taken, mut apart) = (0, 0, Vec::new());
    for (name, schema) in described(&document) {
        for (what, mutant) in examples(&schema).iter().flat_map(mutants) {
            // Its bytes too: some rules are those of the payload that is made.
            let read = EntryDraft::from_json(&mutant).and_then(|draft| {
                draft.payload.as_ref().map(|words| words.build(&draft.body, [7; 32])).transpose()
            });
            let refused = read.err().map(|reject| reject.code);
            let fits = schemas.faults_by("Entry", &mutant).is_empty();
            tried += 1;
            taken += usize::from(fits);
            if refused.is_none() != fits && !is_beyond_schemas(&what, refused) {
                let by_schema = if fits { "takes it" } else { "refuses it" };
                apart.push(format!("{name} {what}: the decoder says {refused:?}, the schema {by_schema}"));
            }
        }
    }
    assert!(apart.is_empty(), "{} of {tried}:\n{}", apart.len(), apart.join("\n"));
    assert!(tried > 5_000 && taken > 500, "{taken} of {tried} are no test");
}
