//! Sessions: list, create, one, its base, verification, pins.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::entry::{Body, Class, Entry};
use throughline_protocol::id::{AgentIri, EntryCid, Principal, Seq, SessionId};
use throughline_store::{Pin, PinDepth, Reader, SessionRow, SetPin};

use super::input;
use crate::api::App;
use crate::api::error::{Answer, Problem};
use crate::core::{CreateRequest, Lookout, Node, PayloadUse, need_session, now, shape, standing};
use crate::report::Required;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/sessions", get(list).post(create))
        .route("/v1/sessions/{session}", get(one))
        .route("/v1/sessions/{session}/base", get(base))
        .route("/v1/sessions/{session}/anchor", get(anchor))
        .route("/v1/sessions/{session}/verify", get(verify_get).post(verify_post))
        .route("/v1/pins", get(pins))
        .route("/v1/pins/{session}", get(pin_get).put(pin_put).delete(pin_delete))
}

async fn list(State(app): State<App>, query: input::Query) -> Answer<Json<Value>> {
    let agent: Option<AgentIri> = input::maybe(&query, "agent")?;
    let owner: Option<Principal> = input::maybe(&query, "owner")?;
    let limit: usize = input::maybe(&query, "limit")?.unwrap_or(100);
    let state: Option<shape::State> = input::maybe(&query, "state")?;
    let parent: Option<SessionId> = input::maybe(&query, "parent")?;
    let mut after: Option<SessionId> = input::maybe(&query, "cursor")?;
    app.act(move |node| {
        let reader = node.reader()?;
        let aliases = shape::aliases(&reader)?;
        let fits = |row: &SessionRow| {
            agent.as_ref().is_none_or(|agent| row.agent == agent.to_string())
                && owner.is_none_or(|owner| row.owner == owner)
                && state.is_none_or(|state| shape::State::of(row) == state)
        };
        let mut lookout = Lookout::new(node, &reader);
        let mut items = Vec::new();
        let next = loop {
            let page = reader.sessions(after, limit)?;
            let Some(last) = page.last().map(|row| row.session) else { break None };
            let mut full = None;
            for row in page.iter().filter(|row| fits(row)) {
                if let Some(parent) = parent
                    && !came_from(&reader, row, parent)?
                {
                    continue;
                }
                items.push(shape::session(row, node.principal(), &aliases, lookout.of(row)));
                if items.len() == limit {
                    full = Some(row.session);
                    break;
                }
            }
            if full.is_some() {
                break full;
            }
            after = Some(last);
        };
        Ok(json!({
            "v": 1, "kind": "sessions", "items": items,
            "next": next.map(|session| session.to_string()),
        }))
    })
    .await
    .map(Json)
}

/// Whether the genesis of a session names `parent`: then it is the session of a sub-agent of that one.
fn came_from(reader: &Reader, row: &SessionRow, parent: SessionId) -> Answer<bool> {
    let Some(stored) = reader.entry_at(row.session, Seq::ZERO)? else { return Ok(false) };
    let genesis = Decoded::<Entry>::decode(stored.bytes)?;
    let Body::Genesis(genesis) = &genesis.value().body else { return Ok(false) };
    Ok(genesis.parent.is_some_and(|named| named.session == parent.genesis()))
}

async fn create(
    State(app): State<App>,
    query: input::Query,
    headers: HeaderMap,
    input::Whole(body): input::Whole,
) -> Answer<(StatusCode, Json<Value>)> {
    let value = input::json(&body, "SessionRequest")?;
    let dry_run = input::flag(&query, "dryRun");
    let key = input::idempotency(&headers, &body)?;
    let class = match value["class"].as_str() {
        None | Some("internal") => Class::Internal,
        Some("confidential") => Class::Confidential,
        Some("public") => Class::Public,
        Some(_) => return Err(Problem::new(Code::ApiBody, "expected class internal or confidential")),
    };
    let first = &value["firstEntry"];
    let request = CreateRequest {
        agent: input::field(&value, "agent")?,
        title: input::field(&value, "title")?,
        class,
        first_entry: if first.is_null() { None } else { Some(input::entry(first)?) },
        key,
        dry_run,
    };
    if request.first_entry.is_some() && request.key.is_none() && !dry_run {
        return Err(Problem::new(
            Code::ApiBody,
            "expected an idempotency-key header: it makes a repeat safe",
        ));
    }
    let created = app.act(move |node| node.create(&request)).await?;
    let status = if created.replayed || dry_run { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(created.answer)))
}

async fn one(State(app): State<App>, Path(session): Path<String>) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    app.act(move |node| {
        if node.drafts().holds(session) {
            return Ok(json!({"v": 1, "kind": "session", "session": session.to_string(), "state": "draft"}));
        }
        let reader = node.reader()?;
        let standing = standing(&reader, session)?;
        let aliases = shape::aliases(&reader)?;
        let problems = Lookout::new(node, &reader).of(&standing.row);
        let mut object = shape::session(&standing.row, node.principal(), &aliases, problems);
        object["v"] = 1.into();
        object["kind"] = "session".into();
        object["genesis"] = session.to_string().into();
        object["entryBytes"] = standing.row.entry_bytes.into();
        object["participants"] = standing
            .state
            .participants()
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .into();
        object["pinned"] = reader.pin(session)?.is_some().into();
        object["aside"] = aside(&reader, session)?.into();
        Ok(object)
    })
    .await
    .map(Json)
}

