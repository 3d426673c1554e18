//! The OpenAPI 3.1 description of the local API, made from one table of routes.
//!
//! The table is what a test holds the router to: a route that is described is routed, and the other way round.

use serde_json::{Map, Value, json};

/// One route.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// `get`, `post`, …
    pub method: &'static str,
    /// The path with its parameters in braces.
    pub path: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Query parameters.
    pub query: &'static [&'static str],
    /// Content types of the body it takes.
    pub takes: &'static [&'static str],
    /// Content types of its answer.
    pub gives: &'static [&'static str],
}

const JSON: &[&str] = &["application/json"];
const CBOR: &[&str] = &["application/cbor"];
const NOTHING: &[&str] = &[];
const CAR: &str = "application/vnd.ipld.car";
const DAG_CBOR: &str = "application/vnd.ipld.dag-cbor";

const fn get(path: &'static str, query: &'static [&'static str], summary: &'static str) -> Route {
    Route { method: "get", path, summary, query, takes: NOTHING, gives: JSON }
}

const fn post(path: &'static str, takes: &'static [&'static str], summary: &'static str) -> Route {
    Route { method: "post", path, summary, query: &[], takes, gives: JSON }
}

/// A write that can be tried: `?dryRun=1` checks everything and stores nothing. Other writes refuse the parameter.
const fn write(path: &'static str, takes: &'static [&'static str], summary: &'static str) -> Route {
    Route { method: "post", path, summary, query: &["dryRun"], takes, gives: JSON }
}

/// Every route of the API.
pub const ROUTES: &[Route] = &[
    get("/v1/health", &[], "Whether the node answers; needs no token"),
    get("/v1/openapi.json", &[], "This description"),
    get("/v1/node", &[], "Keys, addresses and ticket of this node"),
    get("/v1/status", &["session"], "Who holds what and who has which head"),
    get(
        "/v1/resolve",
        &["s", "any"],
        "A session reference to a session id; with any=1 a short id to whatever CID it begins",
    ),
    get("/v1/sessions", &["agent", "owner", "state", "limit", "cursor"], "The sessions held here"),
    write(
        "/v1/sessions",
        JSON,
        "A draft session; with firstEntry the session and its first entry in one commit",
    ),
    get("/v1/sessions/{session}", &[], "One session"),
    get("/v1/sessions/{session}/base", &[], "What a signer of the next entry needs"),
    get("/v1/sessions/{session}/anchor", &[], "What an owner's Ref at the head would say"),
    Route {
        method: "get",
        path: "/v1/sessions/{session}/entries",
        summary: "A page of entries; as CAR the whole session",
        query: &["after", "before", "limit", "types", "reverse", "payloads"],
        takes: NOTHING,
        gives: &["application/json", CAR],
    },
    Route {
        method: "get",
        path: "/v1/sessions/{session}/entries/{entry}",
        summary: "One entry by CID, seq or `head`; as DAG-CBOR its exact bytes",
        query: &[],
        takes: NOTHING,
        gives: &["application/json", DAG_CBOR],
    },
    write(
        "/v1/sessions/{session}/entries",
        &["application/json", "application/cbor"],
        "Append: JSON that the node signs as holder, or an entry that owner, device or contributor signed",
    ),
    get("/v1/sessions/{session}/verify", &["payloads", "toldHead"], "The five checks over what is held"),
    post("/v1/sessions/{session}/verify", JSON, "The five checks over what is held"),
    Route {
        method: "post",
        path: "/v1/verify",
        summary: "The five checks over a CAR; nothing is stored",
        query: &["head", "payloads"],
        takes: &[CAR],
        gives: JSON,
    },
    get(
        "/v1/sessions/{session}/fork",
        &[],
        "Histories that exclude each other, side by side, and the evidence",
    ),
    get("/v1/sessions/{session}/evidence", &[], "The evidence that is held of a session"),
    Route {
        method: "get",
        path: "/v1/sessions/{session}/evidence/{id}",
        summary: "A file of evidence that anybody can verify alone",
        query: &[],
        takes: NOTHING,
        gives: &[CAR],
    },
    write(
        "/v1/evidence",
        &[CAR],
        "Check a file of evidence and keep it; what it shows is judged with all that is held",
    ),
    get("/v1/control", &["owner"], "Capabilities, tombstones and Refs of an owner"),
    get("/v1/capabilities", &["delegate", "session", "state"], "Grants and what became of them"),
    write("/v1/capabilities", CBOR, "Take an owner-signed capability"),
    write("/v1/tombstones", CBOR, "Take an owner-signed tombstone"),
    post("/v1/tombstones/preview", JSON, "What a revocation would keep and cut"),
    write("/v1/refs", CBOR, "Take an owner-signed or device-signed Ref"),
    get("/v1/pins", &[], "Pinned sessions"),
    get("/v1/pins/{session}", &[], "Whether a session is pinned"),
    Route {
        method: "put",
        path: "/v1/pins/{session}",
        summary: "Keep a session here and serve it",
        query: &[],
        takes: NOTHING,
        gives: JSON,
    },
    Route {
        method: "delete",
        path: "/v1/pins/{session}",
        summary: "Let a session go",
        query: &[],
        takes: NOTHING,
        gives: JSON,
    },
    Route {
        method: "post",
        path: "/v1/fetch",
        summary: "Fetch a session, verify it and, unless told otherwise, adopt it; as SSE with its progress",
        query: &[],
        takes: JSON,
        gives: &["application/json", "text/event-stream"],
    },
    Route {
        method: "post",
        path: "/v1/import",
        summary: "Import a transcript",
        query: &["format", "path", "agent", "class", "dryRun"],
        takes: &["application/jsonl", "application/octet-stream"],
        gives: JSON,
    },
    write("/v1/car", &[CAR], "Verify a session CAR and adopt it"),
    Route {
        method: "post",
        path: "/v1/blobs",
        summary: "Store a file; streamed, above 1 MiB as UnixFS",
        query: &[],
        takes: &["application/octet-stream"],
        gives: JSON,
    },
    Route {
        method: "get",
        path: "/v1/blobs/{cid}",
        summary: "A file or block, streamed",
        query: &[],
        takes: NOTHING,
        gives: &["application/octet-stream"],
    },
    get("/v1/peers", &[], "Known peers"),
    post("/v1/peers", JSON, "Add a peer by its ticket"),
    Route {
        method: "delete",
        path: "/v1/peers/{alias}",
        summary: "Forget a peer",
        query: &[],
        takes: NOTHING,
        gives: JSON,
    },
    get("/v1/moves", &[], "Moves that this node drives or takes part in"),
    post("/v1/sessions/{session}/moves", JSON, "Begin a move"),
    get("/v1/sessions/{session}/moves/{move}", &["waitMs"], "A move; waits for its next state if asked"),
    post("/v1/sessions/{session}/moves/{move}/confirm", JSON, "Go on although the target lacks something"),
    post(
        "/v1/sessions/{session}/moves/{move}/handoff",
        CBOR,
        "The owner-signed handoff: no way back from here",
    ),
    post("/v1/sessions/{session}/moves/{move}/resume", JSON, "Go on after a crash or a lost reply"),
    post("/v1/sessions/{session}/moves/{move}/abort", JSON, "Roll back, while there is a way back"),
    Route {
        method: "get",
        path: "/v1/events",
        summary: "Events after their commit, as SSE; Last-Event-ID resumes",
        query: &["session", "types"],
        takes: NOTHING,
        gives: &["text/event-stream"],
    },
    Route {
        method: "post",
        path: "/v1/fsck",
        summary: "Hash and verify again all that is stored; with repair, fetch and make again what is damaged; as SSE with its progress",
        query: &["dryRun"],
        takes: JSON,
        gives: &["application/json", "text/event-stream"],
    },
    post("/v1/stop", JSON, "End the node cleanly"),
];

/// The description as a document.
#[must_use]
pub fn document() -> Value {
    let mut paths = Map::new();
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
                Refusals are application/problem+json with a stable `code`.",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7420"}],
        "security": [{"bearer": []}],
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": problem_schema()},
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
        .chain(
            route.query.iter().map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}})),
        )
        .collect();
    let content = |types: &[&str]| -> Value {
        types.iter().map(|kind| ((*kind).to_owned(), json!({}))).collect::<Map<_, _>>().into()
    };
    let mut operation = json!({
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done", "content": content(route.gives)},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    });
    if !route.takes.is_empty() {
        operation["requestBody"] = json!({"content": content(route.takes)});
    }
    if route.path == "/v1/health" {
        operation["security"] = json!([]);
    }
    operation
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
mod tests {
    use super::*;

    #[test]
    fn every_route_is_in_the_document_once() {
        let document = document();
        let mut seen = std::collections::BTreeSet::new();
        for route in ROUTES {
            assert!(seen.insert((route.method, route.path)), "{} {} stands twice", route.method, route.path);
            let operation = &document["paths"][route.path][route.method];
            assert_eq!(operation["summary"], route.summary);
            assert!(!operation["responses"].is_null());
        }
    }
}
