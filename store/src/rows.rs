//! How rows are written: fixed binary where there are many (entries), small canonical DAG-CBOR maps elsewhere.
//!
//! A row that does not read back is damage (`E_STORE_CORRUPT`), never a panic: the disk is not trusted more than a peer.

use throughline_protocol::codec::{self, Map, Value};
use throughline_protocol::entry::Class;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};

use crate::error::StoreError;

/// Levels of nesting that a row may have.
const ROW_DEPTH_MAX: usize = 4;

/// What this node may do in a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionState {
    /// It follows, and appends if it is the holder.
    #[default]
    Active,
    /// It stopped for a handoff; only an entry that opens an epoch above `epoch` may follow.
    Frozen {
        /// The epoch that ends.
        epoch: Epoch,
        /// The move that asked.
        move_id: [u8; 16],
    },
    /// It handed the session over and signs nothing in it up to `epoch`.
    Retired {
        /// The last epoch that it held.
        epoch: Epoch,
    },
}

/// What lists and `status` show of a session, so that they read no chain. Derived by the caller, kept here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// What selection returned; none before it ran.
    pub head: Option<Mark>,
    /// The verdict's word, such as `valid`.
    pub verdict: String,
    /// The class in force at the head.
    pub class: Class,
    /// The title, from a payload.
    pub title: Option<String>,
    /// Who holds the session at the head.
    pub holder: Option<Principal>,
    /// Entries after the head that no holder entry descends from yet.
    pub pending: u64,
    /// The deepest anchor on the path to the head.
    pub anchored_through: Option<Seq>,
}

impl Default for Summary {
    fn default() -> Self {
        Summary {
            head: None,
            verdict: "incomplete".to_owned(),
            class: Class::Internal,
            title: None,
            holder: None,
            pending: 0,
            anchored_through: None,
        }
    }
}

/// A session that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Which one.
    pub session: SessionId,
    /// Whose it is.
    pub owner: Principal,
    /// The agent's IRI, as the genesis spells it.
    pub agent: String,
    /// The last entry of the main chain.
    pub tip: Mark,
    /// The highest epoch known, which may be above that of the tip.
    pub fence: Epoch,
    /// What this node may do in it.
    pub state: SessionState,
    /// What lists show.
    pub summary: Summary,
    /// Bytes of the entries on the main chain.
    pub entry_bytes: u64,
    /// When the row was last written.
    pub changed: UnixMillis,
    /// The newest entry whose signer's clock was ahead of this one when it was adopted; none once time caught up with the tip.
    pub ahead: Option<Ahead>,
    /// The row's key; local, never shown.
    pub(crate) number: u64,
}

/// An entry of a clock that was ahead when it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Its seq.
    pub seq: Seq,
    /// Its time.
    pub ts: UnixMillis,
    /// How far ahead of this machine's clock that was then, in milliseconds.
    pub by_ms: u64,
}

/// The last entry that this node signed as holder of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRow {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its seq.
    pub seq: Seq,
    /// Its CID.
    pub cid: EntryCid,
    /// Its bytes, to be sent again after a crash.
    pub bytes: Vec<u8>,
}

/// The sign guard of a session as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuardMark {
    /// What was signed; none: nothing, as far as this table can tell.
    pub(crate) signed: Option<LastSigned>,
    /// The offer that this node answered last, where only a handoff of such an offer lets it sign. It lies in this row so that it
    /// goes whenever the row does: an answer of an earlier life of the directory, or from before a damage, frees nothing.
    pub(crate) offered: Option<Offered>,
}

/// What this node signed in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LastSigned {
    /// What was signed last is known.
    Known(SignedMark),
    /// What was signed is not known any more: a row that told it was damaged.
    Unknown {
        /// The highest epoch that was known then: nothing is signed in it or below.
        epoch: Epoch,
    },
}

/// An offer of a session: the epoch that a handoff would open, and the entry that it would stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offered {
    pub(crate) epoch: Epoch,
    pub(crate) head: EntryCid,
}

/// A [`GuardRow`] as stored. The bytes are those of the entry, which is held; a session that is forgotten leaves them here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedMark {
    pub(crate) epoch: Epoch,
    pub(crate) seq: Seq,
    pub(crate) cid: EntryCid,
    pub(crate) bytes: Option<Vec<u8>>,
}

