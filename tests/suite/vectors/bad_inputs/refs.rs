//! Refs, handoffs, appends that come late, and classes.

use std::time::Duration;

use throughline_node::sync::{HeadView, PeerView, Relation};
use throughline_protocol::block::Signed;
use throughline_protocol::build::sign;
use throughline_protocol::control::{Control, Ref};
use throughline_protocol::entry::{Body, Class, Handoff, Note};
use throughline_protocol::fork::{State, check_ref};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::testing::{self, Built, Party, Reach, SessionBuilder};
use throughline_protocol::verify::{VerifiedSegment, Verifier};
use throughline_protocol::wire::announce;
use throughline_store::{AdoptOptions, GuardUse, KeyOrigin, OpenOptions, Store};

use super::make::{
    Outcome, audit, bare, code, controls, file, linked, message, principal, session, set, verdict, word,
};
use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("RF01", &["stale"], |_| vec![to_an_ancestor()]),
    row("RF02", &["forked", "EV_EQUIVOCATION"], |_| two_entries()),
    row("RF03", &["E_REF_INCONSISTENT"], |_| vec![to_another_branch()]),
    row("RF04", &["E_TOPIC"], |_| vec![on_another_topic()]),
    row("RF05", &["E_CAP_ROLE"], |_| refs_without_a_right()),
    row("RF06", &["E_REF_MISMATCH"], |_| mismatches()),
    row("RF08", &["accepted"], |_| vec![seen_long_ago()]),
    row("RF09", &["E_CLASS"], |_| confidential()),
    row("MV01", &["fenced"], |_| vec![after_the_handoff()]),
    row("MV02", &["E_EPOCH_GAP"], |_| vec![beside_the_handoff()]),
    row("MV03", &["frozen", "EV_OWNER_EQUIVOCATION"], |_| two_handoffs()),
    row("MV04", &["E_EPOCH_GAP"], |_| vec![handoff_of_epoch(2)]),
    row("MV05", &["E_CAP_ROLE"], |_| vec![by_a_server()]),
    row("MV07", &["accepted"], |_| vec![behind_the_head()]),
    row("MV09", &["E_SIGN_GUARD"], |_| vec![from_a_backup()]),
    row("PN01", &["passed"], |_| vec![passed_by()]),
    row("EN07", &["E_CLASS_DOWNGRADE"], |_| opened_by_server()),
];

fn to_an_ancestor() -> Outcome {
    let mut session = session("stale", 3);
    let owner = session.owner.clone();
    let before = set(&session, &[], &[]).select();
    let reference = session.reference(&owner, 2, Reach::Anchors);
    let after = set(&session, &[], &[reference]).select();
    let is_same = (before.state, before.head, &before.valid) == (after.state, after.head, &after.valid);
    Outcome::either(is_same, "stale", "moved")
}

/// Two histories of one holder, of different lengths.
fn two_entries() -> Vec<Outcome> {
    let base = session("branches", 2);
    let server = base.server1.clone();
    let (mut left, mut right) = (base.clone().branch("left"), base.clone().branch("right"));
    left.response(&server, "one", &[]);
    right.response(&server, "other", &[]);
    right.response(&server, "and more", &[]);
    let more: Vec<_> = right.entries()[5..].iter().collect();
    let why = audit(&left, &more, &[], None).fork.map(|fork| code(fork.branches[0].why));
    vec![verdict(&left, &more, &[]), why.unwrap_or_default()]
}

/// Told by a Ref: an entry that the chain has passed by.
fn to_another_branch() -> Outcome {
    let session = session("branch", 3);
    let owner = session.owner.clone();
    let mut beside = session.at(2).branch("beside");
    beside.user(&owner, "on an older head");
    let told = beside.head().entry.cid();
    let report = audit(&session, &[beside.head()], &[], Some(told));
    assert_eq!(report.valid_through.map(|mark| mark.cid), Some(session.head().entry.cid()));
    report.first_problem.map_or_else(Outcome::default, |problem| code(problem.reject.code))
}

fn on_another_topic() -> Outcome {
    let mut session = session("topic", 1);
    let owner = session.owner.clone();
    let reference = session.reference(&owner, 2, Reach::Publishes);
    let message = announce::Message {
        blob: reference.bytes().clone(),
        control: Vec::new(),
        hint: announce::Hint::default(),
    };
    let bytes = message.encode().unwrap();
    let check = |topic: &str| announce::check(principal(topic), &bytes, &mut VerifyingKeys::default());
    assert!(check("account").is_ok());
    word(check("stranger"))
}

/// A Ref of `party` to the newest entry, changed before it is signed.
fn reference(session: &SessionBuilder, party: &Party, change: impl FnOnce(&mut Ref)) -> Ref {
    let mut session = session.clone();
    let last = session.entries().len() - 1;
    let owner = session.owner.clone();
    let Control::Ref(mut value) = session.reference(&owner, last, Reach::Anchors).value().clone() else {
        unreachable!("it is a Ref")
    };
    value.signer = party.key.principal();
    value.space = party.capability.as_ref().map(|_| principal("account"));
    value.capability = party.capability.as_ref().map(|capability| capability.cid().cid());
    change(&mut value);
    let signed: Signed<Ref> = sign(value, &party.key).unwrap();
    signed.value().clone()
}

