//! Random sessions, honest and not, and the laws that selection keeps for all of them (`docs/PROTOCOL.md` §Selection).

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;
use throughline_protocol::fork::{Mark, Selection, Set, State};
use throughline_protocol::verify::{ChainState, Controls, Prechecked, Pushed, Verifier};

use super::forge::{Blob, Forge, Id, Kind, Spec, Step, What};
use super::select::shuffled;

const GENESIS: Id = 100;
/// Capabilities by number: the servers', the device's, the contributor's.
const GRANTS: [(Id, &str, &str); 5] = [
    (1, "server1", "agent-session-writer"),
    (2, "server2", "agent-session-writer"),
    (3, "server3", "agent-session-writer"),
    (4, "device", "AGENT"),
    (5, "contributor", "agent-session-contributor"),
];

fn config() -> ProptestConfig {
    ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() }
}

fn grant_of(signer: &str) -> Option<Id> {
    GRANTS.iter().find(|(_, delegate, _)| *delegate == signer).map(|(id, ..)| *id)
}

/// One random act. What it means depends on where the session stands.
#[derive(Clone, Debug)]
enum Act {
    /// The holder answers on its head.
    Respond,
    /// Another party says something on the head, or on an older entry.
    Say { who: usize, on: Option<Index> },
    /// The owner hands over.
    HandOver { to: usize },
    /// The owner or the device anchors an entry.
    Anchor { device: bool, on: Index },
}

/// An act of a key that does not keep the rules.
#[derive(Clone, Debug)]
struct Hostile {
    who: usize,
    kind: usize,
    on: Index,
    cites: usize,
    epoch: u64,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => Just(Act::Respond),
        4 => (0..3_usize, proptest::option::weighted(0.3, any::<Index>())).prop_map(|(who, on)| Act::Say { who, on }),
        1 => (0..3_usize).prop_map(|to| Act::HandOver { to }),
        1 => (any::<bool>(), any::<Index>()).prop_map(|(device, on)| Act::Anchor { device, on }),
    ]
}

fn hostile() -> impl Strategy<Value = Hostile> {
    (0..60_usize, 0..5_usize, any::<Index>(), 0..6_usize, 0..3_u64)
        .prop_map(|(who, kind, on, cites, epoch)| Hostile { who, kind, on, cites, epoch })
}

const SERVERS: [&str; 3] = ["server1", "server2", "server3"];
const SPEAKERS: [&str; 3] = ["account", "device", "contributor"];

/// A session that grows act by act.
#[derive(Clone, Debug)]
struct World {
    forge: Forge,
    entries: Vec<Id>,
    holder: &'static str,
    /// The head that an honest holder appends to.
    head: Id,
    /// A key that the owner has revoked.
    revoked: Option<&'static str>,
    next: Id,
}

impl World {
    /// A session begun by the account for `server1`, or by `server1` itself.
    fn new(server_starts: bool) -> Self {
        let mut world = World {
            forge: Forge::new(GENESIS),
            entries: vec![GENESIS],
            holder: "server1",
            head: GENESIS,
            revoked: None,
            next: GENESIS + 1,
        };
        for (id, delegate, role) in GRANTS {
            let what = What::Capability { delegate: delegate.to_owned(), role: role.to_owned() };
            world.forge.make(&Spec { id, signer: "account".to_owned(), what });
        }
        let (signer, holder) =
            if server_starts { ("server1", None) } else { ("account", Some("server1".to_owned())) };
        let step = Step {
            kind: Kind::Genesis { holder },
            prev: None,
            seq: 0,
            epoch: 0,
            capability: grant_of(signer),
        };
        world.forge.make(&Spec { id: GENESIS, signer: signer.to_owned(), what: What::Entry(step) });
        world
    }

    fn honest(server_starts: bool, acts: &[Act]) -> Self {
        let mut world = World::new(server_starts);
        acts.iter().for_each(|act| world.act(act));
        world
    }

