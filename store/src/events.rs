//! The event log: what changed, in the order of the commits, written in the transaction of the change.
//!
//! Ids rise by one and are never reused. A reader that asks for what came after an id gets it, or [`EventPage::Reset`] when the
//! log no longer reaches back so far, or never reached so far (another or a restored store): then it reads the state
//! anew instead of guessing.

use std::collections::BTreeSet;

use throughline_protocol::codec::{self, Map};
use throughline_protocol::id::{EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};

use crate::error::StoreError;
use crate::rows::{Fields, bytes_value, cid_value};
use crate::source::{Source, counter};
use crate::tables::{self, meta};
use crate::writer::{Changes, Step, View};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its id.
    pub id: u64,
    /// When, as the caller of the change said.
    pub at: UnixMillis,
    /// What.
    pub change: Change,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Entries were adopted: one event a segment, so a reader lists the entries between.
    Entries {
        /// The session.
        session: SessionId,
        /// The first one's seq.
        first: Seq,
        /// The last one's seq.
        last: Seq,
        /// The last one.
        head: EntryCid,
        /// Its epoch.
        epoch: Epoch,
    },
    /// Entries above `keep_through` left the main chain.
    Cut {
        /// The session.
        session: SessionId,
        /// The last entry that stayed.
        keep_through: Seq,
        /// How many left.
        entries: u64,
    },
    /// The verdict changed.
    Verdict {
        /// The session.
        session: SessionId,
        /// The word before.
        from: String,
        /// The word now.
        to: String,
    },
    /// There is evidence that was not held before.
    Evidence {
        /// The session, which need not be held.
        session: SessionId,
        /// The word of what it shows.
        kind: String,
        /// sha2-256 of the file.
        id: [u8; 32],
    },
    /// The state changed: active, frozen, retired.
    State {
        /// The session.
        session: SessionId,
    },
    /// The session is not held any more.
    Forgotten {
        /// The session.
        session: SessionId,
    },
    /// A capability, tombstone or Ref was stored.
    Control {
        /// The owner it names.
        owner: Principal,
        /// sha2-256 of its bytes.
        hash: [u8; 32],
        /// Who signed it, for a Ref under a capability.
        by: Option<Principal>,
    },
    /// A delegate of the owner did what the owner may want to know of.
    ByDelegate {
        /// The session.
        session: SessionId,
        /// Who.
        by: Principal,
        /// The note that changes the class or deletes; none: it had the session frozen.
        entry: Option<EntryCid>,
    },
    /// A pin was set or removed.
    Pin {
        /// The session.
        session: SessionId,
    },
    /// A payload or file arrived or was dropped.
    Block {
        /// Its sha2-256 digest.
        digest: [u8; 32],
    },
    /// A job's journal changed.
    Job {
        /// Its kind.
        kind: String,
        /// Its id.
        id: Vec<u8>,
    },
    /// The sign guard lost its trust: the data directory is a copy, or was restored.
    GuardReset,
    /// Something that the node says; opaque here.
    Note {
        /// What about, such as `peer` or `health`.
        topic: String,
        /// What, for the node to read.
        data: Vec<u8>,
    },
}

/// What came after an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventPage {
    /// Events in order; empty when nothing came.
    Events(Vec<Event>),
    /// The log has a gap after the id that was asked for.
    Reset {
        /// The newest id; reading the state now and going on after it misses nothing.
        newest: u64,
    },
}

impl Change {
    fn to_map(&self) -> Map<'_> {
        let of = |kind: &'static str| Map::new().with("k", kind);
        let session = |kind, session: &SessionId| of(kind).with("session", cid_value(session.genesis()));
        match self {
            Change::Entries { session: id, first, last, head, epoch } => session("entries", id)
                .with("first", *first)
                .with("last", *last)
                .with("head", cid_value(*head))
                .with("epoch", *epoch),
            Change::Cut { session: id, keep_through, entries } => {
                session("cut", id).with("keep", *keep_through).with("entries", codec::uint(*entries))
            }
            Change::Verdict { session: id, from, to } => {
                session("verdict", id).with("from", from.as_str()).with("to", to.as_str())
            }
            Change::Evidence { session: of, kind, id } => {
                session("evidence", of).with("kind", kind.as_str()).with("id", bytes_value(id))
            }
            Change::State { session: id } => session("state", id),
            Change::Forgotten { session: id } => session("forgotten", id),
            Change::Control { owner, hash, by } => {
                of("control").with("owner", *owner).with("hash", bytes_value(hash)).with_some("by", *by)
            }
            Change::ByDelegate { session: id, by, entry } => {
                session("byDelegate", id).with("by", *by).with_some("entry", entry.map(cid_value))
            }
            Change::Pin { session: id } => session("pin", id),
            Change::Block { digest } => of("block").with("hash", bytes_value(digest)),
            Change::Job { kind, id } => of("job").with("kind", kind.as_str()).with("id", bytes_value(id)),
            Change::GuardReset => of("guardReset"),
            Change::Note { topic, data } => {
                of("note").with("topic", topic.as_str()).with("data", bytes_value(data))
            }
        }
    }

    fn read(fields: &Fields<'_>) -> Result<Self, StoreError> {
        let session = || fields.cid("session").map(SessionId::of_genesis);
        Ok(match fields.text("k")? {
            "entries" => Change::Entries {
                session: session()?,
                first: fields.seq("first")?,
                last: fields.seq("last")?,
                head: fields.cid("head")?,
                epoch: fields.epoch("epoch")?,
            },
            "cut" => Change::Cut {
                session: session()?,
                keep_through: fields.seq("keep")?,
                entries: fields.uint("entries")?,
            },
            "verdict" => Change::Verdict {
                session: session()?,
                from: fields.text("from")?.to_owned(),
                to: fields.text("to")?.to_owned(),
            },
            "evidence" => Change::Evidence {
                session: session()?,
                kind: fields.text("kind")?.to_owned(),
                id: fields.fixed("id")?,
            },
            "state" => Change::State { session: session()? },
            "forgotten" => Change::Forgotten { session: session()? },
            "control" => Change::Control {
                owner: fields.principal("owner")?,
                hash: fields.fixed("hash")?,
                by: fields.maybe("by", |fields| fields.principal("by"))?,
            },
            "byDelegate" => Change::ByDelegate {
                session: session()?,
                by: fields.principal("by")?,
                entry: fields.maybe("entry", |fields| fields.cid("entry"))?,
            },
            "pin" => Change::Pin { session: session()? },
            "block" => Change::Block { digest: fields.fixed("hash")? },
            "job" => Change::Job { kind: fields.text("kind")?.to_owned(), id: fields.bytes("id")?.to_vec() },
            "guardReset" => Change::GuardReset,
            "note" => {
                Change::Note { topic: fields.text("topic")?.to_owned(), data: fields.bytes("data")?.to_vec() }
            }
            _ => return Err(StoreError::corrupt("an event of an unknown kind")),
        })
    }
}

