//! Entries: pages, one, append.

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{EntryCid, Seq, SessionId};
use throughline_protocol::limits;
use throughline_protocol::view::EntryDraft;
use throughline_protocol::wire::Message as _;
use throughline_protocol::wire::append::AppendRequest as Frame;
use throughline_store::{Reader, SessionRow, StoredEntry};

use super::input;
use crate::api::App;
use crate::api::error::{Answer, Problem};
use crate::core::{AppendRequest, Appended, Node, SignedAppend, Through, need_session, shape};

/// What an entry's exact bytes are asked for as.
const DAG_CBOR: &str = "application/vnd.ipld.dag-cbor";
/// What a session is exported as.
const CAR: &str = "application/vnd.ipld.car";

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/sessions/{session}/entries", get(page).post(append))
        .route("/v1/sessions/{session}/entries/{entry}", get(one))
}

async fn page(
    State(app): State<App>,
    Path(session): Path<String>,
    query: input::Query,
    headers: HeaderMap,
) -> Answer<Response<Body>> {
    let session = input::session(&session)?;
    if accepts(&headers, CAR) {
        let with_payloads = query.get("payloads").is_none_or(|which| which != "none");
        let through = if input::flag(&query, "pending") { Through::Tip } else { Through::Head };
        return super::files::export(&app, session, through, with_payloads).await;
    }
    let window = Window {
        after: input::maybe(&query, "after")?,
        before: input::maybe(&query, "before")?,
        limit: input::maybe(&query, "limit")?.unwrap_or(100),
        types: query.get("types").map(|types| types.split(',').map(str::to_owned).collect()),
        newest_first: input::flag(&query, "reverse"),
    };
    app.act(move |node| window.read(node, session)).await.map(|value| Json(value).into_response())
}

fn accepts(headers: &HeaderMap, wanted: &str) -> bool {
    headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| {
        accept.split(',').any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == wanted))
    })
}

/// Which entries a page shows.
struct Window {
    after: Option<u64>,
    before: Option<u64>,
    limit: u64,
    types: Option<Vec<String>>,
    newest_first: bool,
}

impl Window {
    fn read(&self, node: &Node, session: SessionId) -> Answer<Value> {
        let reader = node.reader()?;
        let row = need_session(&reader, session)?;
        let aliases = shape::aliases(&reader)?;
        let first = Seq::new(self.after.map_or(0, |after| after.saturating_add(1)))?;
        let last = match self.before {
            Some(0) => return Ok(page_json(&row, &[], None)),
            Some(before) => row.tip.seq.min(Seq::new(before - 1)?),
            None => row.tip.seq,
        };
        let entries = reader.entries(session, first, last)?;
        let (mut items, mut next) = (Vec::new(), None);
        let mut take = |stored: StoredEntry| -> Answer<bool> {
            if items.len() as u64 == self.limit {
                return Ok(false);
            }
            next = Some(stored.seq.get());
            if self.wants(&stored)? {
                items.push(shape::log_entry(&reader, &row, &stored, node.principal(), &aliases)?);
            }
            Ok(true)
        };
        let mut ended = true;
        if self.newest_first {
            for stored in entries.rev() {
                if !take(stored?)? {
                    ended = false;
                    break;
                }
            }
        } else {
            for stored in entries {
                if !take(stored?)? {
                    ended = false;
                    break;
                }
            }
        }
        let next = if ended { None } else { next };
        Ok(page_json(&row, &items, next))
    }

    fn wants(&self, stored: &StoredEntry) -> Answer<bool> {
        let Some(types) = &self.types else { return Ok(true) };
        let decoded = Decoded::<Entry>::decode(stored.bytes.as_slice())?;
        let name = decoded.value().body.type_name();
        Ok(types.iter().any(|wanted| wanted == name || name.strip_prefix("Session") == Some(wanted)))
    }
}

/// A page of a session's entries; `next` is the seq that the next page begins after.
fn page_json(row: &SessionRow, items: &[Value], next: Option<u64>) -> Value {
    json!({
        "v": 1, "kind": "entries", "session": row.session.to_string(), "items": items, "next": next,
        "validThrough": row.summary.head.map(|head| head.seq.get()), "verdict": row.summary.verdict,
    })
}

