//! What selection looks at of one entry, and nothing of what it says.

use super::controls::{BlobHash, Controls};
use crate::block::{Signed, sha256};
use crate::entry::{Authority, Body, Class, Entry, Note, Seal};
use crate::id::{AgentIri, Cid, EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};

/// The facts of one entry that decide its place, its authority and what it does to the chain: a few hundred bytes,
/// whatever the entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skeleton {
    pub(crate) cid: EntryCid,
    pub(crate) session: SessionId,
    pub(crate) prev: Option<EntryCid>,
    pub(crate) skip: Option<EntryCid>,
    pub(crate) seq: Seq,
    pub(crate) epoch: Epoch,
    pub(crate) ts: UnixMillis,
    pub(crate) signer: Principal,
    pub(crate) authority: Option<Authority>,
    pub(crate) kind: Kind,
    /// Links that must be ancestors.
    pub(crate) links: Box<[EntryCid]>,
}

/// The type of an entry, with the fields of it that rules depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Genesis(Box<GenesisFacts>),
    UserMessage(Claim),
    ModelResponse,
    ToolCall(Claim),
    Note,
    /// A note that sets the class.
    ClassNote(Class),
    /// With the next holder; none suspends.
    Handoff(Option<Principal>),
    Seal(SealNumbers),
}

/// Whether the entry names where it came from: `origin` of a user message, `response` of a tool call. A server must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    Named,
    Unnamed,
}

/// What the first entry fixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GenesisFacts {
    pub(crate) agent: AgentIri,
    pub(crate) holder: Option<Principal>,
    pub(crate) class: Class,
}

/// The numbers of a seal; the list of participants by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealNumbers {
    pub(crate) count: u64,
    pub(crate) first_ts: UnixMillis,
    pub(crate) last_ts: UnixMillis,
    pub(crate) participants: [u8; 32],
}

impl Skeleton {
    /// The skeleton of a signed entry.
    #[must_use]
    pub fn of(signed: &Signed<Entry>) -> Self {
        let (cid, entry) = (signed.cid(), signed.value());
        Skeleton {
            cid,
            session: entry.session(cid),
            prev: entry.prev(),
            skip: entry.place.and_then(|place| place.skip),
            seq: entry.seq(),
            epoch: entry.epoch(),
            ts: entry.ts,
            signer: entry.signer,
            authority: entry.authority,
            kind: Kind::of(&entry.body),
            links: entry.body.ancestor_links().into_boxed_slice(),
        }
    }

    /// The entry.
    #[must_use]
    pub fn cid(&self) -> EntryCid {
        self.cid
    }

    /// The session that it names.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The entry before it; none for a genesis.
    #[must_use]
    pub fn prev(&self) -> Option<EntryCid> {
        self.prev
    }

    /// Its position.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Who signed it.
    #[must_use]
    pub fn signer(&self) -> Principal {
        self.signer
    }

    /// The owner that it names: `space`, else the signer.
    #[must_use]
    pub fn owner(&self) -> Principal {
        self.authority.map_or(self.signer, |authority| authority.space)
    }

    /// The capability that it cites.
    #[must_use]
    pub fn capability(&self) -> Option<Cid> {
        self.authority.map(|authority| authority.capability)
    }

    /// The tombstone by which the owner revoked what a signer other than itself cites.
    pub(crate) fn revoked_by(&self, owner: Principal, controls: &Controls) -> Option<BlobHash> {
        let authority = self.authority.filter(|_| self.signer != owner)?;
        controls.revoked_by(&authority.capability, owner)
    }

    /// Whether an account's signature on it opens the next epoch.
    #[must_use]
    pub fn may_open(&self) -> bool {
        matches!(self.kind, Kind::Handoff(_) | Kind::Seal(_))
    }

    /// Whether it ends the session.
    #[must_use]
    pub fn is_seal(&self) -> bool {
        matches!(self.kind, Kind::Seal(_))
    }
}

impl Kind {
    fn of(body: &Body) -> Self {
        let claim = |named: bool| if named { Claim::Named } else { Claim::Unnamed };
        match body {
            Body::Genesis(genesis) => Kind::Genesis(Box::new(GenesisFacts {
                agent: genesis.agent.clone(),
                holder: genesis.holder,
                class: genesis.class,
            })),
            Body::UserMessage(message) => Kind::UserMessage(claim(message.origin.is_some())),
            Body::ModelResponse(_) => Kind::ModelResponse,
            Body::ToolCall(call) => Kind::ToolCall(claim(call.response.is_some())),
            Body::Note(Note::Class(class)) => Kind::ClassNote(*class),
            Body::Note(_) => Kind::Note,
            Body::Handoff(handoff) => Kind::Handoff(handoff.holder),
            Body::Seal(seal) => Kind::Seal(SealNumbers::of(seal)),
        }
    }

    /// The word for messages.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Kind::Genesis(_) => "genesis",
            Kind::UserMessage(_) => "user message",
            Kind::ModelResponse => "model response",
            Kind::ToolCall(_) => "tool call",
            Kind::Note | Kind::ClassNote(_) => "note",
            Kind::Handoff(_) => "handoff",
            Kind::Seal(_) => "seal",
        }
    }
}

impl SealNumbers {
    fn of(seal: &Seal) -> Self {
        SealNumbers {
            count: seal.count,
            first_ts: seal.first_ts,
            last_ts: seal.last_ts,
            participants: roster_hash(&seal.participants),
        }
    }
}

/// sha-256 of principals in the order given: two lists are the same exactly if their hashes are.
pub(crate) fn roster_hash(principals: &[Principal]) -> [u8; 32] {
    let bytes: Vec<u8> = principals.iter().flat_map(|principal| principal.to_bytes()).collect();
    sha256(&bytes)
}
