//! Capabilities, tombstones and what revocation leaves.

use std::collections::BTreeSet;

use throughline_protocol::block::Signed;
use throughline_protocol::build::sign;
use throughline_protocol::control::{Control, Keep, Tombstone};
use throughline_protocol::entry::{Authority, Body, Entry, Handoff};
use throughline_protocol::fork::{Set, State, check_tombstone};
use throughline_protocol::id::{AgentIri, Cid, Codec, EntryCid, ScopePath};
use throughline_protocol::testing::{self, Party, Reach, SessionBuilder, key};
use throughline_protocol::verify::Verdict;
use throughline_store::{OpenOptions, PutControls, Store};

use super::super::select::shuffled;
use super::make::{
    Outcome, audit, bare, code, file, grant, head, judged, linked, message, principal, session, set, signed,
    under, verdict, word,
};
use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("CA01", &["E_CAP_ISSUER"], |_| vec![by_server(grant(&key("stranger"), |_| {}))]),
    row("CA02", &["E_CAP_SCOPE"], |_| of_other_things()),
    row("CA03", &["E_CAP_SCOPE"], |_| paths()),
    row("CA05", &["E_CAP_ROLE"], |_| roles()),
    row("CA09", &["E_TOMB_ISSUER"], |_| vec![anothers_tombstone()]),
    row("CA10", &["revoked-tail"], |_| vec![old_times()]),
    row("CA11", &["valid"], |_| anchored()),
    row("CA12", &["same"], |_| vec![arrivals(6)]),
    row("CA13", &["accept"], |_| vec![granted_again()]),
    row("CA16", &["E_QUOTA"], |_| vec![many_tombstones().as_str().into()]),
    row("CA17a", &["E_CAP_MISSING"], |_| vec![without_capability()]),
    row("CA17b", &["E_INCOMPLETE"], |_| vec![not_held()]),
    row("CA19", &["same"], |_| vec![by_the_other_cid()]),
    row("CA20", &["E_CAP_AUDIENCE"], |_| {
        vec![by_server(grant(&key("account"), |capability| capability.audience = Some(principal("device"))))]
    }),
    row("RV01", &["valid"], |_| vec![through_the_anchor()]),
    row("RV02", &["one"], |_| vec![Outcome::either(arrivals(100) == "same", "one", "several")]),
    row("DV01", &["E_CAP_ROLE"], |_| handoffs_by_device()),
    row("DV02", &["revoked-tail"], |_| vec![revoked_device()]),
    row("DV03", &["revoked-tail"], |_| vec![contributor_on_top()]),
    row("AG01", &["E_CAP_SCOPE"], |_| vec![anothers_agent()]),
    row("AG02", &["E_CAP_ISSUER"], |_| vec![another_space()]),
];

/// Tombstones for capabilities that nobody knows, one after the other; what a store says to the first that has no room.
fn many_tombstones() -> String {
    let (home, owner) = (tempfile::tempdir().unwrap(), key("stranger"));
    let at = testing::ts(1);
    let store = Store::open(home.path(), OpenOptions::new(at, "test")).unwrap();
    for number in 0..100_000_u64 {
        let tombstone = Tombstone {
            ts: at,
            signer: owner.principal(),
            capability: Cid::sha256(Codec::DagCbor, &number.to_be_bytes()),
            keep: Vec::new(),
            reason: None,
            ext: None,
        };
        let controls = vec![sign(Control::Tombstone(tombstone), &owner).unwrap()];
        if let Err(refused) = store.run(PutControls { controls, at }) {
            return refused.code().to_string();
        }
    }
    "all were kept".to_owned()
}

/// An entry of `server1`, which holds the session, under this capability, which is held.
fn by_server(capability: Signed<Control>) -> Outcome {
    in_session_by_server(&session("cap", 1), capability)
}