    fn mark(&self, id: Id) -> Mark {
        let entry = self.forge.entry(id).expect("an entry that was made");
        Mark { seq: entry.value().seq(), epoch: entry.value().epoch(), cid: entry.cid() }
    }

    fn fresh(&mut self) -> Id {
        self.next += 1;
        self.next
    }

    fn put(&mut self, signer: &str, what: What) -> Id {
        let id = self.fresh();
        self.forge.make(&Spec { id, signer: signer.to_owned(), what });
        id
    }

    /// Puts an entry on another; none when its bytes cannot be made.
    fn entry(&mut self, signer: &str, kind: Kind, on: Id, cites: Option<Id>, epoch: u64) -> Option<Id> {
        let seq = self.mark(on).seq.get() + 1;
        let id = self.put(signer, What::Entry(Step { kind, prev: Some(on), seq, epoch, capability: cites }));
        self.forge.entry(id)?;
        self.entries.push(id);
        Some(id)
    }

    fn append(&mut self, signer: &str, kind: Kind, on: Id) -> Id {
        let opens =
            matches!(kind, Kind::Handoff { .. }) || (matches!(kind, Kind::Seal) && signer == "account");
        let epoch = self.mark(on).epoch.get() + u64::from(opens);
        self.entry(signer, kind, on, grant_of(signer), epoch).expect("an entry that an honest key signs")
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Respond => self.head = self.append(self.holder, Kind::ModelResponse, self.head),
            Act::Say { who, on } => {
                let here: Vec<Id> = self.entries_of_epoch(self.mark(self.head).epoch.get());
                let on = on.as_ref().map_or(self.head, |on| *on.get(&here));
                let said = self.append(SPEAKERS[*who], Kind::UserMessage, on);
                // On the head itself: the holder takes it in with its next entry.
                if on == self.head {
                    self.head = self.append(self.holder, Kind::ModelResponse, said);
                }
            }
            Act::HandOver { to } => {
                self.holder = SERVERS[*to];
                let holder = Some(self.holder.to_owned());
                self.head = self.append("account", Kind::Handoff { holder }, self.head);
            }
            Act::Anchor { device, on } => {
                // Honest anchors are heads that an owner's node adopted.
                let on = *on.get(&self.adopted());
                let signer = if *device { "device" } else { "account" };
                self.put(signer, What::Ref { head: on, capability: grant_of(signer) });
            }
        }
    }

    fn entries_of_epoch(&self, epoch: u64) -> Vec<Id> {
        self.entries.iter().copied().filter(|id| self.mark(*id).epoch.get() == epoch).collect()
    }

    /// The path of the honest head.
    fn adopted(&self) -> Vec<Id> {
        let mut path = Vec::new();
        let mut at = Some(self.forge.cid(self.head));
        while let Some(cid) = at {
            let id = self.forge.id_of(cid);
            path.push(id);
            at = self.forge.entry(id).and_then(|entry| entry.value().prev());
        }
        path
    }

    /// A blob by a key that is neither the account, a live device nor the holder in force.
    fn hostile(&mut self, act: &Hostile) {
        let servers = SERVERS.into_iter().filter(|server| *server != self.holder);
        let who: Vec<&str> = servers.chain(["contributor", "stranger"]).chain(self.revoked).collect();
        let signer = who[act.who % who.len()];
        let on = *act.on.get(&self.entries);
        let cites = (act.cites > 0)
            .then_some(Id::try_from(act.cites).expect("a small number"))
            .or_else(|| grant_of(signer));
        let epoch = self.mark(on).epoch.get() + act.epoch.saturating_sub(1);
        match act.kind {
            0 => {
                self.entry(signer, Kind::UserMessage, on, cites, epoch);
            }
            1 => {
                self.entry(signer, Kind::ModelResponse, on, cites, epoch);
            }
            2 => {
                self.entry(signer, Kind::Seal, on, cites, epoch);
            }
            3 => {
                self.put(signer, What::Ref { head: on, capability: cites });
            }
            _ => {
                let capability = cites.unwrap_or(1);
                self.put(signer, What::Tombstone { capability, keep: Vec::new() });
            }
        }
    }

    /// Anchors everything that is valid, then revokes a capability.
    fn anchor_then_revoke(&mut self, capability: Id, keep: bool) {
        let tips: Vec<Id> =
            self.forge.set().select().valid.iter().map(|cid| self.forge.id_of(*cid)).collect();
        if keep {
            let keep = tips.into_iter().rev().take(64).collect();
            self.put("account", What::Tombstone { capability, keep });
        } else {
            for head in tips {
                self.put("account", What::Ref { head, capability: None });
            }
            self.put("account", What::Tombstone { capability, keep: Vec::new() });
        }
    }

    fn handoff(&mut self, on: Mark, epoch: u64) -> Id {
        let on = self.forge.id_of(on.cid);
        let step = Kind::Handoff { holder: Some("server3".to_owned()) };
        // The epoch opened is one above that of the entry it stands on: go up until it is above all.
        let mut at = on;
        while self.mark(at).epoch.get() < epoch {
            at = self.append("account", step.clone(), at);
        }
        at
    }

    fn top_epoch(&self) -> u64 {
        self.entries.iter().map(|id| self.mark(*id).epoch.get()).max().unwrap_or(0)
    }
}

