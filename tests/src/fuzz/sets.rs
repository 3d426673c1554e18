//! Sets of blobs of one session, made by a script of bytes: four bytes are one act of some party.
//!
//! The script decides who signs, on which entry, under which capability, and what is wrong with it; times, skip pointers and numbers of
//! seals are right unless the script says otherwise. So a mutated script is another set that means something, where mutated blobs
//! would be refused one by one. The blobs can be signed or not: for selection alone signatures are decided before.

use std::sync::LazyLock;

use throughline_protocol::block::{Decoded, Signed, SignedBlob};
use throughline_protocol::build::{Writable, sign};
use throughline_protocol::control::{Control, Keep, Ref, Role, Tombstone};
use throughline_protocol::entry::{
    Authority, Body, Class, Entry, Genesis, Handoff, Model, ModelResponse, Note, Origin, Outcome, PayloadRef,
    Place, Seal, ToolCall, Usage, UserMessage,
};
use throughline_protocol::fork::Set;
use throughline_protocol::id::{AgentIri, Cid, EntryCid, Principal, ScopePath, SessionId};
use throughline_protocol::sign::{SIGNATURE_BYTES, SigningKey};
use throughline_protocol::skip;
use throughline_protocol::testing::{self, capability, key, nonce};

use crate::mutate::Rng;

/// Acts of one script; more are not looked at.
pub const ACTS_MAX: usize = 48;
/// Bytes of one act.
pub const ACT_BYTES: usize = 4;

/// Who signs: the owner, its device, three servers, a contributor, a reader, a stranger.
const PARTIES: [(&str, Option<Role>); 8] = [
    ("account", None),
    ("device", Some(Role::Agent)),
    ("server1", Some(Role::Writer)),
    ("server2", Some(Role::Writer)),
    ("server3", Some(Role::Writer)),
    ("contributor", Some(Role::Contributor)),
    ("reader", Some(Role::Reader)),
    ("stranger", None),
];

struct Party {
    key: SigningKey,
    grant: Option<Signed<Control>>,
}

static CAST: LazyLock<Vec<Party>> = LazyLock::new(|| {
    let owner = key("account");
    let party = |(name, role): (&str, Option<Role>)| {
        let key = key(name);
        let grant = role.map(|role| capability(&owner, key.principal(), role, None));
        Party { key, grant }
    };
    PARTIES.into_iter().map(party).collect()
});

/// Grants that do not do what they look like: another scope, another issuer, the session's own path.
static ODD_GRANTS: LazyLock<Vec<Signed<Control>>> = LazyLock::new(|| {
    let (owner, server) = (key("account"), key("server1"));
    vec![
        capability(&owner, server.principal(), Role::Writer, Some("/other")),
        capability(&owner, server.principal(), Role::Writer, Some("/test")),
        capability(&owner, server.principal(), Role::Agent, Some("/test")),
        capability(&server, server.principal(), Role::Writer, None),
        capability(&owner, key("stranger").principal(), Role::Contributor, None),
    ]
});

/// Whether blobs carry signatures that verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signatures {
    /// They do.
    Real,
    /// They are zero; nobody may verify them.
    Zero,
}

/// A blob that was made.
#[derive(Clone, Debug)]
pub enum Made {
    /// An entry.
    Entry(Box<Signed<Entry>>),
    /// A capability, tombstone or Ref.
    Control(Box<Signed<Control>>),
}

impl Made {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Made::Entry(entry) => entry.bytes(),
            Made::Control(control) => control.bytes(),
        }
    }

    /// Puts it into a set.
    pub fn insert_into(&self, set: &mut Set) {
        match self {
            Made::Entry(entry) => set.insert_entry(entry),
            Made::Control(control) => set.insert_control(control),
        };
    }
}

/// What a script made.
#[derive(Clone, Debug)]
pub struct Bag {
    /// The session.
    pub session: SessionId,
    /// What is held of it, in the order it was made.
    pub held: Vec<Made>,
}

impl Bag {
    /// Runs a script. The first four bytes make the genesis.
    #[must_use]
    pub fn of_script(script: &[u8], signatures: Signatures) -> Self {
        let mut acts = script.chunks(ACT_BYTES).map(|chunk| {
            let mut act = [0; ACT_BYTES];
            act[..chunk.len()].copy_from_slice(chunk);
            act
        });
        let mut stage = Stage::begin(acts.next().unwrap_or_default(), signatures);
        for act in acts.take(ACTS_MAX) {
            stage.act(act);
        }
        Bag { session: stage.session, held: stage.held }
    }

    /// The entries held.
    pub fn entries(&self) -> impl Iterator<Item = &Signed<Entry>> {
        self.held.iter().filter_map(|made| if let Made::Entry(entry) = made { Some(&**entry) } else { None })
    }

