//! Idempotency keys of every POST but those that append: `docs/decisions/0029`.
//!
//! The answer to a request that went well is kept for a day under its key: the same request gives it again with `replayed: true`, and
//! another one under the key is `E_IDEMPOTENCY`. Appends keep their keys themselves, for ever and in the transaction of their entries.
//! Here the answer is kept after the act, so a crash in between has the act done again; every act behind this door may be: it is
//! named by its content, or finds what it did before. It must never answer a request that it did not compare with the kept one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse as _;
use futures::stream;
use sha2::{Digest as _, Sha256};
use throughline_protocol::code::Code;
use throughline_protocol::id::UnixMillis;
use throughline_store::{Idempotency, PutAnswer, Scope, Used};

use super::App;
use super::error::{Answer, Problem};
use super::openapi::IDEMPOTENCY_KEY;
use super::pace::{self, Paced};
use super::routes::{BODY_BYTES_MAX, idempotency_key};
use crate::core::{self, Appended, now};

/// How long an answer is kept.
const KEPT_MS: u64 = 24 * 60 * 60 * 1000;
/// Routes whose body is of any size and is read to its end by every act that goes well.
const STREAMED: [&str; 4] = ["/v1/blobs", "/v1/import", "/v1/car", "/v1/verify"];

/// Which keys are being answered: the second of two requests at a time waits, and gets the answer of the first.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>>);

impl Turns {
    fn of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = all.get(key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        all.insert(key.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

/// Lets a request through, or answers it with what its key stands for.
pub(super) async fn keep(State(app): State<App>, request: Request, next: Next) -> Response<Body> {
    let path = request.uri().path();
    let appends = path == "/v1/sessions" || path.ends_with("/entries");
    if request.method() != Method::POST || appends || !request.headers().contains_key(IDEMPOTENCY_KEY) {
        return next.run(request).await;
    }
    keyed(app, request, next).await.unwrap_or_else(Problem::into_response)
}

async fn keyed(app: App, request: Request, next: Next) -> Answer<Response<Body>> {
    let Some(key) = idempotency_key(request.headers())? else { return Ok(next.run(request).await) };
    let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("text/event-stream")) {
        let what =
            "expected no idempotency-key with text/event-stream: a stream is not kept to be given again";
        return Err(Problem::new(Code::ApiBody, what));
    }
    let turn = app.turns().of(&key);
    let _turn = turn.lock().await;
    let hash = begin(&request);
    let (parts, body) = request.into_parts();
    let is_streamed = STREAMED.contains(&parts.uri.path());
    if !is_streamed {
        let body = whole(body).await?;
        let hash = hash.chain_update(&body).finalize().into();
        if let Some(kept) = kept(&app, &key, hash).await? {
            return kept.answer(&key);
        }
        let response = next.run(Request::from_parts(parts, body.into())).await;
        return put(&app, key, hash, response).await;
    }
    if kept(&app, &key, [0; 32]).await?.is_some() {
        // The key was used, so the body is only read to be compared.
        let hash = read(hash, body).await?;
        return kept(&app, &key, hash).await?.unwrap_or(Kept::Other).answer(&key);
    }
    let (body, whole) = hashed(hash, body);
    let response = next.run(Request::from_parts(parts, body)).await;
    // A body that was not read to its end stands for no request.
    let read = whole.lock().unwrap_or_else(PoisonError::into_inner).take();
    match read {
        Some(hash) => put(&app, key, hash, response).await,
        None => Ok(response),
    }
}

/// The hash of what a request asks for, before its body: the same body for another route is another request.
fn begin(request: &Request) -> Sha256 {
    let target =
        request.uri().path_and_query().map_or_else(|| request.uri().path(), |target| target.as_str());
    // A line feed stands in no target.
    Sha256::new().chain_update(target).chain_update(b"\n")
}

async fn whole(body: Body) -> Answer<Bytes> {
    let too_big = || Problem::new(Code::TooBig, format!("expected a body of at most {BODY_BYTES_MAX} bytes"));
    pace::whole(to_bytes(body, BODY_BYTES_MAX)).await?.map_err(|_| too_big())
}

async fn read(mut hash: Sha256, body: Body) -> Answer<[u8; 32]> {
    let mut body = Paced::new(body);
    while let Some(piece) = body.next().await? {
        hash.update(&piece);
    }
    Ok(hash.finalize().into())
}

/// The hash of a body, once it was read to its end.
type WholeHash = Arc<Mutex<Option<[u8; 32]>>>;

/// The same body, hashed while somebody reads it.
fn hashed(hash: Sha256, body: Body) -> (Body, WholeHash) {
    let whole = WholeHash::default();
    let told = Arc::clone(&whole);
    let pieces = stream::unfold(Some((body.into_data_stream(), hash)), move |reading| {
        let told = Arc::clone(&told);
        async move {
            use futures::StreamExt as _;
            let (mut body, mut hash) = reading?;
            match body.next().await {
                Some(Ok(piece)) => {
                    hash.update(&piece);
                    Some((Ok(piece), Some((body, hash))))
                }
                Some(Err(error)) => Some((Err(error), None)),
                None => {
                    *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(hash.finalize().into());
                    None
                }
            }
        }
    });
    (Body::from_stream(pieces), whole)
}

/// What a key stands for.
enum Kept {
    Same(Vec<u8>),
    Other,
}

impl Kept {
    fn answer(self, key: &str) -> Answer<Response<Body>> {
        let Kept::Same(bytes) = self else { return Err(core::used_otherwise(key)) };
        let Appended { answer, .. } = core::kept(&bytes)?;
        Ok(([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response())
    }
}

async fn kept(app: &App, key: &str, hash: [u8; 32]) -> Answer<Option<Kept>> {
    let key = key.to_owned();
    app.act(move |node| {
        Ok(match node.reader()?.idempotency(&Scope::Node, &key, &hash)? {
            Used::Never => None,
            Used::Same(bytes) => Some(Kept::Same(bytes)),
            Used::Other => Some(Kept::Other),
        })
    })
    .await
}

/// Keeps an answer that says that all went well. The act is done: when keeping fails, that is told in the log and not as its failure.
async fn put(app: &App, key: String, request: [u8; 32], response: Response<Body>) -> Answer<Response<Body>> {
    let json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !matches!(response.status(), StatusCode::OK | StatusCode::CREATED) || !json {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    // It was made in memory by this process.
    let bytes = to_bytes(body, usize::MAX)
        .await
        .map_err(|error| Problem::new(Code::Internal, format!("reading an answer: {error}")))?;
    let result = bytes.to_vec();
    let put = app.act(move |node| {
        let expires = Some(UnixMillis::new(now().get().saturating_add(KEPT_MS))?);
        let kept = Idempotency { scope: Scope::Node, key, request, result, expires };
        Ok(node.store().run(PutAnswer(kept))?)
    });
    if let Err(problem) = put.await {
        tracing::warn!(%problem, "an answer is not kept under its idempotency key");
    }
    Ok(Response::from_parts(parts, bytes.into()))
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
