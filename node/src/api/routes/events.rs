//! Events as SSE: after their commit only, each once, resumable by `Last-Event-ID`.
//!
//! The log of the store is the source, so a reader that comes back misses nothing; where the log no longer reaches back it
//! gets `reset` and reads the state anew. An event may be several messages — an adoption is one message an entry — so an id
//! says how far into the event its message is: `<event>.<message>`, and `<event>` after the last one. A reader that was cut
//! off anywhere goes on with the message after the one it has.

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
use throughline_protocol::id::{Cid, Codec, EntryCid, HashKind, Seq, SessionId};
use throughline_store::{Change, Event, EventPage, Reader, StoredEntry};
use tokio::sync::watch;

use super::called::Called;
use super::input;
use crate::api::App;
use crate::api::error::Answer;
use crate::api::openapi::{EVENT_TYPES, LAST_EVENT_ID};
use crate::core::{Devices, Node, shape};

/// Events read from the log at a time.
const PAGE: usize = 64;
/// Messages made at a time.
const MESSAGES_MAX: usize = 1_024;
/// A comment keeps idle connections open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) fn routes() -> Router<App> {
    Router::new().route("/v1/events", get(events))
}

/// How far a reader is: all of the events up to `event`, and `messages` messages of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    event: u64,
    messages: usize,
}

impl Place {
    fn after(event: u64) -> Self {
        Place { event, messages: 0 }
    }

    /// Reads an id. One that is no id of this log is before everything, so its reader is told to begin anew.
    fn parse(id: &str) -> Option<Self> {
        match id.split_once('.') {
            None => id.parse().ok().map(Place::after),
            Some((event, messages)) => {
                let event: u64 = event.parse().ok()?;
                Some(Place { event: event.checked_sub(1)?, messages: messages.parse().ok()? })
            }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.messages {
            0 => write!(f, "{}", self.event),
            messages => write!(f, "{}.{messages}", self.event + 1),
        }
    }
}

/// What a reader wants to hear.
#[derive(Clone)]
struct Filter {
    session: Option<SessionId>,
    types: Option<Vec<String>>,
}

impl Filter {
    fn wants(&self, name: &str) -> bool {
        self.types.as_ref().is_none_or(|types| types.iter().any(|wanted| wanted == name))
    }

    fn is_about(&self, session: &SessionId) -> bool {
        self.session.is_none_or(|only| only == *session)
    }
}

struct Following {
    app: App,
    commits: watch::Receiver<u64>,
    stopping: watch::Receiver<bool>,
    /// None: the reader gave an id that is none, and begins anew.
    place: Option<Place>,
    filter: Filter,
    ready: VecDeque<String>,
}

async fn events(State(app): State<App>, query: input::Query, headers: HeaderMap) -> Answer<Response<Body>> {
    let session = input::maybe(&query, "session")?;
    let types = query.get("types").map(|types| types.split(',').map(str::to_owned).collect());
    let commits = app.node().commits();
    let stopping = app.node().stopping();
    let place = match headers.get(LAST_EVENT_ID) {
        Some(id) => id.to_str().ok().and_then(Place::parse),
        None => Some(Place::after(app.act(|node| Ok(node.reader()?.newest_event()?)).await?)),
    };
    // An id without data is no event, but what a reader resumes from, even if nothing comes.
    let begins = place.map(|place| format!("id: {place}\n\n")).unwrap_or_default();
    let ready = VecDeque::from([format!(": throughline\n{begins}")]);
    let filter = Filter { session, types };
    let following = Following { app, commits, stopping, place, filter, ready };
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
            if self.read_on().await? == Read::Some {
                continue;
            }
            let woken = tokio::select! {
                changed = self.commits.changed() => changed.ok().map(|()| Woken::ByCommit),
                _ = self.stopping.wait_for(|stop| *stop) => None,
                () = tokio::time::sleep(KEEP_ALIVE) => Some(Woken::ByClock),
            };
            if woken? == Woken::ByClock {
                return Some(self.keep_alive());
            }
        }
    }

    /// A comment, with the place: events that the reader does not want move it too.
    fn keep_alive(&self) -> String {
        self.place
            .map_or_else(|| ": keep-alive\n\n".to_owned(), |place| format!(": keep-alive\nid: {place}\n\n"))
    }

    /// Reads the next page of the log.
    async fn read_on(&mut self) -> Option<Read> {
        let (place, filter) = (self.place, self.filter.clone());
        let read = move |node: &Node| {
            let reader = node.reader()?;
            let known = Known { called: Called::by(node, &reader)?, devices: Devices::of(node, &reader) };
            page(&reader, place, &filter, &known)
        };
        let page = self.app.act(read).await.ok()?;
        let read = if self.place == Some(page.place) { Read::Nothing } else { Read::Some };
        self.place = Some(page.place);
        self.ready.extend(page.texts);
        Some(read)
    }
}

