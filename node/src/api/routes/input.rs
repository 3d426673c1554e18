//! What handlers read: query parameters, ids in paths, JSON and CBOR bodies. Every refusal says what was expected.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Deref;
use std::str::FromStr;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use serde_json::Value;
use throughline_protocol::block::sha256;
use throughline_protocol::code::Code;
use throughline_protocol::id::{Cid, SessionId};
use throughline_protocol::view::EntryDraft;

use super::BODY_BYTES_MAX;
use crate::api::error::{Answer, Problem};
use crate::api::openapi::{IDEMPOTENCY_KEY, KEY_CHARS_MAX, fields_of};
use crate::api::pace;
use crate::core::PROGRAM_KEYS;

/// Query parameters by name. The description was held to them before: each is there once at most.
pub(super) struct Query(BTreeMap<String, String>);

impl Deref for Query {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = axum::extract::Query::from_request_parts(parts, state).await;
        read.map(|axum::extract::Query(map)| Query(map)).map_err(|_| {
            Problem::new(
                Code::ApiQuery,
                "expected a query string of `name=value` pairs in UTF-8, percent-encoded, got another",
            )
        })
    }
}

/// A whole body, as long as a body may be.
pub(super) struct Whole(pub(super) Bytes);

impl<S: Send + Sync> FromRequest<S> for Whole {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        pace::whole(Bytes::from_request(request, state)).await?.map(Whole).map_err(|rejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                Problem::new(Code::TooBig, format!("expected a body of at most {BODY_BYTES_MAX} bytes"))
            } else {
                Problem::new(Code::Interrupted, "the body ended early")
            }
        })
    }
}

/// A session id in a path: the full CID.
pub(super) fn session(text: &str) -> Answer<SessionId> {
    text.parse().map_err(|_| Problem::new(Code::ApiPath, "expected a full session CID in the path"))
}

/// Another CID in a path.
pub(super) fn cid(text: &str) -> Answer<Cid> {
    text.parse().map_err(|_| Problem::new(Code::ApiPath, "expected a full CID in the path"))
}

/// A query parameter that must parse, if it is there. Its words and bounds were held to the description before.
pub(super) fn maybe<T: FromStr<Err: Display>>(
    query: &BTreeMap<String, String>,
    name: &str,
) -> Answer<Option<T>> {
    query
        .get(name)
        .map(|text| {
            text.parse().map_err(|error: T::Err| {
                let what = format!("query parameter `{name}`: got {:?}: {error}", shown(text));
                Problem::new(Code::ApiQuery, what)
            })
        })
        .transpose()
}

/// Whether a flag is set: `1` or `true`.
pub(super) fn flag(query: &BTreeMap<String, String>, name: &str) -> bool {
    matches!(query.get(name).map(String::as_str), Some("1" | "true"))
}

/// A JSON body with the fields that its schema has and no others; an empty one is an empty object.
pub(super) fn json(body: &Bytes, schema: &str) -> Answer<Value> {
    let value = object(body)?;
    let fields = fields_of(schema)
        .ok_or_else(|| Problem::new(Code::Internal, format!("no closed body is called {schema}")))?;
    let unknown = value.as_object().and_then(|object| object.keys().find(|key| !fields.contains(key)));
    match (unknown, fields) {
        (None, _) => Ok(value),
        (Some(name), []) => {
            Err(Problem::new(Code::ApiBody, format!("expected a body without fields, got `{}`", shown(name))))
        }
        (Some(name), fields) => {
            let what =
                format!("expected a body with fields among {}, got `{}`", fields.join(", "), shown(name));
            Err(Problem::new(Code::ApiBody, what))
        }
    }
}

/// An entry that is to be appended.
pub(super) fn entry(value: &Value) -> Answer<EntryDraft> {
    // Both are entries all the same, so a schema's refusal would name a field and send the reader the wrong way.
    let elsewhere = match value["type"].as_str() {
        Some("SessionGenesis") => "a SessionGenesis: sessions are made by POST /v1/sessions",
        Some("SessionHandoff") => "a SessionHandoff: the owner hands sessions over, throughline move",
        _ => return Ok(EntryDraft::from_json(value)?),
    };
    Err(Problem::new(Code::Type, format!("expected an entry that is appended, got {elsewhere}")))
}

fn object(body: &Bytes) -> Answer<Value> {
    if body.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        Problem::new(Code::Json, format!("the body at line {} column {}", error.line(), error.column()))
    })?;
    if value.is_object() { Ok(value) } else { Err(Problem::new(Code::ApiBody, "expected a JSON object")) }
}

/// A field of a JSON body that must be text and parse, if it is there.
pub(super) fn field<T: FromStr<Err: Display>>(body: &Value, name: &str) -> Answer<Option<T>> {
    match &body[name] {
        Value::Null => Ok(None),
        Value::String(text) => text.parse().map(Some).map_err(|error: T::Err| {
            Problem::new(Code::ApiBody, format!("`{name}`: got {:?}: {error}", shown(text)))
        }),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            let what = format!("expected text in `{name}`, got {}", kind_of(other));
            Err(Problem::new(Code::ApiBody, what))
        }
    }
}

/// A field that must be there.
pub(super) fn need<T: FromStr<Err: Display>>(body: &Value, name: &str) -> Answer<T> {
    field(body, name)?.ok_or_else(|| Problem::new(Code::ApiBody, format!("the body needs `{name}`")))
}

/// An array of text in a JSON body; none if it is not there. Nothing in it is passed over: an empty list may mean everybody.
pub(super) fn names(body: &Value, name: &str) -> Answer<Vec<String>> {
    let wrong = |got: String| {
        Problem::new(Code::ApiBody, format!("expected an array of text in `{name}`, got {got}"))
    };
    let value = &body[name];
    if value.is_null() {
        return Ok(Vec::new());
    }
    let items = value.as_array().ok_or_else(|| wrong(kind_of(value).to_owned()))?;
    let text_of = |item: &Value| {
        let text = item.as_str().map(str::to_owned);
        text.ok_or_else(|| wrong(format!("{} in it", kind_of(item))))
    };
    items.iter().map(text_of).collect()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Text that came, as far as a refusal shows it.
pub(in crate::api) fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}

/// The idempotency key and the hash of the request that it stands for.
pub(super) fn idempotency(headers: &HeaderMap, body: &[u8]) -> Answer<Option<(String, [u8; 32])>> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=KEY_CHARS_MAX).contains(&key.len()));
    let key = key.ok_or_else(|| {
        Problem::new(Code::ApiBody, format!("expected an idempotency-key of 1 to {KEY_CHARS_MAX} characters"))
    })?;
    Ok(Some((format!("{PROGRAM_KEYS}{key}"), sha256(body))))
}
