//! What is evidence, what is none, and that a file says the same wherever it is made.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::control::Role;
use crate::fork::{Set, State};
use crate::id::EntryCid;
use crate::sign::VerifyingKeys;
use crate::testing::{Built, Party, Reach, SessionBuilder};

/// Everything that is held of one session.
#[derive(Clone, Default)]
struct Held {
    entries: Vec<Built>,
    controls: Vec<Signed<Control>>,
}

impl Held {
    fn of(histories: &[&SessionBuilder]) -> Self {
        let entries = histories.iter().flat_map(|history| history.entries().to_vec()).collect();
        let controls = histories.iter().flat_map(|history| history.controls().to_vec()).collect();
        Held { entries, controls }
    }

    fn set(&self) -> Set {
        let mut set = Set::new(SessionId::of_genesis(self.entries[0].entry.cid()));
        self.controls.iter().for_each(|control| {
            set.insert_control(control);
        });
        self.entries.iter().for_each(|built| {
            set.insert_entry(&built.entry);
        });
        set
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        let set = self.set();
        let judged = set.judge();
        let entries: BTreeMap<EntryCid, Arc<[u8]>> =
            self.entries.iter().map(|built| (built.entry.cid(), Arc::clone(built.entry.bytes()))).collect();
        let control = |cid: &Cid| {
            self.controls.iter().map(|c| c.bytes()).find(|bytes| cid.matches(bytes)).map(Arc::clone)
        };
        let charges = charges(&judged, &judged.selection());
        charges
            .iter()
            .map(|charge| build(charge, |cid| entries.get(&cid).cloned(), control).unwrap())
            .collect()
    }
}

fn begin(label: &str) -> SessionBuilder {
    let mut session = SessionBuilder::new(label);
    let (owner, server) = (Arc::clone(&session.owner), Arc::clone(&session.server1));
    session.user(&owner, "make the login test pass");
    session.response(&server, "Running it.", &[]);
    session
}

/// The first server signs two histories; on the second one the owner speaks before it does.
fn forked() -> Held {
    let mut one = begin("forked");
    let (owner, server) = (Arc::clone(&one.owner), Arc::clone(&one.server1));
    let mut other = one.clone().branch("other");
    for words in ["Delete it.", "Deleted.", "Anything else?"] {
        one.response(&server, words, &[]);
    }
    other.user(&owner, "And the logout test?");
    other.response(&server, "List it.", &[]);
    other.response(&server, "It is empty.", &[]);
    Held::of(&[&one, &other])
}

/// One history goes on with the second server, the first one went on alone.
fn fenced() -> Held {
    let mut session = begin("fenced");
    let (first, second) = (Arc::clone(&session.server1), Arc::clone(&session.server2));
    let mut stale = session.clone().branch("stale");
    session.handoff(Some(&second));
    session.response(&second, "Carrying on.", &[]);
    stale.response(&first, "I missed that.", &[]);
    stale.response(&first, "I go on.", &[]);
    Held::of(&[&session, &stale])
}

fn revoked() -> Held {
    let mut session = begin("revoked");
    let (owner, server) = (Arc::clone(&session.owner), Arc::clone(&session.server1));
    session.reference(&owner, 2, Reach::Anchors);
    let grant = server.capability.clone().unwrap();
    session.tombstone(&grant, Vec::new());
    session.response(&server, "I go on.", &[]);
    session.response(&server, "And on.", &[]);
    Held::of(&[&session])
}

fn opened_twice() -> Held {
    let mut one = begin("opened twice");
    let (first, second) = (Arc::clone(&one.server1), Arc::clone(&one.server2));
    let mut other = one.clone().branch("other");
    one.handoff(Some(&second));
    other.response(&first, "One more.", &[]);
    other.handoff(Some(&first));
    Held::of(&[&one, &other])
}

fn all() -> [(Held, Kind); 4] {
    [
        (forked(), Kind::Equivocation),
        (opened_twice(), Kind::OwnerEquivocation),
        (fenced(), Kind::FencedTail),
        (revoked(), Kind::RevokedTail),
    ]
}

