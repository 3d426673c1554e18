//! Handing sessions over. The handlers read input and shape answers; [`crate::moves`] does the rest.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::handoff::MoveId;
use throughline_protocol::id::SessionId;
use throughline_protocol::limits;

use super::input;
use crate::api::App;
use crate::api::error::{Answer, Problem};
use crate::moves::{Begin, Depth, Leave};

pub(super) fn routes() -> Router<App> {
    let one = "/v1/sessions/{session}/moves/{move}";
    Router::new()
        .route("/v1/moves", get(list))
        .route("/v1/sessions/{session}/moves", post(begin))
        .route(one, get(show))
        .route(&format!("{one}/confirm"), post(confirm))
        .route(&format!("{one}/handoff"), post(handoff))
        .route(&format!("{one}/resume"), post(resume))
        .route(&format!("{one}/abort"), post(abort))
}

async fn list(State(app): State<App>) -> Answer<Json<Value>> {
    Ok(Json(json!({"v": 1, "kind": "moves", "items": app.node().moves()?.list()})))
}

async fn begin(
    State(app): State<App>,
    Path(session): Path<String>,
    body: Bytes,
) -> Answer<(StatusCode, Json<Value>)> {
    let body = input::json(&body, "MoveRequest")?;
    let named = input::field::<String>(&body, "source")?.filter(|word| word.parse::<Leave>().is_err());
    let begin = Begin {
        session: input::session(&session)?,
        to: input::need(&body, "to")?,
        leave: if named.is_some() { Leave::Auto } else { leave(&body)? },
        ask: named,
        depth: match body["dryRun"].as_bool() {
            Some(true) => Depth::DryRun,
            Some(false) => Depth::Begin,
            None if body["dryRun"].is_null() => Depth::Begin,
            None => return Err(Problem::new(Code::ApiBody, "expected true or false in `dryRun`")),
        },
    };
    let told = app.node().moves()?.patient(patience(&body)?).begin(begin).await?;
    let status = if told["move"].is_null() { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(told)))
}

async fn show(State(app): State<App>, Path(path): Path<OnePath>, query: input::Query) -> Answer<Json<Value>> {
    let (session, id) = one(&path)?;
    let desk = app.node().moves()?;
    let told = match input::maybe::<u64>(&query, "waitMs")? {
        None => desk.get(session, id)?,
        Some(wait_ms) => desk.wait(session, id, Duration::from_millis(wait_ms)).await?,
    };
    Ok(Json(told))
}

async fn confirm(State(app): State<App>, Path(path): Path<OnePath>, body: Bytes) -> Answer<Json<Value>> {
    let (session, id) = one(&path)?;
    let question = input::need::<String>(&input::json(&body, "ConfirmRequest")?, "phase")?.parse()?;
    Ok(Json(app.node().moves()?.confirm(session, id, question).await?))
}

async fn handoff(
    State(app): State<App>,
    Path(path): Path<OnePath>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer<Json<Value>> {
    let (session, id) = one(&path)?;
    let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    if media != Some("application/cbor") {
        return Err(Problem::new(Code::ApiCtype, "expected application/cbor, the signed SessionHandoff"));
    }
    if body.len() > limits::CONTROL_BYTES_MAX {
        return Err(Problem::new(Code::TooBig, format!("expected a handoff, got {} bytes", body.len())));
    }
    Ok(Json(app.node().moves()?.give_handoff(session, id, body.to_vec()).await?))
}

async fn resume(State(app): State<App>, Path(path): Path<OnePath>, body: Bytes) -> Answer<Json<Value>> {
    let (session, id) = one(&path)?;
    let body = input::json(&body, "ResumeRequest")?;
    Ok(Json(app.node().moves()?.patient(patience(&body)?).resume(session, id).await?))
}

async fn abort(State(app): State<App>, Path(path): Path<OnePath>, body: Bytes) -> Answer<Json<Value>> {
    let (session, id) = one(&path)?;
    let body = input::json(&body, "AbortRequest")?;
    let desk = app.node().moves()?.patient(patience(&body)?);
    Ok(Json(desk.abort(session, id, leave(&body)?).await?))
}

/// How the source is left: `auto` unless the body says otherwise.
fn leave(body: &Value) -> Answer<Leave> {
    input::field::<String>(body, "source")?.map_or(Ok(Leave::Auto), |word| word.parse())
}

/// How long a step may go without progress, where the body says so.
fn patience(body: &Value) -> Answer<Option<Duration>> {
    let told = Some(&body["timeoutMs"]).filter(|told| !told.is_null());
    let ms = told.map(|told| {
        let ms = told.as_u64().filter(|ms| *ms > 0);
        ms.ok_or_else(|| Problem::new(Code::ApiBody, "expected milliseconds in `timeoutMs`, at least 1"))
    });
    Ok(ms.transpose()?.map(Duration::from_millis))
}

/// Session and move of a path.
type OnePath = (String, String);

fn one((session, id): &OnePath) -> Answer<(SessionId, MoveId)> {
    let expected = || Problem::new(Code::ApiPath, "expected a move's id, 32 hexadecimal digits, in the path");
    let is_spelled_right = id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let number = u128::from_str_radix(id, 16).ok().filter(|_| is_spelled_right).ok_or_else(expected)?;
    Ok((input::session(session)?, MoveId::from_bytes(number.to_be_bytes())))
}
