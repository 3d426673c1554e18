use std::collections::BTreeMap;
use std::sync::Arc;

use throughline_protocol::code::Code;
use throughline_protocol::entry::{Body, Class};
use throughline_protocol::id::Seq;
use throughline_protocol::testing::{SessionBuilder, epoch};

use crate::fixture::*;
use crate::*;

fn code<T: std::fmt::Debug>(result: Result<T, AdoptError>) -> Code {
    result.unwrap_err().code()
}

#[test]
fn a_session_is_adopted_in_parts_and_read_back() {
    let (home, builder) = (Home::new(), session("parts", 9));
    let store = home.open();
    store.adopt(segment(&builder, 0, 1), at()).unwrap();
    store.adopt(segment(&builder, 1, 4), at()).unwrap();
    let adopted = store.adopt(segment(&builder, 4, 10), at()).unwrap();
    assert_eq!(tip(&adopted), mark(builder.head()));
    assert_holds(&store, &builder);
    drop(store);
    assert_holds(&home.open(), &builder);
}

#[test]
fn a_segment_on_another_head_is_refused_with_the_tip() {
    let (home, builder) = (Home::new(), session("moved", 3));
    let store = home.open();
    store.adopt(segment(&builder, 0, 3), at()).unwrap();
    for stale in [segment(&builder, 0, 2), segment(&builder, 1, 3), segment(&builder, 2, 4)] {
        match store.adopt(stale, at()) {
            Err(AdoptError::HeadMoved { tip }) => assert_eq!(tip, Some(mark(&builder.entries()[2]))),
            other => panic!("{other:?}"),
        }
    }
    let other = session("unheld", 2);
    assert!(matches!(store.adopt(segment(&other, 1, 3), at()), Err(AdoptError::HeadMoved { tip: None })));
    assert_holds(&store, &builder.at(2));
}

#[test]
fn frozen_lets_only_a_later_epoch_follow_and_thaws_only_before_it() {
    let (home, mut builder) = (Home::new(), session("frozen", 2));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let frozen = SessionState::Frozen { epoch: epoch(0), move_id: [7; 16] };
    let set = |from, to| store.run(SetState { session: builder.session(), from, to, at: now() });
    let row = set(SessionState::Active, frozen).unwrap();
    assert_eq!((row.tip, row.state), (mark(builder.head()), frozen));
    assert!(matches!(set(SessionState::Active, frozen), Err(AdoptError::Store(StoreError::Moved { .. }))));

    let mut continued = builder.clone();
    push(&mut continued, "too late");
    assert_eq!(code(store.adopt(last(&continued), at())), Code::Frozen);

    set(frozen, SessionState::Active).unwrap();
    set(SessionState::Active, frozen).unwrap();
    let session = builder.session();
    store.run(RaiseFence { session, epoch: epoch(1), at: now() }).unwrap();
    assert_eq!(
        code(store.run(SetState { session, from: frozen, to: SessionState::Active, at: now() })),
        Code::Fenced
    );

    let server2 = Arc::clone(&builder.server2);
    builder.handoff(Some(&server2));
    let retired = SessionState::Retired { epoch: epoch(0) };
    store.adopt(last(&builder), AdoptOptions { state: Some(retired), ..at() }).unwrap();
    let row = store.reader().unwrap().session(session).unwrap().unwrap();
    assert_eq!((row.state, row.fence), (retired, epoch(1)));
}