/// Why an entry is held beside the main chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SideStatus {
    /// Signed on an older head of this epoch, or a branch that was not chosen.
    Branch,
    /// Of an epoch that has ended.
    Fenced,
    /// Signed under a revoked capability, without an anchor.
    Revoked,
    /// One of two histories of one key.
    Forked,
}

impl SideStatus {
    const ALL: [SideStatus; 4] =
        [SideStatus::Branch, SideStatus::Fenced, SideStatus::Revoked, SideStatus::Forked];

    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            SideStatus::Branch => "branch",
            SideStatus::Fenced => "fenced",
            SideStatus::Revoked => "revoked",
            SideStatus::Forked => "forked",
        }
    }
}

/// A pin: the session is kept and followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// When it was set.
    pub since: UnixMillis,
    /// How much is kept.
    pub depth: PinDepth,
}

/// How much of a pinned session is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinDepth {
    /// Entries only.
    Entries,
    /// Entries and their payloads.
    Payloads,
    /// All: entries, payloads and files.
    Files,
}

impl PinDepth {
    const ALL: [PinDepth; 3] = [PinDepth::Entries, PinDepth::Payloads, PinDepth::Files];

    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            PinDepth::Entries => "entries",
            PinDepth::Payloads => "payloads",
            PinDepth::Files => "files",
        }
    }
}

/// A main-chain entry as stored: `cid ‖ 0 ‖ bytes` or `cid ‖ 1 ‖ payload cid ‖ bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryRow<'a> {
    pub(crate) cid: EntryCid,
    pub(crate) payload: Option<EntryCid>,
    pub(crate) bytes: &'a [u8],
}

impl<'a> EntryRow<'a> {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(65 + self.bytes.len());
        out.extend(self.cid.digest());
        match &self.payload {
            None => out.push(0),
            Some(payload) => {
                out.push(1);
                out.extend(payload.digest());
            }
        }
        out.extend(self.bytes);
        out
    }

    /// Reads a row; the entry's bytes are hashed against its CID.
    pub(crate) fn from_bytes(row: &'a [u8]) -> Result<Self, StoreError> {
        let short = || StoreError::corrupt("an entry row is cut short");
        let (cid, rest) = row.split_first_chunk::<32>().ok_or_else(short)?;
        let (payload, bytes) = match rest.split_first().ok_or_else(short)? {
            (0, bytes) => (None, bytes),
            (1, rest) => {
                let (payload, bytes) = rest.split_first_chunk::<32>().ok_or_else(short)?;
                (Some(EntryCid::from_digest(*payload)), bytes)
            }
            (other, _) => return Err(StoreError::corrupt(format!("an entry row of kind {other}"))),
        };
        let cid = EntryCid::from_digest(*cid);
        check_hash(cid, bytes, "entry")?;
        Ok(EntryRow { cid, payload, bytes })
    }
}

/// Refuses bytes that do not hash to the CID they were stored under.
pub(crate) fn check_hash(cid: EntryCid, bytes: &[u8], what: &str) -> Result<(), StoreError> {
    if EntryCid::of(bytes) == cid {
        Ok(())
    } else {
        Err(StoreError::corrupt(format!("{what} {} hashes to something else", cid.short())))
    }
}

/// A side entry as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SideRow {
    pub(crate) status: SideStatus,
    pub(crate) seq: Seq,
    pub(crate) since: UnixMillis,
    pub(crate) payload: Option<EntryCid>,
    pub(crate) bytes: Vec<u8>,
}

/// Where a payload's or file's bytes are, and how long they stay when nothing links them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) size: u64,
    pub(crate) place: BlockPlace,
    /// Kept until then (Unix milliseconds) although nothing links it; 0 is no lease.
    pub(crate) lease_ms: u64,
    /// Session number and seq of the entry that brought it: most blocks are linked once. The others that link it are in
    /// the table of links.
    pub(crate) link: Option<(u64, u64)>,
}

/// Where a block's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockPlace {
    /// In the row itself.
    Table,
    /// In a file under `payloads/`.
    File,
}

impl BlockRow {
    /// Length of a row before the bytes.
    const HEAD_BYTES: usize = 33;

