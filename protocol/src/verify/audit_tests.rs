//! One session for every verdict, its blobs in the order of a CAR and in others.

use std::sync::Arc;

use super::*;
use crate::entry::Note;
use crate::fork::State;
use crate::testing::{Built, Reach, SessionBuilder};
use crate::verify::{Check, LinkCounts, Rank, TailKind, Verdict};

fn give(auditor: &mut Auditor, built: &Built) {
    auditor.entry(Arc::clone(built.entry.bytes()), built.payload.clone()).unwrap();
}

/// Genesis, control blobs, entries: what streams.
fn audit_of(entries: &[&Built], controls: &[Signed<Control>], told: Option<EntryCid>) -> Report {
    let auditor = Auditor::new();
    let mut auditor = if let Some(told) = told { auditor.told(told) } else { auditor };
    if let Some((genesis, rest)) = entries.split_first() {
        give(&mut auditor, genesis);
        controls.iter().for_each(|control| auditor.control(Arc::clone(control.bytes())).unwrap());
        rest.iter().for_each(|built| give(&mut auditor, built));
    }
    auditor.report()
}

/// The same in every order that matters; all must agree.
fn audit(session: &SessionBuilder, more: &[Built], told: Option<EntryCid>) -> Report {
    let entries: Vec<&Built> = session.entries().iter().chain(more).collect();
    let report = audit_of(&entries, session.controls(), told);
    let mut backwards = Auditor::over_set(session.session());
    if let Some(told) = told {
        backwards = backwards.told(told);
    }
    entries.iter().rev().for_each(|built| give(&mut backwards, built));
    session.controls().iter().rev().for_each(|control| backwards.checked_control(control).unwrap());
    let mut late = Auditor::new();
    if let Some(told) = told {
        late = late.told(told);
    }
    // Control blobs between the entries: the stream turns to a set.
    let half = entries.len() / 2;
    session.controls()[..5].iter().for_each(|control| late.checked_control(control).unwrap());
    entries[..half].iter().for_each(|built| give(&mut late, built));
    session.controls()[5..].iter().for_each(|control| late.checked_control(control).unwrap());
    entries[half..].iter().for_each(|built| give(&mut late, built));
    assert_eq!(report, backwards.report());
    assert_eq!(report, late.report());
    report
}

/// Genesis, then `turns` of a message and an answer.
fn session(turns: usize) -> SessionBuilder {
    let mut session = SessionBuilder::new("audit");
    let (owner, server) = (session.owner.clone(), session.server1.clone());
    for turn in 0..turns {
        session.user(&owner, &format!("question {turn}"));
        session.response(&server, &format!("answer {turn}"), &[]);
    }
    session
}

fn checks(report: &Report) -> [Check; 5] {
    let checks = report.checks;
    [checks.hash, checks.chain, checks.signature, checks.authority, checks.head]
}

#[test]
fn valid() {
    let session = session(3);
    let head = session.head().entry.cid();
    let report = audit(&session, &[], Some(head));
    assert_eq!(report.verdict, Verdict::Valid);
    assert_eq!(checks(&report), [Check::Pass; 5]);
    assert_eq!(report.valid_through.map(|mark| mark.cid), Some(head));
    assert_eq!(report.anchored_through.map(|(mark, _)| mark.seq.get()), Some(5));
    assert_eq!((report.inventory.payloads.linked(), report.inventory.payloads.here), (7, 7));
    assert_eq!((report.models.len(), report.models[0].responses), (1, 3));
    assert_eq!((report.counts.entries, report.counts.capabilities), (7, 5));
    assert_eq!(report.first_problem, None);
    assert_eq!(audit(&session, &[], None).checks.head, Check::Unchecked);
}

#[test]
fn pending_entries_leave_it_valid() {
    let mut session = session(1);
    let head = session.head().entry.cid();
    let contributor = session.contributor.clone();
    session.user(&contributor, "and then?");
    let report = audit(&session, &[], Some(head));
    assert_eq!((report.verdict, report.pending), (Verdict::Valid, 1));
    assert_eq!(report.checks.head, Check::Pass);
    // A head that waits was told truly: nothing of it is missing, and the holder has not gone on beside it.
    let waits = session.head().entry.cid();
    let report = audit(&session, &[], Some(waits));
    assert_eq!((report.verdict, report.pending), (Verdict::Valid, 1));
    assert_eq!((checks(&report), report.first_problem), ([Check::Pass; 5], None));
    assert_eq!(report.valid_through.map(|mark| mark.cid), Some(head));
    // Once the holder goes on beside it, it is passed.
    let mut beside = session.at(2).branch("beside");
    beside.response(&session.server1.clone(), "and so on", &[]);
    let report = audit(&session, &[beside.head().clone()], Some(waits));
    assert_eq!((report.verdict, report.checks.head), (Verdict::Incomplete, Check::Fail));
    assert_eq!(report.first_problem.map(|problem| problem.reject.code), Some(Code::RefInconsistent));
}

