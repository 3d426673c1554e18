//! The node itself: health, keys, status, fsck, stop.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use throughline_protocol::id::SessionId;
use throughline_protocol::ticket::{PeerTicket, Ticket};
use throughline_store::{Damage, Ended, Fsck, ReadOnly};

use crate::api::error::Answer;
use crate::api::{App, openapi};
use crate::core::{
    Devices, Lookout, Node, cids_of_damaged, diverged, fsck_inventory, fsck_json, need_session, repair_plan,
    shape,
};
use crate::report::Required;
use crate::sync::{BlobsCame, PeerView, Tally, Wanted};

use super::{input, watched};

/// Damaged blobs that are asked for and put back at a time: as many are in memory, 2 MiB each at most.
const MENDED_AT_A_TIME: usize = 64;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/openapi.json", get(document))
        .route("/v1/node", get(node))
        .route("/v1/status", get(status))
        .route("/v1/resolve", get(resolve))
        .route("/v1/fsck", post(fsck))
        .route("/v1/stop", post(stop))
}

async fn health(State(app): State<App>) -> Json<Value> {
    let state = if app.node().store().read_only_reason().is_some() { "read-only" } else { "running" };
    Json(json!({"v": 1, "kind": "health", "state": state}))
}

async fn document() -> Json<Value> {
    Json(openapi::document())
}

async fn node(State(app): State<App>) -> Answer<Json<Value>> {
    let node = app.node();
    let peer = node.peer_seed().principal();
    let mut listen = Vec::new();
    let mut ticket = None;
    if let Some(network) = node.network() {
        listen = network.listen_addrs().await.iter().map(ToString::to_string).collect::<Vec<String>>();
        if !listen.is_empty() {
            let addresses = listen.iter().take(8).cloned().collect();
            ticket =
                Some(Ticket::Peer(PeerTicket { principal: node.principal(), peer, addresses }).to_string());
        }
    }
    Ok(Json(json!({
        "v": 1, "kind": "node",
        "principal": node.principal().to_string(),
        "peerId": crate::net::peer_of(&peer).map(|peer| peer.to_string()),
        "peerPrincipal": peer.to_string(),
        "owner": node.owner().map(|owner| owner.to_string()),
        "version": env!("CARGO_PKG_VERSION"),
        "role": node.config().node.role.word(),
        "listen": listen,
        "api": {"socket": node.config().api.socket.display().to_string(), "http": app.http().map(|at| at.to_string())},
        "state": running(&app),
        "ticket": ticket,
    })))
}

fn running(app: &App) -> &'static str {
    // A node that serves listens somewhere; one of a command's own process does not.
    if app.node().is_serving() { "running" } else { "in-process" }
}

async fn resolve(State(app): State<App>, query: input::Query) -> Answer<Json<Value>> {
    let text = query.get("s").cloned().unwrap_or_default();
    if input::flag(&query, "any") {
        let cid = app.act(move |node| node.resolve_any(&text)).await?;
        return Ok(Json(json!({"v": 1, "kind": "resolved", "cid": cid.to_string()})));
    }
    let session = app.act(move |node| node.resolve(&text)).await?;
    Ok(Json(json!({"v": 1, "kind": "resolved", "session": session.to_string()})))
}

async fn status(State(app): State<App>, query: input::Query) -> Answer<Json<Value>> {
    let only: Option<SessionId> = input::maybe(&query, "session")?;
    let peers = match app.node().network() {
        Some(network) => network.peers().await,
        None => Vec::new(),
    };
    let state = if running(&app) == "running" { "running" } else { "stopped" };
    app.act(move |node| status_of(node, only, &peers, state)).await.map(Json)
}

