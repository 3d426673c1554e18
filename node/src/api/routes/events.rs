//! Events as SSE: after their commit only, each once, resumable by `Last-Event-ID`.
//!
//! The log of the store is the source, so a reader that comes back misses nothing; where the log no longer reaches back it
//! gets `reset` and reads the state anew.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use futures::stream;
use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::SessionId;
use throughline_store::{Change, Event, EventPage, Reader};
use tokio::sync::watch;

use super::input;
use crate::api::App;
use crate::api::error::Answer;

/// Events read from the log at a time.
const PAGE: usize = 256;
/// Entries of one event that are told one by one; a larger adoption is told by its last entries.
const ENTRIES_MAX: u64 = 10_000;
/// A comment keeps idle connections open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn routes() -> Router<App> {
    Router::new().route("/v1/events", get(events))
}

struct Following {
    app: App,
    commits: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    last: u64,
    session: Option<SessionId>,
    types: Option<Vec<String>>,
    ready: VecDeque<String>,
}

async fn events(
    State(app): State<App>,
    query: input::Query,
    headers: HeaderMap,
) -> Answer<Response<Body>> {
    let session = query.get("session").map(|text| input::session(text)).transpose()?;
    let types = query.get("types").map(|types| types.split(',').map(str::to_owned).collect());
    let resume = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
    let commits = app.node().commits();
    let stopping = app.node().stopping();
    let last = match resume {
        Some(last) => last,
        None => app.act(|node| Ok(node.reader()?.newest_event()?)).await?,
    };
    let mut ready = VecDeque::new();
    // Tells the reader where it stands, so that it can resume even if nothing comes.
    ready.push_back(format!(": from {last}\n\n"));
    let following = Following { app, commits, stopping, last, session, types, ready };
    let body = Body::from_stream(stream::unfold(following, |mut following| async move {
        let text = following.next().await?;
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), following))
    }));
    let kind = (header::CONTENT_TYPE, "text/event-stream");
    Ok(([kind, (header::CACHE_CONTROL, "no-store")], body).into_response())
}

impl Following {
    /// The next piece of the stream; none when the node ends.
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                return Some(text);
            }
            self.commits.borrow_and_update();
            if self.read_on().await? {
                continue;
            }
            let waited = tokio::select! {
                changed = self.commits.changed() => changed.is_ok(),
                _ = self.stopping.wait_for(|stop| *stop) => false,
                () = tokio::time::sleep(KEEP_ALIVE) => return Some(": keep-alive\n\n".to_owned()),
            };
            if !waited {
                return None;
            }
        }
    }

    /// Reads the next page of the log; whether there was one.
    async fn read_on(&mut self) -> Option<bool> {
        let (last, session) = (self.last, self.session);
        let types = self.types.clone();
        let page = self.app.act(move |node| page(&node.reader()?, last, session, types.as_deref())).await.ok()?;
        let moved = page.last != self.last;
        self.last = page.last;
        self.ready.extend(page.texts);
        Some(moved)
    }
}

struct Page {
    last: u64,
    texts: Vec<String>,
}

fn page(reader: &Reader, last: u64, session: Option<SessionId>, types: Option<&[String]>) -> Answer<Page> {
    match reader.events_since(last, PAGE)? {
        EventPage::Reset { newest } => {
            let rows = reader.sessions(None, 500)?;
            let heads: Vec<Value> = rows
                .iter()
                .map(|row| json!({"session": row.session.to_string(), "head": row.tip.cid.to_string(), "seq": row.tip.seq.get()}))
                .collect();
            let data = json!({"heads": heads});
            Ok(Page { last: newest, texts: vec![format!("id: {newest}\nevent: reset\ndata: {data}\n\n")] })
        }
        EventPage::Events(events) => {
            let mut page = Page { last, texts: Vec::new() };
            for event in events {
                page.last = event.id;
                for (name, data) in told(reader, &event, session)? {
                    if types.is_none_or(|types| types.iter().any(|wanted| wanted == name)) {
                        page.texts.push(format!("event: {name}\ndata: {data}\n\n"));
                    }
                }
                // The id goes with the last message of an event: a reader that was cut off in the middle gets all of it again.
                if let Some(text) = page.texts.last_mut()
                    && !text.starts_with("id: ")
                {
                    text.insert_str(0, &format!("id: {}\n", event.id));
                }
            }
            Ok(page)
        }
    }
}

/// An event as messages.
fn told(reader: &Reader, event: &Event, only: Option<SessionId>) -> Answer<Vec<(&'static str, Value)>> {
    let about = |session: &SessionId| only.is_none_or(|only| only == *session);
    Ok(match &event.change {
        Change::Entries { session, first, last, .. } if about(session) => {
            let mut told = Vec::new();
            let from = last.get().saturating_sub(ENTRIES_MAX).max(first.get());
            let from = throughline_protocol::id::Seq::new(from)?;
            for stored in reader.entries(*session, from, *last)? {
                let stored = stored?;
                let decoded = Decoded::<Entry>::decode(stored.bytes)?;
                let entry = decoded.value();
                told.push((
                    "entry",
                    json!({
                        "session": session.to_string(), "cid": stored.cid.to_string(), "seq": stored.seq.get(),
                        "epoch": entry.epoch().get(), "type": entry.body.type_name(),
                        "signer": entry.signer.to_string(),
                    }),
                ));
            }
            told
        }
        Change::Cut { session, keep_through, entries } if about(session) => vec![(
            "cut",
            json!({"session": session.to_string(), "keptThrough": keep_through.get(), "entries": entries}),
        )],
        Change::Verdict { session, from, to } if about(session) => {
            vec![("verdict", json!({"session": session.to_string(), "from": from, "to": to}))]
        }
        Change::State { session } if about(session) => {
            let state = reader.session(*session)?.map(|row| crate::core::shape::state_word(&row));
            vec![("state", json!({"session": session.to_string(), "state": state}))]
        }
        Change::Forgotten { session } if about(session) => {
            vec![("forgotten", json!({"session": session.to_string()}))]
        }
        Change::Pin { session } if about(session) => {
            let pinned = reader.pin(*session)?.is_some();
            vec![("pin", json!({"session": session.to_string(), "pinned": pinned}))]
        }
        Change::Control { owner, hash } if only.is_none() => {
            let cid = throughline_protocol::id::EntryCid::from_digest(*hash);
            vec![("capability", json!({"owner": owner.to_string(), "cid": cid.to_string()}))]
        }
        Change::Job { kind, id } if only.is_none() => {
            let name = if kind == "move" { "move" } else { "job" };
            let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            vec![(name, json!({"kind": kind, "id": id}))]
        }
        Change::GuardReset if only.is_none() => {
            vec![("health", json!({"code": "H_GUARD_RESET", "message": "the sign guard starts anew"}))]
        }
        Change::Note { topic, data } if only.is_none() => {
            let data: Value = serde_json::from_slice(data).unwrap_or(Value::Null);
            match topic.as_str() {
                "peer" => vec![("peer", data)],
                "head" => vec![("head", data)],
                _ => vec![("health", data)],
            }
        }
        Change::Entries { .. }
        | Change::Cut { .. }
        | Change::Verdict { .. }
        | Change::State { .. }
        | Change::Forgotten { .. }
        | Change::Pin { .. }
        | Change::Control { .. }
        | Change::Job { .. }
        | Change::GuardReset
        | Change::Block { .. }
        | Change::Note { .. } => Vec::new(),
    })
}