/// What a node stands by: everything but pending, passed, fenced and evidence.
fn decided(selection: &Selection) -> (State, Option<Mark>, Vec<Mark>) {
    (selection.state, selection.head, selection.disputed.clone())
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    proptest::collection::vec(act(), 0..14)
}

fn hostiles() -> impl Strategy<Value = Vec<Hostile>> {
    proptest::collection::vec(hostile(), 1..8)
}

/// An entry of a key that was revoked before, below one of the server that held the epoch it stands in: `holderEntry` anchors, so it
/// is valid; the epoch has ended, so it is fenced, and the head stays.
#[test]
fn what_a_former_holder_orders_of_a_revoked_key_is_fenced() {
    let mut world = World::honest(false, &[Act::Respond, Act::HandOver { to: 1 }]);
    let before = world.forge.set().select();
    world.anchor_then_revoke(grant_of("device").unwrap(), false);
    let said = world.append("device", Kind::UserMessage, GENESIS);
    let alone = world.forge.set().select();
    let cid = world.forge.cid(said);
    assert!(!alone.valid.contains(&cid), "nothing anchors it");
    world.append("server1", Kind::UserMessage, said);
    let after = world.forge.set().select();
    assert!(after.valid.contains(&cid) && after.fenced.contains(&cid));
    assert_eq!(decided(&after), decided(&before));
}