fn checked(session: &SessionBuilder, value: &Ref) -> Outcome {
    let set = set(session, &[], &[]);
    let judged = set.judge();
    let head = judged.position(session.head().entry.cid()).unwrap();
    word(check_ref(value, judged.facts().unwrap(), &head, &controls(session, &[])))
}

fn refs_without_a_right() -> Vec<Outcome> {
    let session = session("right", 1);
    [&session.server1, &session.device, &session.owner]
        .iter()
        .for_each(|party| assert_eq!(checked(&session, &reference(&session, party, |_| {})), "ok"));
    [&session.contributor, &session.reader]
        .map(|party| checked(&session, &reference(&session, party, |_| {})))
        .to_vec()
}

fn mismatches() -> Vec<Outcome> {
    let (session, other) = (session("fits", 1), session("other", 1));
    let with = |change: &dyn Fn(&mut Ref)| checked(&session, &reference(&session, &session.owner, change));
    vec![
        with(&|value| value.generation = 2),
        with(&|value| value.generation = 0),
        with(&|value| value.path = Some(other.session().path())),
        with(&|value| value.genesis_blob = Some(other.session().genesis().cid())),
        with(&|value| (value.path, value.private) = (None, false)),
        with(&|value| value.heads.push(other.session().genesis().cid())),
        with(&|value| value.heads.clear()),
    ]
}

/// A Ref that nobody but one peer tells, and that one long ago: what it says holds, with the age of what was told beside it.
fn seen_long_ago() -> Outcome {
    let mut session = session("seen long ago", 3);
    let (owner, last) = (session.owner.clone(), session.entries().len() - 1);
    let reference = session.reference(&owner, last, Reach::Anchors);
    let Control::Ref(value) = reference.value() else { unreachable!("it is a Ref") };
    let set = set(&session, &[], &[]);
    let judged = set.judge();
    let head = session.head().entry.cid();
    let (place, tip) = (judged.position(head).unwrap(), judged.mark(head).unwrap());
    let held = check_ref(value, judged.facts().unwrap(), &place, &controls(&session, &[])).is_ok();
    for age in [Duration::ZERO, Duration::from_secs(400 * 86_400)] {
        let told = HeadView { session: session.session(), head: tip, relation: Relation::Unknown, age };
        let peer = PeerView {
            alias: Some("server-a".to_owned()),
            principal: Some(principal("server1")),
            peer: principal("server1"),
            addrs: Vec::new(),
            connected: false,
            transport: None,
            rtt: None,
            seen: Some(age),
            charges: None,
            apart: None,
            heads: vec![told],
        };
        let shown = peer.replica(session.session(), tip).unwrap();
        assert_eq!(shown["seenAgeMs"].as_u64().map(u128::from), Some(age.as_millis()), "{shown}");
        assert_eq!((&shown["relation"], &shown["connected"]), (&"equal".into(), &false.into()), "{shown}");
        // Not even of what was told just now.
        let words = shown.to_string();
        for claim in ["fresh", "latest", "current", "complete", "up to date"] {
            assert!(!words.contains(claim), "`{claim}` is more than is known: {words}");
        }
    }
    Outcome::either(held, "accepted", "refused")
}

fn confidential() -> Vec<Outcome> {
    let session = SessionBuilder::with_genesis("class", |genesis| genesis.class = Class::Confidential);
    let public =
        |party: &Party| checked(&session, &reference(&session, party, |value| value.private = false));
    [&session.owner, &session.device, &session.server1].map(|party| public(party)).to_vec()
}

fn after_the_handoff() -> Outcome {
    let base = session("fenced", 2);
    let mut moved = base.clone();
    moved.handoff(Some(&base.server2.clone()));
    let mut old = base.clone();
    old.response(&base.server1.clone(), "late", &[]);
    let selection = set(&moved, &[old.head().entry.clone()], &[]).select();
    assert_eq!(verdict(&moved, &[old.head()], &[]), "fenced-tail");
    let is_so = selection.fenced.contains(&old.head().entry.cid()) && selection.state == State::Ok;
    Outcome::either(is_so, "fenced", "counts")
}

/// An entry of the new epoch by its holder, on what stands before the handoff.
fn beside_the_handoff() -> Outcome {
    let base = session("gap", 1);
    let mut moved = base.clone();
    moved.handoff(Some(&base.server2.clone()));
    let entry =
        message(&base, &base.server2, |entry| entry.place.as_mut().unwrap().epoch = testing::epoch(1));
    let entries = [moved.head().entry.clone(), entry.clone()];
    let judged = set(&base, &entries, &[])
        .explain(entry.cid())
        .map_or_else(Outcome::default, |reject| code(reject.code));
    judged.in_file(file(&moved, &[&Built { entry, payload: None }], &[]))
}

