//! What the OpenAPI document says about bodies, held to what the node takes and answers; and the page for authors that is made
//! from it.

mod answers;
mod mutants;
mod page;

use serde_json::{Map, Value, json};
use throughline_node::api::client::Call;
use throughline_node::api::openapi;
use throughline_protocol::entry::{Body, Note};
use throughline_protocol::view::EntryDraft;

use super::home::{Home, asking, code, of, response};
use crate::support::schema::Schemas;

/// Fields that name earlier entries of the session.
const EARLIER: &[&str] = &["answers", "response", "from", "to", "entries", "preserved"];

/// The entries of the document, each kind of note by itself: the component and its schema.
fn described(document: &Value) -> Vec<(String, Value)> {
    let schemas = &document["components"]["schemas"];
    let mut found = Vec::new();
    for entry in schemas["Entry"]["oneOf"].as_array().unwrap() {
        let name = name_of(entry);
        match schemas[&name]["oneOf"].as_array() {
            Some(kinds) => {
                found.extend(kinds.iter().map(name_of).map(|kind| (kind.clone(), schemas[&kind].clone())));
            }
            None => found.push((name.clone(), schemas[&name].clone())),
        }
    }
    found
}

fn name_of(reference: &Value) -> String {
    reference["$ref"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()
}

fn examples(schema: &Value) -> &[Value] {
    schema["examples"].as_array().unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map_or(Vec::new(), |map: &Map<String, Value>| map.keys().map(String::as_str).collect())
}

/// A session with a message and a response that asks for the calls of the examples, and the base of its next entry.
async fn begun(home: &Home, about: &str) -> (String, String) {
    let (session, head) = home.session(about).await;
    let asks = asking(&[("toolu_01", "bash"), ("toolu_02", "edit")]);
    let (status, answer) = post(home, &session, &head, &asks, "").await;
    assert_eq!(status, 201, "{answer}");
    (session, of(&answer["head"], "cid"))
}

/// An example as it would be stated in a session that is there: links to earlier entries are its head's, and the numbers of a
/// seal its own.
async fn placed(home: &Home, session: &str, base: &str, example: &Value) -> Value {
    let mut stated = example.clone();
    let links = stated.as_object_mut().unwrap().iter_mut();
    for (_, value) in links.filter(|(field, _)| EARLIER.contains(&field.as_str())) {
        *value = match value.as_array() {
            Some(links) => vec![base; links.len()].into(),
            None => base.into(),
        };
    }
    upload_files(home, &mut stated).await;
    if stated["type"] == "SessionSeal" {
        let next = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
        let first = home.get(&format!("/v1/sessions/{session}/entries/0")).await.unwrap();
        stated["count"] = next["seq"].clone();
        stated["participants"] = json!([next["holder"]]);
        stated["firstTs"] = first["claimedTsMs"].clone();
        stated["lastTs"] = next["notBeforeMs"].clone();
    }
    stated
}

/// The files and the config block that an example names are other ones here: what an entry names has to be held.
async fn upload_files(home: &Home, stated: &mut Value) {
    let bytes = b"what an example names".to_vec();
    let file = home.send("/v1/blobs", "text/plain", bytes.clone()).await.unwrap();
    for list in ["attachments", "content"] {
        let parts = stated.get_mut(list).and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten().filter(|part| !part["cid"].is_null()) {
            part["cid"] = file["cid"].clone();
            part["size"] = bytes.len().into();
        }
    }
    if !stated["config"].is_null() {
        let config = throughline_protocol::payload::ConfigBlock::default();
        let (bytes, cid) = config.build().unwrap();
        home.send("/v1/blobs", "application/octet-stream", bytes).await.unwrap();
        stated["config"] = cid.to_string().into();
    }
}

/// Posts an entry; status and answer.
async fn post(home: &Home, session: &str, base: &str, entry: &Value, query: &str) -> (u16, Value) {
    let body = json!({"base": base, "entry": entry});
    home.post_as(&format!("/v1/sessions/{session}/entries{query}"), &format!("{base}{query}"), &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_of_an_entry_is_appended() {
    let home = Home::new().await;
    let document = openapi::document();
    let schemas = Schemas::of_document(document.clone());
    for (name, schema) in described(&document) {
        for (at, example) in examples(&schema).iter().enumerate() {
            assert_eq!(schemas.faults_by("Entry", example), Vec::<String>::new(), "{name}: {example}");
            let (session, base) = begun(&home, &format!("{name} {at}")).await;
            let entry = placed(&home, &session, &base, example).await;
            let (status, answer) = post(&home, &session, &base, &entry, "").await;
            assert_eq!(status, 201, "{name}: {entry}\n{answer}");
            assert_eq!(schemas.faults_by("answer.append", &answer), Vec::<String>::new());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_entry_needs_is_needed_and_a_word_that_is_listed_is_taken() {
    let home = Home::new().await;
    let document = openapi::document();
    let schemas = Schemas::of_document(document.clone());
    for (name, schema) in described(&document) {
        let (session, base) = begun(&home, &name).await;
        let whole = placed(&home, &session, &base, examples(&schema).last().unwrap()).await;
        for field in schema["required"].as_array().unwrap() {
            let field = field.as_str().unwrap();
            let mut cut = whole.clone();
            cut.as_object_mut().unwrap().remove(field);
            assert!(!schemas.faults_by("Entry", &cut).is_empty(), "{name} without {field}");
            let (status, answer) = post(&home, &session, &base, &cut, "?dryRun=1").await;
            assert!((400..500).contains(&status), "{name} without {field}: {status} {answer}");
        }
        for (field, rule) in schema["properties"].as_object().unwrap() {
            for word in rule["enum"].as_array().into_iter().flatten() {
                let mut said = whole.clone();
                said[field] = word.clone();
                if field == "origin" && word != "relayed" {
                    said.as_object_mut().unwrap().remove("envelope");
                }
                let (status, answer) = post(&home, &session, &base, &said, "?dryRun=1").await;
                assert_eq!(status, 200, "{name} {field} {word}: {answer}");
            }
        }
    }
}

/// The component that describes a body; none for one that a program does not append. A type that is new does not compile here.
fn component_of(body: &Body) -> Option<&'static str> {
    Some(match body {
        Body::Genesis(_) | Body::Handoff(_) => return None,
        Body::UserMessage(_) => "SessionUserMessage",
        Body::ModelResponse(_) => "SessionModelResponse",
        Body::ToolCall(_) => "SessionToolCall",
        Body::Note(note) => match note {
            Note::Title => "NoteTitle",
            Note::Compaction { .. } => "NoteCompaction",
            Note::Rewind { .. } => "NoteRewind",
            Note::Error => "NoteError",
            Note::Import => "NoteImport",
            Note::Redaction { .. } => "NoteRedaction",
            Note::Class(_) => "NoteClass",
            Note::Close { .. } => "NoteClose",
            Note::Resume => "NoteResume",
            Note::Delete => "NoteDelete",
        },
        Body::Seal(_) => "SessionSeal",
    })
}

#[test]
fn the_fields_of_an_entry_are_those_that_the_decoder_checks() {
    let mut met = 0;
    for (name, schema) in described(&openapi::document()) {
        met += 1;
        let draft = EntryDraft::from_json(&examples(&schema)[0]).unwrap();
        assert_eq!(component_of(&draft.body), Some(name.as_str()));
        let fields = draft.fields();
        let head: &[&str] = if name.starts_with("Note") { &["type", "kind"] } else { &["type"] };
        let known = fields.required.iter().chain(&fields.optional).chain(head).chain(&["x"]);
        let mut known: Vec<&str> = known.copied().collect();
        known.sort_unstable();
        known.dedup();
        let mut described = keys(&schema["properties"]);
        described.sort_unstable();
        assert_eq!(described, known, "{name}");
        let needed: Vec<&str> =
            schema["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        for field in &needed {
            // R-EN-6: a server says where a message came from, and which response asked for a tool.
            let of_servers = matches!(*field, "origin" | "response");
            let checked = fields.required.contains(field) || head.contains(field) || of_servers;
            assert!(checked, "{name}: nobody checks that there is {field}");
        }
        assert!(fields.required.iter().all(|field| needed.contains(field)), "{name}: {fields:?}");
        // What stands in no example was never held to anything.
        let unseen =
            described.iter().filter(|field| examples(&schema).iter().all(|one| one[**field].is_null()));
        assert_eq!(unseen.collect::<Vec<_>>(), Vec::<&&str>::new(), "{name}");
    }
    assert_eq!(met, 14, "an entry that is new is described, and given an example");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_described_nowhere_is_appended_by_no_server() {
    let home = Home::new().await;
    let schemas = Schemas::of_document(openapi::document());
    let (session, base) = begun(&home, "openings").await;
    let agent = format!("hm://{}", home.owner.principal());
    for (entry, refusal) in [
        (json!({"type": "SessionGenesis", "agent": agent, "nonce": "AAAAAAAAAAAAAAAAAAAAAA=="}), "E_TYPE"),
        (json!({"type": "SessionGenesis"}), "E_TYPE"),
        (json!({"type": "SessionHandoff", "reason": "mine now"}), "E_TYPE"),
        (json!({"type": "SessionNote", "kind": "class", "class": "public"}), "E_CLASS_DOWNGRADE"),
        (json!({"type": "SessionUserMessage", "body": []}), "E_SCHEMA_MISSING"),
    ] {
        assert!(!schemas.faults_by("Entry", &entry).is_empty(), "{entry}");
        let (status, refused) = post(&home, &session, &base, &entry, "?dryRun=1").await;
        assert!(status >= 400, "{refused}");
        assert_eq!(code(&refused), refusal, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_appended_by_no_server_is_said_to_be_made_elsewhere() {
    let home = Home::new().await;
    let (session, base) = begun(&home, "elsewhere").await;
    for (kind, how) in [("SessionGenesis", "POST /v1/sessions"), ("SessionHandoff", "throughline move")] {
        let entry = json!({"type": kind});
        let (_, refused) = post(&home, &session, &base, &entry, "").await;
        let (_, first) = home.post_as("/v1/sessions", kind, &json!({"firstEntry": entry})).await;
        for refused in [refused, first] {
            let detail = refused["detail"].as_str().unwrap();
            assert_eq!(code(&refused), "E_TYPE", "{refused}");
            assert!(detail.contains(kind) && detail.contains(how), "{detail}");
        }
    }
}

/// Every body of JSON that a route takes is closed, and a route that takes none takes no fields.
#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_a_body_does_not_have_is_refused_by_its_name() {
    let home = Home::new().await;
    let (session, base) = begun(&home, "closed").await;
    let document = openapi::document();
    let schemas = Schemas::of_document(document.clone());
    let stats = home.node.reader().unwrap().stats().unwrap();
    let mut refused_by = 0;
    for route in openapi::ROUTES.iter().filter(|route| matches!(route.method, "post" | "put")) {
        let json_body = route.takes.iter().find(|media| media.kind == "application/json");
        if json_body.is_none() && !route.takes.is_empty() {
            continue;
        }
        let path = route.path.replace("{session}", &session).replace("{move}", &"0".repeat(32));
        // What would be done otherwise, where that is little: an append and a peer.
        let mut body = match route.path {
            "/v1/sessions/{session}/entries" => json!({"base": base, "entry": response("x")}),
            "/v1/fetch" => json!({"session": session}),
            _ => json!({}),
        };
        body["extraField"] = 1.into();
        if let Some(media) = json_body {
            assert!(!schemas.faults_by(media.schema, &body).is_empty(), "{path}");
        }
        let method = route.method.to_uppercase().parse().unwrap();
        let call = Call::json(method, &path, &body).header("idempotency-key", "closed");
        let (status, refused) = home.told(call).await;
        assert_eq!((status, code(&refused)), (400, "E_API_BODY"), "{path}: {refused}");
        assert!(refused["detail"].as_str().unwrap().contains("`extraField`"), "{path}: {refused}");
        refused_by += 1;
    }
    assert!(refused_by >= 12, "{refused_by} routes");
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), stats, "nothing was done");
}
