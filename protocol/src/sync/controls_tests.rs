//! Whoever gets a range with what is needed judges it as one who holds everything.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::block::Signed;
use crate::control::{Control, Keep};
use crate::entry::Body;
use crate::fork::{Selection, Set};
use crate::testing::{self, Party, Reach, SessionBuilder};

/// One thing that happens to a session or to its owner.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Somebody signs: the owner, the device, the server, the contributor.
    Entry(u8),
    /// A Ref by one of them to an entry.
    Ref(u8, usize),
    /// The server is granted once more.
    Grant,
    /// One of them is revoked, keeping an entry or nothing.
    Revoke(u8, Option<usize>),
    /// A key that has nothing to do with the session is granted and revoked.
    Elsewhere,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_u8).prop_map(Step::Entry),
        3 => (0..4_u8, 0..12_usize).prop_map(|(who, at)| Step::Ref(who, at)),
        1 => Just(Step::Grant),
        1 => (1..4_u8, proptest::option::of(0..12_usize)).prop_map(|(who, keep)| Step::Revoke(who, keep)),
        2 => Just(Step::Elsewhere),
    ]
}

/// A session, and grants and revocations of its owner that are none of its business.
struct Built {
    session: SessionBuilder,
    others: Vec<Signed<Control>>,
}

fn build(steps: &[Step]) -> Built {
    let mut built = Built { session: SessionBuilder::new("chosen"), others: Vec::new() };
    steps.iter().enumerate().for_each(|(nth, step)| built.take(nth, *step));
    built
}

impl Built {
    fn party(&self, who: u8) -> Arc<Party> {
        let session = &self.session;
        let all = [&session.owner, &session.device, &session.server1, &session.contributor];
        Arc::clone(all[usize::from(who)])
    }

    fn take(&mut self, nth: usize, step: Step) {
        let last = self.session.entries().len() - 1;
        match step {
            Step::Entry(who) => {
                let party = self.party(who);
                self.session.user(&party, &format!("message {nth}"));
            }
            Step::Ref(who, at) => {
                let (party, reach) = (self.party(who), [Reach::Anchors, Reach::Publishes][nth % 2]);
                self.session.reference(&party, at.min(last), reach);
            }
            Step::Grant => {
                let (server, account) = (self.session.server1.key.principal(), testing::key("account"));
                self.others.push(testing::capability(&account, server, Role::Writer, None));
            }
            Step::Revoke(who, keep) => {
                let capability = self.party(who).capability.clone().unwrap();
                let keep = keep.map(|at| {
                    let head = &self.session.entries()[at.min(last)].entry;
                    Keep {
                        genesis: self.session.session().genesis(),
                        head: head.cid(),
                        seq: head.value().seq(),
                    }
                });
                self.session.tombstone(&capability, keep.into_iter().collect());
            }
            Step::Elsewhere => {
                let (account, key) = (testing::key("account"), testing::key(&format!("elsewhere {nth}")));
                let grant = testing::capability(&account, key.principal(), Role::Writer, None);
                self.others.push(self.session.tombstone(&grant, Vec::new()));
                self.others.push(grant);
            }
        }
    }

    fn held(&self) -> impl Iterator<Item = &Signed<Control>> {
        self.session.controls().iter().chain(&self.others)
    }

    fn select<'a>(&self, entries: usize, controls: impl Iterator<Item = &'a Signed<Control>>) -> Selection {
        let mut set = Set::new(self.session.session());
        for control in controls {
            set.insert_control(control);
        }
        for built in &self.session.entries()[..entries] {
            set.insert_entry(&built.entry);
        }
        set.select()
    }

    /// What a server chooses for the first `entries` of the chain.
    fn choose(&self, entries: usize) -> (Controls, Chosen) {
        let head = self.select(entries, self.held()).head.map_or(Seq::ZERO, |head| head.seq);
        let sent = &self.session.entries()[..entries];
        let agent = agent_of(&self.session);
        let mut held = Controls::new();
        for control in self.held() {
            held.insert(control);
        }
        let range = Range {
            session: self.session.session(),
            owner: self.session.owner.key.principal(),
            agent: &agent,
            head,
            signers: sent.iter().map(|built| built.entry.value().signer).collect(),
            places: sent.iter().map(|built| (built.entry.cid(), built.entry.value().seq())).collect(),
        };
        let chosen = range.choose(&held);
        (held, chosen)
    }
}