    /// The control blobs held.
    pub fn controls(&self) -> impl Iterator<Item = &Signed<Control>> {
        self.held
            .iter()
            .filter_map(|made| if let Made::Control(control) = made { Some(&**control) } else { None })
    }
}

/// What is wrong with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    Epoch,
    Skip,
    Seq,
    Ts,
    Seal,
    Genesis,
}

impl Wrong {
    /// Mostly nothing: a set in which nothing fits is soon judged.
    fn of(byte: u8) -> Self {
        match byte {
            0..=5 => [Wrong::Epoch, Wrong::Skip, Wrong::Seq, Wrong::Ts, Wrong::Seal, Wrong::Genesis]
                [usize::from(byte)],
            _ => Wrong::Nothing,
        }
    }
}

/// Makes the blobs, and remembers those that were withheld.
struct Stage {
    session: SessionId,
    signatures: Signatures,
    held: Vec<Made>,
    /// Every entry made, also those not held.
    chain: Vec<Signed<Entry>>,
    count: u64,
}

impl Stage {
    fn begin(act: [u8; ACT_BYTES], signatures: Signatures) -> Self {
        let mut stage = Stage {
            session: SessionId::of_genesis(EntryCid::of(b"nothing yet")),
            signatures,
            held: Vec::new(),
            chain: Vec::new(),
            count: 0,
        };
        let [who, holder, class, flags] = act;
        // Bits of the flags leave capabilities out.
        let grants = CAST.iter().filter_map(|party| party.grant.clone());
        for (at, grant) in grants.enumerate() {
            if at == 0 || flags >> at & 1 == 0 {
                stage.held.push(Made::Control(Box::new(grant)));
            }
        }
        let signer = party(who);
        let named = party(holder).key.principal();
        let body = Body::Genesis(Genesis {
            agent: AgentIri::new(key("account").principal(), ScopePath::parse("/test").ok()),
            nonce: nonce("fuzz"),
            holder: (holder & 0x80 == 0 && named != signer.key.principal()).then_some(named),
            class: [Class::Internal, Class::Public, Class::Confidential][usize::from(class) % 3],
            parent: None,
            continues: None,
        });
        let entry = Entry {
            ts: testing::ts(1_000),
            signer: signer.key.principal(),
            authority: signer.grant.as_ref().map(under),
            place: None,
            body,
            payload: None,
            ext: None,
        };
        let genesis = stage.seal(entry, &signer.key).expect("a genesis within its schema");
        stage.session = SessionId::of_genesis(genesis.cid());
        stage.chain.push(genesis.clone());
        if flags & 1 == 0 {
            stage.held.push(Made::Entry(Box::new(genesis)));
        }
        stage
    }

    fn act(&mut self, [what, who, on, how]: [u8; ACT_BYTES]) {
        self.count += 1;
        let signer = party(who);
        match what % 16 {
            0..=10 => self.entry(what % 16, signer, [who, on, how]),
            11 | 12 => self.reference(signer, on, how),
            13 => self.tombstone(signer, on, how),
            14 => {
                let grant = ODD_GRANTS[usize::from(on) % ODD_GRANTS.len()].clone();
                self.held.push(Made::Control(Box::new(grant)));
            }
            // What is withheld may still be built on.
            _ => {
                let at = usize::from(on) % self.held.len().max(1);
                if at < self.held.len() {
                    self.held.remove(at);
                }
            }
        }
    }

    /// An entry on the newest, or on the one that the byte names.
    fn parent(&self, on: u8) -> Signed<Entry> {
        let newest = self.chain.len() - 1;
        let at = if on >= 0x80 { usize::from(on) % self.chain.len() } else { newest };
        self.chain[at].clone()
    }