/// What ended the wait for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    ByCommit,
    ByClock,
}

/// Whether a reading of the log found anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Some,
    Nothing,
}

struct Page {
    place: Place,
    texts: Vec<String>,
}

/// What names the keys in events, and tells the owner's devices from others.
struct Known<'a> {
    called: Called,
    devices: Devices<'a>,
}

fn page(reader: &Reader, place: Option<Place>, filter: &Filter, known: &Known<'_>) -> Answer<Page> {
    let Some(place) = place else { return reset(reader, reader.newest_event()?, filter) };
    let events = match reader.events_since(place.event, PAGE)? {
        EventPage::Reset { newest } => return reset(reader, newest, filter),
        EventPage::Events(events) => events,
    };
    let mut page = Page { place, texts: Vec::new() };
    for event in events {
        let done = page.place.messages;
        let room = MESSAGES_MAX.saturating_sub(page.texts.len());
        let Told { messages, rest } = told(reader, &event, (filter, known), done, room)?;
        let count = messages.len();
        for (at, (name, data)) in messages.into_iter().enumerate() {
            let is_last = at + 1 == count && rest == Rest::Nothing;
            page.place = if is_last {
                Place::after(event.id)
            } else {
                Place { event: event.id - 1, messages: done + at + 1 }
            };
            debug_assert!(EVENT_TYPES.contains(&name), "{name} is described nowhere");
            if filter.wants(name) {
                page.texts.push(format!("id: {}\nevent: {name}\ndata: {data}\n\n", page.place));
            }
        }
        if rest == Rest::More {
            break;
        }
        page.place = Place::after(event.id);
    }
    Ok(page)
}

/// The heads of all sessions, for a reader that cannot go on where it was.
fn reset(reader: &Reader, newest: u64, filter: &Filter) -> Answer<Page> {
    let mut heads: Vec<Value> = Vec::new();
    let mut after = None;
    loop {
        let rows = reader.sessions(after, 500)?;
        let Some(last) = rows.last() else { break };
        after = Some(last.session);
        heads.extend(rows.iter().filter(|row| filter.is_about(&row.session)).map(|row| {
            json!({"session": row.session.to_string(), "head": row.tip.cid.to_string(), "seq": row.tip.seq.get()})
        }));
    }
    let data = json!({"heads": heads});
    let text = format!("id: {newest}\nevent: reset\ndata: {data}\n\n");
    Ok(Page { place: Place::after(newest), texts: vec![text] })
}

/// Messages of an event, from one on.
struct Told {
    messages: Vec<(&'static str, Value)>,
    rest: Rest,
}

/// Whether an event has more messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    More,
    Nothing,
}

