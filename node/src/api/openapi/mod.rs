//! The OpenAPI 3.1 description of the local API, made from one table of routes and from the schemas of `docs/schemas`.
//!
//! The [table](ROUTES) is what a test holds the router to. What a body holds is said by [`schemas`], which other tests hold to what is
//! taken and answered.

mod parameters;
mod schemas;
mod table;

use serde_json::{Map, Value, json};

pub use parameters::{
    EVENT_TYPES, FLAG, Header, IDEMPOTENCY_KEY, KEY_CHARS_MAX, LAST_EVENT_ID, Parameter, REPR_DIGEST, Takes,
    WAIT_MS_MAX, X_FILENAME,
};
pub(super) use schemas::fields_of;
pub use table::{Media, ROUTES, Route};

/// The description as a document.
#[must_use]
pub fn document() -> Value {
    let mut paths = Map::new();
    let mut components = schemas::components();
    components.insert("Problem".to_owned(), problem_schema());
    for route in ROUTES {
        let operation = operation(route);
        let entry = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(entry) = entry.as_object_mut() {
            entry.insert(route.method.to_owned(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Throughline local API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "For programs on this machine, over the unix socket or 127.0.0.1 with a bearer token. \
                Refusals are application/problem+json with a stable `code`. Over TCP `Host` has to be one of \
                api.allowed_hosts, and what browsers send of where a request comes from, `Origin` and `Sec-Fetch-Site`, \
                has to name this node. A query parameter that is not listed is refused; a header that is not is not read.",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7420"}],
        "security": [{"bearer": []}],
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": components,
            "responses": {"Problem": {
                "description": "A refusal",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }},
        },
        "paths": paths,
    })
}

fn operation(route: &Route) -> Value {
    let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = in_path
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .chain(route.query.iter().map(Parameter::described))
        .chain(route.headers.iter().map(Header::described))
        .collect();
    let content = |media: &[Media]| -> Value {
        let of = |media: &Media| (media.kind.to_owned(), json!({"schema": schemas::reference(media.schema)}));
        media.iter().map(of).collect::<Map<_, _>>().into()
    };
    let mut responses: Map<String, Value> = route
        .statuses
        .iter()
        .map(|status| {
            let what = if *status == 201 { "Made" } else { "Done" };
            (status.to_string(), json!({"description": what, "content": content(route.gives)}))
        })
        .collect();
    responses.insert("default".to_owned(), json!({"$ref": "#/components/responses/Problem"}));
    let mut operation = json!({"summary": route.summary, "parameters": parameters, "responses": responses});
    if !route.takes.is_empty() {
        operation["requestBody"] = json!({"required": needs_body(route), "content": content(route.takes)});
    }
    if route.path == "/v1/health" {
        operation["security"] = json!([]);
    }
    operation
}

/// Whether an empty body says less than the route needs.
fn needs_body(route: &Route) -> bool {
    let optional =
        ["Nothing", "AbortRequest", "ResumeRequest", "FsckRequest", "VerifyRequest", "SessionRequest"];
    !route.takes.iter().any(|media| optional.contains(&media.schema))
}

fn problem_schema() -> Value {
    json!({
        "type": "object",
        "required": ["type", "code", "title", "detail", "fault", "status", "retry"],
        "properties": {
            "type": {"type": "string"},
            "code": {"type": "string", "enum": throughline_protocol::code::Code::ALL
                .iter().map(|code| code.name()).collect::<Vec<_>>()},
            "title": {"type": "string"},
            "detail": {"type": "string"},
            "fault": {"enum": ["peer", "author", "local", "none"]},
            "status": {"type": "integer"},
            "retry": {"enum": ["never", "now", "later"]},
            "hint": {"type": "string"},
            "advice": {"type": "string"},
        },
    })
}

#[cfg(test)]
mod tests;