proptest! {
    #![proptest_config(config())]

    /// The outcome depends on the set only: any order, any duplicates.
    #[test]
    fn order_and_duplicates_change_nothing(starts: bool, acts in acts(), hostiles in hostiles(), seed: u64) {
        let mut world = World::honest(starts, &acts);
        hostiles.iter().for_each(|act| world.hostile(act));
        let blobs: Vec<&Blob> = world.forge.blobs().map(|(_, blob)| blob).collect();
        let mut set = Set::new(world.forge.session());
        for at in shuffled(blobs.len(), seed).into_iter().chain(shuffled(blobs.len(), seed ^ 1)) {
            blobs[at].insert_into(&mut set);
        }
        prop_assert_eq!(set.select(), world.forge.set().select());
    }

    /// With honest keys the head is the holder's, and any two subsets in one epoch have heads on one path.
    #[test]
    fn honest_subsets_have_heads_on_one_path(starts: bool, acts in acts(), one: u64, two: u64) {
        let world = World::honest(starts, &acts);
        let whole = world.forge.set();
        prop_assert_eq!(decided(&whole.select()), (State::Ok, Some(world.mark(world.head)), Vec::new()));
        let subset = |mask: u64| world.forge.set_of(|id| mask >> (id % 61) & 1 == 1).select();
        if let (Some(a), Some(b)) = (subset(one).head, subset(two).head)
            && a.epoch == b.epoch
        {
            let judged = whole.judge();
            prop_assert!(judged.precedes(a.cid, b.cid) || judged.precedes(b.cid, a.cid), "{:?} and {:?}", a, b);
        }
    }

    /// Blobs by anyone but the account, a live device and the current holder change neither state nor head.
    #[test]
    fn outsiders_change_only_what_waits(starts: bool, acts in acts(), hostiles in hostiles()) {
        let mut world = World::honest(starts, &acts);
        let before = world.forge.set().select();
        hostiles.iter().for_each(|act| world.hostile(act));
        let after = world.forge.set().select();
        prop_assert_eq!(decided(&after), decided(&before));
        prop_assert!(before.valid.is_subset(&after.valid));
        prop_assert_eq!(after.anchored_through, before.anchored_through);
    }

    /// Anchoring what is held and then revoking any key but the holder's moves no head, and nothing that key signs later counts.
    #[test]
    fn anchor_then_revoke_moves_no_head(
        starts: bool,
        acts in acts(),
        which in 0..5_usize,
        keep: bool,
        hostiles in hostiles(),
    ) {
        let mut world = World::honest(starts, &acts);
        let (capability, delegate, _) = GRANTS[which];
        prop_assume!(delegate != world.holder);
        // A tombstone keeps 64 heads at most; this many are never valid at once here.
        prop_assume!(world.entries.len() < 60);
        let before = world.forge.set().select();
        world.anchor_then_revoke(capability, keep);
        world.revoked = Some(delegate);
        let revoked = world.forge.set().select();
        prop_assert_eq!(decided(&revoked), decided(&before));
        prop_assert_eq!(&revoked.valid, &before.valid);
        hostiles.iter().for_each(|act| world.hostile(act));
        let later = world.forge.set();
        let after = later.select();
        prop_assert_eq!(decided(&after), decided(&before));
        let judged = later.judge();
        // Who held an ended epoch may still put it in order there, where it counts for nothing.
        for cid in after.valid.difference(&before.valid).filter(|cid| !after.fenced.contains(cid)) {
            prop_assert_eq!(judged.revoked_by(*cid), None, "a revoked key's new entry counts");
        }
    }

    /// A holder that signs two histories forks the session at the entry that both share; one handoff of a higher epoch ends it.
    #[test]
    fn a_fork_ends_with_one_handoff(starts: bool, acts in acts(), lengths in (1..4_usize, 1..4_usize)) {
        let mut world = World::honest(starts, &acts);
        let meet = world.mark(world.head);
        let mut tips = BTreeSet::new();
        for length in [lengths.0, lengths.1] {
            let mut at = world.head;
            for _ in 0..length {
                at = world.append(world.holder, Kind::ModelResponse, at);
            }
            tips.insert(world.mark(at));
        }
        let forked = world.forge.set().select();
        prop_assert_eq!(decided(&forked), (State::Forked, Some(meet), tips.into_iter().collect()));
        prop_assert_eq!(forked.evidence.len(), 1);
        let end = world.handoff(meet, world.top_epoch() + 1);
        let ended = world.forge.set().select();
        prop_assert_eq!(decided(&ended), (State::Ok, Some(world.mark(end)), Vec::new()));
        prop_assert_eq!(ended.evidence, forked.evidence);
        prop_assert!(forked.disputed.iter().all(|tip| ended.fenced.contains(&tip.cid)));
    }

    /// Two handoffs of one epoch freeze it at the entry that both share; one handoff of a higher epoch ends it.
    #[test]
    fn a_freeze_ends_with_one_handoff(starts: bool, acts in acts(), back in 0..3_usize, below: bool) {
        let mut world = World::honest(starts, &acts);
        let epoch = world.mark(world.head).epoch.get();
        let same_epoch: Vec<Id> =
            world.adopted().into_iter().filter(|id| world.mark(*id).epoch.get() == epoch).collect();
        let lower = same_epoch[back.min(same_epoch.len() - 1)];
        for (on, to) in [(world.head, "server1"), (lower, "server2")] {
            world.append("account", Kind::Handoff { holder: Some(to.to_owned()) }, on);
        }
        let frozen = world.forge.set().select();
        prop_assert_eq!(frozen.state, State::Frozen);
        prop_assert_eq!(frozen.head, Some(world.mark(lower)));
        prop_assert!(!frozen.evidence.is_empty());
        // On either of the two, or below both.
        let on = if below { world.mark(lower) } else { frozen.disputed[0] };
        let end = world.handoff(on, epoch + 2);
        let ended = world.forge.set().select();
        prop_assert_eq!(decided(&ended), (State::Ok, Some(world.mark(end)), Vec::new()));
    }

    /// The stream and the set agree on any linear chain, under any tombstones and Refs, and so does a restarted stream.
    #[test]
    fn the_stream_agrees_with_the_set(
        starts: bool,
        acts in acts(),
        revoked in proptest::collection::vec((1..6_u64, any::<Option<Index>>()), 0..3),
        tail in proptest::collection::vec(0..3_usize, 0..4),
        restart: Index,
    ) {
        let mut world = World::honest(starts, &acts);
        let mut at = world.head;
        for who in tail {
            at = world.append(SPEAKERS[who], Kind::UserMessage, at);
        }
        let mut path: Vec<Id> = std::iter::successors(Some(at), |id| {
            let prev = world.forge.entry(*id)?.value().prev()?;
            Some(world.forge.id_of(prev))
        }).collect();
        path.reverse();
        for (capability, keep) in revoked {
            let keep = keep.iter().map(|keep| *keep.get(&path)).collect();
            world.put("account", What::Tombstone { capability, keep });
        }
        let set = world.forge.set_of(|id| path.contains(&id) || world.forge.entry(id).is_none());
        let selection = set.select();
        let state = stream(&world, &path, set.controls(), restart.index(path.len()));
        let outcome = state.outcome().expect("nothing arrived late");
        prop_assert_eq!(outcome.state, selection.state);
        prop_assert_eq!(outcome.head, selection.head);
        prop_assert_eq!(outcome.anchored_through, selection.anchored_through);
        prop_assert_eq!(outcome.cut, set.judge().cut(&selection));
        prop_assert_eq!(ChainState::at(&set.judge(), set.controls(), world.forge.cid(at)), Some(state));
    }
}

