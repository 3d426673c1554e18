//! `docs/ENTRIES.md`: what stands below its mark is made from the document, and every example in it is appended.

use std::fmt::Write as _;

use serde_json::{Value, json};
use throughline_node::api::openapi;

use super::{Home, begun, described, examples, name_of, placed, post};
use crate::support::tests::root;

const PAGE: &str = "docs/ENTRIES.md";
/// What is below it is not written by hand.
const MARK: &str = "<!-- Made from docs/schemas/api/entries.json: `UPDATE_DOCS=1 cargo test -p throughline-tests entries_page` -->";
/// Fields that a reader looks for first.
const FIRST: &[&str] = &["type", "kind", "id"];
/// Widest line of an example that is not broken up.
const LINE_CHARS_MAX: usize = 110;

/// Names of schemas, in the order in which they are first referred to.
#[derive(Default)]
struct Met(Vec<String>);

impl Met {
    /// A schema as the cell of a table says it.
    fn kind(&mut self, schema: &Value) -> String {
        if schema["$ref"].is_string() {
            let name = name_of(schema);
            if !self.0.contains(&name) {
                self.0.push(name.clone());
            }
            return format!("[{name}](#{})", name.to_lowercase());
        }
        if let Some(words) = schema["enum"].as_array() {
            let words: Vec<String> =
                words.iter().map(|word| format!("`{}`", word.as_str().unwrap())).collect();
            return words.join(", ");
        }
        if let Some(word) = schema["const"].as_str() {
            return format!("`{word}`");
        }
        match schema["type"].as_str() {
            Some("array") => {
                let items = &schema["items"];
                let each = if items["properties"].is_object() { self.inner(items) } else { self.kind(items) };
                let least = schema["minItems"].as_u64().map_or("", |_| ", not empty");
                let most = schema["maxItems"].as_u64().map(|max| format!(", at most {max}"));
                format!("list of {each}{least}{}", most.unwrap_or_default())
            }
            Some("string") => "text".to_owned(),
            Some(kind) => kind.to_owned(),
            // The type of content that is not known: a name that is none of the others.
            None => self.kind(&schema["allOf"][0]),
        }
    }

    /// An object that has no name, in a cell.
    fn inner(&mut self, schema: &Value) -> String {
        let fields = schema["properties"].as_object().unwrap().iter();
        let fields: Vec<String> =
            fields.map(|(name, field)| format!("`{name}`: {}", self.kind(field))).collect();
        format!("{{{}}}", fields.join(", "))
    }

    fn table(&mut self, schema: &Value, out: &mut String) {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fields = schema["properties"].as_object().unwrap();
        let optional = fields.keys().map(String::as_str).filter(|name| !required.contains(name));
        out.push_str("| field | | what |\n| --- | --- | --- |\n");
        for name in required.iter().copied().chain(optional) {
            // A field that is named only to be refused.
            if fields[name] == Value::Bool(false) {
                continue;
            }
            let kind = self.kind(&fields[name]);
            let said = fields[name]["description"].as_str().unwrap_or_default();
            let shown = if required.contains(&name) { format!("**`{name}`**") } else { format!("`{name}`") };
            writeln!(out, "| {shown} | {kind} | {said} |").unwrap();
        }
    }
}

/// JSON as a person would write it: what says what it is comes first.
fn written(value: &Value, indent: usize, before: usize) -> String {
    let short = flat(value);
    if short.chars().count() + indent + before <= LINE_CHARS_MAX {
        return short;
    }
    let (pad, end) = (" ".repeat(indent + 2), " ".repeat(indent));
    match value {
        Value::Object(_) => {
            let lines: Vec<String> = ordered(value)
                .map(|(key, below)| format!("{pad}\"{key}\": {}", written(below, indent + 2, key.len() + 4)))
                .collect();
            format!("{{\n{}\n{end}}}", lines.join(",\n"))
        }
        Value::Array(items) => {
            let lines: Vec<String> =
                items.iter().map(|item| format!("{pad}{}", written(item, indent + 2, 0))).collect();
            format!("[\n{}\n{end}]", lines.join(",\n"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

fn flat(value: &Value) -> String {
    match value {
        Value::Object(_) => {
            let fields: Vec<String> =
                ordered(value).map(|(key, below)| format!("\"{key}\": {}", flat(below))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flat).collect::<Vec<_>>().join(", ")),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

fn ordered(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let map = value.as_object().unwrap();
    let first = FIRST.iter().filter_map(|key| map.get_key_value(*key));
    first.chain(map.iter().filter(|(key, _)| !FIRST.contains(&key.as_str())))
}

/// All that is made.
fn made(document: &Value) -> String {
    let schemas = &document["components"]["schemas"];
    let (mut out, mut met) = (String::new(), Met::default());
    let is_scalar = |name: &str| schemas[name]["properties"].is_null() && schemas[name]["oneOf"].is_null();
    let said = |schema: &Value| schema["description"].as_str().unwrap().to_owned();
    for (name, schema) in described(document) {
        let kind = schema["properties"]["kind"]["const"].as_str();
        let title = kind.map_or(name, |kind| format!("SessionNote `{kind}`"));
        writeln!(out, "\n### {title}\n\n{}.\n", said(&schema)).unwrap();
        met.table(&schema, &mut out);
        writeln!(out, "\n```json\n{}\n```", written(&examples(&schema)[0], 0, 0)).unwrap();
    }
    out.push_str("\n## What they are made of\n");
    let mut at = 0;
    while let Some(name) = met.0.get(at).cloned() {
        at += 1;
        let schema = &schemas[&name];
        if is_scalar(&name) {
            continue;
        }
        writeln!(out, "\n### {name}\n\n{}.\n", said(schema)).unwrap();
        match schema["oneOf"].as_array() {
            Some(parts) => parts.iter().for_each(|part| writeln!(out, "- {}", met.kind(part)).unwrap()),
            None => met.table(schema, &mut out),
        }
    }
    out.push_str("\n## Kinds of fields\n");
    for name in met.0.iter().filter(|name| is_scalar(name)) {
        writeln!(out, "\n### {name}\n\n{}.", said(&schemas[name])).unwrap();
    }
    out
}

#[test]
fn the_entries_page_is_what_the_schemas_say() {
    let file = root().join(PAGE);
    let page = std::fs::read_to_string(&file).unwrap();
    let (above, _) = page.split_once(MARK).unwrap_or_else(|| panic!("{PAGE} has no mark: {MARK}"));
    let expected = format!("{above}{MARK}\n{}", made(&openapi::document()));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &expected).unwrap();
    }
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page == expected, "{PAGE} is not what the schemas say; UPDATE_DOCS=1 cargo test writes it");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_example_of_the_entries_page_is_taken() {
    let home = Home::new().await;
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let mut taken = 0;
    for block in page.split("```json\n").skip(1) {
        let text = block.split_once("```").unwrap().0;
        let stated: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let (session, base) = begun(&home, &format!("example {taken}")).await;
        let (status, answer) = if stated["type"].is_string() {
            let entry = placed(&home, &session, &base, &stated).await;
            post(&home, &session, &base, &entry, "").await
        } else if stated["firstEntry"].is_object() {
            let mut body = stated.clone();
            body["agent"] = json!(format!("hm://{}/scout", home.owner.principal()));
            home.post_as("/v1/sessions", "first", &body).await
        } else {
            let entry = placed(&home, &session, &base, &stated["entry"]).await;
            post(&home, &session, &base, &entry, "").await
        };
        assert_eq!(status, 201, "{text}\n{answer}");
        taken += 1;
    }
    assert!(taken > described(&openapi::document()).len(), "{taken} examples");
}
