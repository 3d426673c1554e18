//! Fixed keys, salts and whole sessions for tests, by the rules of `tests/vectors/session/README.md`.
//!
//! Everything is derived from names, so a session made twice has the same CIDs, and the vectors can be made again. The keys
//! are public: never use them elsewhere. Behind the feature `testing`; nothing of a release build reaches this module.
#![allow(clippy::expect_used, reason = "a fixture that cannot be built is a failed test")]

use std::sync::Arc;

use crate::block::{Signed, SignedBlob as _, sha256};
use crate::build::sign;
use crate::code::Reject;
use crate::content::{Block, CallPart, Content};
use crate::control::{Capability, Control, Keep, Ref, Role, Tombstone};
use crate::entry::{
    Authority, Body, Call, Entry, Genesis, Handoff, Model, ModelResponse, Note, Origin, Outcome, Place, Seal,
    ToolCall, Usage, UserMessage,
};
use crate::id::{AgentIri, Cid, Codec, EntryCid, Epoch, Principal, ScopePath, SessionId, UnixMillis};
use crate::payload::{GenesisWords, PayloadDraft, ResponseWords, ToolWords, UserWords, Words};
use crate::sign::SigningKey;
use crate::skip::SkipPath;

/// The time of the first blob: 2026-01-01T00:00:00Z.
pub const BASE_TS_MS: u64 = 1_767_225_600_000;

/// The test key of a name, such as `account`, `device`, `server1`.
#[must_use]
pub fn key(name: &str) -> SigningKey {
    SigningKey::from_seed(&seed(name))
}

/// The seed of [`key`].
#[must_use]
pub fn seed(name: &str) -> [u8; 32] {
    sha256(format!("throughline test key {name}").as_bytes())
}

/// The salt of a label, `<session label>/<blob name>` or `<session label>/config`.
#[must_use]
pub fn salt(label: &str) -> [u8; 32] {
    sha256(format!("throughline test salt {label}").as_bytes())
}

/// The nonce of a session's label.
#[must_use]
pub fn nonce(session_label: &str) -> [u8; 16] {
    let mut nonce = [0; 16];
    nonce.copy_from_slice(&sha256(format!("throughline test nonce {session_label}").as_bytes())[..16]);
    nonce
}

/// The raw block of a label, and its CID.
#[must_use]
pub fn raw_block(label: &str) -> (Cid, Vec<u8>) {
    let bytes = format!("throughline test block {label}").into_bytes();
    (Cid::sha256(Codec::Raw, &bytes), bytes)
}

/// `ms` milliseconds after the base.
#[must_use]
pub fn ts(ms: u64) -> UnixMillis {
    UnixMillis::new(BASE_TS_MS + ms).expect("a time of our age")
}

/// A capability of `owner` for `delegate`; `path` as [`Capability::path`].
#[must_use]
pub fn capability(
    owner: &SigningKey,
    delegate: Principal,
    role: Role,
    path: Option<&str>,
) -> Signed<Control> {
    let capability = Capability {
        ts: ts(0),
        signer: owner.principal(),
        delegate,
        role: Some(role.word().to_owned()),
        path: path.map(str::to_owned),
        label: None,
        audience: None,
    };
    sign(Control::Capability(capability), owner).expect("a capability within its schema")
}

/// An entry with the payload it names.
#[derive(Clone, Debug)]
pub struct Built {
    /// The entry.
    pub entry: Signed<Entry>,
    /// Its payload's bytes.
    pub payload: Option<Arc<[u8]>>,
}

/// A party of a test session: a key, and the capability it cites when it is not the owner.
#[derive(Debug)]
pub struct Party {
    /// Signs.
    pub key: SigningKey,
    /// What it cites; the owner cites nothing.
    pub capability: Option<Signed<Control>>,
}

impl Party {
    /// The named key acting under a capability of `owner`.
    #[must_use]
    pub fn granted(name: &str, owner: &SigningKey, role: Role) -> Arc<Self> {
        let key = key(name);
        let capability = capability(owner, key.principal(), role, None);
        Arc::new(Party { key, capability: Some(capability) })
    }