fn two_handoffs() -> Vec<Outcome> {
    let base = session("frozen", 1);
    let (mut left, mut right) = (base.clone(), base.clone());
    left.handoff(Some(&base.server1.clone()));
    right.handoff(Some(&base.server2.clone()));
    let report = audit(&left, &[right.head()], &[], None);
    assert_eq!(report.valid_through.map(|mark| mark.cid), Some(base.head().entry.cid()));
    let why = report.fork.as_ref().map(|fork| code(fork.branches[0].why)).unwrap_or_default();
    // It ends with a handoff of a higher epoch.
    let mut ended = left.clone();
    ended.handoff(Some(&base.server2.clone()));
    assert_eq!(set(&ended, &[right.head().entry.clone()], &[]).select().state, State::Ok);
    vec![verdict(&left, &[right.head()], &[]), why]
}

fn handoff_of_epoch(epoch: u64) -> Outcome {
    let session = session("jump", 1);
    let handoff = Body::Handoff(Handoff { holder: Some(principal("server2")), ..Handoff::default() });
    linked(
        &session,
        &[],
        &bare(&session, &session.owner, handoff, |entry| {
            entry.place.as_mut().unwrap().epoch = testing::epoch(epoch);
        }),
    )
}

fn by_a_server() -> Outcome {
    let session = session("server", 1);
    let handoff = Body::Handoff(Handoff { holder: Some(principal("server1")), ..Handoff::default() });
    linked(
        &session,
        &[],
        &bare(&session, &session.server1, handoff, |entry| {
            entry.authority = None;
            entry.place.as_mut().unwrap().epoch = testing::epoch(1);
        }),
    )
}

/// The owner hands over from an older head: what came after it is fenced.
fn behind_the_head() -> Outcome {
    let whole = session("behind", 3);
    let mut moved = whole.at(4);
    moved.handoff(Some(&whole.server2.clone()));
    let after: Vec<_> = whole.entries()[5..].iter().map(|built| built.entry.clone()).collect();
    let selection = set(&moved, &after, &[]).select();
    let is_so = selection.head.map(|head| head.cid) == Some(moved.head().entry.cid())
        && after.iter().all(|entry| selection.fenced.contains(&entry.cid()));
    Outcome::either(is_so, "accepted", "refused")
}

/// A data directory that does not know what its key has signed: a restored one, or one beside an older key.
fn from_a_backup() -> Outcome {
    let mut session = SessionBuilder::new("backup");
    let server = session.server1.clone();
    session.user(&server, "signed before the backup");
    let home = tempfile::tempdir().unwrap();
    let options = OpenOptions { key_origin: KeyOrigin::Older, ..OpenOptions::new(testing::ts(0), "backup") };
    let store = Store::open(&home.path().join("data"), options).unwrap();
    let mut verifier = Verifier::begin(controls(&session, &[]));
    let adopt = |segment: VerifiedSegment, guard: GuardUse| {
        store.adopt(segment, AdoptOptions { guard, ..AdoptOptions::at(testing::ts(0)) })
    };
    for built in session.entries() {
        verifier.push(built.entry.bytes().clone(), built.payload.clone()).unwrap();
    }
    adopt(verifier.take_segment().unwrap().unwrap(), GuardUse::Untouched).unwrap();
    session.user(&server, "signed again");
    let last = session.head();
    verifier.push(last.entry.bytes().clone(), last.payload.clone()).unwrap();
    let signed = adopt(verifier.take_segment().unwrap().unwrap(), GuardUse::Signed(server.key.principal()));
    signed.map_or_else(|error| code(error.code()), |_| "ok".into())
}

fn passed_by() -> Outcome {
    let session = session("passed", 3);
    let owner = session.owner.clone();
    let mut beside = session.at(2).branch("beside");
    beside.user(&owner, "on an older head");
    let before = set(&session, &[], &[]).select();
    let selection = set(&session, &[beside.head().entry.clone()], &[]).select();
    assert_eq!((selection.state, selection.head), (before.state, before.head));
    assert_eq!(verdict(&session, &[beside.head()], &[]), "valid");
    Outcome::either(selection.passed.contains(&beside.head().entry.cid()), "passed", "counts")
}

fn opened_by_server() -> Vec<Outcome> {
    let internal = session("internal", 1);
    let confidential =
        SessionBuilder::with_genesis("confidential", |genesis| genesis.class = Class::Confidential);
    let note = |session: &SessionBuilder, party: &Party, class: Class| {
        linked(session, &[], &bare(session, party, Body::Note(Note::Class(class)), |_| {}))
    };
    assert_eq!(note(&internal, &internal.device, Class::Public), "ok");
    assert_eq!(note(&internal, &internal.server1, Class::Confidential), "ok");
    vec![
        note(&internal, &internal.server1, Class::Public),
        note(&confidential, &confidential.server1, Class::Internal),
        note(&confidential, &confidential.server1, Class::Public),
    ]
}