fn status_of(node: &Node, only: Option<SessionId>, peers: &[PeerView], state: &str) -> Answer<Value> {
    let reader = node.reader()?;
    let aliases = shape::aliases(&reader)?;
    let rows = match only {
        Some(session) => vec![need_session(&reader, session)?],
        None => {
            let mut rows = Vec::new();
            let mut after = None;
            loop {
                let page = reader.sessions(after, 500)?;
                let Some(last) = page.last() else { break rows };
                after = Some(last.session);
                rows.extend(page);
            }
        }
    };
    let count = |verdicts: &[&str]| {
        rows.iter().filter(|row| verdicts.contains(&row.summary.verdict.as_str())).count()
    };
    let totals = json!({
        "sessions": rows.len(),
        "pinned": reader.pins()?.len(),
        "forked": count(&["forked", "frozen"]),
        "cutTail": count(&["revoked-tail", "fenced-tail"]),
        "incomplete": count(&["incomplete"]),
        "bytes": reader.stats()?.bytes(),
    });
    let mut lookout = Lookout::new(node, &reader);
    let sessions: Vec<Value> = rows
        .iter()
        .map(|row| {
            let mut problems = lookout.of(row);
            // What its verdict says, it says of a tail and of a dispute.
            if matches!(row.summary.verdict.as_str(), "valid" | "sealed") {
                let others = peers.iter().filter_map(|peer| Some((peer.name(), peer.diverged(row.session)?)));
                problems.extend(others.map(|(peer, told)| diverged(row, &peer, told)));
            }
            let mut object = shape::session(row, node.principal(), &aliases, problems);
            let replicas = peers.iter().filter_map(|peer| peer.replica(row.session, row.tip));
            object["replicas"] = replicas.collect::<Vec<_>>().into();
            object
        })
        .collect();
    let store = node.store().read_only_reason();
    let health = health_of(node, store.as_ref(), peers)?;
    let (devices, devices_cut) = Devices::of(node, &reader).report(only, &aliases)?;
    Ok(json!({
        "v": 1, "kind": "status",
        "devices": devices, "devicesCut": devices_cut,
        "node": {
            "state": state, "principal": node.principal().to_string(),
            "owner": node.owner().map(|owner| owner.to_string()),
            "version": env!("CARGO_PKG_VERSION"),
            "uptimeMs": u64::try_from(node.started().elapsed().as_millis()).unwrap_or(u64::MAX),
            "store": if store.is_some() { "read-only" } else { "writable" },
            "peers": peers.iter().filter(|peer| peer.connected).count(),
        },
        "health": health, "sessions": sessions, "totals": totals, "cut": node.cuts(),
    }))
}

/// What is wrong with the node itself.
fn health_of(node: &Node, store: Option<&ReadOnly>, peers: &[PeerView]) -> Answer<Vec<Value>> {
    let store = store.map(|ReadOnly { why, ended }| {
        let fix = match ended {
            Ended::UntilRoom => "make room; writing goes on by itself",
            Ended::ForGood => "fix the disk, then restart",
        };
        json!({"code": "H_READ_ONLY", "severity": "error", "message": why, "fix": fix})
    });
    let clocks = peers.iter().filter_map(|peer| {
        let apart = peer.apart?;
        let message = format!("the clock of {} is {apart}: neither takes a proof of the other", peer.name());
        let fix = "set the clock that is wrong, there or here";
        Some(json!({"code": "E_PEER_PROOF", "severity": "warning", "message": message, "fix": fix}))
    });
    Ok(store.into_iter().chain(clocks).chain(revoked(node)?).collect())
}

/// Why a machine stopped that its owner gave up.
fn revoked(node: &Node) -> Answer<Option<Value>> {
    let Some(owner) = node.owner() else { return Ok(None) };
    if !node.is_revoked_by(owner)? {
        return Ok(None);
    }
    let message = format!(
        "every grant of this machine by {} was revoked: it signs, imports and anchors nothing for that owner",
        owner.short()
    );
    let fix = format!(
        "if it is to take part again, where the owner key is: throughline grant {}",
        node.principal()
    );
    Ok(Some(json!({"code": "E_REVOKED", "severity": "error", "message": message, "fix": fix})))
}