fn only(held: &Held, kind: Kind) -> Exhibit {
    let found: Vec<Exhibit> =
        held.exhibits().into_iter().filter(|exhibit| exhibit.accusation().kind == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found.into_iter().next().unwrap()
}

#[test]
fn each_kind_is_shown_by_a_small_file_that_checks_alone() {
    for (held, kind) in all() {
        let exhibit = only(&held, kind);
        let again = Exhibit::check(Arc::clone(exhibit.bytes()), &mut VerifyingKeys::default()).unwrap();
        assert_eq!(again, exhibit);
        assert_eq!(again.report().verdict, kind.verdict());
        assert_eq!(has_two_roots(exhibit.bytes()), Some(true));
        assert!(exhibit.bytes().len() < 16_384, "{kind}: {} bytes", exhibit.bytes().len());
    }
}

#[test]
fn the_lowest_entry_of_each_side_is_shown() {
    let exhibit = only(&forked(), Kind::Equivocation);
    let seqs: Vec<u64> = exhibit.sides().iter().map(|side| side.mark.seq.get()).collect();
    assert_eq!(seqs, [3, 4], "the owner's message lies between");
    assert_eq!(exhibit.meet().unwrap().seq.get(), 2);
    assert_eq!(only(&fenced(), Kind::FencedTail).sides()[0].mark.seq.get(), 3);
    assert_eq!(only(&revoked(), Kind::RevokedTail).sides()[0].mark.seq.get(), 3);
}

#[test]
fn what_is_held_beside_it_and_in_which_order_changes_no_byte() {
    for (held, kind) in all() {
        let exhibit = only(&held, kind);
        let mut reversed = held.clone();
        reversed.entries[1..].reverse();
        reversed.controls.reverse();
        assert_eq!(only(&reversed, kind), exhibit, "{kind}: another order");
        let needed: Vec<EntryCid> = exhibit.entries().iter().map(Signed::cid).collect();
        let mut fewer = held.clone();
        // Later entries of both sides go; what lies below stays.
        let top = needed.iter().filter_map(|cid| held.entries.iter().find(|b| b.entry.cid() == *cid));
        let top = top.map(|built| built.entry.value().seq()).max().unwrap();
        fewer.entries.retain(|built| built.entry.value().seq() <= top);
        assert_eq!(only(&fewer, kind), exhibit, "{kind}: fewer entries");
    }
}

#[test]
fn a_node_that_holds_the_chain_reaches_the_verdict_from_the_file() {
    let (held, exhibit) = (forked(), only(&forked(), Kind::Equivocation));
    let honest = Held { entries: held.entries[..6].to_vec(), controls: held.controls.clone() };
    let mut set = honest.set();
    assert_eq!(set.select().state, State::Ok);
    exhibit.controls().iter().for_each(|control| {
        set.insert_control(control);
    });
    exhibit.entries().iter().for_each(|entry| {
        set.insert_entry(entry);
    });
    let selection = set.select();
    assert_eq!((selection.state, selection.head), (State::Forked, exhibit.meet()));
}

#[test]
fn no_flipped_bit_and_no_cut_file_shows_anything() {
    for (held, kind) in all() {
        let bytes = only(&held, kind).bytes().to_vec();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1 << (at % 8);
            assert!(Exhibit::check(other, &mut VerifyingKeys::default()).is_err(), "{kind}: byte {at}");
        }
        for length in (0..bytes.len()).step_by(7) {
            let cut = bytes[..length].to_vec();
            assert!(Exhibit::check(cut, &mut VerifyingKeys::default()).is_err(), "{kind}: {length} bytes");
        }
    }
}

/// The file of a charge that somebody made up.
fn forge(held: &Held, roots: [EntryCid; 2], entries: &[EntryCid], tombstone: Option<BlobHash>) -> Reject {
    let accused = held.entries.iter().find(|built| built.entry.cid() == roots[0]).unwrap();
    let entry = accused.entry.value();
    let accusation = Accusation { kind: Kind::Equivocation, epoch: entry.epoch(), signer: entry.signer };
    let session = SessionId::of_genesis(held.entries[0].entry.cid());
    let mut taken: std::collections::BTreeSet<EntryCid> = entries.iter().copied().collect();
    taken.insert(session.genesis());
    let charge = Charge { session, accusation, roots, entries: taken, tombstone };
    let find = |cid: EntryCid| held.entries.iter().map(|b| &b.entry).find(|e| e.cid() == cid);
    let control =
        |cid: &Cid| held.controls.iter().map(|c| c.bytes()).find(|bytes| cid.matches(bytes)).map(Arc::clone);
    build(&charge, |cid| find(cid).map(|entry| Arc::clone(entry.bytes())), control).unwrap_err()
}

