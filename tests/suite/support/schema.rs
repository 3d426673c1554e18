//! `docs/schemas`, and a validator for the part of JSON Schema that they use. A word that it does not know is an error, so that no
//! rule of a schema is passed over.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

use super::tests::root;

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
        for (word, rule) in schema.as_object().expect("a schema is an object") {
            let is_met = match word.as_str() {
                "$schema" | "$defs" | "title" => true,
                "$ref" => return self.follow(rule.as_str().expect("a reference"), value, at),
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
        let pattern = Regex::new(pattern.as_str().expect("a pattern")).expect("a pattern that can be read");
        value.as_str().is_some_and(|text| pattern.is_match(text))
    }
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