    fn entry(&mut self, kind: u8, signer: &Party, [who, on, how]: [u8; 3]) {
        let parent = self.parent(on);
        let wrong = Wrong::of(how & 0x3f);
        let body = self.body(kind, who, &parent, wrong);
        let mut place = self.place(&parent);
        if body.may_open() && signer.key.principal() == key_of_owner() {
            place.epoch = place.epoch.next();
        }
        let mut ts = parent.value().ts.get() + 1_000;
        match wrong {
            Wrong::Epoch => place.epoch = place.epoch.next(),
            Wrong::Skip => place.skip = Some(EntryCid::of(b"another entry")),
            Wrong::Seq => place.seq = place.seq.next(),
            Wrong::Ts => ts = parent.value().ts.get() - 1,
            Wrong::Genesis => place.genesis = parent.cid(),
            Wrong::Nothing | Wrong::Seal => {}
        }
        let has_words = matches!(body, Body::UserMessage(_) | Body::ModelResponse(_) | Body::ToolCall(_));
        let words = PayloadRef { cid: EntryCid::of(&self.count.to_be_bytes()), size: 1 };
        let cited = if how & 0x40 == 0 { signer.grant.clone() } else { self.other_grant(who) };
        let handoff = matches!(body, Body::Handoff(_));
        let entry = Entry {
            ts: throughline_protocol::id::UnixMillis::new(ts).expect("a time of our age"),
            signer: signer.key.principal(),
            authority: cited
                .as_ref()
                .map(under)
                .filter(|under| !handoff && under.space != signer.key.principal()),
            place: Some(place),
            body,
            payload: has_words.then_some(words),
            ext: None,
        };
        // What cannot be written is no part of any set.
        let Some(made) = self.seal(entry, &signer.key) else { return };
        if self.chain.iter().all(|held| held.cid() != made.cid()) {
            self.chain.push(made.clone());
            if how & 0x80 == 0 {
                self.held.push(Made::Entry(Box::new(made)));
            }
        }
    }

    fn other_grant(&self, who: u8) -> Option<Signed<Control>> {
        match who >> 3 & 3 {
            0 => None,
            1 => CAST[2].grant.clone(),
            2 => Some(ODD_GRANTS[usize::from(who >> 5) % ODD_GRANTS.len()].clone()),
            _ => CAST[5].grant.clone(),
        }
    }

    fn body(&self, kind: u8, who: u8, parent: &Signed<Entry>, wrong: Wrong) -> Body {
        let to = party(who >> 3).key.principal();
        match kind {
            0..=2 => Body::UserMessage(UserMessage {
                origin: (2..5).contains(&(who % 8)).then_some(Origin::Trigger),
                ..UserMessage::default()
            }),
            3..=5 => Body::ModelResponse(ModelResponse {
                model: Model { provider: "p".to_owned(), id: "m".to_owned(), api: None },
                calls: Vec::new(),
                usage: Usage { input: self.count, ..Usage::default() },
                stop_reason: None,
                status: None,
                config: None,
                duration_ms: 0,
            }),
            6 => Body::ToolCall(ToolCall {
                name: "bash".to_owned(),
                call_id: format!("c{}", self.count),
                outcome: Outcome::Ok,
                response: Some(parent.cid()),
                produced: Vec::new(),
                child: None,
                duration_ms: self.count,
            }),
            7 => Body::Note(Note::Rewind { to: self.chain[usize::from(who >> 3) % self.chain.len()].cid() }),
            8 | 9 => Body::Handoff(Handoff { holder: (who >> 3 != 31).then_some(to), ..Handoff::default() }),
            _ => Body::Seal(self.seal_body(parent, wrong)),
        }
    }

    fn place(&self, parent: &Signed<Entry>) -> Place {
        let seq = parent.value().seq().next();
        let target = skip::target(seq.get());
        let path = self.path(parent);
        let skip = path.iter().find(|entry| entry.value().seq().get() == target).map(|entry| entry.cid());
        Place {
            genesis: self.session.genesis(),
            prev: parent.cid(),
            seq,
            epoch: parent.value().epoch(),
            skip: skip.filter(|skip| *skip != parent.cid()),
        }
    }

    /// The path from an entry back to the genesis.
    fn path(&self, from: &Signed<Entry>) -> Vec<&Signed<Entry>> {
        let mut path = Vec::new();
        let mut next = Some(from.cid());
        while let Some(entry) = next.and_then(|cid| self.chain.iter().find(|entry| entry.cid() == cid)) {
            path.push(entry);
            next = entry.value().prev();
        }
        path
    }

    fn seal_body(&self, parent: &Signed<Entry>, wrong: Wrong) -> Seal {
        let path = self.path(parent);
        let mut participants: Vec<Principal> = path.iter().map(|entry| entry.value().signer).collect();
        participants.sort_unstable();
        participants.dedup();
        Seal {
            count: parent.value().seq().next().get() + u64::from(wrong == Wrong::Seal),
            participants,
            first_ts: path.last().map_or(parent, |first| first).value().ts,
            last_ts: parent.value().ts,
        }
    }

    fn reference(&mut self, signer: &Party, on: u8, how: u8) {
        let head = self.parent(on);
        let generation = head.value().epoch().get() + 1 + u64::from(how & 0x1f == 1);
        let value = Ref {
            ts: testing::ts(1_000_000 + self.count),
            signer: signer.key.principal(),
            space: signer.grant.as_ref().map(|grant| under(grant).space),
            capability: signer.grant.as_ref().map(|grant| under(grant).capability),
            path: Some(self.session.path()),
            heads: vec![head.cid().cid()],
            genesis_blob: Some(self.session.genesis().cid()),
            generation,
            private: how & 0x40 == 0,
            redirect: None,
        };
        self.hold_control(Control::Ref(value), &signer.key);
    }

