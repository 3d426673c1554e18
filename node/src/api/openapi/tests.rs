use std::collections::BTreeSet;

use super::*;

#[test]
fn every_route_is_in_the_document_once() {
    let document = document();
    let mut seen = BTreeSet::new();
    for route in ROUTES {
        assert!(seen.insert((route.method, route.path)), "{} {} stands twice", route.method, route.path);
        let operation = &document["paths"][route.path][route.method];
        assert_eq!(operation["summary"], route.summary);
        assert!(!operation["responses"].is_null());
    }
}

/// Every reference of a value, and every target of a discriminator.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            for (key, below) in map {
                if key == "mapping" {
                    found.extend(below.as_object().into_iter().flatten().filter_map(|(_, to)| to.as_str()));
                }
                match below.as_str() {
                    Some(target) if key == "$ref" => found.push(target),
                    Some(_) | None => references(below, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_referred_to() {
    let document = document();
    let mut found = Vec::new();
    references(&document, &mut found);
    for reference in &found {
        let pointer = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference} leads out"));
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
    let named: BTreeSet<&str> =
        found.iter().filter_map(|reference| reference.strip_prefix("#/components/schemas/")).collect();
    for name in document["components"]["schemas"].as_object().unwrap().keys() {
        // What answers share is shared with those of commands too.
        assert!(name.starts_with("common.") || named.contains(name.as_str()), "nothing refers to {name}");
    }
}

#[test]
fn every_body_and_answer_has_a_schema_that_says_something() {
    let document = document();
    for route in ROUTES {
        assert!(!route.gives.is_empty() && !route.statuses.is_empty(), "{}", route.path);
        for media in route.takes.iter().chain(route.gives) {
            let schema = &document["components"]["schemas"][media.schema];
            let says = ["properties", "anyOf", "oneOf", "required", "contentMediaType", "description"];
            assert!(says.iter().any(|word| !schema[word].is_null()), "{}: {}", route.path, media.schema);
        }
        if route.method == "post" {
            let body = &document["paths"][route.path]["post"]["requestBody"]["content"];
            assert!(body.as_object().is_some_and(|content| !content.is_empty()), "{}", route.path);
        }
    }
}

#[test]
fn a_discriminator_names_each_alternative_by_its_word() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    for name in ["Entry", "SessionNote"] {
        let word = schemas[name]["discriminator"]["propertyName"].as_str().unwrap();
        let alternatives = schemas[name]["oneOf"].as_array().unwrap();
        let mapping = schemas[name]["discriminator"]["mapping"].as_object().unwrap();
        assert_eq!(mapping.len(), alternatives.len());
        for (said, target) in mapping {
            assert!(alternatives.contains(&json!({"$ref": target})), "{target}");
            let schema = document.pointer(target.as_str().unwrap().trim_start_matches('#')).unwrap();
            let constant = &schema["properties"][word]["const"];
            assert!(constant == said || schema["oneOf"].is_array(), "{said}: {constant}");
        }
    }
}

#[test]
fn each_type_of_entry_can_be_asked_for() {
    let document = document();
    let stated = document["components"]["schemas"]["Entry"]["discriminator"]["mapping"].as_object().unwrap();
    // A genesis and a handoff are made by the node and by the owner: nobody states them.
    let all: BTreeSet<&str> =
        stated.keys().map(String::as_str).chain(["SessionGenesis", "SessionHandoff"]).collect();
    let listed: BTreeSet<&str> = parameters::ENTRY_TYPES.iter().copied().collect();
    let short = all.iter().filter_map(|name| name.strip_prefix("Session"));
    assert_eq!(listed, all.iter().copied().chain(short).collect::<BTreeSet<&str>>());
}
