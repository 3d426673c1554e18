//! Forks and their evidence: shown, written out, brought in.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, header};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;
use throughline_protocol::code::Code;
use throughline_protocol::id::Cid;

use super::input;
use crate::api::App;
use crate::api::error::{Answer, Problem};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/sessions/{session}/fork", get(fork))
        .route("/v1/sessions/{session}/fork/return", post(bring_back))
        .route("/v1/sessions/{session}/evidence", get(list))
        .route("/v1/sessions/{session}/evidence/{id}", get(file))
        .route("/v1/evidence", post(take))
}

async fn fork(State(app): State<App>, Path(session): Path<String>) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    app.act(move |node| node.fork(session)).await.map(Json)
}

/// The words of a tail that was cut off come back. What another node holds goes to it, one after the other: what was taken by the time
/// that it refuses one stays, and the next request goes on from there.
async fn bring_back(
    State(app): State<App>,
    Path(session): Path<String>,
    query: input::Query,
    input::Whole(body): input::Whole,
) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    input::json(&body, "Nothing")?;
    let dry_run = input::flag(&query, "dryRun");
    let what = app.act(move |node| node.cut_words(session)).await?;
    if dry_run {
        return Ok(Json(what.answer(&[], dry_run)));
    }
    if !what.is_for_the_holder() {
        let made = app.act(move |node| Ok((node.return_as_holder(&what)?, what))).await;
        return made.map(|(made, what)| Json(what.answer(&made, dry_run)));
    }
    let (signed, what) = app.act(move |node| Ok((node.return_as_device(&what)?, what))).await?;
    let mut made = Vec::new();
    for (cut, append) in signed {
        let unreached =
            || Problem::new(Code::Unreachable, "expected a node with a network to ask the holder");
        let network = app.node().network().ok_or_else(unreached)?;
        match network.forward_append(&append).await {
            Ok(Some(appended)) => made.push((cut, appended.answer["entries"][0].clone())),
            Ok(None) => {
                let what = "expected a holder that puts these messages in order, the session has none";
                let fix = format!("where the owner key is: throughline move {} --to PEER", session.short());
                return Err(Problem::new(Code::NotHolder, what).hint(fix));
            }
            // Somebody else was faster; the rest is signed on what came.
            Err(problem) if problem.code() == Code::HeadMoved && !made.is_empty() => break,
            Err(problem) => return Err(problem),
        }
    }
    Ok(Json(what.answer(&made, dry_run)))
}

async fn list(State(app): State<App>, Path(session): Path<String>) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    app.act(move |node| node.evidence(session)).await.map(Json)
}

async fn file(State(app): State<App>, Path((session, id)): Path<(String, String)>) -> Answer<Response<Body>> {
    let session = input::session(&session)?;
    let id: Cid = input::cid(&id)?;
    let bytes = app.act(move |node| node.evidence_file(session, id)).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/vnd.ipld.car; version=1".to_owned()),
        (header::ETAG, format!("\"{id}\"")),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{}.evidence.car\"", session.short())),
    ];
    Ok((headers, bytes).into_response())
}

async fn take(
    State(app): State<App>,
    query: input::Query,
    input::Whole(body): input::Whole,
) -> Answer<Json<Value>> {
    let dry_run = input::flag(&query, "dryRun");
    app.act(move |node| node.import_evidence(body.to_vec(), dry_run)).await.map(Json)
}