/// Random sessions with hostile acts, as records for the second verifier; always the same ones.
pub(super) fn set_records(count: usize) -> Vec<throughline_tests::differ::Record> {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = (any::<bool>(), acts(), hostiles());
    let mut make = || {
        let (starts, acts, hostiles) =
            strategy.new_tree(&mut runner).expect("a strategy without filters").current();
        let mut world = World::honest(starts, &acts);
        hostiles.iter().for_each(|act| world.hostile(act));
        world.forge.set_record()
    };
    (0..count).map(|_| make()).collect()
}

/// Streams a path, stopping once to go on from the bytes of the state.
fn stream(world: &World, path: &[Id], controls: &Controls, restart: usize) -> ChainState {
    let mut verifier = Verifier::begin(controls.clone());
    for (at, id) in path.iter().enumerate() {
        let entry = world.forge.entry(*id).expect("an entry of the path");
        let checked = Prechecked::of(entry.clone(), None).expect("no payload to check");
        let pushed = verifier.link(checked).expect("an honest chain");
        assert!(matches!(pushed, Pushed::Linked(mark, _) if mark == world.mark(*id)));
        if at == restart {
            let bytes = verifier.state().expect("a chain").to_bytes();
            verifier =
                Verifier::resume(ChainState::from_bytes(&bytes).expect("its own bytes"), controls.clone());
        }
    }
    verifier.state().expect("a chain").clone()
}
