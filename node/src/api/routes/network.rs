//! Peers and transfers.
//!
//! A fetch may take long. Who asks for `text/event-stream` is told how far it is: `progress` events while it runs, and in the
//! end one `answer` or one `problem`. A client that goes away ends the transfer; what was adopted stays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use futures::future::BoxFuture;
use futures::stream;
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::id::SessionId;
use tokio::time::timeout;

use super::input;
use crate::api::App;
use crate::api::error::{Answer, Problem};
use crate::sync::peers::{self, Added, KnownPeer};
use crate::sync::{FetchRequest, PeerView, Tallied, Tally, Use, Wanted};

/// What a client asks for that wants to be told how far a fetch is.
const EVENT_STREAM: &str = "text/event-stream";
/// Between two looks at how far it is.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// A comment keeps a connection open on which nothing moves.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/peers", get(list).post(add))
        .route("/v1/peers/{alias}", delete(remove))
        .route("/v1/fetch", post(fetch))
}

async fn list(State(app): State<App>) -> Answer<Json<Value>> {
    let items: Vec<Value> = match app.node().network() {
        Some(network) => network.peers().await.iter().map(PeerView::to_json).collect(),
        None => {
            let known = app.act(|node| peers::list(&node.reader()?)).await?;
            known.iter().map(known_json).collect()
        }
    };
    Ok(Json(json!({"v": 1, "kind": "peers", "items": items})))
}

fn known_json(peer: &KnownPeer) -> Value {
    json!({
        "v": 1, "kind": "peer", "alias": peer.alias, "principal": peer.principal.to_string(),
        "peer": crate::net::peer_of(&peer.peer).map(|peer| peer.to_string()),
        "addrs": peer.addrs.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

async fn add(
    State(app): State<App>,
    query: input::Query,
    input::Whole(body): input::Whole,
) -> Answer<(StatusCode, Json<Value>)> {
    input::no_dry_run(&query)?;
    let value = input::json(&body)?;
    let alias: String = input::need(&value, "alias")?;
    let ticket: String = input::need(&value, "ticket")?;
    let peer = KnownPeer::of_ticket(&alias, &ticket)?;
    let mut answer = known_json(&peer);
    let added = app.act(move |node| peers::add(node, &peer)).await?;
    answer["unchanged"] = (added == Added::Before).into();
    if let Some(network) = app.node().network() {
        network.peers_changed();
    }
    let status = if added == Added::Now { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(answer)))
}

async fn remove(
    State(app): State<App>,
    Path(alias): Path<String>,
    query: input::Query,
) -> Answer<Json<Value>> {
    input::no_dry_run(&query)?;
    let peer = app.act(move |node| peers::remove(node, &alias)).await?;
    if let Some(network) = app.node().network() {
        network.peers_changed();
    }
    Ok(Json(known_json(&peer)))
}

async fn fetch(
    State(app): State<App>,
    query: input::Query,
    headers: HeaderMap,
    input::Whole(body): input::Whole,
) -> Answer<Response<Body>> {
    input::no_dry_run(&query)?;
    let request = fetch_request(&input::json(&body)?)?;
    let network = app.node().network().cloned().ok_or_else(|| {
        Problem::new(Code::Unreachable, "this process runs without a network").hint("throughline serve")
    })?;
    let streams = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.split(',').any(|kind| kind.trim().starts_with(EVENT_STREAM)));
    let tally = Tally::new();
    if !streams {
        return Ok(Json(network.fetch_answer(request, tally).await?).into_response());
    }
    let counted = Arc::clone(&tally);
    let fetching: BoxFuture<'static, Answer<Value>> =
        Box::pin(async move { network.fetch_answer(request, counted).await });
    let watching = Watching { fetching: Some(fetching), tally, told: None, since: Instant::now() };
    let body = Body::from_stream(stream::unfold(watching, |mut watching| async move {
        let text = watching.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), watching))
    }));
    let kind = (header::CONTENT_TYPE, EVENT_STREAM);
    Ok(([kind, (header::CACHE_CONTROL, "no-store")], body).into_response())
}

/// A fetch that tells how far it is.
struct Watching {
    /// None once its end was told.
    fetching: Option<BoxFuture<'static, Answer<Value>>>,
    tally: Arc<Tally>,
    told: Option<Tallied>,
    since: Instant,
}

impl Watching {
    /// The next event; none after the last one.
    async fn next(&mut self) -> Option<String> {
        let (called, fetching) = (Instant::now(), self.fetching.as_mut()?);
        loop {
            match timeout(PROGRESS_EVERY, &mut *fetching).await {
                Ok(ended) => {
                    self.fetching = None;
                    // How far it came is told in any case, however quick it was.
                    let last = event("progress", &progress_json(self.tally.now(), self.since));
                    let end = match ended {
                        Ok(answer) => event("answer", &answer),
                        Err(problem) => event("problem", &problem.to_json()),
                    };
                    return Some(last + &end);
                }
                Err(_) if self.told != Some(self.tally.now()) => {
                    let now = self.tally.now();
                    self.told = Some(now);
                    return Some(event("progress", &progress_json(now, self.since)));
                }
                Err(_) if called.elapsed() >= KEEP_ALIVE => return Some(": keep-alive\n\n".to_owned()),
                Err(_) => {}
            }
        }
    }
}

fn progress_json(now: Tallied, since: Instant) -> Value {
    json!({
        "v": 1, "kind": "progress", "phase": "fetch", "done": now.entries, "total": now.entries_total,
        "bytes": now.bytes, "blocks": now.blocks, "blocksTotal": now.blocks_total,
        "elapsedMs": u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn fetch_request(value: &Value) -> Answer<FetchRequest> {
    let session: SessionId = input::need(value, "session")?;
    let from = input::names(value, "from")?;
    let payloads = match value["payloads"].as_str() {
        None | Some("referenced") => Wanted::Referenced,
        Some("none") => Wanted::None,
        Some("all") => Wanted::All,
        Some(_) => return Err(Problem::new(Code::ApiBody, "expected payloads none, referenced or all")),
    };
    let no_number = || Problem::new(Code::ApiBody, "expected a number of milliseconds in `timeoutMs`");
    let idle = Some(&value["timeoutMs"]).filter(|ms| !ms.is_null());
    let idle = idle.map(|ms| ms.as_u64().map(Duration::from_millis).ok_or_else(no_number)).transpose()?;
    Ok(FetchRequest {
        session,
        from,
        payloads,
        idle,
        mode: if value["adopt"].as_bool().unwrap_or(true) { Use::Adopt } else { Use::Audit },
        peers_min: value["peersMin"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(1),
    })
}