    /// `size ‖ lease ‖ session ‖ seq ‖ place ‖ bytes`; a file's bytes lie elsewhere. Session 0 is no link.
    pub(crate) fn to_bytes(self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::HEAD_BYTES + bytes.len());
        out.extend(self.size.to_be_bytes());
        out.extend(self.lease_ms.to_be_bytes());
        let (session, seq) = self.link.unwrap_or_default();
        out.extend(session.to_be_bytes());
        out.extend(seq.to_be_bytes());
        out.push(u8::from(self.place == BlockPlace::File));
        out.extend(bytes);
        out
    }

    /// Reads a row, and the bytes that lie in the table; they are not hashed here.
    pub(crate) fn split(row: &[u8]) -> Result<(Self, &[u8]), StoreError> {
        let damaged = || StoreError::corrupt("a block row is not readable");
        let (head, bytes) = row.split_first_chunk::<{ Self::HEAD_BYTES }>().ok_or_else(damaged)?;
        let number =
            |at: usize| head[at..at + 8].iter().fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
        let place = match (head[32], bytes) {
            (0, _) => BlockPlace::Table,
            (1, []) => BlockPlace::File,
            _ => return Err(damaged()),
        };
        let link = Some((number(16), number(24))).filter(|(session, _)| *session != 0);
        Ok((BlockRow { size: number(0), lease_ms: number(8), place, link }, bytes))
    }
}

/// A control blob as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlRow {
    pub(crate) since: UnixMillis,
    pub(crate) bytes: Vec<u8>,
}

/// The answer that an idempotency key stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyRow {
    pub(crate) request: [u8; 32],
    pub(crate) result: Vec<u8>,
    pub(crate) expires_ms: u64,
}

/// The fields of a stored map, being read.
pub(crate) struct Fields<'a> {
    map: Map<'a>,
    what: &'static str,
}

impl<'a> Fields<'a> {
    pub(crate) fn read(row: &'a [u8], what: &'static str) -> Result<Self, StoreError> {
        match codec::decode(row, ROW_DEPTH_MAX) {
            Ok((Value::Map(map), _)) => Ok(Fields { map, what }),
            Ok(_) => Err(StoreError::corrupt(format!("a {what} row is no map"))),
            Err(reject) => Err(StoreError::corrupt(format!("a {what} row: {}", reject.code))),
        }
    }

    fn bad(&self, key: &str) -> StoreError {
        StoreError::corrupt(format!("a {} row has no usable `{key}`", self.what))
    }

    /// An integer; 0 when it is left out.
    pub(crate) fn uint(&self, key: &str) -> Result<u64, StoreError> {
        match self.map.get(key) {
            None => Ok(0),
            Some(value) => value.as_uint().ok_or_else(|| self.bad(key)),
        }
    }

    pub(crate) fn seq(&self, key: &str) -> Result<Seq, StoreError> {
        Seq::new(self.uint(key)?).map_err(|_| self.bad(key))
    }

    pub(crate) fn epoch(&self, key: &str) -> Result<Epoch, StoreError> {
        Epoch::new(self.uint(key)?).map_err(|_| self.bad(key))
    }

    pub(crate) fn millis(&self, key: &str) -> Result<UnixMillis, StoreError> {
        UnixMillis::new(self.uint(key)?).map_err(|_| self.bad(key))
    }

    pub(crate) fn bytes(&self, key: &str) -> Result<&[u8], StoreError> {
        self.map.get(key).and_then(Value::as_bytes).ok_or_else(|| self.bad(key))
    }

    pub(crate) fn fixed<const N: usize>(&self, key: &str) -> Result<[u8; N], StoreError> {
        self.bytes(key)?.try_into().map_err(|_| self.bad(key))
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str, StoreError> {
        self.map.get(key).and_then(Value::as_text).ok_or_else(|| self.bad(key))
    }

    pub(crate) fn maybe<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Self) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        if self.map.contains(key) { read(self).map(Some) } else { Ok(None) }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.contains(key)
    }

    pub(crate) fn cid(&self, key: &str) -> Result<EntryCid, StoreError> {
        self.fixed(key).map(EntryCid::from_digest)
    }

    pub(crate) fn principal(&self, key: &str) -> Result<Principal, StoreError> {
        Principal::from_bytes(self.bytes(key)?).map_err(|_| self.bad(key))
    }

    fn word<T: Copy>(&self, key: &str, all: &[T], word: fn(T) -> &'static str) -> Result<T, StoreError> {
        let text = self.text(key)?;
        all.iter().copied().find(|value| word(*value) == text).ok_or_else(|| self.bad(key))
    }
}