#[test]
fn a_head_below_the_one_that_selection_returns_is_not_the_head() {
    let session = session(2);
    for below in &session.entries()[..4] {
        let report = audit(&session, &[], Some(below.entry.cid()));
        assert_eq!((report.verdict, report.checks.head), (Verdict::Incomplete, Check::Fail));
        assert_eq!(report.problems, 1);
        assert_eq!(report.first_problem.map(|problem| problem.reject.code), Some(Code::RefInconsistent));
    }
    // A tail explains it: that verdict says more.
    let mut moved = session.clone();
    moved.handoff(Some(&session.server2.clone()));
    let mut old = session.clone().branch("late");
    old.response(&session.server1.clone(), "late", &[]);
    for told in [old.head(), &session.entries()[2]] {
        let report = audit(&moved, &[old.head().clone()], Some(told.entry.cid()));
        assert_eq!((report.verdict, report.checks.head), (Verdict::FencedTail, Check::Fail));
        assert_eq!(report.problems, 0);
    }
}

#[test]
fn an_entry_of_another_session_is_told_and_is_no_gap() {
    let session = session(2);
    let other = SessionBuilder::new("another");
    let mut foreign = session.clone();
    let owner = session.owner.clone();
    let (mut entry, payload) = foreign.draft(&owner, Body::Note(Note::Resume), None);
    entry.place.as_mut().unwrap().genesis = other.session().genesis();
    foreign.push(&owner, entry, payload).unwrap();
    for told in [session.head(), foreign.head()] {
        let report = audit(&session, &[foreign.head().clone()], Some(told.entry.cid()));
        assert_eq!((report.verdict, report.problems), (Verdict::Corrupt, 1));
        let problem = report.first_problem.unwrap();
        assert_eq!((problem.reject.code, problem.seq.map(Seq::get)), (Code::SessionMismatch, Some(5)));
        assert_eq!(report.checks.chain, Check::Fail);
    }
}

#[test]
fn a_handoff_without_what_it_stands_on_leaves_all_below_it_open() {
    let mut session = session(2);
    let grant = session.server1.capability.clone().unwrap();
    session.tombstone(&grant, Vec::new());
    // All that the key signed is cut, but the head that is told is held: alone this is a revoked tail.
    let report = audit(&session, &[], Some(session.head().entry.cid()));
    assert_eq!((report.verdict, report.problems), (Verdict::RevokedTail, 0));
    // A later handoff is here, and what it stands on is not.
    let mut moved = session.clone();
    let (server1, server2) = (session.server1.clone(), session.server2.clone());
    moved.response(&server1, "not in the file", &[]);
    moved.handoff(Some(&server2));
    let report = audit(&session, &[moved.head().clone()], Some(session.head().entry.cid()));
    assert_eq!((report.verdict, report.problems), (Verdict::Incomplete, 1));
    let problem = report.first_problem.unwrap();
    assert_eq!((problem.reject.code, problem.seq.map(Seq::get)), (Code::Incomplete, Some(6)));
    assert_eq!(report.checks.head, Check::Unchecked);
}

#[test]
fn sealed_by_holder_and_by_owner() {
    for by_owner in [false, true] {
        let mut session = session(2);
        let party = if by_owner { session.owner.clone() } else { session.server1.clone() };
        session.seal(&party);
        let report = audit(&session, &[], Some(session.head().entry.cid()));
        assert_eq!((report.verdict, report.checks.head), (Verdict::Sealed, Check::Pass));
    }
}

#[test]
fn incomplete_with_a_gap() {
    let session = session(3);
    let entries: Vec<&Built> =
        session.entries().iter().filter(|built| built.entry.value().seq().get() != 3).collect();
    let report = audit_of(&entries, session.controls(), Some(session.head().entry.cid()));
    assert_eq!(report.verdict, Verdict::Incomplete);
    assert_eq!(checks(&report)[1..], [Check::Unchecked, Check::Pass, Check::Unchecked, Check::Unchecked]);
    assert_eq!(report.valid_through.map(|mark| mark.seq.get()), Some(2));
    let problem = report.first_problem.unwrap();
    assert_eq!((problem.reject.code, problem.seq.map(Seq::get)), (Code::Incomplete, Some(4)));
}

