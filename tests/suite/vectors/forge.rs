//! Signed blobs from short descriptions: what a set for selection is made of.
//!
//! Blobs name each other by number. A number that was never made stands for a blob that is not held. Times, skips, payloads
//! and the numbers of seals are filled in as they should be.

use std::collections::BTreeMap;

use throughline_protocol::block::Signed;
use throughline_protocol::build::sign;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::codec::Map;
use throughline_protocol::control::{Capability, Control, Keep, Ref, Tombstone};
use throughline_protocol::entry::{
    Authority, Body, Class, Entry, Genesis, Handoff, Model, ModelResponse, Origin, PayloadRef, Place, Seal,
    Usage, UserMessage,
};
use throughline_protocol::fork::Set;
use throughline_protocol::id::{AgentIri, EntryCid, Epoch, Principal, ScopePath, Seq, SessionId, UnixMillis};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::skip;
use throughline_protocol::testing;

pub(super) type Id = u64;

/// A blob to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) id: Id,
    pub(super) signer: String,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Capability { delegate: String, role: String },
    Tombstone { capability: Id, keep: Vec<Id> },
    Ref { head: Id, capability: Option<Id> },
    Entry(Step),
}

/// An entry of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) prev: Option<Id>,
    pub(super) seq: u64,
    pub(super) epoch: u64,
    pub(super) capability: Option<Id>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Genesis { holder: Option<String> },
    UserMessage,
    ModelResponse,
    Handoff { holder: Option<String> },
    Seal,
}

/// A blob that was made.
#[derive(Clone, Debug)]
pub(super) enum Blob {
    Entry(Box<Signed<Entry>>),
    Control(Box<Signed<Control>>),
}

impl Blob {
    pub(super) fn insert_into(&self, set: &mut Set) {
        match self {
            Blob::Entry(entry) => set.insert_entry(entry),
            Blob::Control(control) => set.insert_control(control),
        };
    }
}

/// Makes blobs and remembers them.
#[derive(Clone, Debug)]
pub(super) struct Forge {
    genesis: Id,
    made: BTreeMap<Id, Blob>,
}

impl Forge {
    /// A forge for a session whose genesis has this number.
    pub(super) fn new(genesis: Id) -> Self {
        Forge { genesis, made: BTreeMap::new() }
    }

    /// Makes every blob of a list in order; those that no writer can make are left out.
    pub(super) fn of(genesis: Id, specs: &[Spec]) -> Self {
        let mut forge = Forge::new(genesis);
        for spec in specs {
            forge.make(spec);
        }
        forge
    }

    /// All blobs, ascending by number.
    pub(super) fn blobs(&self) -> impl Iterator<Item = (Id, &Blob)> {
        self.made.iter().map(|(id, blob)| (*id, blob))
    }

    /// A set of all blobs.
    pub(super) fn set(&self) -> Set {
        self.set_of(|_| true)
    }

    /// A set of the blobs that `wanted` picks.
    pub(super) fn set_of(&self, wanted: impl Fn(Id) -> bool) -> Set {
        let mut set = Set::new(self.session());
        self.blobs().filter(|(id, _)| wanted(*id)).for_each(|(_, blob)| blob.insert_into(&mut set));
        set
    }

    /// All blobs as a record for the second verifier.
    pub(super) fn set_record(&self) -> throughline_tests::differ::Record {
        let bytes = |blob: &Blob| match blob {
            Blob::Entry(entry) => entry.bytes().to_vec(),
            Blob::Control(control) => control.bytes().to_vec(),
        };
        let blobs = self.blobs().map(|(_, blob)| bytes(blob));
        throughline_tests::differ::plan::set_record(&self.session().genesis().cid(), blobs)
    }

    pub(super) fn session(&self) -> SessionId {
        SessionId::of_genesis(self.cid(self.genesis))
    }

    /// The CID of a blob; of one that was never made, a CID that nothing has.
    pub(super) fn cid(&self, id: Id) -> EntryCid {
        match self.made.get(&id) {
            Some(Blob::Entry(entry)) => entry.cid(),
            Some(Blob::Control(control)) => control.cid(),
            None => EntryCid::of(format!("no blob has number {id}").as_bytes()),
        }
    }

    pub(super) fn entry(&self, id: Id) -> Option<&Signed<Entry>> {
        match self.made.get(&id)? {
            Blob::Entry(entry) => Some(entry),
            Blob::Control(_) => None,
        }
    }

    /// The number of an entry.
    pub(super) fn id_of(&self, cid: EntryCid) -> Id {
        let found = self.blobs().find(|(id, _)| self.cid(*id) == cid);
        found.expect("an entry that was made").0
    }

    /// Makes one blob. A device's or server's handoff cannot be made: its bytes break the schema.
    pub(super) fn make(&mut self, spec: &Spec) {
        let made = match &spec.what {
            What::Entry(step) => self.make_entry(spec, step).map(|entry| Blob::Entry(Box::new(entry))),
            What::Capability { .. } | What::Tombstone { .. } | What::Ref { .. } => {
                self.make_control(spec).map(|control| Blob::Control(Box::new(control)))
            }
        };
        match made {
            Ok(blob) => {
                self.made.insert(spec.id, blob);
            }
            Err(reject) => assert_eq!(reject.code, Code::CapRole, "{spec:?}: {reject}"),
        }
    }