/// An event's messages after the first `done`, at most `room` of them.
fn told(
    reader: &Reader,
    event: &Event,
    (filter, known): (&Filter, &Known<'_>),
    done: usize,
    room: usize,
) -> Answer<Told> {
    if let Change::Entries { session, first, last, head, .. } = &event.change {
        if !filter.is_about(session) {
            return Ok(Told { messages: Vec::new(), rest: Rest::Nothing });
        }
        return entries((reader, &known.called), *session, (*first, *last, *head), done, room);
    }
    let mut messages = told_of_other(reader, event, filter, &known.called)?;
    if let Some(act) = known.devices.act(event)?.filter(|act| filter.is_about(&act.session())) {
        messages.push(("device", act.to_json(known.called.name(act.device()))));
    }
    messages.drain(..done.min(messages.len()));
    Ok(Told { messages, rest: Rest::Nothing })
}

/// The entries of an adoption, as they were adopted: those that have left the main chain since are told too, before the
/// event that says so.
fn entries(
    (reader, called): (&Reader, &Called),
    session: SessionId,
    (first, last, head): (Seq, Seq, EntryCid),
    done: usize,
    room: usize,
) -> Answer<Told> {
    let from = first.get().saturating_add(done as u64);
    let until = last.get().min(from.saturating_add(room as u64).saturating_sub(1));
    let rest = if until < last.get() { Rest::More } else { Rest::Nothing };
    if reader.session(session)?.is_none() || from > until {
        return Ok(Told { messages: Vec::new(), rest });
    }
    let (from, until) = (Seq::new(from)?, Seq::new(until)?);
    let stored: Vec<StoredEntry> = if reader.is_ancestor(session, head, last)? {
        reader.entries(session, from, until)?.collect::<Result<_, _>>()?
    } else {
        walked(reader, head, from, until)?
    };
    let messages = stored.into_iter().map(|stored| {
        let (cid, seq) = (stored.cid, stored.seq);
        let decoded = Decoded::<Entry>::decode(stored.bytes)?;
        let entry = decoded.value();
        let data = json!({
            "session": session.to_string(), "cid": cid.to_string(), "seq": seq.get(),
            "epoch": entry.epoch().get(), "type": entry.body.type_name(), "signer": entry.signer.to_string(),
            "signerAlias": called.name(entry.signer),
        });
        Ok(("entry", data))
    });
    Ok(Told { messages: messages.collect::<Answer<_>>()?, rest })
}

/// The entries of a branch from `from` to `until`, found from its end.
fn walked(reader: &Reader, head: EntryCid, from: Seq, until: Seq) -> Answer<Vec<StoredEntry>> {
    let mut found = Vec::new();
    let mut at = Some(head);
    while let Some(cid) = at {
        let Some((_, stored)) = reader.entry(cid)? else { break };
        if stored.seq < from {
            break;
        }
        at = Decoded::<Entry>::decode(stored.bytes.as_slice())?.value().prev();
        if stored.seq <= until {
            found.push(stored);
        }
    }
    found.reverse();
    Ok(found)
}

/// An event other than an adoption, as messages.
fn told_of_other(
    reader: &Reader,
    event: &Event,
    filter: &Filter,
    called: &Called,
) -> Answer<Vec<(&'static str, Value)>> {
    let (about, only) = (|session: &SessionId| filter.is_about(session), filter.session);
    Ok(match &event.change {
        Change::Cut { session, keep_through, entries } if about(session) => vec![(
            "cut",
            json!({"session": session.to_string(), "keptThrough": keep_through.get(), "entries": entries}),
        )],
        Change::Verdict { session, from, to } if about(session) => {
            // How far it holds now: the event itself may be old.
            let head = reader.session(*session)?.and_then(|row| row.summary.head);
            let at = head.map(|head| json!({"seq": head.seq.get(), "cid": head.cid.to_string()}));
            vec![("verdict", json!({"session": session.to_string(), "from": from, "to": to, "at": at}))]
        }
        Change::Evidence { session, kind, id } if about(session) => {
            let id = Cid::from_parts(Codec::Raw, HashKind::Sha256, *id);
            vec![("fork", json!({"session": session.to_string(), "shows": kind, "id": id.to_string()}))]
        }
        Change::State { session } if about(session) => {
            let state = reader.session(*session)?.map(|row| shape::State::of(&row).word());
            vec![("state", json!({"session": session.to_string(), "state": state}))]
        }
        Change::Forgotten { session } if about(session) => {
            vec![("forgotten", json!({"session": session.to_string()}))]
        }
        Change::Pin { session } if about(session) => {
            let pinned = reader.pin(*session)?.is_some();
            vec![("pin", json!({"session": session.to_string(), "pinned": pinned}))]
        }
        Change::Control { owner, hash, .. } if only.is_none() => {
            let (cid, alias) = (EntryCid::from_digest(*hash), called.name(*owner));
            vec![(
                "capability",
                json!({"owner": owner.to_string(), "ownerAlias": alias, "cid": cid.to_string()}),
            )]
        }
        Change::Job { kind, id } if only.is_none() => {
            let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            // `id` and `kind` alone are words of the event to those who print it.
            let (name, told) = if kind == "move" { ("move", &id) } else { ("job", kind) };
            vec![(name, json!({"kind": kind, "id": id, name: told}))]
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
        | Change::Evidence { .. }
        | Change::State { .. }
        | Change::Forgotten { .. }
        | Change::Pin { .. }
        | Change::Control { .. }
        | Change::Job { .. }
        | Change::ByDelegate { .. }
        | Change::GuardReset
        | Change::Block { .. }
        | Change::Note { .. } => Vec::new(),
    })
}