async fn one(
    State(app): State<App>,
    Path((session, entry)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer<Response<Body>> {
    let session = input::session(&session)?;
    let raw = accepts(&headers, DAG_CBOR);
    app.act(move |node| {
        let reader = node.reader()?;
        let row = need_session(&reader, session)?;
        let (cid, bytes, aside) = find(&reader, &row, &entry)?;
        let tag = format!("\"{cid}\"");
        let response = if raw {
            // The bytes under a CID never change; what is at a seq may.
            let keep =
                if entry.starts_with('b') { "private, immutable, max-age=31536000" } else { "no-cache" };
            let headers = [
                (header::CONTENT_TYPE, DAG_CBOR.to_owned()),
                (header::ETAG, tag),
                (header::CACHE_CONTROL, keep.to_owned()),
            ];
            (headers, bytes).into_response()
        } else {
            let value = show(node, &reader, &row, cid, &bytes, aside)?;
            ([(header::ETAG, tag)], Json(value)).into_response()
        };
        Ok(response)
    })
    .await
}

/// An entry by CID, seq, `head` or a negative count from the tip; with why it stands beside the chain, if it does.
fn find(reader: &Reader, row: &SessionRow, text: &str) -> Answer<(EntryCid, Vec<u8>, Option<&'static str>)> {
    let missing = || {
        Problem::new(
            Code::NotFoundYet,
            format!("no entry `{}` in this session", text.chars().take(70).collect::<String>()),
        )
        .with("session", row.session.to_string())
    };
    let seq = match text {
        "head" => Some(row.summary.head.unwrap_or(row.tip).seq),
        text if text.starts_with('-') => {
            let back: u64 = text[1..].parse().map_err(|_| missing())?;
            Some(Seq::new((row.tip.seq.get() + 1).checked_sub(back).ok_or_else(missing)?)?)
        }
        text => text.parse().ok().map(Seq::new).transpose()?,
    };
    if let Some(seq) = seq {
        let stored = reader.entry_at(row.session, seq)?.ok_or_else(missing)?;
        return Ok((stored.cid, stored.bytes, None));
    }
    let cid: EntryCid = text.parse().map_err(|_| missing())?;
    let (session, stored) = reader.entry(cid)?.ok_or_else(missing)?;
    if session != row.session {
        return Err(missing());
    }
    let aside = reader.side_entry(cid)?.map(|side| side.status.word());
    Ok((cid, stored.bytes, aside))
}

fn show(
    node: &Node,
    reader: &Reader,
    row: &SessionRow,
    cid: EntryCid,
    bytes: &[u8],
    aside: Option<&'static str>,
) -> Answer<Value> {
    let decoded = Decoded::<Entry>::decode(bytes)?;
    let stored = StoredEntry {
        seq: decoded.value().seq(),
        cid,
        payload: decoded.value().payload.map(|payload| payload.cid),
        bytes: bytes.to_vec(),
    };
    let aliases = shape::aliases(reader)?;
    let mut value = shape::log_entry(reader, row, &stored, node.principal(), &aliases)?;
    value["entry"] = value["body"].clone();
    value["sizeBytes"] = bytes.len().into();
    if let Some(status) = aside {
        value["status"] = status.into();
        value["anchored"] = false.into();
    }
    Ok(value)
}

async fn append(
    State(app): State<App>,
    Path(session): Path<String>,
    query: input::Query,
    headers: HeaderMap,
    input::Whole(body): input::Whole,
) -> Answer<Response<Body>> {
    let session = input::session(&session)?;
    let dry_run = input::flag(&query, "dryRun");
    let is_cbor = headers
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/cbor"));
    let appended = if is_cbor {
        append_signed(&app, session, &body, dry_run).await?
    } else {
        append_stated(&app, session, &headers, &body, dry_run).await?
    };
    let status = if appended.replayed || dry_run { StatusCode::OK } else { StatusCode::CREATED };
    let head = appended.answer["head"]["cid"].as_str().unwrap_or_default();
    let tag = format!("\"{head}\"");
    Ok((status, [(header::ETAG, tag)], Json(appended.answer)).into_response())
}

/// The append frame.
async fn append_signed(app: &App, session: SessionId, body: &Bytes, dry_run: bool) -> Answer<Appended> {
    let frame = Frame::decode_body(body)?;
    let request = SignedAppend {
        session,
        entry: frame.entry,
        payload: frame.payload,
        grants: frame.credentials.grants.iter().map(|grant| grant.to_vec()).collect(),
        dry_run,
    };
    let (local, remote) = (request.clone(), request);
    match app.act(move |node| node.append_signed(&local)).await {
        // Not ours to order, or not any more: the holder does.
        Err(problem) if matches!(problem.code(), Code::NotHolder | Code::Retired) => {
            match app.node().network() {
                Some(network) if !dry_run => network.forward_append(&remote).await?.ok_or(problem),
                Some(_) | None => Err(problem),
            }
        }
        answered => answered,
    }
}

async fn append_stated(
    app: &App,
    session: SessionId,
    headers: &HeaderMap,
    body: &Bytes,
    dry_run: bool,
) -> Answer<Appended> {
    let key = input::idempotency(headers, body)?;
    if key.is_none() && !dry_run {
        return Err(Problem::new(
            Code::ApiBody,
            "expected an idempotency-key header: it makes a repeat safe",
        ));
    }
    let value = input::json(body)?;
    let entries: Vec<EntryDraft> = match (&value["entry"], &value["entries"]) {
        (entry, Value::Null) if !entry.is_null() => vec![EntryDraft::from_json(entry)?],
        (Value::Null, Value::Array(entries)) if entries.len() <= limits::APPEND_ENTRIES_MAX => {
            entries.iter().map(EntryDraft::from_json).collect::<Result<_, _>>()?
        }
        _ => {
            let what =
                format!("expected `entry`, or `entries` with at most {} of them", limits::APPEND_ENTRIES_MAX);
            return Err(Problem::new(Code::ApiBody, what));
        }
    };
    let base: Option<EntryCid> = input::field(&value, "base")?;
    app.act(move |node| node.append(&AppendRequest { session, base, entries, key, dry_run })).await
}