#[test]
fn incomplete_without_a_capability_or_a_genesis() {
    let session = session(2);
    let entries: Vec<&Built> = session.entries().iter().collect();
    let report = audit_of(&entries, &[], None);
    assert_eq!(report.verdict, Verdict::Incomplete);
    assert_eq!(report.first_problem.map(|problem| problem.reject.code), Some(Code::Incomplete));
    let report = audit_of(&entries[1..], session.controls(), None);
    assert_eq!((report.verdict, report.valid_through), (Verdict::Incomplete, None));
    assert_eq!(Auditor::new().report().verdict, Verdict::Incomplete);
}

#[test]
fn forked_by_the_holder() {
    let base = session(2);
    let server = base.server1.clone();
    let (mut left, mut right) = (base.clone().branch("left"), base.clone().branch("right"));
    left.response(&server, "one", &[]);
    right.response(&server, "other", &[]);
    let report = audit(&left, &[right.head().clone()], None);
    assert_eq!(report.verdict, Verdict::Forked);
    assert_eq!(report.valid_through.map(|mark| mark.cid), Some(base.head().entry.cid()));
    let fork = report.fork.unwrap();
    assert_eq!((fork.at.cid, fork.branches.len()), (base.head().entry.cid(), 2));
    assert!(
        fork.branches.iter().all(|branch| branch.rank == Rank::Undecided && branch.why == Code::Equivocation)
    );
    // The owner decides with a handoff.
    let mut ended = left.clone();
    let next = ended.server2.clone();
    ended.handoff(Some(&next));
    let report = audit(&ended, &[right.head().clone()], Some(ended.head().entry.cid()));
    assert_eq!(report.verdict, Verdict::FencedTail);
    let mut ranks: Vec<Rank> = report.fork.unwrap().branches.iter().map(|branch| branch.rank).collect();
    ranks.sort_by_key(|rank| rank.word());
    assert_eq!(ranks, [Rank::Kept, Rank::Rejected]);
}

#[test]
fn frozen_by_the_owner() {
    let base = session(1);
    let (mut left, mut right) = (base.clone(), base.clone());
    left.handoff(Some(&base.server1.clone()));
    right.handoff(Some(&base.server2.clone()));
    let report = audit(&left, &[right.head().clone()], None);
    assert_eq!(report.verdict, Verdict::Frozen);
    let fork = report.fork.unwrap();
    assert!(fork.branches.iter().all(|branch| branch.why == Code::OwnerEquivocation));
    assert_eq!(fork.branches.len(), 2);
}

#[test]
fn revoked_tail() {
    let mut session = session(3);
    let server = session.server1.clone();
    session.reference(&session.owner.clone(), 4, Reach::Anchors);
    let mut session = session.at(4);
    session.response(&server, "after the anchor", &[]);
    session.response(&server, "and on", &[]);
    let grant = server.capability.clone().unwrap();
    let tombstone = session.tombstone(&grant, Vec::new());
    let report = audit(&session, &[], None);
    assert_eq!(report.verdict, Verdict::RevokedTail);
    assert_eq!(report.valid_through.map(|mark| mark.seq.get()), Some(4));
    let tail = report.tail.unwrap();
    assert_eq!((tail.kind, tail.entries), (TailKind::Revoked, 2));
    assert_eq!((tail.from.seq.get(), tail.to.seq.get()), (5, 6));
    assert_eq!((tail.tombstone, tail.signer), (Some(tombstone.hash()), server.key.principal()));
    assert_eq!(tail.last_anchor.map(|mark| mark.seq.get()), Some(4));
}

#[test]
fn fenced_tail() {
    let base = session(2);
    let mut moved = base.clone();
    moved.handoff(Some(&base.server2.clone()));
    let mut old = base.clone();
    old.response(&base.server1.clone(), "late", &[]);
    let report = audit(&moved, &[old.head().clone()], Some(moved.head().entry.cid()));
    assert_eq!((report.verdict, report.checks.head), (Verdict::FencedTail, Check::Pass));
    let tail = report.tail.unwrap();
    assert_eq!((tail.kind, tail.from.cid, tail.tombstone), (TailKind::Fenced, old.head().entry.cid(), None));
}