#[test]
fn nobody_is_accused_of_an_honest_chain() {
    let mut session = begin("honest");
    let (owner, server) = (Arc::clone(&session.owner), Arc::clone(&session.server1));
    session.response(&server, "One.", &[]);
    session.user(&owner, "Two.");
    session.response(&server, "Three.", &[]);
    let held = Held::of(&[&session]);
    assert!(held.exhibits().is_empty());
    let cid = |seq: usize| session.entries()[seq].entry.cid();
    let cases = [
        ("two entries on one path", [cid(3), cid(5)], vec![cid(3), cid(4), cid(5)], Code::Evidence),
        ("a path with a hole", [cid(3), cid(5)], vec![cid(3), cid(5)], Code::Evidence),
        ("an entry against itself", [cid(3), cid(3)], vec![cid(2), cid(3)], Code::CarOrder),
        ("two signers", [cid(3), cid(4)], vec![cid(3), cid(4)], Code::Evidence),
    ];
    for (what, roots, entries, code) in cases {
        assert_eq!(forge(&held, roots, &entries, None).code, code, "{what}");
    }
}

#[test]
fn a_user_who_signs_on_an_older_head_is_no_equivocator() {
    let mut one = begin("passed");
    let owner = Arc::clone(&one.owner);
    let mut other = one.clone().branch("other");
    let (a, b) = (one.user(&owner, "this"), other.user(&owner, "or that"));
    let held = Held::of(&[&one, &other]);
    assert!(held.exhibits().is_empty());
    let roots = if a < b { [a, b] } else { [b, a] };
    let meet = one.entries()[2].entry.cid();
    assert_eq!(forge(&held, roots, &[a, b, meet], None).code, Code::NotHolder);
}

#[test]
fn a_file_holds_nothing_but_what_its_claim_takes() {
    let held = forked();
    let exhibit = only(&held, Kind::Equivocation);
    let roots = [exhibit.sides()[0].mark.cid, exhibit.sides()[1].mark.cid];
    let mut more: Vec<EntryCid> = exhibit.entries().iter().map(Signed::cid).collect();
    more.push(held.entries[1].entry.cid());
    assert_eq!(forge(&held, roots, &more, None).code, Code::CarOrder);
    assert_eq!(forge(&held, [roots[1], roots[0]], &more[..more.len() - 1], None).code, Code::CarOrder);
    let other_order = {
        let (found, blobs) =
            super::file::Blobs::read(exhibit.bytes(), &mut VerifyingKeys::default()).unwrap();
        let mut out = Vec::new();
        crate::car::write_header(&mut out, &found.map(|root| root.cid()));
        blobs.entries().for_each(|e| crate::car::write_block(&mut out, &e.cid().cid(), e.bytes()));
        blobs.controls().for_each(|c| crate::car::write_block(&mut out, &c.cid().cid(), c.bytes()));
        out
    };
    let refused = Exhibit::check(other_order, &mut VerifyingKeys::default()).unwrap_err();
    assert_eq!(refused.code, Code::CarOrder);
}

#[test]
fn a_tombstone_that_keeps_the_entry_accuses_nobody() {
    let mut session = begin("kept");
    let server = Arc::clone(&session.server1);
    let head = session.response(&server, "Kept.", &[]);
    let grant = server.capability.clone().unwrap();
    let keep = crate::control::Keep { genesis: session.session().genesis(), head, seq: Seq::new(3).unwrap() };
    let tombstone = session.tombstone(&grant, vec![keep]);
    let held = Held::of(&[&session]);
    assert!(held.exhibits().is_empty());
    let roots = [head, tombstone.cid()];
    assert_eq!(forge(&held, roots, &[head], Some(tombstone.hash())).code, Code::Evidence);
    session.response(&server, "Too much.", &[]);
    let exhibit = only(&Held::of(&[&session]), Kind::RevokedTail);
    assert_eq!(exhibit.kept_through().unwrap().get(), 3);
    assert_eq!(exhibit.sides()[0].mark.seq.get(), 4);
}