fn in_session_by_server(session: &SessionBuilder, capability: Signed<Control>) -> Outcome {
    let entry = message(session, &session.server1, |entry| {
        entry.authority = Some(Authority { space: principal("account"), capability: capability.cid().cid() });
    });
    linked(session, &[capability], &entry)
}

fn scoped(path: impl Into<String>) -> Signed<Control> {
    let path = path.into();
    grant(&key("account"), |capability| capability.path = Some(path))
}

fn of_other_things() -> Vec<Outcome> {
    let own = session("cap", 1).session().path();
    assert_eq!(by_server(scoped(own)), "ok");
    assert_eq!(by_server(scoped("/scout")), "ok");
    vec![by_server(scoped(session("other", 0).session().path())), by_server(scoped("/another"))]
}

/// The path of a grant, and that of an agent: one with a slash at its end is no path of Seed's at all.
fn paths() -> Vec<Outcome> {
    let agent = |path: &str| {
        let agent = AgentIri::new(principal("account"), Some(ScopePath::parse(path).unwrap()));
        SessionBuilder::with_genesis("paths", |genesis| genesis.agent = agent)
    };
    let below = agent("/a/b/c");
    assert_eq!(in_session_by_server(&below, scoped("/a/b")), "ok");
    let scopes =
        ["/a/bc", "/a/b/../c", "/a//b", "/%2e%2e", "/a/%2e%2e/a", "/e\u{301}", "/a/b/c/d", "/a/b/./c"];
    let mut codes: Vec<Outcome> = scopes.map(|path| in_session_by_server(&below, scoped(path))).to_vec();
    codes.push(in_session_by_server(&agent("/a/bc"), scoped("/a/b")));
    codes.push(word(ScopePath::parse("/a/b/")));
    let trailing = head(&below).with("agent", format!("hm://{}/a/b/", principal("account")));
    codes.push(judged(&below, signed(&trailing, &below.owner.key)));
    codes
}

fn roles() -> Vec<Outcome> {
    let roles = ["agent-session-writter", "Agent-Session-Writer", "agent-session-writer ", "OWNER", "WRITER"];
    let with = |role: Option<&str>| {
        by_server(grant(&key("account"), |capability| capability.role = role.map(str::to_owned)))
    };
    roles.map(Some).into_iter().chain([None]).map(with).collect()
}

fn tombstone(signer: &str, capability: Cid, keep: Vec<Keep>) -> Signed<Control> {
    let signer = key(signer);
    let tombstone = Tombstone {
        ts: testing::ts(900_000),
        signer: signer.principal(),
        capability,
        keep,
        reason: None,
        ext: None,
    };
    sign(Control::Tombstone(tombstone), &signer).unwrap()
}

/// Refused by its issuer, and it revokes nothing.
fn anothers_tombstone() -> Outcome {
    let session = session("issuer", 2);
    let cited = session.server1.capability.clone().unwrap().cid().cid();
    let blob = tombstone("device", cited, Vec::new());
    assert_eq!(audit(&session, &[], std::slice::from_ref(&blob), None).verdict, Verdict::Valid);
    let Control::Tombstone(value) = blob.value() else { unreachable!("it is a tombstone") };
    word(check_tombstone(value, principal("account")))
}

/// Two turns, and after the last message of the owner more of the server, at the lowest times that the chain allows.
fn with_tail() -> (SessionBuilder, EntryCid) {
    let mut session = session("tail", 2);
    let (owner, server) = (session.owner.clone(), session.server1.clone());
    let anchor = session.user(&owner, "the last one");
    for _ in 0..2 {
        let entry = message(&session, &server, |entry| entry.ts = testing::ts(5_000));
        session.push(&server, entry.value().clone(), None).unwrap();
    }
    (session, anchor)
}

fn revoked(party: &Party) -> Signed<Control> {
    tombstone("account", party.capability.as_ref().unwrap().cid().cid(), Vec::new())
}