#[test]
fn corrupt_by_signature_place_authority_and_hash() {
    let session = session(3);
    let controls = session.controls();
    let with = |change: &dyn Fn(&mut Auditor)| {
        let mut auditor = Auditor::new().told(session.head().entry.cid());
        controls.iter().for_each(|control| auditor.checked_control(control).unwrap());
        for built in session.entries().iter().filter(|built| built.entry.value().seq().get() != 3) {
            give(&mut auditor, built);
        }
        change(&mut auditor);
        auditor.report()
    };
    let built = &session.entries()[3];
    // A flipped bit of the signature: another CID, so 4 has no prev.
    let mut flipped = built.entry.bytes().to_vec();
    let at = flipped.windows(64).position(|window| window == signature(&built.entry)).unwrap();
    flipped[at] ^= 1;
    let report = with(&|auditor| auditor.entry(flipped.clone(), None).unwrap());
    assert_eq!(report.verdict, Verdict::Corrupt);
    assert_eq!((report.checks.signature, report.checks.hash), (Check::Fail, Check::Pass));
    let problem = report.first_problem.unwrap();
    assert_eq!((problem.reject.code, problem.seq.map(Seq::get)), (Code::Sig, Some(3)));
    // Bytes that the reader refused by their hash; the entry above tells the seq.
    let refuse = |auditor: &mut Auditor| {
        auditor.refused(Some(built.entry.cid()), None, Code::CidMismatch.into());
    };
    let report = with(&refuse);
    assert_eq!((report.verdict, report.checks.hash), (Verdict::Corrupt, Check::Fail));
    assert_eq!(report.first_problem.unwrap().seq.map(Seq::get), Some(3));
    // An answer by a server that does not hold the session.
    let mut other = session.at(2);
    other.response(&session.server2.clone(), "not mine", &[]);
    let report = with(&|auditor| give(auditor, other.head()));
    assert_eq!((report.verdict, report.checks.authority), (Verdict::Corrupt, Check::Fail));
    assert_eq!(report.first_problem.unwrap().reject.code, Code::NotHolder);
}

fn signature(entry: &Signed<Entry>) -> Vec<u8> {
    let (map, _) = crate::codec::decode(entry.bytes(), 16).unwrap();
    map.as_map().unwrap().get("sig").unwrap().as_bytes().unwrap().to_vec()
}

#[test]
fn a_wrong_payload_is_told_and_the_entry_stands() {
    let session = session(1);
    let mut auditor = Auditor::new();
    give(&mut auditor, &session.entries()[0]);
    session.controls().iter().for_each(|control| auditor.checked_control(control).unwrap());
    let built = &session.entries()[1];
    let mut payload = built.payload.clone().unwrap().to_vec();
    *payload.last_mut().unwrap() ^= 1;
    auditor.entry(Arc::clone(built.entry.bytes()), Some(payload.into())).unwrap();
    give(&mut auditor, &session.entries()[2]);
    let report = auditor.report();
    assert_eq!((report.verdict, report.checks.hash), (Verdict::Corrupt, Check::Fail));
    assert_eq!(report.valid_through.map(|mark| mark.seq.get()), Some(2));
    let payloads = report.inventory.payloads;
    assert_eq!((payloads.linked(), payloads.missing), (3, 1));
}

#[test]
fn redacted_payloads_are_not_missing() {
    let mut session = session(2);
    let owner = session.owner.clone();
    let (one, two) = (session.entries()[1].entry.cid(), session.entries()[2].entry.cid());
    session.note(&owner, Note::Redaction { entries: vec![one] });
    let entries: Vec<Built> = session
        .entries()
        .iter()
        .map(|built| {
            let gone = [one, two].contains(&built.entry.cid());
            Built { entry: built.entry.clone(), payload: built.payload.clone().filter(|_| !gone) }
        })
        .collect();
    let report = audit_of(&entries.iter().collect::<Vec<_>>(), session.controls(), None);
    assert_eq!(report.verdict, Verdict::Valid);
    assert_eq!(report.inventory.payloads, LinkCounts { here: 3, missing: 1, withdrawn: 1 });
    assert_eq!(report.inventory.lacking, [entries[2].entry.value().payload.unwrap().cid.cid()]);
}

