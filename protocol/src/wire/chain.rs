//! Chain sync, `/throughline/chain/1`: compare heads, fetch control blobs, ranges and blobs. `docs/PROTOCOL.md` §Streams.
//!
//! A range answer is the skip path, then control blobs, then entries oldest first, then `end`: base, length and
//! checkpoints are fixed by hash before any bulk. [`super::pack`] cuts long lists into frames.

use std::collections::BTreeSet;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{
    Credentials, GrantsField, Message, WireError, blob, blobs, control_blob, entry_blob, payload_blob,
    unknown_word, word_of,
};
use crate::code::Reject;
use crate::codec::{Map, Value, uint as uint_value};
use crate::id::{Cid, EntryCid, Epoch, Principal, Seq, SessionId};
use crate::limits;
use crate::schema::{self, Fields};

/// A request of the chain sync protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRequest {
    /// Who asks and under what.
    pub credentials: Credentials,
    /// What is asked.
    pub ask: ChainAsk,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainAsk {
    /// Compare owners' control blobs and sessions' heads.
    Heads {
        /// What the asker holds of each owner; at most [`limits::HEADS_OWNERS_MAX`].
        owners: Vec<OwnerState>,
        /// Sessions asked for, at most [`limits::HEADS_SESSIONS_MAX`]; none asks for all that the asker may see.
        sessions: Vec<SessionId>,
    },
    /// Fetch the control blobs of an owner that the asker does not hold.
    Control {
        /// The owner.
        owner: Principal,
        /// sha-256 of the blobs that it holds; at most [`limits::CONTROL_HAVE_MAX`].
        have: Vec<[u8; 32]>,
    },
    /// Fetch part of a session.
    Range(RangeAsk),
    /// Fetch single blocks; at most [`limits::BLOBS_MAX`].
    Blobs {
        /// Which, in the order in which they are answered.
        cids: Vec<Cid>,
    },
    /// Tell an announcement to a peer that may read the session.
    Announce {
        /// The message; see [`super::announce`].
        message: Arc<[u8]>,
    },
}

/// Part of a session, up to an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeAsk {
    /// The session.
    pub session: SessionId,
    /// The entry to end with.
    pub want: EntryAt,
    /// Locator: tip, skip of the tip, … genesis; none means nothing is held. At most [`limits::LOCATOR_MAX`].
    pub have: Vec<EntryCid>,
    /// Whether payloads come along.
    pub payloads: Payloads,
}

/// An entry and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAt {
    /// The entry.
    pub cid: EntryCid,
    /// Its position.
    pub seq: Seq,
}

/// Whether payloads come along with entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payloads {
    /// Entries only.
    Without,
    /// Each entry is followed by its payload, where the asker may see it.
    With,
}

/// What a peer holds of an owner's Capabilities and Tombstones. Refs do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerState {
    /// The owner.
    pub owner: Principal,
    /// How many blobs.
    pub count: u64,
    /// sha-256 over their ascending hashes.
    pub digest: [u8; 32],
}

impl OwnerState {
    /// The state of an owner of whom blobs with these sha-256 hashes are held: all Capabilities without `audience` and
    /// all Tombstones that the owner signed.
    #[must_use]
    pub fn of(owner: Principal, hashes: &BTreeSet<[u8; 32]>) -> Self {
        OwnerState { owner, count: hashes.len() as u64, digest: control_digest(hashes) }
    }

    fn to_map(self) -> Map<'static> {
        let count = uint_value(self.count);
        Map::new().with("owner", self.owner).with("count", count).with("digest", self.digest.to_vec())
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "owners[]", &["owner", "count", "digest"])?;
        Ok(OwnerState {
            owner: fields.need("owner", schema::principal)?,
            count: fields.need("count", schema::uint)?,
            digest: fields.need("digest", schema::fixed)?,
        })
    }
}

/// sha-256 over the ascending hashes, concatenated; of none: sha-256 of nothing.
#[must_use]
pub fn control_digest(hashes: &BTreeSet<[u8; 32]>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for hash in hashes {
        digest.update(hash);
    }
    digest.finalize().into()
}

