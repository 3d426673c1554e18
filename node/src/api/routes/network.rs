//! Peers and transfers.
//!
//! A fetch may take long: [`watched`]. A client that goes away ends the transfer; what was adopted stays.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::id::SessionId;

use super::{input, watched};
use crate::api::App;
use crate::api::error::{Answer, Problem};
use crate::core::shape;
use crate::sync::peers::{self, Added, KnownPeer};
use crate::sync::{FetchRequest, PeerView, Tally, Unfetched, Use, Wanted};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/peers", get(list).post(add))
        .route("/v1/peers/{alias}", delete(remove))
        .route("/v1/fetch", post(fetch))
        .route("/v1/unfetched", post(unfetched))
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

async fn add(State(app): State<App>, input::Whole(body): input::Whole) -> Answer<(StatusCode, Json<Value>)> {
    let value = input::json(&body, "PeerRequest")?;
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

async fn remove(State(app): State<App>, Path(alias): Path<String>) -> Answer<Json<Value>> {
    let peer = app.act(move |node| peers::remove(node, &alias)).await?;
    if let Some(network) = app.node().network() {
        network.peers_changed();
    }
    Ok(Json(known_json(&peer)))
}

async fn fetch(
    State(app): State<App>,
    headers: HeaderMap,
    input::Whole(body): input::Whole,
) -> Answer<Response<Body>> {
    let request = fetch_request(&input::json(&body, "FetchRequest")?)?;
    let network = app.node().network().cloned().ok_or_else(|| {
        Problem::new(Code::Unreachable, "this process runs without a network").hint("throughline serve")
    })?;
    let tally = Tally::new();
    let counted = Arc::clone(&tally);
    let fetching = Box::pin(async move { network.fetch_answer(request, counted).await });
    watched::answer("fetch", &headers, tally, fetching).await
}

/// Which words and files a request is about, if it says so.
pub(super) fn wanted(value: &Value) -> Answer<Option<Wanted>> {
    match value["payloads"].as_str() {
        None => Ok(None),
        Some("none") => Ok(Some(Wanted::None)),
        Some("referenced") => Ok(Some(Wanted::Referenced)),
        Some("all") => Ok(Some(Wanted::All)),
        Some(_) => Err(Problem::new(Code::ApiBody, "expected payloads none, referenced or all")),
    }
}

/// Fetches what known peers hold of sessions above what is here, and tells what then is still not.
async fn unfetched(State(app): State<App>, input::Whole(body): input::Whole) -> Answer<Json<Value>> {
    let value = input::json(&body, "UnfetchedRequest")?;
    let sessions = input::names(&value, "sessions")?;
    let sessions: Vec<SessionId> = sessions.iter().map(|text| text.parse()).collect::<Result<_, _>>()?;
    let network = app.node().network().cloned().ok_or_else(|| {
        Problem::new(Code::Unreachable, "this process runs without a network").hint("throughline serve")
    })?;
    let (left, came, silent) = Box::pin(network.unfetched(sessions, idle_of(&value)?)).await?;
    let items = app.act(move |node| {
        let reader = node.reader()?;
        let json_of = |it: &Unfetched| {
            let title = reader.session(it.session)?.and_then(|row| row.summary.title);
            Ok(json!({
                "session": it.session.to_string(), "title": title,
                "held": shape::mark(&it.held), "told": shape::mark(&it.told), "by": it.by,
                "cutEntries": it.told.seq.get().saturating_sub(it.held.seq.get()),
            }))
        };
        left.iter().map(json_of).collect::<Answer<Vec<Value>>>()
    });
    Ok(Json(json!({"v": 1, "kind": "unfetched", "items": items.await?, "fetched": came, "silent": silent})))
}

/// How long a peer may send nothing, as a request says.
fn idle_of(value: &Value) -> Answer<Option<Duration>> {
    let no_number = || Problem::new(Code::ApiBody, "expected a number of milliseconds in `timeoutMs`");
    let idle = Some(&value["timeoutMs"]).filter(|ms| !ms.is_null());
    idle.map(|ms| ms.as_u64().map(Duration::from_millis).ok_or_else(no_number)).transpose()
}

fn fetch_request(value: &Value) -> Answer<FetchRequest> {
    let session: SessionId = input::need(value, "session")?;
    let from = input::names(value, "from")?;
    let payloads = wanted(value)?.unwrap_or(Wanted::Referenced);
    Ok(FetchRequest {
        session,
        from,
        payloads,
        idle: idle_of(value)?,
        mode: if value["adopt"].as_bool().unwrap_or(true) { Use::Adopt } else { Use::Audit },
        peers_min: value["peersMin"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
    })
}