pub(crate) fn cid_value(cid: EntryCid) -> Value<'static> {
    Value::Bytes(cid.digest().to_vec().into())
}

pub(crate) fn bytes_value(bytes: &[u8]) -> Value<'_> {
    Value::Bytes(bytes.into())
}

impl SessionRow {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let summary = &self.summary;
        let map = Map::new()
            .with("session", cid_value(self.session.genesis()))
            .with("owner", self.owner)
            .with("agent", self.agent.as_str())
            .with("tip", cid_value(self.tip.cid))
            .with("seq", self.tip.seq)
            .with("epoch", self.tip.epoch)
            .with("fence", self.fence)
            .with("verdict", summary.verdict.as_str())
            .with("class", summary.class.word())
            .with_some("title", summary.title.as_deref())
            .with_some("holder", summary.holder)
            .with("pending", codec::uint(summary.pending))
            .with_some("anchored", summary.anchored_through)
            .with("bytes", codec::uint(self.entry_bytes))
            .with("changed", self.changed);
        let map = match self.ahead {
            None => map,
            Some(Ahead { seq, ts, by_ms }) => {
                map.with("aheadSeq", seq).with("aheadTs", ts).with("aheadBy", codec::uint(by_ms))
            }
        };
        let map = match summary.head {
            None => map,
            Some(head) => {
                map.with("head", cid_value(head.cid)).with("headSeq", head.seq).with("headEpoch", head.epoch)
            }
        };
        let map = match &self.state {
            SessionState::Active => map,
            SessionState::Frozen { epoch, move_id } => {
                map.with("frozen", *epoch).with("move", bytes_value(move_id))
            }
            SessionState::Retired { epoch } => map.with("retired", *epoch),
        };
        codec::encode_map(&map)
    }

    pub(crate) fn from_bytes(number: u64, row: &[u8]) -> Result<Self, StoreError> {
        let fields = Fields::read(row, "session")?;
        let classes = [Class::Public, Class::Internal, Class::Confidential];
        let head = fields.maybe("head", |fields| {
            Ok(Mark {
                cid: fields.cid("head")?,
                seq: fields.seq("headSeq")?,
                epoch: fields.epoch("headEpoch")?,
            })
        })?;
        let state = if let Some(epoch) = fields.maybe("frozen", |fields| fields.epoch("frozen"))? {
            SessionState::Frozen { epoch, move_id: fields.fixed("move")? }
        } else if let Some(epoch) = fields.maybe("retired", |fields| fields.epoch("retired"))? {
            SessionState::Retired { epoch }
        } else {
            SessionState::Active
        };
        Ok(SessionRow {
            session: SessionId::of_genesis(fields.cid("session")?),
            owner: fields.principal("owner")?,
            agent: fields.text("agent")?.to_owned(),
            tip: Mark { cid: fields.cid("tip")?, seq: fields.seq("seq")?, epoch: fields.epoch("epoch")? },
            fence: fields.epoch("fence")?,
            state,
            summary: Summary {
                head,
                verdict: fields.text("verdict")?.to_owned(),
                class: fields.word("class", &classes, Class::word)?,
                title: fields.maybe("title", |fields| fields.text("title").map(str::to_owned))?,
                holder: fields.maybe("holder", |fields| fields.principal("holder"))?,
                pending: fields.uint("pending")?,
                anchored_through: fields.maybe("anchored", |fields| fields.seq("anchored"))?,
            },
            entry_bytes: fields.uint("bytes")?,
            changed: fields.millis("changed")?,
            ahead: fields.maybe("aheadTs", |fields| {
                let (seq, ts) = (fields.seq("aheadSeq")?, fields.millis("aheadTs")?);
                Ok(Ahead { seq, ts, by_ms: fields.uint("aheadBy")? })
            })?,
            number,
        })
    }
}