/// Entries that are kept beside the chain as evidence.
fn aside(reader: &throughline_store::Reader, session: SessionId) -> Answer<Vec<Value>> {
    let side = reader.side_entries(session, None, 200)?;
    Ok(side
        .iter()
        .map(|entry| {
            json!({"cid": entry.cid.to_string(), "seq": entry.seq.get(), "status": entry.status.word()})
        })
        .collect())
}

async fn base(State(app): State<App>, Path(session): Path<String>) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    app.act(move |node| node.signing_base(session)).await.map(Json)
}

async fn anchor(State(app): State<App>, Path(session): Path<String>) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    app.act(move |node| node.anchor_facts(session)).await.map(Json)
}

async fn verify_get(
    State(app): State<App>,
    Path(session): Path<String>,
    query: input::Query,
) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    let payloads = payload_use(query.get("payloads").map(String::as_str))?;
    let told: Option<EntryCid> = input::maybe(&query, "toldHead")?;
    verify(&app, session, payloads, told).await
}

async fn verify_post(
    State(app): State<App>,
    Path(session): Path<String>,
    input::Whole(body): input::Whole,
) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    let value = input::json(&body, "VerifyRequest")?;
    let payloads = payload_use(value["payloads"].as_str())?;
    let told = input::field(&value, "toldHead")?;
    verify(&app, session, payloads, told).await
}

/// Which words are read, and what of them and of the files has to be there.
pub(super) fn payload_use(word: Option<&str>) -> Answer<(PayloadUse, Required)> {
    match word {
        Some("none") => Ok((PayloadUse::None, Required::Nothing)),
        None | Some("present") => Ok((PayloadUse::Present, Required::Nothing)),
        Some("all") => Ok((PayloadUse::Present, Required::All)),
        Some(_) => Err(Problem::new(Code::ApiBody, "expected payloads none, present or all")),
    }
}

async fn verify(
    app: &App,
    session: SessionId,
    (payloads, asked): (PayloadUse, Required),
    told: Option<EntryCid>,
) -> Answer<Json<Value>> {
    let began = std::time::Instant::now();
    let verified = move |node: &Node| {
        let mut answer = crate::report::verify(&node.verify(session, payloads, told)?, "store", asked);
        let row = node.reader()?.session(session)?;
        answer["ahead"] = row.and_then(|row| row.ahead).as_ref().map(shape::ahead).into();
        Ok(answer)
    };
    let mut answer = app.act(verified).await?;
    answer["elapsedMs"] = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).into();
    Ok(Json(answer))
}

async fn pins(State(app): State<App>) -> Answer<Json<Value>> {
    app.act(|node| {
        let pins = node.reader()?.pins()?;
        let whole = pins.into_iter().filter_map(|(session, pin)| match pin {
            Ok(pin) => Some(pin_json(session, Some(&pin))),
            Err(problem) => {
                tracing::warn!(session = session.short(), "a pin is passed over: {problem}");
                None
            }
        });
        let items: Vec<Value> = whole.collect();
        Ok(json!({"v": 1, "kind": "pins", "items": items}))
    })
    .await
    .map(Json)
}

fn pin_json(session: SessionId, pin: Option<&Pin>) -> Value {
    json!({
        "v": 1, "kind": "pin", "session": session.to_string(), "pinned": pin.is_some(),
        "since": pin.map(|pin| shape::rfc3339(pin.since)), "depth": pin.map(|pin| pin.depth.word()),
    })
}

async fn pin_get(State(app): State<App>, Path(session): Path<String>) -> Answer<Json<Value>> {
    let session = input::session(&session)?;
    app.act(move |node| Ok(pin_json(session, node.reader()?.pin(session)?.as_ref()))).await.map(Json)
}

async fn pin_put(
    State(app): State<App>,
    Path(session): Path<String>,
    input::Whole(body): input::Whole,
) -> Answer<Json<Value>> {
    input::json(&body, "Nothing")?;
    set_pin(&app, &session, Some(PinDepth::Files)).await
}

async fn pin_delete(State(app): State<App>, Path(session): Path<String>) -> Answer<Json<Value>> {
    set_pin(&app, &session, None).await
}

async fn set_pin(app: &App, session: &str, depth: Option<PinDepth>) -> Answer<Json<Value>> {
    let session = input::session(session)?;
    app.act(move |node: &Node| {
        let reader = node.reader()?;
        need_session(&reader, session)?;
        let before = reader.pin(session)?;
        let unchanged = before.is_some() == depth.is_some();
        let pin = depth.map(|depth| before.unwrap_or(Pin { since: now(), depth }));
        if !unchanged {
            node.store().run(SetPin { session, pin, at: now() })?;
        }
        let mut answer = pin_json(session, pin.as_ref());
        answer["unchanged"] = unchanged.into();
        Ok(answer)
    })
    .await
    .map(Json)
}
