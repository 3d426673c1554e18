//! The schemas of `docs/schemas` as components of the OpenAPI document: what programs send, and what they are answered.
//!
//! The files are the one place where a body is described; nothing is described here. Entries are those of
//! `docs/schemas/api/entries.json`, which tests hold to the decoder. `docs/decisions/0027` says why they are files.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value, json};

/// A file of schemas.
struct File {
    /// Where it is, below `docs/schemas`.
    path: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(File { path: $path, text: include_str!(concat!("../../../../docs/schemas/", $path)) }),*]
    };
}

/// The bodies of requests.
const REQUESTS: &str = "api/requests.json";

/// The files that the document is made of: those with definitions, and an answer each.
const FILES: &[File] = files!(
    "common.json",
    "api/entries.json",
    "api/requests.json",
    "api/answers.json",
    "append.json",
    "entries.json",
    "entry.json",
    "evidence.json",
    "fetch.json",
    "fork.json",
    "fsck.json",
    "grants.json",
    "import.json",
    "move.json",
    "session.json",
    "sessions.json",
    "status.json",
    "verify.json",
);

/// Every schema by its name in the document: `common.…` for what answers share, `answer.…` for what commands print too, and those
/// of the API by their own.
pub(super) fn components() -> Map<String, Value> {
    let mut components = Map::new();
    for file in FILES {
        // A test reads every file; one that cannot be read leaves references that lead nowhere.
        let schema: Value = serde_json::from_str(file.text).unwrap_or_default();
        for (name, part) in parts(file.path, schema) {
            components.insert(name, placed(part, file.path));
        }
    }
    components
}

/// The fields that a body of a request may have, by its schema in `api/requests.json`; none for a schema that is no closed object.
pub(in crate::api) fn fields_of(body: &str) -> Option<&'static [String]> {
    static FIELDS: LazyLock<BTreeMap<String, Vec<String>>> = LazyLock::new(|| {
        let requests = FILES.iter().filter(|file| file.path == REQUESTS);
        let read = requests.filter_map(|file| serde_json::from_str::<Value>(file.text).ok());
        let bodies = read.flat_map(|schema| parts(REQUESTS, schema));
        let closed = bodies.filter(|(_, schema)| schema["additionalProperties"] == Value::Bool(false));
        let names = |schema: &Value| {
            schema["properties"].as_object().into_iter().flat_map(Map::keys).cloned().collect()
        };
        closed.map(|(name, schema)| (name, names(&schema))).collect()
    });
    FIELDS.get(body).map(Vec::as_slice)
}

/// A reference to a schema of the document.
pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// The schemas of a file: its definitions, or itself.
fn parts(path: &str, schema: Value) -> Vec<(String, Value)> {
    let Value::Object(mut schema) = schema else { return Vec::new() };
    schema.remove("$schema");
    match schema.remove("$defs") {
        Some(Value::Object(definitions)) => {
            definitions.into_iter().map(|(name, part)| (format!("{}{name}", group(path)), part)).collect()
        }
        Some(_) | None => vec![(own_name(path), schema.into())],
    }
}

/// What stands before the names of a file's definitions.
fn group(path: &str) -> &'static str {
    if path == "common.json" { "common." } else { "" }
}

fn own_name(path: &str) -> String {
    format!("answer.{}", path.trim_end_matches(".json"))
}

/// A schema with its references as they are in the document.
fn placed(schema: Value, path: &str) -> Value {
    match schema {
        Value::Object(object) => object
            .into_iter()
            .map(|(key, below)| {
                // The targets of a discriminator are references under names of their own.
                let target = below.as_str().filter(|text| key == "$ref" || text.starts_with("#/$defs/"));
                let below = match target {
                    Some(target) => target_of(target, path).into(),
                    None => placed(below, path),
                };
                (key, below)
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.into_iter().map(|item| placed(item, path)).collect(),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain,
    }
}

/// `file#/$defs/name`, `#/$defs/name`, `file` or `file#/properties/name`, as a reference within the document.
fn target_of(target: &str, path: &str) -> String {
    let (file, pointer) = target.split_once('#').unwrap_or((target, ""));
    let directory = path.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
    let file = match (file, file.strip_prefix("../")) {
        ("", _) => path.to_owned(),
        (_, Some(above)) => above.to_owned(),
        (beside, None) => format!("{directory}{beside}"),
    };
    let name = match pointer.strip_prefix("/$defs/") {
        Some(name) => format!("{}{name}", group(&file)),
        None => format!("{}{pointer}", own_name(&file)),
    };
    format!("#/components/schemas/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_and_no_name_is_taken_twice() {
        let mut count = 0;
        for file in FILES {
            let schema = serde_json::from_str(file.text);
            count += parts(file.path, schema.unwrap_or_else(|error| panic!("{}: {error}", file.path))).len();
        }
        assert_eq!(components().len(), count);
    }

    #[test]
    fn references_are_those_of_the_document() {
        for (target, path, expected) in [
            ("common.json#/$defs/cid", "append.json", "common.cid"),
            ("../common.json#/$defs/cid", "api/answers.json", "common.cid"),
            ("#/$defs/cid", "common.json", "common.cid"),
            ("entries.json#/$defs/Entry", "api/requests.json", "Entry"),
            ("#/$defs/id", "api/entries.json", "id"),
            ("../move.json", "api/answers.json", "answer.move"),
            ("verify.json#/properties/checks", "audit.json", "answer.verify/properties/checks"),
        ] {
            assert_eq!(target_of(target, path), format!("#/components/schemas/{expected}"));
        }
    }
}