fn old_times() -> Outcome {
    let (session, _) = with_tail();
    let tombstone = revoked(&session.server1);
    assert!(session.head().entry.value().ts < testing::ts(900_000));
    verdict(&session, &[], &[tombstone])
}

fn anchored() -> Vec<Outcome> {
    let (session, _) = with_tail();
    let tombstone_of =
        |keep| tombstone("account", session.server1.capability.as_ref().unwrap().cid().cid(), keep);
    let head = &session.head().entry;
    let keep = Keep { genesis: session.session().genesis(), head: head.cid(), seq: head.value().seq() };
    let kept = verdict(&session, &[], &[tombstone_of(vec![keep])]);
    let mut with_ref = session.clone();
    let owner = with_ref.owner.clone();
    with_ref.reference(&owner, with_ref.entries().len() - 1, Reach::Anchors);
    let by_ref = verdict(&with_ref, &[], &[tombstone_of(Vec::new())]);
    let mut above = session.clone();
    above.user(&owner, "and on");
    // It waits for a holder, so it is no head that a file could tell.
    let by_message = audit(&above, &[], &[tombstone_of(Vec::new())], None).verdict.word().into();
    let mut moved = session.clone();
    moved.handoff(Some(&session.server2.clone()));
    let by_handoff = verdict(&moved, &[], &[tombstone_of(Vec::new())]);
    vec![kept, by_ref, by_message, by_handoff]
}

/// Capability, tombstone and entries in this many orders, the first six of which are all of the three kinds.
fn arrivals(orders: usize) -> Outcome {
    let (session, _) = with_tail();
    let tombstone = revoked(&session.server1);
    let entries: Vec<&Signed<Entry>> = session.entries().iter().map(|built| &built.entry).collect();
    let all: Vec<&Signed<Control>> = session.controls().iter().chain([&tombstone]).collect();
    let count = entries.len() + all.len();
    let kinds = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let in_kinds = |order: &[usize; 3]| -> Vec<usize> {
        let kind = |at: usize| if at < entries.len() { 2 } else { usize::from(at == count - 1) };
        order.iter().flat_map(|wanted| (0..count).filter(move |at| kind(*at) == *wanted)).collect()
    };
    let shuffles = (6..orders as u64).map(|seed| shuffled(count, seed));
    let selections = kinds.iter().map(in_kinds).chain(shuffles).map(|order| {
        let mut set = Set::new(session.session());
        for at in order {
            match at.checked_sub(entries.len()) {
                None => set.insert_entry(entries[at]),
                Some(control) => set.insert_control(all[control]),
            };
            // Asked on the way.
            std::hint::black_box(set.select());
        }
        set.select()
    });
    let selections: Vec<_> = selections.collect();
    assert_eq!(selections.len(), orders.max(6));
    let is_same = selections.iter().all(|selection| *selection == selections[0]);
    Outcome::either(is_same && selections[0].revoked_tail.len() == 2, "same", "different")
}

/// A new capability of the same key: what cites it counts, what cites the revoked one does not.
fn granted_again() -> Outcome {
    let (session, anchor) = with_tail();
    let again = grant(&session.owner.key, |_| {});
    let tombstone = revoked(&session.server1);
    let Some(at) = session.entries().iter().position(|built| built.entry.cid() == anchor) else {
        return Outcome::default();
    };
    let session = session.at(at);
    let new = message(&session, &under("server1", &again), |_| {});
    let old = message(&session, &session.server1, |entry| entry.ts = testing::ts(60_000));
    let selection = set(&session, &[new.clone(), old.clone()], &[again, tombstone]).select();
    let is_so = selection.valid.contains(&new.cid()) && selection.revoked_tail == BTreeSet::from([old.cid()]);
    Outcome::either(is_so && selection.state == State::Ok, "accept", "refuse")
}

fn without_capability() -> Outcome {
    let session = session("none", 1);
    linked(&session, &[], &message(&session, &session.server1, |entry| entry.authority = None))
}