impl GuardMark {
    /// A program that knows no unknown marks finds no `cid` in one, so that it refuses to sign as well.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let map = match &self.signed {
            Some(LastSigned::Known(signed)) => Map::new()
                .with("epoch", signed.epoch)
                .with("seq", signed.seq)
                .with("cid", cid_value(signed.cid))
                .with_some("bytes", signed.bytes.as_deref().map(bytes_value)),
            Some(LastSigned::Unknown { epoch }) => Map::new().with("epoch", *epoch).with("unknown", true),
            None => Map::new(),
        };
        let map = map
            .with_some("offeredEpoch", self.offered.map(|offered| offered.epoch))
            .with_some("offeredHead", self.offered.map(|offered| cid_value(offered.head)));
        codec::encode_map(&map)
    }

    pub(crate) fn from_bytes(row: &[u8]) -> Result<Self, StoreError> {
        let fields = Fields::read(row, "guard")?;
        let offered = fields.maybe("offeredHead", |fields| {
            Ok(Offered { epoch: fields.epoch("offeredEpoch")?, head: fields.cid("offeredHead")? })
        })?;
        let epoch = fields.epoch("epoch")?;
        // Rows of before have the time of the damage in its place, which told nothing.
        let signed = if fields.has("unknown") {
            Some(LastSigned::Unknown { epoch })
        } else if offered.is_some() && !fields.has("cid") {
            None
        } else {
            Some(LastSigned::Known(SignedMark {
                epoch,
                seq: fields.seq("seq")?,
                cid: fields.cid("cid")?,
                bytes: fields.maybe("bytes", |fields| fields.bytes("bytes").map(<[u8]>::to_vec))?,
            }))
        };
        Ok(GuardMark { signed, offered })
    }

    /// The highest epoch that something may have been signed in; none: nothing was signed.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.signed.as_ref().map(|signed| match signed {
            LastSigned::Known(signed) => signed.epoch,
            LastSigned::Unknown { epoch } => *epoch,
        })
    }
}

impl SideRow {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let map = Map::new()
            .with("status", self.status.word())
            .with("seq", self.seq)
            .with("since", self.since)
            .with_some("payload", self.payload.map(cid_value))
            .with("bytes", bytes_value(&self.bytes));
        codec::encode_map(&map)
    }

    pub(crate) fn from_bytes(cid: EntryCid, row: &[u8]) -> Result<Self, StoreError> {
        let fields = Fields::read(row, "side")?;
        let row = SideRow {
            status: fields.word("status", &SideStatus::ALL, SideStatus::word)?,
            seq: fields.seq("seq")?,
            since: fields.millis("since")?,
            payload: fields.maybe("payload", |fields| fields.cid("payload"))?,
            bytes: fields.bytes("bytes")?.to_vec(),
        };
        check_hash(cid, &row.bytes, "side entry")?;
        Ok(row)
    }
}

impl ControlRow {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let map = Map::new().with("since", self.since).with("bytes", bytes_value(&self.bytes));
        codec::encode_map(&map)
    }

    pub(crate) fn from_bytes(hash: EntryCid, row: &[u8]) -> Result<Self, StoreError> {
        let fields = Fields::read(row, "control")?;
        let row = ControlRow { since: fields.millis("since")?, bytes: fields.bytes("bytes")?.to_vec() };
        check_hash(hash, &row.bytes, "control blob")?;
        Ok(row)
    }
}

impl IdempotencyRow {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let map = Map::new()
            .with("request", bytes_value(&self.request))
            .with("result", bytes_value(&self.result))
            .with("expires", codec::uint(self.expires_ms));
        codec::encode_map(&map)
    }

    pub(crate) fn from_bytes(row: &[u8]) -> Result<Self, StoreError> {
        let fields = Fields::read(row, "idempotency")?;
        Ok(IdempotencyRow {
            request: fields.fixed("request")?,
            result: fields.bytes("result")?.to_vec(),
            expires_ms: fields.uint("expires")?,
        })
    }
}

impl Pin {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        codec::encode_map(&Map::new().with("since", self.since).with("depth", self.depth.word()))
    }

    pub(crate) fn from_bytes(row: &[u8]) -> Result<Self, StoreError> {
        let fields = Fields::read(row, "pin")?;
        Ok(Pin {
            since: fields.millis("since")?,
            depth: fields.word("depth", &PinDepth::ALL, PinDepth::word)?,
        })
    }
}