impl Message for ChainRequest {
    fn to_map(&self) -> Map<'_> {
        let map = match &self.ask {
            ChainAsk::Heads { owners, sessions } => Map::new()
                .with("op", "heads")
                .with("owners", owner_list(owners))
                .with("sessions", sessions.iter().map(|id| Value::from(*id)).collect::<Vec<_>>()),
            ChainAsk::Control { owner, have } => Map::new()
                .with("op", "control")
                .with("owner", *owner)
                .with("have", have.iter().map(|hash| Value::from(&hash[..])).collect::<Vec<_>>()),
            ChainAsk::Range(range) => range.to_map(),
            ChainAsk::Blobs { cids } => Map::new()
                .with("op", "blobs")
                .with("cids", cids.iter().map(|cid| Value::Link(*cid)).collect::<Vec<_>>()),
            ChainAsk::Announce { message } => Map::new().with("op", "announce").with("message", &message[..]),
        };
        self.credentials.write(map, GrantsField::Optional)
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let ask = match word_of(map, "op")? {
            "heads" => {
                let fields = Fields::open(map, "heads", &["owners", "sessions"])?;
                let sessions = schema::list(limits::HEADS_SESSIONS_MAX, session);
                ChainAsk::Heads {
                    owners: read_owners(&fields)?,
                    sessions: fields.need("sessions", sessions)?,
                }
            }
            "control" => {
                let fields = Fields::open(map, "control", &["owner", "have"])?;
                ChainAsk::Control {
                    owner: fields.need("owner", schema::principal)?,
                    have: fields.need("have", schema::list(limits::CONTROL_HAVE_MAX, schema::fixed::<32>))?,
                }
            }
            "range" => ChainAsk::Range(RangeAsk::from_map(map)?),
            "blobs" => {
                let fields = Fields::open(map, "blobs", &["cids"])?;
                ChainAsk::Blobs { cids: fields.need("cids", schema::list(limits::BLOBS_MAX, schema::block))? }
            }
            "announce" => {
                let fields = Fields::open(map, "announce", &["message"])?;
                let message = blob::<{ limits::ANNOUNCEMENT_BYTES_MAX }>;
                ChainAsk::Announce { message: fields.need("message", message)? }
            }
            _ => return unknown_word("op", "heads, control, range, blobs, announce"),
        };
        let fields = Fields::open(map, "request", &[])?;
        Ok(ChainRequest { credentials: Credentials::read(&fields, GrantsField::Optional)?, ask })
    }
}

impl RangeAsk {
    fn to_map(&self) -> Map<'_> {
        let want = Map::new().with("cid", self.want.cid).with("seq", self.want.seq);
        Map::new()
            .with("op", "range")
            .with("genesis", self.session)
            .with("want", want)
            .with("have", self.have.iter().map(|cid| Value::from(*cid)).collect::<Vec<_>>())
            .with("payloads", self.payloads == Payloads::With)
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "range", &["genesis", "want", "have", "payloads"])?;
        let want = schema::map(|map| {
            let fields = Fields::open(map, "want", &["cid", "seq"])?;
            Ok(EntryAt { cid: fields.need("cid", schema::entry)?, seq: fields.need("seq", seq)? })
        });
        let with_payloads = fields.need("payloads", schema::bool)?;
        Ok(RangeAsk {
            session: fields.need("genesis", session)?,
            want: fields.need("want", want)?,
            have: fields.need("have", schema::list(limits::LOCATOR_MAX, schema::entry))?,
            payloads: if with_payloads { Payloads::With } else { Payloads::Without },
        })
    }
}

/// One frame of an answer of the chain sync protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainAnswer {
    /// What the answerer holds.
    Heads {
        /// Of each owner.
        owners: Vec<OwnerState>,
        /// Of each session that the asker may see.
        sessions: Vec<HeadState>,
    },
    /// Entries of the skip path, from `want` down to the base.
    Path(Vec<Arc<[u8]>>),
    /// Control blobs.
    Control(Vec<Arc<[u8]>>),
    /// Entries, oldest first.
    Entries(Vec<EntryItem>),
    /// One block that was asked for.
    Blob {
        /// Which.
        cid: Cid,
        /// Its bytes; none when it is absent or not for the asker. The empty block reads as none too: nobody has to
        /// ask for it.
        bytes: Option<Arc<[u8]>>,
    },
    /// The answer is complete.
    End,
    /// The answer ends here.
    Error(WireError),
}

/// The head of a session that a peer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadState {
    /// The session.
    pub session: SessionId,
    /// The head.
    pub head: EntryCid,
    /// Its position.
    pub seq: Seq,
    /// Its epoch.
    pub epoch: Epoch,
    /// The Ref that says so, field `ref`.
    pub reference: Option<Arc<[u8]>>,
}

/// An entry of a range answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryItem {
    /// The signed entry.
    pub entry: Arc<[u8]>,
    /// Its payload, when asked for, held and for the asker.
    pub payload: Option<Arc<[u8]>>,
}