/// Appends an event; returns its id.
pub(crate) fn write(changes: &Changes<'_>, at: UnixMillis, change: &Change) -> Result<u64, StoreError> {
    let id = changes.next_number(meta::NEXT_EVENT)?;
    let row = codec::encode_map(&change.to_map().with("at", at));
    changes.put(tables::EVENTS, id, row.as_slice())?;
    Ok(id)
}

/// The newest id; 0 before the first event.
pub(crate) fn newest(source: &impl Source) -> Result<u64, StoreError> {
    Ok(counter(source, meta::NEXT_EVENT)?.saturating_sub(1))
}

/// Reads one row.
pub(crate) fn read(id: u64, row: &[u8]) -> Result<Event, StoreError> {
    let fields = Fields::read(row, "event")?;
    Ok(Event { id, at: fields.millis("at")?, change: Change::read(&fields)? })
}

/// At most `limit` events after `id`. One that cannot be read is a gap in the log, and told as any other.
pub(crate) fn since(source: &impl Source, id: u64, limit: usize) -> Result<EventPage, StoreError> {
    let newest = newest(source)?;
    let table = source.table(tables::EVENTS)?;
    let oldest = table.first()?.map_or(newest + 1, |(id, _)| id.value());
    if id > newest || id + 1 < oldest {
        return Ok(EventPage::Reset { newest });
    }
    let mut events = Vec::new();
    for row in table.range(id + 1..)?.take(limit) {
        let (id, row) = row?;
        match read(id.value(), row.value()) {
            Ok(event) => events.push(event),
            Err(_) if events.is_empty() => return Ok(EventPage::Reset { newest }),
            // Those before it first; the gap is told to who asks on.
            Err(_) => break,
        }
    }
    Ok(EventPage::Events(events))
}

/// The newest events of these delegates, at most `limit`, newest first. One that cannot be read is passed over.
pub(crate) fn by(
    source: &impl Source,
    delegates: &BTreeSet<Principal>,
    limit: usize,
) -> Result<Vec<Event>, StoreError> {
    let mut events = Vec::new();
    for row in source.table(tables::EVENTS)?.iter()?.rev() {
        let (id, row) = row?;
        let Ok(event) = read(id.value(), row.value()) else { continue };
        let (Change::Control { by: Some(by), .. } | Change::ByDelegate { by, .. }) = &event.change else {
            continue;
        };
        if delegates.contains(by) {
            events.push(event);
            if events.len() == limit {
                break;
            }
        }
    }
    Ok(events)
}

/// Removes the oldest events above `keep`, at most `limit` of them; returns how many.
pub(crate) fn trim(changes: &Changes<'_>, keep: u64, limit: usize) -> Result<usize, StoreError> {
    let newest = newest(changes.txn)?;
    let over: Vec<u64> = {
        let table = changes.txn.table(tables::EVENTS)?;
        let rows = table.range(..=newest.saturating_sub(keep))?.take(limit);
        rows.map(|row| Ok(row?.0.value())).collect::<Result<_, StoreError>>()?
    };
    for id in &over {
        changes.remove(tables::EVENTS, *id)?;
    }
    Ok(over.len())
}

/// Writes an event that the node says.
#[derive(Clone, Debug)]
pub struct PutNote {
    /// When.
    pub at: UnixMillis,
    /// What about, such as `peer` or `health`.
    pub topic: String,
    /// What, for the node to read.
    pub data: Vec<u8>,
}

impl Step for PutNote {
    /// The event's id.
    type Output = u64;
    type Error = StoreError;
    type Plan = ();

    fn check(&self, _view: &View<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn write(self, (): (), changes: &Changes<'_>) -> Result<u64, StoreError> {
        write(changes, self.at, &Change::Note { topic: self.topic, data: self.data })
    }
}