    fn authority(&self) -> Option<Authority> {
        let capability = self.capability.as_ref()?;
        Some(Authority { space: capability.value().signer(), capability: capability.cid().cid() })
    }
}

/// A session under construction, with one owner and the usual parties. Each append is one second after the last.
///
/// Cloning it makes a second copy that can go on differently: that is how forks are built.
#[derive(Clone, Debug)]
pub struct SessionBuilder {
    label: String,
    /// The owner; its key is `account`.
    pub owner: Arc<Party>,
    /// The owner's device, under an AGENT grant.
    pub device: Arc<Party>,
    /// First holder, under a writer grant.
    pub server1: Arc<Party>,
    /// Another server, under a writer grant.
    pub server2: Arc<Party>,
    /// A contributor.
    pub contributor: Arc<Party>,
    /// A reader.
    pub reader: Arc<Party>,
    entries: Vec<Built>,
    controls: Vec<Signed<Control>>,
    skips: SkipPath<EntryCid>,
}

impl SessionBuilder {
    /// A session of `hm://<account>/scout`, whose genesis the owner signs and whose holder is `server1`.
    #[must_use]
    pub fn new(label: &str) -> Self {
        SessionBuilder::with_genesis(label, |_| {})
    }

    /// As [`SessionBuilder::new`], with the genesis changed before it is signed.
    #[must_use]
    pub fn with_genesis(label: &str, change: impl FnOnce(&mut Genesis)) -> Self {
        let account = key("account");
        let device = Party::granted("device", &account, Role::Agent);
        let server1 = Party::granted("server1", &account, Role::Writer);
        let server2 = Party::granted("server2", &account, Role::Writer);
        let contributor = Party::granted("contributor", &account, Role::Contributor);
        let reader = Party::granted("reader", &account, Role::Reader);
        let path = ScopePath::parse("/scout").expect("a scope path");
        let mut genesis = Genesis {
            agent: AgentIri::new(account.principal(), Some(path)),
            nonce: nonce(label),
            holder: Some(server1.key.principal()),
            class: crate::entry::Class::Internal,
            parent: None,
            continues: None,
        };
        change(&mut genesis);
        let body = Body::Genesis(genesis);
        let title =
            Words::Genesis(GenesisWords { title: Some(format!("Test {label}")), ..GenesisWords::default() });
        let (payload, named) = PayloadDraft::new(title)
            .build(&body, salt(&format!("{label}/0")))
            .expect("a payload within its schema");
        let entry = Entry {
            ts: ts(0),
            signer: account.principal(),
            authority: None,
            place: None,
            body,
            payload: Some(named),
            ext: None,
        };
        let entry = sign(entry, &account).expect("a genesis within its schema");
        let controls = [&device, &server1, &server2, &contributor, &reader]
            .into_iter()
            .filter_map(|party| party.capability.clone())
            .collect();
        SessionBuilder {
            label: label.to_owned(),
            owner: Arc::new(Party { key: account, capability: None }),
            device,
            server1,
            server2,
            contributor,
            reader,
            skips: SkipPath::genesis(entry.cid()),
            entries: vec![Built { entry, payload: Some(payload.into()) }],
            controls,
        }
    }

