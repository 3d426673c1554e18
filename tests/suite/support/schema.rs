//! `docs/schemas`, the OpenAPI document, and a validator for the part of JSON Schema that they use. A word that it does not know is an error, so that no
//! rule of a schema is passed over.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use regex::Regex;
use serde_json::Value;

use super::tests::root;

/// What the document is called among the files.
const DOCUMENT: &str = "openapi.json";

/// Patterns that were read.
static PATTERNS: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());

/// The schemas by file name.
pub(crate) struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    /// All of them.
    pub(crate) fn load() -> Self {
        let mut schemas = BTreeMap::new();
        for entry in std::fs::read_dir(root().join("docs/schemas")).expect("the schemas") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let text = std::fs::read_to_string(&path).expect("a schema");
                let schema = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
                let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
                schemas.insert(name, schema);
            }
        }
        Schemas(schemas)
    }

    /// Those of an OpenAPI document.
    pub(crate) fn of_document(document: Value) -> Self {
        Schemas(BTreeMap::from([(DOCUMENT.to_owned(), document)]))
    }

    /// What is wrong with a value by a component of the document, each with where.
    pub(crate) fn faults_by(&self, component: &str, value: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        let reference = format!("#/components/schemas/{component}");
        Checker { schemas: self, file: DOCUMENT, faults: &mut faults }.follow(&reference, value, "");
        faults
    }

    /// The kinds of answers that have a schema.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|name| name.strip_suffix(".json")).filter(|name| *name != "common")
    }

    /// What is wrong with an answer, each with where; nothing for a kind without a schema.
    pub(crate) fn faults(&self, answer: &Value) -> Vec<String> {
        let name = format!("{}.json", answer["kind"].as_str().unwrap_or_default());
        let mut faults = Vec::new();
        if let Some(schema) = self.0.get(&name) {
            Checker { schemas: self, file: &name, faults: &mut faults }.check(schema, answer, "");
        }
        faults
    }
}

struct Checker<'a> {
    schemas: &'a Schemas,
    /// The file that references without one are in.
    file: &'a str,
    faults: &'a mut Vec<String>,
}

impl Checker<'_> {
    fn check(&mut self, schema: &Value, value: &Value, at: &str) {
        if *schema == Value::Bool(false) {
            self.faults.push(format!("{at}: expected nothing, got {value}"));
            return;
        }
        for (word, rule) in schema.as_object().expect("a schema is an object or false") {
            let is_met = match word.as_str() {
                "$schema" | "$defs" | "title" | "description" | "examples" | "discriminator" => true,
                "contentEncoding" | "contentMediaType" | "then" | "else" => true,
                "$ref" => {
                    self.follow(rule.as_str().expect("a reference"), value, at);
                    true
                }
                "if" => {
                    let word = if self.fits(rule, value) { "then" } else { "else" };
                    if let Some(schema) = schema.get(word) {
                        self.check(schema, value, at);
                    }
                    true
                }
                "not" => !self.fits(rule, value),
                "oneOf" => list(rule).iter().filter(|schema| self.fits(schema, value)).count() == 1,
                "minLength" | "maxLength" => {
                    value.as_str().is_none_or(|text| is_within(word, text.chars().count(), rule))
                }
                "minItems" | "maxItems" => {
                    value.as_array().is_none_or(|items| is_within(word, items.len(), rule))
                }
                "minProperties" => value.as_object().is_none_or(|map| is_within(word, map.len(), rule)),
                "maximum" => value.as_i64().is_none_or(|number| Some(number) <= rule.as_i64()),
                "additionalProperties" => {
                    assert_eq!(*rule, Value::Bool(false), "{}: only false is known", self.file);
                    let known = schema.get("properties").and_then(Value::as_object);
                    let is_known = |key: &String| known.is_some_and(|known| known.contains_key(key));
                    value.as_object().is_none_or(|map| map.keys().all(is_known))
                }
                "const" => value == rule,
                "enum" => list(rule).contains(value),
                "type" => is_of(value, rule.as_str().expect("one type")),
                "minimum" => value.as_i64().is_none_or(|number| Some(number) >= rule.as_i64()),
                "pattern" => self.matches(rule, value),
                "required" => list(rule).iter().all(|key| value.get(key.as_str().expect("a key")).is_some()),
                "anyOf" => list(rule).iter().any(|schema| self.fits(schema, value)),
                "allOf" => {
                    list(rule).iter().for_each(|schema| self.check(schema, value, at));
                    true
                }
                "properties" => {
                    for (key, schema) in rule.as_object().expect("properties") {
                        if let Some(field) = value.get(key) {
                            self.check(schema, field, &format!("{at}/{key}"));
                        }
                    }
                    true
                }
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(rule, item, &format!("{at}/{index}"));
                    }
                    true
                }
                other => panic!("{}: the validator does not know `{other}`", self.file),
            };
            if !is_met {
                self.faults.push(format!("{at}: expected {word} {rule}, got {value}"));
            }
        }
    }

    fn fits(&self, schema: &Value, value: &Value) -> bool {
        let mut faults = Vec::new();
        Checker { schemas: self.schemas, file: self.file, faults: &mut faults }.check(schema, value, "");
        faults.is_empty()
    }

    fn follow(&mut self, reference: &str, value: &Value, at: &str) {
        let (file, pointer) = reference.split_once('#').expect("a fragment");
        let file = if file.is_empty() { self.file } else { file };
        let schema = self.schemas.0.get(file).and_then(|schema| schema.pointer(pointer));
        let schema = schema.unwrap_or_else(|| panic!("{}: {reference} leads nowhere", self.file));
        Checker { schemas: self.schemas, file, faults: self.faults }.check(schema, value, at);
    }

    fn matches(&self, pattern: &Value, value: &Value) -> bool {
        let pattern = pattern.as_str().expect("a pattern");
        // A pattern takes longer to read than to match, and is met again and again.
        let mut read = PATTERNS.lock().unwrap_or_else(PoisonError::into_inner);
        let regex = read
            .entry(pattern.to_owned())
            .or_insert_with(|| Regex::new(pattern).expect("a pattern that can be read"));
        value.as_str().is_some_and(|text| regex.is_match(text))
    }
}

/// Whether a count keeps to a bound whose word begins with `min` or `max`.
fn is_within(word: &str, count: usize, bound: &Value) -> bool {
    let bound = usize::try_from(bound.as_u64().expect("a bound")).expect("a bound");
    if word.starts_with("min") { count >= bound } else { count <= bound }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the validator does not know the type `{other}`"),
    }
}