fn not_held() -> Outcome {
    let session = session("held", 1);
    let absent = grant(&session.owner.key, |capability| capability.ts = testing::ts(7));
    linked(&session, &[], &message(&session, &under("server1", &absent), |_| {}))
}

/// The tombstone, the entries, or both name the capability by blake2b-256.
fn by_the_other_cid() -> Outcome {
    let base = session("cids", 1);
    let capability = base.server1.capability.clone().unwrap();
    let [sha256, blake2b] = [capability.cid().cid(), Cid::blake2b(Codec::DagCbor, capability.bytes())];
    let judge = |cited: Cid, named: Cid| {
        let entry = message(&base, &base.server1, |entry| {
            entry.authority = Some(Authority { space: principal("account"), capability: cited });
        });
        let selection = set(&base, &[entry], &[tombstone("account", named, Vec::new())]).select();
        (selection.state, selection.head, selection.revoked_tail.len())
    };
    let first = judge(sha256, sha256);
    let others = [judge(sha256, blake2b), judge(blake2b, sha256), judge(blake2b, blake2b)];
    Outcome::either(first.2 == 2 && others.iter().all(|other| *other == first), "same", "different")
}

/// What stands above the owner's last message does not count; through it the chain does.
fn through_the_anchor() -> Outcome {
    let (session, anchor) = with_tail();
    let selection = set(&session, &[], &[revoked(&session.server1)]).select();
    let tail: BTreeSet<EntryCid> = session.entries()[6..].iter().map(|built| built.entry.cid()).collect();
    let is_so = selection.revoked_tail == tail && selection.valid.contains(&anchor);
    Outcome::either(is_so && selection.state == State::Ok, "valid", "invalid")
}

/// With what a device cites, and as if it were the account.
fn handoffs_by_device() -> Vec<Outcome> {
    let session = session("device", 1);
    let handoff = || Body::Handoff(Handoff { holder: Some(principal("server2")), ..Handoff::default() });
    let stripped = bare(&session, &session.device, handoff(), |entry| {
        entry.authority = None;
        let place = entry.place.as_mut().unwrap();
        place.epoch = place.epoch.next();
    });
    let (entry, _) = session.draft(&session.device, handoff(), None);
    let cited = signed(&super::make::fields(&entry.to_bytes(&[0; 64])), &session.device.key);
    vec![judged(&session, cited), linked(&session, &[], &stripped)]
}

fn revoked_device() -> Outcome {
    let (mut session, _) = with_tail();
    let device = session.device.clone();
    session.user(&device, "from a stolen machine");
    let tombstones = [revoked(&session.server1), revoked(&device)];
    let report = audit(&session, &[], &tombstones, None);
    assert_eq!(report.tail.map(|tail| tail.entries), Some(3));
    verdict(&session, &[], &tombstones)
}

fn contributor_on_top() -> Outcome {
    let (mut session, _) = with_tail();
    let contributor = session.contributor.clone();
    session.user(&contributor, "on top");
    let report = audit(&session, &[], &[revoked(&session.server1)], None);
    assert_eq!(report.tail.map(|tail| tail.entries), Some(3));
    verdict(&session, &[], &[revoked(&session.server1)])
}

fn anothers_agent() -> Outcome {
    let agent = AgentIri::new(principal("stranger"), None);
    let session = SessionBuilder::with_genesis("agent", |genesis| genesis.agent = agent);
    let judged = set(&session, &[], &[])
        .explain(session.session().genesis())
        .map_or_else(Outcome::default, |reject| code(reject.code));
    judged.in_file(file(&session, &[], &[]))
}

fn another_space() -> Outcome {
    let session = session("space", 1);
    let entry = message(&session, &session.server1, |entry| {
        let authority = entry.authority.as_mut().unwrap();
        authority.space = principal("stranger");
    });
    linked(&session, &[], &entry)
}