#[test]
fn a_revoked_genesis_without_an_anchor() {
    let mut session = SessionBuilder::new("revoked");
    let grant = session.server1.capability.clone().unwrap();
    session.tombstone(&grant, Vec::new());
    let server = session.server1.clone();
    session.response(&server, "x", &[]);
    // The owner signed the genesis, so it stands; what the server signed does not.
    let report = audit(&session, &[], None);
    assert_eq!(
        (report.verdict, report.valid_through.map(|mark| mark.seq)),
        (Verdict::RevokedTail, Some(Seq::ZERO))
    );
    assert_eq!(report.tail.unwrap().entries, 1);
    let mut set = Set::new(session.session());
    session.entries().iter().for_each(|built| {
        set.insert_entry(&built.entry);
    });
    session.controls().iter().for_each(|control| {
        set.insert_control(control);
    });
    assert_eq!(set.select().state, State::Ok);
}

#[test]
fn a_long_chain_is_audited_flat_and_told_when_it_is_none() {
    let mut session = session(3);
    let (server, asked) = (session.server1.clone(), session.entries()[2].entry.cid());
    session.tool(&server, asked, "call", "done");
    let mut side = session.at(2).branch("side");
    side.user(&session.contributor.clone(), "beside");
    let mut auditor = Auditor { retained_max: 4, ..Auditor::new() };
    give(&mut auditor, &session.entries()[0]);
    session.controls().iter().for_each(|control| auditor.checked_control(control).unwrap());
    session.entries()[1..].iter().for_each(|built| give(&mut auditor, built));
    assert!(matches!(auditor.path, Path::Stream(_, None)));
    assert_eq!(auditor.clone().report().verdict, Verdict::Valid);
    // What would need the entries that were let go of says so, and the report does not call it valid.
    let beside = auditor.entry(Arc::clone(side.head().entry.bytes()), None);
    assert_eq!(beside.unwrap_err().reason.code, Code::Incomplete);
    assert_eq!(auditor.report().verdict, Verdict::Incomplete);
    // The same blobs as a set are fine: the entry beside was passed by.
    let mut over = Auditor::over_set(session.session());
    session.controls().iter().for_each(|control| over.checked_control(control).unwrap());
    session.entries().iter().chain([side.head()]).for_each(|built| give(&mut over, built));
    assert_eq!(over.report().verdict, Verdict::Valid);
}

#[test]
fn older_pins_do_not_pull_a_freeze_back() {
    let base = session(2);
    let (owner, server) = (base.owner.clone(), base.server1.clone());
    let (mut left, mut right) = (base.clone().branch("left"), base.clone().branch("right"));
    left.response(&server, "one", &[]);
    right.response(&server, "other", &[]);
    // Both histories are pinned, and so is an entry that both descend from: it is in no dispute.
    let newest = base.entries().len();
    left.reference(&owner, 2, Reach::Anchors);
    left.reference(&owner, newest, Reach::Anchors);
    let other = right.reference(&owner, newest, Reach::Anchors);
    let mut auditor = Auditor::over_set(base.session());
    left.controls().iter().chain([&other]).for_each(|control| auditor.checked_control(control).unwrap());
    left.entries().iter().chain([right.head()]).for_each(|built| give(&mut auditor, built));
    let report = auditor.report();
    assert_eq!(report.verdict, Verdict::Frozen);
    assert_eq!(report.valid_through.map(|mark| mark.cid), Some(base.head().entry.cid()));
}

/// Found by comparing the verifiers: it was left out in silence.
#[test]
fn an_entry_of_another_session_is_told() {
    let session = SessionBuilder::new("here");
    let mut elsewhere = SessionBuilder::new("elsewhere");
    let owner = elsewhere.owner.clone();
    elsewhere.user(&owner, "not here");
    let told = Some(session.head().entry.cid());
    let entries = [session.head(), elsewhere.head()];
    let streamed = audit_of(&entries, session.controls(), told);
    let mut set = Auditor::over_set(session.session()).told(session.head().entry.cid());
    entries.iter().for_each(|built| give(&mut set, built));
    session.controls().iter().for_each(|control| set.checked_control(control).unwrap());
    for report in [streamed, set.report()] {
        assert_eq!((report.verdict, report.problems), (Verdict::Corrupt, 1));
        let problem = report.first_problem.unwrap();
        assert_eq!(problem.reject.code, Code::SessionMismatch);
        assert_eq!(problem.cid, Some(elsewhere.head().entry.cid()));
    }
}