    fn make_control(&self, spec: &Spec) -> Result<Signed<Control>, Reject> {
        let key = testing::key(&spec.signer);
        let (ts, signer) = (testing::ts(spec.id), key.principal());
        let control = match &spec.what {
            What::Capability { delegate, role } => Control::Capability(Capability {
                ts,
                signer,
                delegate: principal(delegate),
                role: Some(role.clone()),
                path: None,
                label: None,
                audience: None,
            }),
            What::Tombstone { capability, keep } => Control::Tombstone(Tombstone {
                ts,
                signer,
                capability: self.cid(*capability).cid(),
                keep: self.keep_items(keep),
                reason: None,
                ext: None,
            }),
            What::Ref { head, capability } => Control::Ref(Ref {
                ts,
                signer,
                space: capability.map(|_| principal("account")),
                capability: capability.map(|id| self.cid(id).cid()),
                path: Some(self.session().path()),
                heads: vec![self.cid(*head).cid()],
                genesis_blob: Some(self.session().genesis().cid()),
                generation: self.entry(*head).map_or(0, |entry| entry.value().epoch().get()) + 1,
                private: true,
                redirect: None,
            }),
            What::Entry(_) => unreachable!("entries are made elsewhere"),
        };
        sign(control, &key)
    }

    fn keep_items(&self, keep: &[Id]) -> Vec<Keep> {
        let genesis = self.session().genesis();
        let seq = |id| self.entry(id).map_or(Seq::ZERO, |entry| entry.value().seq());
        let mut items: Vec<Keep> =
            keep.iter().map(|id| Keep { genesis, head: self.cid(*id), seq: seq(*id) }).collect();
        items.sort_by_key(|item| item.head);
        items.dedup();
        items
    }

    fn make_entry(&self, spec: &Spec, step: &Step) -> Result<Signed<Entry>, Reject> {
        let key = testing::key(&spec.signer);
        let body = self.body(spec, step, &key);
        let words = matches!(step.kind, Kind::UserMessage | Kind::ModelResponse);
        let payload = PayloadRef { cid: EntryCid::of(format!("payload {}", spec.id).as_bytes()), size: 1 };
        let entry = Entry {
            ts: testing::ts(step.seq * 1_000),
            signer: key.principal(),
            authority: step
                .capability
                .map(|id| Authority { space: principal("account"), capability: self.cid(id).cid() }),
            place: step.prev.map(|prev| self.place(step, prev)),
            body,
            payload: words.then_some(payload),
            // Tells two otherwise equal entries apart.
            ext: Some(Map::new().with("n", i64::try_from(spec.id).expect("a small number"))),
        };
        sign(entry, &key)
    }

    fn place(&self, step: &Step, prev: Id) -> Place {
        let skip = self.ancestor(prev, skip::target(step.seq)).filter(|skip| *skip != self.cid(prev));
        Place {
            genesis: self.session().genesis(),
            prev: self.cid(prev),
            seq: Seq::new(step.seq).expect("a small seq"),
            epoch: Epoch::new(step.epoch).expect("a small epoch"),
            skip,
        }
    }

    /// The path of an entry, newest first, as far as it was made.
    fn path(&self, id: Id) -> impl Iterator<Item = &Signed<Entry>> {
        let mut next = self.entry(id);
        std::iter::from_fn(move || {
            let entry = next?;
            next = entry.value().prev().and_then(|prev| {
                let entries = self.made.keys().filter_map(|id| self.entry(*id));
                entries.into_iter().find(|entry| entry.cid() == prev)
            });
            Some(entry)
        })
    }

    fn ancestor(&self, from: Id, seq: u64) -> Option<EntryCid> {
        self.path(from).find(|entry| entry.value().seq().get() == seq).map(Signed::cid)
    }

    fn body(&self, spec: &Spec, step: &Step, key: &SigningKey) -> Body {
        match &step.kind {
            Kind::Genesis { holder } => Body::Genesis(Genesis {
                agent: AgentIri::new(principal("account"), Some(ScopePath::parse("/test").expect("a path"))),
                nonce: testing::nonce(&spec.id.to_string()),
                holder: holder.as_deref().map(principal).filter(|holder| *holder != key.principal()),
                class: Class::Internal,
                parent: None,
                continues: None,
            }),
            Kind::UserMessage => Body::UserMessage(UserMessage {
                origin: spec.signer.starts_with("server").then_some(Origin::Trigger),
                ..UserMessage::default()
            }),
            Kind::ModelResponse => Body::ModelResponse(ModelResponse {
                model: Model { provider: "test".to_owned(), id: "test".to_owned(), api: None },
                calls: Vec::new(),
                usage: Usage::default(),
                stop_reason: None,
                status: None,
                config: None,
                duration_ms: 0,
            }),
            Kind::Handoff { holder } => {
                Body::Handoff(Handoff { holder: holder.as_deref().map(principal), ..Handoff::default() })
            }
            Kind::Seal => Body::Seal(self.seal(step)),
        }
    }

    fn seal(&self, step: &Step) -> Seal {
        let path: Vec<_> = step.prev.into_iter().flat_map(|prev| self.path(prev)).collect();
        let ts =
            |entry: Option<&&Signed<Entry>>| entry.map_or(UnixMillis::default(), |entry| entry.value().ts);
        let mut participants: Vec<Principal> = path.iter().map(|entry| entry.value().signer).collect();
        participants.sort_unstable();
        participants.dedup();
        // A seal on entries that were never made has nothing to list; its schema wants a list all the same.
        if participants.is_empty() {
            participants.push(principal("account"));
        }
        Seal { count: step.seq, participants, first_ts: ts(path.last()), last_ts: ts(path.first()) }
    }
}

pub(super) fn principal(name: &str) -> Principal {
    testing::key(name).principal()
}