#[test]
fn retired_signs_nothing_and_still_follows() {
    let (home, mut builder) = (Home::new(), session("retired", 1));
    let store = home.open();
    store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    store.adopt(segment(&builder, 1, 2), signed(&builder)).unwrap();
    let retired = SessionState::Retired { epoch: epoch(0) };
    let session = builder.session();
    store.run(SetState { session, from: SessionState::Active, to: retired, at: now() }).unwrap();
    let mut continued = builder.clone();
    push(&mut continued, "no longer ours");
    assert_eq!(code(store.adopt(last(&continued), signed(&builder))), Code::Retired);
    let server2 = Arc::clone(&builder.server2);
    builder.handoff(Some(&server2));
    store.adopt(last(&builder), at()).unwrap();
    builder.user(&server2, "the next holder's");
    store.adopt(last(&builder), at()).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn behind_the_fence_nothing_is_signed_and_history_is_taken() {
    let (home, mut builder) = (Home::new(), session("fence", 1));
    let store = home.open();
    store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    store.adopt(segment(&builder, 1, 2), signed(&builder)).unwrap();
    let session = builder.session();
    assert_eq!(store.run(RaiseFence { session, epoch: epoch(2), at: now() }).unwrap(), epoch(2));
    assert_eq!(store.run(RaiseFence { session, epoch: epoch(1), at: now() }).unwrap(), epoch(2));
    push(&mut builder, "late");
    assert_eq!(code(store.adopt(last(&builder), signed(&builder))), Code::Fenced);
    assert_holds(&store, &builder.at(1));
    store.adopt(last(&builder), at()).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn a_key_used_twice_gives_the_first_answer_or_a_refusal() {
    let (home, mut builder) = (Home::new(), session("idem", 0));
    let store = home.open();
    store.adopt(whole(&builder), activated()).unwrap();
    push(&mut builder, "once");
    let key = |request: u8| Idempotency {
        scope: Scope::Session(builder.session()),
        key: "ev-1".to_owned(),
        request: [request; 32],
        result: b"answer".to_vec(),
        expires: None,
    };
    let with = |request| AdoptOptions { idempotency: Some(key(request)), ..signed(&builder) };
    store.adopt(last(&builder), with(1)).unwrap();
    let before = store.reader().unwrap().newest_event().unwrap();
    let again = store.adopt(last(&builder), with(1)).unwrap();
    assert_eq!(again, Adopted::Replayed { result: b"answer".to_vec() });
    assert_eq!(code(store.adopt(last(&builder), with(2))), Code::Idempotency);
    assert_eq!(store.reader().unwrap().newest_event().unwrap(), before);
    assert_holds(&store, &builder);
    drop(store);
    let store = home.open();
    let scope = Scope::Session(builder.session());
    let look =
        |scope: &Scope, request| store.reader().unwrap().idempotency(scope, "ev-1", &[request; 32]).unwrap();
    assert_eq!(look(&scope, 1), Used::Same(b"answer".to_vec()));
    assert_eq!(look(&scope, 2), Used::Other);
    assert_eq!(look(&Scope::Node, 1), Used::Never);
}

#[test]
fn what_goes_with_a_segment_is_written_with_it() {
    let (home, mut builder) = (Home::new(), session("with", 2));
    let anchor = {
        let owner = Arc::clone(&builder.owner);
        builder.reference(&owner, 2, throughline_protocol::testing::Reach::Anchors)
    };
    let store = home.open();
    let summary =
        Summary { head: Some(mark(builder.head())), verdict: "valid".to_owned(), ..Summary::default() };
    let pin = Pin { since: now(), depth: PinDepth::Files };
    let options = AdoptOptions {
        controls: builder.controls().to_vec(),
        links: vec![(seq(1), [9; 32])],
        summary: Some(summary.clone()),
        pin: Some(pin),
        ..at()
    };
    store.adopt(whole(&builder), options).unwrap();
    let (reader, session) = (store.reader().unwrap(), builder.session());
    let row = reader.session(session).unwrap().unwrap();
    assert_eq!((row.summary, row.owner), (summary, builder.owner.key.principal()));
    assert_eq!(row.agent, format!("hm://{}/scout", row.owner));
    assert_eq!(reader.pin(session).unwrap(), Some(pin));
    assert_eq!(reader.linkers(&[9; 32]).unwrap(), [session]);
    assert_eq!(reader.refs_of_session(session).unwrap(), [anchor.bytes().to_vec()]);
    assert_eq!(reader.controls_of_session(session).unwrap().len(), builder.controls().len());
    let EventPage::Events(events) = reader.events_since(0, 100).unwrap() else { panic!("a gap") };
    let entries = events.iter().filter(|event| matches!(event.change, Change::Entries { .. })).count();
    assert_eq!(entries, 1);
    assert!(events.iter().any(|event| matches!(&event.change, Change::Verdict { to, .. } if to == "valid")));
    assert!(events.windows(2).all(|pair| pair[0].id + 1 == pair[1].id));
}

#[test]
fn a_tail_is_replaced_and_kept_as_evidence() {
    let (home, builder) = (Home::new(), session("tail", 5));
    let mut other = builder.at(2).branch("b");
    let server2 = Arc::clone(&other.server2);
    other.handoff(Some(&server2));
    other.user(&server2, "the new holder's");
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let forked = builder.entries()[3].entry.cid();
    let replace = |expected_tip| ReplaceTail {
        session: builder.session(),
        expected_tip,
        keep_through: mark(&builder.entries()[2]),
        tail: NewTail::Segment(Box::new(segment(&other, 3, 5))),
        statuses: BTreeMap::from([(forked, SideStatus::Forked)]),
        fallback: SideStatus::Fenced,
        options: at(),
    };
    assert_eq!(code(store.run(replace(forked))), Code::HeadMoved);
    store.run(replace(builder.head().entry.cid())).unwrap();
    assert_holds(&store, &other);

    let reader = store.reader().unwrap();
    let side = reader.side_entries(builder.session(), None, 10).unwrap();
    assert_eq!(side.len(), 3);
    for entry in &side {
        let expected = if entry.cid == forked { SideStatus::Forked } else { SideStatus::Fenced };
        assert_eq!(entry.status, expected);
        assert_eq!(reader.entry(entry.cid).unwrap().unwrap().1.bytes, entry.bytes);
        assert!(!reader.is_ancestor(builder.session(), entry.cid, seq(100)).unwrap());
    }
    let paged = reader.side_entries(builder.session(), Some(side[0].cid), 1).unwrap();
    assert_eq!(paged, side[1..2]);

    // Back again: what was beside the chain returns to it and is no evidence any more.
    let back = ReplaceTail {
        session: builder.session(),
        expected_tip: other.head().entry.cid(),
        keep_through: mark(&builder.entries()[2]),
        tail: NewTail::Segment(Box::new(segment(&builder, 3, 6))),
        statuses: BTreeMap::new(),
        fallback: SideStatus::Branch,
        options: at(),
    };
    store.run(back).unwrap();
    assert_holds(&store, &builder);
    let side = store.reader().unwrap().side_entries(builder.session(), None, 10).unwrap();
    assert_eq!(side.iter().map(|entry| entry.status).collect::<Vec<_>>(), [SideStatus::Branch; 2]);
}

#[test]
fn a_tail_is_cut_without_a_successor() {
    let (home, builder) = (Home::new(), session("cut", 4));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let cut = ReplaceTail {
        session: builder.session(),
        expected_tip: builder.head().entry.cid(),
        keep_through: mark(&builder.entries()[1]),
        tail: NewTail::Cut(Box::new(state_at(&builder, 1))),
        statuses: BTreeMap::new(),
        fallback: SideStatus::Revoked,
        options: at(),
    };
    store.run(cut).unwrap();
    assert_holds(&store, &builder.at(1));
    let reader = store.reader().unwrap();
    let EventPage::Events(events) = reader.events_since(0, 100).unwrap() else { panic!("a gap") };
    let cuts = events.iter().filter(|event| {
        matches!(event.change, Change::Cut { keep_through, entries: 3, .. } if keep_through == seq(1))
    });
    assert_eq!(cuts.count(), 1);
}

#[test]
fn walks_by_skip_reach_every_ancestor() {
    let (home, builder) = (Home::new(), session("walk", 40));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let (reader, id) = (store.reader().unwrap(), builder.session());
    let hops: Vec<_> = [40, 39, 38, 31, 0].map(|seq| builder.entries()[seq].entry.cid()).into();
    assert_eq!(reader.locator(id).unwrap(), hops);
    let path: Vec<u64> =
        reader.skip_path(id, seq(40), seq(33)).unwrap().iter().map(|entry| entry.seq.get()).collect();
    assert_eq!(path, [40, 39, 38, 37, 34, 33]);
    let have = [
        builder.entries()[7].entry.cid(),
        builder.entries()[30].entry.cid(),
        session("x", 0).head().entry.cid(),
    ];
    assert_eq!(reader.base_of(id, &have, seq(40)).unwrap(), Some(mark(&builder.entries()[30])));
    assert_eq!(reader.base_of(id, &have, seq(20)).unwrap(), Some(mark(&builder.entries()[7])));
    assert_eq!(reader.base_of(id, &[], seq(20)).unwrap(), None);
    for (at, built) in builder.entries().iter().enumerate() {
        let at = u64::try_from(at).unwrap();
        assert!(reader.is_ancestor(id, built.entry.cid(), seq(at)).unwrap());
        assert!(at == 0 || !reader.is_ancestor(id, built.entry.cid(), seq(at - 1)).unwrap());
    }
    let middle: Vec<_> =
        reader.entries(id, seq(5), seq(7)).unwrap().map(|entry| entry.unwrap().seq).collect();
    assert_eq!(middle, [seq(5), seq(6), seq(7)]);
    assert_eq!(reader.entries(id, seq(7), seq(5)).unwrap().count(), 0);
    assert_eq!(reader.entries(id, seq(0), seq(9)).unwrap().next_back().unwrap().unwrap().seq, seq(9));
}

#[test]
fn the_class_of_the_genesis_is_the_first_one_shown() {
    let (home, builder) =
        (Home::new(), SessionBuilder::with_genesis("c", |genesis| genesis.class = Class::Public));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let row = store.reader().unwrap().session(builder.session()).unwrap().unwrap();
    assert_eq!(row.summary.class, Class::Public);
    assert_eq!(row.summary.holder, Some(builder.server1.key.principal()));
    assert!(matches!(builder.head().entry.value().body, Body::Genesis(_)));
    assert_eq!(row.tip.seq, Seq::ZERO);
}

#[test]
fn a_replacement_keeps_the_answer_that_stands_under_its_key() {
    let (home, builder) = (Home::new(), session("replace key", 3));
    let store = home.open();
    store.adopt(segment(&builder, 0, 3), at()).unwrap();
    let under = |request: u8, result: u8| AdoptOptions {
        idempotency: Some(Idempotency {
            scope: Scope::Session(builder.session()),
            key: "k".to_owned(),
            request: [request; 32],
            result: vec![result],
            expires: None,
        }),
        ..at()
    };
    store.adopt(segment(&builder, 3, 4), under(1, 10)).unwrap();
    let cut = |options| {
        let session = builder.session();
        store.run(ReplaceTail {
            session,
            expected_tip: builder.head().entry.cid(),
            keep_through: mark(&builder.entries()[2]),
            tail: NewTail::Cut(Box::new(state_at(&builder, 2))),
            statuses: BTreeMap::new(),
            fallback: SideStatus::Branch,
            options,
        })
    };
    assert_eq!(code(cut(under(2, 20))), Code::Idempotency);
    assert_eq!(cut(under(1, 20)).unwrap(), Adopted::Replayed { result: vec![10] });
    assert_holds(&store, &builder);
}