fn agent_of(session: &SessionBuilder) -> AgentIri {
    let Body::Genesis(genesis) = &session.entries()[0].entry.value().body else {
        panic!("a session begins with its genesis")
    };
    genesis.agent.clone()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The server sends what its own selection returns; the reader, who has nothing else, has to come to the same.
    #[test]
    fn a_range_is_judged_alike_by_who_holds_everything_and_by_who_gets_what_is_needed(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let built = build(&steps);
        let whole = built.select(built.session.entries().len(), built.held());
        let Some(head) = whole.head else { return Ok(()) };
        let entries = usize::try_from(head.seq.get()).unwrap() + 1;
        let (_, chosen) = built.choose(entries);
        let sent = built.held().filter(|control| chosen.needed.contains(&control.hash()));
        prop_assert_eq!(built.select(entries, sent), built.select(entries, built.held()));
        // Also where there is more than selection returns: what is cut there, is cut here.
        let all = built.session.entries().len();
        let (held, chosen) = built.choose(all);
        let sent = built.held().filter(|control| chosen.needed.contains(&control.hash()));
        prop_assert_eq!(built.select(all, sent), whole);
        let unique: BTreeSet<&BlobHash> = chosen.needed.iter().chain(&chosen.spare).collect();
        prop_assert_eq!(unique.len(), chosen.needed.len() + chosen.spare.len(), "each once");
        prop_assert!(unique.iter().all(|hash| held.holds(hash)));
    }
}

#[test]
fn what_concerns_others_is_spare_however_much_there_is_of_it() {
    let mut built = build(&[Step::Entry(2), Step::Entry(3), Step::Ref(0, 2), Step::Ref(1, 1)]);
    (0..300).for_each(|nth| built.take(nth, Step::Elsewhere));
    let (_, chosen) = built.choose(3);
    let needed: Vec<&Signed<Control>> =
        built.held().filter(|control| chosen.needed.contains(&control.hash())).collect();
    let of = |control: &Signed<Control>| match control.value() {
        Control::Capability(capability) => ("grant", capability.delegate),
        Control::Tombstone(_) => ("tombstone", built.session.owner.key.principal()),
        Control::Ref(value) => ("Ref", value.signer),
    };
    let party = |party: &Arc<Party>| party.key.principal();
    let session = &built.session;
    let expected = [
        ("grant", party(&session.device)),
        ("grant", party(&session.server1)),
        ("grant", party(&session.contributor)),
        ("Ref", party(&session.owner)),
        ("Ref", party(&session.device)),
    ];
    assert_eq!(needed.iter().map(|control| of(control)).collect::<Vec<_>>(), expected);
    assert_eq!(chosen.spare.len(), 300);
}

#[test]
fn no_key_takes_all_the_places_of_refs() {
    let mut built = build(&[Step::Entry(2), Step::Entry(2), Step::Ref(0, 1)]);
    for nth in 0..200 {
        // A device that anchors again and again, above what its owner anchored.
        built.session.user(&built.party(1), &format!("again {nth}"));
        built.take(nth, Step::Ref(1, usize::MAX));
    }
    let (_, chosen) = built.choose(built.session.entries().len());
    let refs_of = |party: &Arc<Party>| {
        let is_needed = |control: &&Signed<Control>| chosen.needed.contains(&control.hash());
        let by = |control: &&Signed<Control>| matches!(control.value(), Control::Ref(value) if value.signer == party.key.principal());
        built.held().filter(is_needed).filter(by).count()
    };
    assert_eq!((refs_of(&built.session.owner), refs_of(&built.session.device)), (1, 2 * REFS_OF_ONE));
}