#[test]
fn a_revoked_entry_beside_what_its_tombstone_keeps_is_shown_from_the_seq_above() {
    let mut session = begin("kept beside");
    let server = Arc::clone(&session.server1);
    let mut other = session.clone().branch("other");
    session.response(&server, "Kept.", &[]);
    let head = session.response(&server, "Kept too.", &[]);
    let low = other.response(&server, "Beside it.", &[]);
    other.response(&server, "Beside it still.", &[]);
    let grant = server.capability.clone().unwrap();
    let keep = crate::control::Keep { genesis: session.session().genesis(), head, seq: Seq::new(4).unwrap() };
    let tombstone = session.tombstone(&grant, vec![keep]);
    let found = |held: Held| -> Vec<Exhibit> {
        let all = held.exhibits().into_iter();
        all.filter(|exhibit| exhibit.accusation().kind == Kind::RevokedTail).collect()
    };
    let held = Held::of(&[&session, &other]);
    assert!(held.set().select().revoked_tail.contains(&low), "selection cuts it all the same");
    assert_eq!(forge(&held, [low, tombstone.cid()], &[low], Some(tombstone.hash())).code, Code::Evidence);
    assert_eq!(found(held), []);
    other.response(&server, "Above.", &[]);
    let above = found(Held::of(&[&session, &other]));
    let seqs: Vec<u64> = above.iter().map(|exhibit| exhibit.sides()[0].mark.seq.get()).collect();
    assert_eq!(seqs, [5]);
}

#[test]
fn openings_that_stand_on_one_another_exclude_nothing() {
    let mut session = begin("stacked");
    let (owner, server) = (Arc::clone(&session.owner), Arc::clone(&session.server2));
    let first = session.handoff(Some(&server));
    let body = session.head().entry.value().body.clone();
    let (mut entry, _) = session.draft(&owner, body, None);
    // A handoff onto a handoff that says it opens the same epoch: it breaks a rule, and no chain takes it in.
    entry.place.as_mut().unwrap().epoch = crate::testing::epoch(1);
    let second = session.push(&owner, entry, None).unwrap();
    let held = Held::of(&[&session]);
    assert!(held.exhibits().is_empty());
    let refused = forge(&held, [first, second], &[first, second], None);
    assert_eq!((refused.code, refused.detail.contains("stands on the other")), (Code::Evidence, true));
}

#[test]
fn a_path_that_is_too_long_is_left_out() {
    let mut one = begin("long");
    let (owner, server) = (Arc::clone(&one.owner), Arc::clone(&one.server1));
    let mut other = one.clone().branch("other");
    one.response(&server, "Here.", &[]);
    (0..EXHIBIT_ENTRIES_MAX).for_each(|_| {
        other.user(&owner, "hello?");
    });
    other.response(&server, "There.", &[]);
    let held = Held::of(&[&one, &other]);
    assert_eq!(held.set().select().state, State::Forked);
    assert!(held.exhibits().is_empty());
}

/// A key that is holder and device of one session, as every laptop's is: what it signs under `AGENT` is no holder's entry. `sides` says
/// for each of the two histories under what its entries are signed.
fn holder_and_device(sides: [&[Role]; 2]) -> Held {
    let mut session = begin("holder and device");
    let laptop = Arc::clone(&session.server1);
    let agent = Arc::new(Party {
        key: crate::testing::key("server1"),
        capability: Some(grant(&session, Role::Agent)),
    });
    session.response(&laptop, "I hold it.", &[]);
    let mut histories = [session.clone().branch("one"), session.clone().branch("other")];
    for (history, roles) in histories.iter_mut().zip(sides) {
        for role in roles {
            let party = if *role == Role::Agent { &agent } else { &laptop };
            history.user(party, "on it");
        }
    }
    let mut held = Held::of(&[&histories[0], &histories[1]]);
    held.controls.extend(agent.capability.clone());
    held
}

fn grant(session: &SessionBuilder, role: Role) -> Signed<Control> {
    crate::testing::capability(&session.owner.key, session.server1.key.principal(), role, None)
}

#[test]
fn a_fork_is_made_of_holders_entries_and_then_there_is_evidence_of_it() {
    let (writer, agent) = (Role::Writer, Role::Agent);
    let cases: [([&[Role]; 2], State); 6] = [
        ([&[writer], &[writer]], State::Forked),
        // One side is a device's: it was passed, as anybody's message on an older head.
        ([&[writer], &[agent]], State::Ok),
        ([&[agent, agent], &[writer, writer]], State::Ok),
        ([&[agent], &[agent]], State::Ok),
        // The beginning of both is a device's; what the holder signed on them excludes each other.
        ([&[agent, writer], &[agent, writer]], State::Forked),
        ([&[agent, agent, writer], &[writer, agent]], State::Forked),
    ];
    for (sides, state) in cases {
        let held = holder_and_device(sides);
        assert_eq!(held.set().select().state, state, "{sides:?}");
        let found = held.exhibits();
        let kinds: Vec<Kind> = found.iter().map(|exhibit| exhibit.accusation().kind).collect();
        let expected = if state == State::Forked { vec![Kind::Equivocation] } else { Vec::new() };
        assert_eq!(kinds, expected, "{sides:?}");
    }
}
