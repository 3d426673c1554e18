//! Forks and their evidence: shown, written out, brought in.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, header};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::Value;
use throughline_protocol::id::Cid;

use super::input;
use crate::api::App;
use crate::api::error::Answer;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/sessions/{session}/fork", get(fork))
        .route("/v1/sessions/{session}/evidence", get(list))
        .route("/v1/sessions/{session}/evidence/{id}", get(file))
        .route("/v1/evidence", post(take))
}

async fn fork(State(app): State<App>, Path(session): Path<String>) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    app.act(move |node| node.fork(session)).await.map(Json)
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