impl Message for ChainAnswer {
    fn to_map(&self) -> Map<'_> {
        match self {
            ChainAnswer::Heads { owners, sessions } => Map::new()
                .with("k", "heads")
                .with("owners", owner_list(owners))
                .with("sessions", sessions.iter().map(|head| Value::Map(head.to_map())).collect::<Vec<_>>()),
            ChainAnswer::Path(entries) => Map::new().with("k", "path").with("entries", blobs(entries)),
            ChainAnswer::Control(held) => Map::new().with("k", "control").with("blobs", blobs(held)),
            ChainAnswer::Entries(items) => Map::new()
                .with("k", "entries")
                .with("items", items.iter().map(|item| Value::Map(item.to_map())).collect::<Vec<_>>()),
            ChainAnswer::Blob { cid, bytes } => {
                let bytes = bytes.as_deref().filter(|bytes| !bytes.is_empty());
                Map::new().with("k", "blob").with("cid", *cid).with_some("bytes", bytes)
            }
            ChainAnswer::End => Map::new().with("k", "end"),
            ChainAnswer::Error(error) => error.to_map(),
        }
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        match word_of(map, "k")? {
            "heads" => {
                let fields = Fields::open(map, "heads", &["owners", "sessions"])?;
                let heads = schema::list(limits::HEADS_SESSIONS_MAX, schema::map(HeadState::from_map));
                Ok(ChainAnswer::Heads {
                    owners: read_owners(&fields)?,
                    sessions: fields.need("sessions", heads)?,
                })
            }
            "path" => {
                let fields = Fields::open(map, "path", &["entries"])?;
                let entries = schema::list(limits::LOCATOR_MAX, entry_blob);
                fields.need("entries", entries).map(ChainAnswer::Path)
            }
            "control" => {
                let fields = Fields::open(map, "control", &["blobs"])?;
                let held = schema::list(limits::CONTROL_FRAME_MAX, control_blob);
                fields.need("blobs", held).map(ChainAnswer::Control)
            }
            "entries" => {
                let fields = Fields::open(map, "entries", &["items"])?;
                let items = schema::list(limits::ENTRIES_FRAME_MAX, schema::map(EntryItem::from_map));
                fields.need("items", items).map(ChainAnswer::Entries)
            }
            "blob" => {
                let fields = Fields::open(map, "blob", &["cid"])?;
                Ok(ChainAnswer::Blob {
                    cid: fields.need("cid", schema::block)?,
                    bytes: fields.maybe("bytes", blob::<{ limits::RAW_BLOCK_BYTES_MAX }>)?,
                })
            }
            "end" => Ok(ChainAnswer::End),
            "error" => WireError::from_map(map).map(ChainAnswer::Error),
            _ => unknown_word("k", "heads, path, control, entries, blob, end, error"),
        }
    }
}

impl HeadState {
    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with("genesis", self.session)
            .with("head", self.head)
            .with("seq", self.seq)
            .with_some("epoch", (self.epoch > Epoch::ZERO).then_some(self.epoch))
            .with_some("ref", self.reference.as_deref())
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "sessions[]", &["genesis", "head", "seq"])?;
        Ok(HeadState {
            session: fields.need("genesis", session)?,
            head: fields.need("head", schema::entry)?,
            seq: fields.need("seq", seq)?,
            epoch: fields.maybe("epoch", schema::epoch)?.unwrap_or(Epoch::ZERO),
            reference: fields.maybe("ref", control_blob)?,
        })
    }
}

impl EntryItem {
    fn to_map(&self) -> Map<'_> {
        Map::new().with("entry", &self.entry[..]).with_some("payload", self.payload.as_deref())
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "items[]", &["entry"])?;
        Ok(EntryItem {
            entry: fields.need("entry", entry_blob)?,
            payload: fields.maybe("payload", payload_blob)?,
        })
    }
}

fn owner_list(owners: &[OwnerState]) -> Vec<Value<'static>> {
    owners.iter().map(|state| Value::Map(state.to_map())).collect()
}

fn read_owners(fields: &Fields<'_, '_>) -> Result<Vec<OwnerState>, Reject> {
    fields.need("owners", schema::list(limits::HEADS_OWNERS_MAX, schema::map(OwnerState::from_map)))
}

/// A session, named by its genesis.
pub(super) fn session(value: &Value<'_>) -> Result<SessionId, Reject> {
    schema::entry(value).map(SessionId::of_genesis)
}

/// A position.
pub(super) fn seq(value: &Value<'_>) -> Result<Seq, Reject> {
    Seq::new(schema::uint(value)?)
}