/// With `"repair": true` what is damaged is fetched again, from the peers in `"from"` or all that are known, and lost rows are made
/// again; `?dryRun=1` only says what would be done.
async fn fsck(
    State(app): State<App>,
    query: input::Query,
    headers: HeaderMap,
    input::Whole(body): input::Whole,
) -> Answer<Response<Body>> {
    let body = input::json(&body, "FsckRequest")?;
    let (from, dry_run) = (input::names(&body, "from")?, input::flag(&query, "dryRun"));
    let wanted = match (body["repair"] == true, dry_run) {
        (false, _) => Fix::Nothing,
        (true, true) => Fix::Plan,
        (true, false) => Fix::Repair(from),
    };
    let (phase, tally) = (if matches!(wanted, Fix::Repair(_)) { "repair" } else { "fsck" }, Tally::new());
    let counted = Arc::clone(&tally);
    let asked = super::network::wanted(&body)?.map_or(Required::Nothing, Wanted::required);
    let checking = Box::pin(async move {
        let mut answer = checked(app.clone(), wanted, counted).await?;
        if asked != Required::Nothing {
            let found = app.act(|node| node.inventory_of_all()).await?;
            fsck_inventory(&mut answer, &found, asked);
        }
        Ok(answer)
    });
    watched::answer(phase, &headers, tally, checking).await
}

/// What is done about what `fsck` finds.
enum Fix {
    Nothing,
    /// It is said what would be.
    Plan,
    /// It is put right, with blobs of these peers or of all.
    Repair(Vec<String>),
}

async fn checked(app: App, wanted: Fix, tally: Arc<Tally>) -> Answer<Value> {
    let counted = Arc::clone(&tally);
    let found = app.act(move |node| node.fsck(&counted)).await?;
    let mut answer = fsck_json(&found);
    match wanted {
        Fix::Nothing => {}
        Fix::Plan => {
            answer["before"] = answer["problemCount"].clone();
            answer["dryRun"] = json!(true);
            answer["plan"] = repair_plan(&found);
        }
        Fix::Repair(from) => {
            let mut repaired = repair(&app, &from, found, &tally).await?;
            repaired["problemsBefore"] = answer["problemCount"].take();
            answer = fsck_json(&app.act(move |node| node.fsck(&tally)).await?);
            answer["repaired"] = repaired;
        }
    }
    Ok(answer)
}

/// Asks for what is damaged, puts it back, and makes again what follows from it. Without a network nothing is asked for.
async fn repair(app: &App, from: &[String], found: Fsck, tally: &Arc<Tally>) -> Answer<Value> {
    let (mut asked, mut mended, mut peers) = (0, 0, BTreeSet::new());
    // The index and the counters first: blobs are put where they say.
    app.act(|node| node.mend(&BTreeSet::new(), &BlobsCame::default())).await?;
    let found = Arc::new(found);
    let looked = Arc::clone(&found);
    let by_owner = app.act(move |node| node.damaged(&looked)).await?;
    for (owner, damaged) in by_owner {
        asked += damaged.len();
        let mut left = damaged.into_iter();
        loop {
            let part: BTreeSet<Damage> = left.by_ref().take(MENDED_AT_A_TIME).collect();
            if part.is_empty() {
                break;
            }
            let came = match app.node().network() {
                Some(network) => network.blobs(from, owner, cids_of_damaged(&part)).await?,
                None => BlobsCame::default(),
            };
            peers.extend(came.from.clone());
            mended += app.act(move |node| node.mend(&part, &came)).await?;
        }
    }
    let tally = Arc::clone(tally);
    let rows = app.act(move |node| node.mend_rows(&found, &tally)).await?;
    Ok(json!({"asked": asked, "blobs": mended, "notFound": asked - mended, "from": peers, "rows": rows}))
}

async fn stop(State(app): State<App>, input::Whole(body): input::Whole) -> Answer<Json<Value>> {
    input::json(&body, "Nothing")?;
    app.node().stop();
    Ok(Json(json!({"v": 1, "kind": "stop", "state": "stopping"})))
}