    /// All entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Built] {
        &self.entries
    }

    /// All capabilities, tombstones and Refs made so far.
    #[must_use]
    pub fn controls(&self) -> &[Signed<Control>] {
        &self.controls
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        SessionId::of_genesis(self.entries[0].entry.cid())
    }

    /// The newest entry.
    #[must_use]
    pub fn head(&self) -> &Built {
        &self.entries[self.entries.len() - 1]
    }

    /// The same session as it was when `seq` was its head.
    ///
    /// # Panics
    /// When it never had such a head.
    #[must_use]
    pub fn at(&self, seq: usize) -> Self {
        let mut earlier = self.clone();
        earlier.entries.truncate(seq + 1);
        assert_eq!(earlier.entries.len(), seq + 1, "the session is shorter");
        earlier.skips = SkipPath::genesis(earlier.entries[0].entry.cid());
        earlier.entries[1..].iter().for_each(|built| earlier.skips.push(built.entry.cid()));
        earlier
    }

    /// Another continuation: salts, and so CIDs, of what follows differ from those of every other name.
    #[must_use]
    pub fn branch(mut self, name: &str) -> Self {
        self.label = format!("{}~{name}", self.label);
        self
    }

    /// The place of the next entry in this epoch.
    #[must_use]
    pub fn next_place(&self) -> Place {
        let head = &self.head().entry;
        let skip = self.skips.next_skip().1;
        Place {
            genesis: self.entries[0].entry.cid(),
            prev: head.cid(),
            seq: head.value().seq().next(),
            epoch: head.value().epoch(),
            skip: (skip != head.cid()).then_some(skip),
        }
    }

    /// The next entry as `party` would write it, not yet signed, and its payload. Tests change it, then [`Self::push`] it.
    #[must_use]
    pub fn draft(&self, party: &Party, body: Body, words: Option<Words>) -> (Entry, Option<Arc<[u8]>>) {
        let mut place = self.next_place();
        if body.may_open() && party.capability.is_none() {
            place.epoch = place.epoch.next();
        }
        let salt = salt(&format!("{}/{}", self.label, place.seq));
        let built = words
            .map(|words| PayloadDraft::new(words).build(&body, salt).expect("a payload within its schema"));
        let (payload, named) = match built {
            Some((bytes, named)) => (Some(bytes.into()), Some(named)),
            None => (None, None),
        };
        let entry = Entry {
            ts: ts(place.seq.get() * 1_000),
            signer: party.key.principal(),
            authority: party.authority(),
            place: Some(place),
            body,
            payload: named,
            ext: None,
        };
        (entry, payload)
    }

    /// Signs an entry and makes it the head.
    ///
    /// # Errors
    /// As [`sign`].
    pub fn push(
        &mut self,
        party: &Party,
        entry: Entry,
        payload: Option<Arc<[u8]>>,
    ) -> Result<EntryCid, Reject> {
        let entry = sign(entry, &party.key)?;
        let cid = entry.cid();
        self.skips.push(cid);
        self.entries.push(Built { entry, payload });
        Ok(cid)
    }

    /// Appends what `party` says.
    pub fn append(&mut self, party: &Arc<Party>, body: Body, words: Option<Words>) -> EntryCid {
        let (entry, payload) = self.draft(party, body, words);
        self.push(party, entry, payload).expect("an entry within its schema")
    }

    /// A user message; one by a server says that a trigger made it.
    pub fn user(&mut self, party: &Arc<Party>, text: &str) -> EntryCid {
        let is_server = [&self.server1, &self.server2].iter().any(|server| Arc::ptr_eq(server, party));
        let message = UserMessage { origin: is_server.then_some(Origin::Trigger), ..UserMessage::default() };
        let words = UserWords { body: vec![Block::paragraph("b1", text)], ..UserWords::default() };
        self.append(party, Body::UserMessage(message), Some(Words::UserMessage(words)))
    }

    /// A response that asks for one `bash` call per id.
    pub fn response(&mut self, party: &Arc<Party>, text: &str, call_ids: &[&str]) -> EntryCid {
        let calls = call_ids.iter().map(|id| Call { call_id: (*id).to_owned(), name: "bash".to_owned() });
        let parts = call_ids.iter().map(|id| {
            Content::ToolCall(CallPart {
                call_id: (*id).to_owned(),
                name: "bash".to_owned(),
                input: "{}".to_owned(),
                ..CallPart::default()
            })
        });
        let body = Body::ModelResponse(ModelResponse {
            model: Model { provider: "anthropic".to_owned(), id: "claude-x".to_owned(), api: None },
            calls: calls.collect(),
            usage: Usage { input: 10, output: 5, ..Usage::default() },
            stop_reason: Some("end_turn".to_owned()),
            status: None,
            config: None,
            duration_ms: 0,
        });
        let content = std::iter::once(Content::text(text)).chain(parts).collect();
        let words = ResponseWords { content, ..ResponseWords::default() };
        self.append(party, body, Some(Words::ModelResponse(words)))
    }

    /// The result of a `bash` call that `response` asked for.
    pub fn tool(&mut self, party: &Arc<Party>, response: EntryCid, call_id: &str, output: &str) -> EntryCid {
        let body = Body::ToolCall(ToolCall {
            name: "bash".to_owned(),
            call_id: call_id.to_owned(),
            outcome: Outcome::Ok,
            response: Some(response),
            produced: Vec::new(),
            child: None,
            duration_ms: 0,
        });
        let words = ToolWords { output: Some(output.to_owned()), ..ToolWords::default() };
        self.append(party, body, Some(Words::ToolCall(words)))
    }

    /// A note without a payload.
    pub fn note(&mut self, party: &Arc<Party>, note: Note) -> EntryCid {
        self.append(party, Body::Note(note), None)
    }

    /// The owner hands the session to `to`; to nobody suspends it.
    pub fn handoff(&mut self, to: Option<&Arc<Party>>) -> EntryCid {
        let owner = self.owner.clone();
        let handoff = Handoff {
            holder: to.map(|party| party.key.principal()),
            grant: to.and_then(|party| party.authority()).map(|authority| authority.capability),
            ..Handoff::default()
        };
        self.append(&owner, Body::Handoff(handoff), None)
    }

    /// A seal with the numbers of the chain.
    pub fn seal(&mut self, party: &Arc<Party>) -> EntryCid {
        let mut participants: Vec<Principal> =
            self.entries.iter().map(|built| built.entry.value().signer).collect();
        participants.sort_unstable();
        participants.dedup();
        let seal = Seal {
            count: self.head().entry.value().seq().next().get(),
            participants,
            first_ts: self.entries[0].entry.value().ts,
            last_ts: self.head().entry.value().ts,
        };
        self.append(party, Body::Seal(seal), None)
    }

    /// The owner's tombstone for a capability, keeping these heads.
    pub fn tombstone(&mut self, capability: &Signed<Control>, keep: Vec<Keep>) -> Signed<Control> {
        let tombstone = Tombstone {
            ts: ts(self.clock_ms()),
            signer: self.owner.key.principal(),
            capability: capability.cid().cid(),
            keep,
            reason: None,
            ext: None,
        };
        let signed =
            sign(Control::Tombstone(tombstone), &self.owner.key).expect("a tombstone within its schema");
        self.controls.push(signed.clone());
        signed
    }

    /// A Ref by `party` to the entry at `seq`; private, so that it publishes nothing, unless `publishes`.
    pub fn reference(&mut self, party: &Arc<Party>, seq: usize, reach: Reach) -> Signed<Control> {
        let head = &self.entries[seq].entry;
        let authority = party.authority();
        let value = Ref {
            ts: ts(self.clock_ms()),
            signer: party.key.principal(),
            space: authority.map(|authority| authority.space),
            capability: authority.map(|authority| authority.capability),
            path: Some(self.session().path()),
            heads: vec![head.cid().cid()],
            genesis_blob: Some(self.session().genesis().cid()),
            generation: head.value().epoch().get() + 1,
            private: reach == Reach::Anchors,
            redirect: None,
        };
        let signed = sign(Control::Ref(value), &party.key).expect("a Ref within its schema");
        self.controls.push(signed.clone());
        signed
    }

    fn clock_ms(&self) -> u64 {
        self.entries.len() as u64 * 1_000
    }
}

/// Whether a Ref publishes what it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It only anchors: `visibility: "Private"`.
    Anchors,
    /// It publishes its head and that head's ancestors.
    Publishes,
}

/// The epoch with this number.
#[must_use]
pub fn epoch(number: u64) -> Epoch {
    Epoch::new(number).expect("a small epoch")
}

#[cfg(test)]
#[path = "testing_tests.rs"]
mod tests;
