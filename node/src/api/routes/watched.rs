//! Acts that may take long. Who asks for `text/event-stream` is told how far one is: `progress` events while it runs, and in the end one
//! `answer` or one `problem`. Who does not gets the answer alone.
//!
//! A client that goes away ends the act where it waits next; what it has written by then stays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response, header};
use axum::response::IntoResponse as _;
use futures::future::BoxFuture;
use futures::stream;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::error::Answer;
use crate::sync::{Tallied, Tally};

/// What a client asks for that wants to be told how far an act is.
const EVENT_STREAM: &str = "text/event-stream";
/// Between two looks at how far it is.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// A comment keeps a connection open on which nothing moves.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The answer of an act that counts on `tally`, as the client wants it.
///
/// # Errors
/// Those of the act, when the answer is not a stream; a stream tells them as its last event.
pub(super) async fn answer(
    phase: &'static str,
    headers: &HeaderMap,
    tally: Arc<Tally>,
    act: BoxFuture<'static, Answer<Value>>,
) -> Answer<Response<Body>> {
    let streams = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.split(',').any(|kind| kind.trim().starts_with(EVENT_STREAM)));
    if !streams {
        return Ok(Json(act.await?).into_response());
    }
    let watching = Watching { phase, act: Some(act), tally, told: None, since: Instant::now() };
    let body = Body::from_stream(stream::unfold(watching, |mut watching| async move {
        let text = watching.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), watching))
    }));
    let kind = (header::CONTENT_TYPE, EVENT_STREAM);
    Ok(([kind, (header::CACHE_CONTROL, "no-store")], body).into_response())
}

/// An act that tells how far it is.
struct Watching {
    phase: &'static str,
    /// None once its end was told.
    act: Option<BoxFuture<'static, Answer<Value>>>,
    tally: Arc<Tally>,
    told: Option<Tallied>,
    since: Instant,
}

impl Watching {
    /// The next event; none after the last one.
    async fn next(&mut self) -> Option<String> {
        let (called, act) = (Instant::now(), self.act.as_mut()?);
        loop {
            match timeout(PROGRESS_EVERY, &mut *act).await {
                Ok(ended) => {
                    self.act = None;
                    // How far it came is told in any case, however quick it was.
                    let last = event("progress", &progress_json(self.phase, self.tally.now(), self.since));
                    let end = match ended {
                        Ok(answer) => event("answer", &answer),
                        Err(problem) => event("problem", &problem.to_json()),
                    };
                    return Some(last + &end);
                }
                Err(_) if self.told != Some(self.tally.now()) => {
                    let now = self.tally.now();
                    self.told = Some(now);
                    return Some(event("progress", &progress_json(self.phase, now, self.since)));
                }
                Err(_) if called.elapsed() >= KEEP_ALIVE => return Some(": keep-alive\n\n".to_owned()),
                Err(_) => {}
            }
        }
    }
}

fn progress_json(phase: &'static str, now: Tallied, since: Instant) -> Value {
    json!({
        "v": 1, "kind": "progress", "phase": phase, "done": now.entries, "total": now.entries_total,
        "bytes": now.bytes, "blocks": now.blocks, "blocksTotal": now.blocks_total,
        "elapsedMs": u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}
