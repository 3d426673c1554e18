//! Append, `/throughline/append/1`: a signed entry for the holder to take in. `docs/PROTOCOL.md` §Streams.
//!
//! The holder answers with the head that the entry became, or with what to sign on instead. An entry that it took
//! before is answered as then, marked as replayed: asking again is always safe.

use std::sync::Arc;

use super::chain::{seq, session};
use super::{
    Credentials, GrantsField, Message, WireError, blobs, entry_blob, payload_blob, unknown_word, word_of,
};
use crate::code::Reject;
use crate::codec::Map;
use crate::id::{EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use crate::limits;
use crate::schema::{self, Fields};

/// A request to append one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendRequest {
    /// Who asks, and the capability that the entry cites.
    pub credentials: Credentials,
    /// The signed entry.
    pub entry: Arc<[u8]>,
    /// Its payload.
    pub payload: Option<Arc<[u8]>>,
}

impl Message for AppendRequest {
    fn to_map(&self) -> Map<'_> {
        let map = Map::new().with("entry", &self.entry[..]).with_some("payload", self.payload.as_deref());
        self.credentials.write(map, GrantsField::Optional)
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "append", &["entry"])?;
        Ok(AppendRequest {
            entry: fields.need("entry", entry_blob)?,
            payload: fields.maybe("payload", payload_blob)?,
            credentials: Credentials::read(&fields, GrantsField::Optional)?,
        })
    }
}

/// The answer to an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendAnswer {
    /// The entry is in the session and on disk.
    Accepted(Accepted),
    /// It was signed on an entry that is not the head.
    Conflict {
        /// What to sign on.
        base: Base,
        /// The entries after the refused entry's `prev`, oldest first; at most [`limits::CONFLICT_BETWEEN_MAX`].
        between: Vec<Arc<[u8]>>,
    },
    /// It was refused.
    Error(WireError),
}

/// Where an accepted entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The entry, which became the head.
    pub head: EntryCid,
    /// Its position.
    pub seq: Seq,
    /// Its epoch.
    pub epoch: Epoch,
    /// Whether it had been accepted before.
    pub replayed: bool,
}

/// What the next entry of a session has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The session.
    pub session: SessionId,
    /// The head, which becomes `prev`.
    pub prev: EntryCid,
    /// The position to sign.
    pub seq: Seq,
    /// The skip pointer to sign, when it is not `prev`.
    pub skip: Option<EntryCid>,
    /// The epoch to sign.
    pub epoch: Epoch,
    /// Who holds the session.
    pub holder: Option<Principal>,
    /// `ts` of the head: the next one's is not lower.
    pub not_before: UnixMillis,
}

impl Message for AppendAnswer {
    fn to_map(&self) -> Map<'_> {
        match self {
            AppendAnswer::Accepted(accepted) => Map::new()
                .with("k", "accepted")
                .with("head", accepted.head)
                .with("seq", accepted.seq)
                .with_some("epoch", (accepted.epoch > Epoch::ZERO).then_some(accepted.epoch))
                .with_some("replayed", accepted.replayed.then_some(true)),
            AppendAnswer::Conflict { base, between } => {
                Map::new().with("k", "conflict").with("base", base.to_map()).with("between", blobs(between))
            }
            AppendAnswer::Error(error) => error.to_map(),
        }
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        match word_of(map, "k")? {
            "accepted" => {
                let fields = Fields::open(map, "accepted", &["head", "seq"])?;
                Ok(AppendAnswer::Accepted(Accepted {
                    head: fields.need("head", schema::entry)?,
                    seq: fields.need("seq", seq)?,
                    epoch: fields.maybe("epoch", schema::epoch)?.unwrap_or(Epoch::ZERO),
                    replayed: fields.maybe("replayed", schema::bool)?.unwrap_or(false),
                }))
            }
            "conflict" => {
                let fields = Fields::open(map, "conflict", &["base", "between"])?;
                let between = schema::list(limits::CONFLICT_BETWEEN_MAX, entry_blob);
                Ok(AppendAnswer::Conflict {
                    base: fields.need("base", schema::map(Base::from_map))?,
                    between: fields.need("between", between)?,
                })
            }
            "error" => WireError::from_map(map).map(AppendAnswer::Error),
            _ => unknown_word("k", "accepted, conflict, error"),
        }
    }
}

impl Base {
    fn to_map(self) -> Map<'static> {
        Map::new()
            .with("genesis", self.session)
            .with("prev", self.prev)
            .with("seq", self.seq)
            .with("notBeforeMs", self.not_before)
            .with_some("skip", self.skip)
            .with_some("epoch", (self.epoch > Epoch::ZERO).then_some(self.epoch))
            .with_some("holder", self.holder)
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "base", &["genesis", "prev", "seq", "notBeforeMs"])?;
        Ok(Base {
            session: fields.need("genesis", session)?,
            prev: fields.need("prev", schema::entry)?,
            seq: fields.need("seq", seq)?,
            skip: fields.maybe("skip", schema::entry)?,
            epoch: fields.maybe("epoch", schema::epoch)?.unwrap_or(Epoch::ZERO),
            holder: fields.maybe("holder", schema::principal)?,
            not_before: fields.need("notBeforeMs", schema::millis)?,
        })
    }
}