    fn tombstone(&mut self, signer: &Party, on: u8, how: u8) {
        let revoked = party(how).grant.as_ref().unwrap_or(&ODD_GRANTS[0]);
        // Also under its other name.
        let cited = if how & 0x40 == 0 {
            revoked.cid().cid()
        } else {
            Cid::blake2b(throughline_protocol::id::Codec::DagCbor, revoked.bytes())
        };
        let head = self.parent(on);
        let keep = Keep { genesis: self.session.genesis(), head: head.cid(), seq: head.value().seq() };
        // Mostly the owner: others have no say.
        let signer = if how & 0x80 == 0 { party(0) } else { signer };
        let tombstone = Tombstone {
            ts: testing::ts(1_000_000 + self.count),
            signer: signer.key.principal(),
            capability: cited,
            keep: if how & 0x20 == 0 { Vec::new() } else { vec![keep] },
            reason: None,
            ext: None,
        };
        self.hold_control(Control::Tombstone(tombstone), &signer.key);
    }

    fn hold_control(&mut self, control: Control, key: &SigningKey) {
        if let Some(made) = self.seal(control, key) {
            self.held.push(Made::Control(Box::new(made)));
        }
    }

    /// The blob as a reader takes it; none when no reader would.
    fn seal<T: Writable + SignedBlob>(&self, value: T, key: &SigningKey) -> Option<Signed<T>> {
        match self.signatures {
            Signatures::Real => sign(value, key).ok(),
            Signatures::Zero => {
                let bytes = value.write(&[0; SIGNATURE_BYTES]);
                Decoded::decode(bytes).ok().map(Decoded::assume_signed)
            }
        }
    }
}

fn party(who: u8) -> &'static Party {
    &CAST[usize::from(who) % CAST.len()]
}

fn key_of_owner() -> Principal {
    CAST[0].key.principal()
}

fn under(grant: &Signed<Control>) -> Authority {
    Authority { space: key_of_owner(), capability: grant.cid().cid() }
}

/// A script that means something more often than random bytes do: the owner or a server begins, most acts are the holder's.
#[must_use]
pub fn random_script(rng: &mut Rng, acts: usize) -> Vec<u8> {
    let mut script = match rng.below(6) {
        0 => vec![2, 0x80, 0, 0],
        1 => vec![1, 2, 0, 0],
        2 => rng.bytes(ACT_BYTES),
        _ => vec![0, 2, 0, 0],
    };
    for _ in 0..acts {
        let mut act = rng.bytes(ACT_BYTES);
        if rng.below(4) > 0 {
            // On the newest entry, nothing wrong, under the signer's own capability, held.
            act[2] = if rng.once_in(6) { act[2] } else { 0 };
            act[3] = 6 + act[3] % 50;
        }
        match rng.below(8) {
            0..=2 => (act[0], act[1]) = (3, 2),
            3 => (act[0], act[1]) = (0, [0, 1, 5][rng.below(3)]),
            4 if rng.once_in(2) => (act[0], act[1]) = (8, 8 * (2 + act[1] % 3)),
            _ => {}
        }
        script.extend(act);
    }
    script
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use throughline_protocol::fork::State;

    use super::*;

    /// Random scripts reach every outcome of selection; else the target would try one corner only.
    #[test]
    fn random_scripts_reach_every_state() {
        let mut states: BTreeMap<State, usize> = BTreeMap::new();
        for seed in 0..600 {
            let mut rng = Rng::seeded(seed);
            let acts = 1 + rng.below(30);
            let script = random_script(&mut rng, acts);
            let bag = Bag::of_script(&script, Signatures::Zero);
            let mut set = Set::new(bag.session);
            bag.held.iter().for_each(|made| made.insert_into(&mut set));
            *states.entry(set.select().state).or_default() += 1;
        }
        assert!(states.len() >= 6, "{states:?}");
        assert!(states.get(&State::Ok).is_some_and(|ok| *ok > 100), "{states:?}");
    }

    #[test]
    fn signed_scripts_verify_and_mean_the_same() {
        let mut rng = Rng::seeded(7);
        let script = random_script(&mut rng, 20);
        let signed = Bag::of_script(&script, Signatures::Real);
        let mut keys = throughline_protocol::sign::VerifyingKeys::default();
        for made in &signed.held {
            throughline_protocol::blob::SignedAny::check(made.bytes(), &mut keys).unwrap();
        }
        assert!(signed.held.len() > 8);
    }
}
