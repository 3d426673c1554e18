use throughline_protocol::block::Block;
use throughline_protocol::entry::{Body, Class, UserMessage};
use throughline_protocol::id::{Cid, Codec, SessionId};
use throughline_protocol::payload::{UserWords, Words};
use throughline_protocol::testing::{SessionBuilder, ts};

use crate::fixture::*;
use crate::source::lookup;
use crate::tables::{self, Spec as _};
use crate::{AdoptOptions, DropPayloads, Forget, Later, LinkBlocks, Naming, PutBlock, Store, Sweep, Which};

/// The lease of every upload here.
const LEASE: u64 = 10;

fn file(byte: u8) -> Block {
    Block::of(Codec::Raw, vec![byte; 100])
}

fn upload(store: &Store, block: &Block, session: Option<SessionId>) {
    let put = PutBlock::bytes(block.clone(), now(), ts(LEASE));
    store.run(session.into_iter().fold(put, PutBlock::received_for)).unwrap();
}

/// An entry of the session that names the block.
fn name(store: &Store, builder: &SessionBuilder, block: &Block) {
    let links = vec![(seq(1), *block.cid().digest())];
    store.run(LinkBlocks { session: builder.session(), links }).unwrap();
}

fn is_here(store: &Store, builder: &SessionBuilder, cid: &Cid) -> bool {
    let reader = store.reader().unwrap();
    let here = reader.is_here(builder.session(), cid).unwrap();
    assert_eq!(here, reader.bringing(cid.digest()).unwrap().contains(&builder.session()), "one answer");
    here
}

fn forget(store: &Store, builder: &SessionBuilder) {
    let expected_tip = builder.head().entry.cid();
    store.run(Forget { session: builder.session(), expected_tip, at: now() }).unwrap();
}

fn end_leases(store: &Store) {
    store.run(Sweep { now: ts(LEASE), events_kept: 1_000 }).unwrap();
}

#[test]
fn naming_a_block_that_another_session_brought_brings_nothing_and_keeps_nothing() {
    let (home, one, other) = (Home::new(), session("brings", 1), session("names", 1));
    let store = home.open();
    for builder in [&one, &other] {
        store.adopt(whole(builder), at()).unwrap();
    }
    upload(&store, &file(1), Some(one.session()));
    name(&store, &one, &file(1));
    name(&store, &other, &file(1));
    // Also by another codec: a block is its hash.
    for cid in [file(1).cid(), Cid::sha256(Codec::DagPb, file(1).bytes())] {
        assert!(is_here(&store, &one, &cid) && !is_here(&store, &other, &cid), "{cid}");
    }
    end_leases(&store);
    forget(&store, &one);
    assert_eq!(store.reader().unwrap().block(&file(1).cid()).unwrap(), None);
    // It comes for the other after all, which names it already.
    upload(&store, &file(1), Some(other.session()));
    end_leases(&store);
    assert!(is_here(&store, &other, &file(1).cid()));
    forget(&store, &other);
    assert_eq!(store.reader().unwrap().block(&file(1).cid()).unwrap(), None);
    assert_clean(&store, one.controls());
}

#[test]
fn what_was_received_for_a_session_that_is_not_held_yet_is_its_own_when_it_comes() {
    let (home, builder) = (Home::new(), session("draft", 1));
    let store = home.open();
    for byte in [1, 2] {
        upload(&store, &file(byte), Some(builder.session()));
        assert!(is_here(&store, &builder, &file(byte).cid()));
    }
    let links = vec![(seq(1), *file(1).cid().digest())];
    store.adopt(whole(&builder), AdoptOptions { links, ..at() }).unwrap();
    end_leases(&store);
    assert!(is_here(&store, &builder, &file(1).cid()), "an entry names it");
    assert!(!is_here(&store, &builder, &file(2).cid()), "none does");
}

#[test]
fn an_entry_that_is_signed_for_somebody_who_may_read_a_block_brings_it_if_it_is_held() {
    let (home, builder) = (Home::new(), session("signs", 1));
    let store = home.open();
    upload(&store, &file(1), None);
    let links = [1, 2].map(|byte| (seq(1), *file(byte).cid().digest())).to_vec();
    store.adopt(whole(&builder), AdoptOptions { links, naming: Naming::Brings, ..at() }).unwrap();
    end_leases(&store);
    assert!(is_here(&store, &builder, &file(1).cid()));
    upload(&store, &file(2), None);
    assert!(!is_here(&store, &builder, &file(2).cid()), "it was not there to be brought");
}

/// Two sessions whose first messages have one payload, which comes with both.
fn of_one_payload(class: Class) -> (SessionBuilder, SessionBuilder, Cid) {
    let mut one = SessionBuilder::new("public");
    let mut other = SessionBuilder::with_genesis("stricter", |genesis| genesis.class = class);
    let owner = one.owner.clone();
    let words = Words::UserMessage(UserWords::default());
    let (entry, payload) = one.draft(&owner, Body::UserMessage(UserMessage::default()), Some(words));
    let (mut same, _) = other.draft(&owner, Body::UserMessage(UserMessage::default()), None);
    same.payload = entry.payload;
    let cid = entry.payload.unwrap().cid.cid();
    one.push(&owner, entry, payload.clone()).unwrap();
    other.push(&owner, same, payload).unwrap();
    (one, other, cid)
}

#[test]
fn a_payload_goes_with_the_last_session_that_brought_it() {
    for let_go in [0, 1] {
        let (one, other, cid) = of_one_payload(Class::Internal);
        let home = Home::new();
        let store = home.open();
        for builder in [&one, &other] {
            store.adopt(whole(builder), at()).unwrap();
        }
        assert!(is_here(&store, &one, &cid) && is_here(&store, &other, &cid));
        let (first, last) = if let_go == 0 { (&one, &other) } else { (&other, &one) };
        let drop = |builder: &SessionBuilder| {
            let session = builder.session();
            store.run(DropPayloads { session, which: Which::All, later: Later::Accept, at: now() }).unwrap()
        };
        // Each has the words of its genesis for itself.
        assert_eq!(drop(first), 1, "the other one has it still");
        assert!(!is_here(&store, first, &cid) && is_here(&store, last, &cid));
        assert_eq!(drop(last), 2);
        assert!(!is_here(&store, last, &cid));
        assert_eq!(store.reader().unwrap().block(&cid).unwrap(), None);
        assert_clean(&store, one.controls());
    }
}

#[test]
fn of_a_store_of_before_the_strictest_sessions_that_link_a_block_brought_it() {
    for strict in [Class::Internal, Class::Confidential] {
        let (one, other, cid) = of_one_payload(strict);
        let home = Home::new();
        let store = home.open();
        for builder in [&one, &other] {
            store.adopt(whole(builder), at()).unwrap();
        }
        for (byte, builders) in [(1, &[&one][..]), (2, &[&other][..]), (3, &[&one, &other][..])] {
            upload(&store, &file(byte), None);
            builders.iter().for_each(|builder| name(&store, builder, &file(byte)));
        }
        // As format 4 left it.
        write_behind(&store, |txn| {
            txn.delete_table(tables::BROUGHT::DEFINITION).unwrap();
            txn.open_table(tables::META::DEFINITION).unwrap().insert(tables::meta::SCHEMA, 4).unwrap();
        });
        drop(store);
        std::fs::write(home.path().join("VERSION"), "4\nthroughline 0.1.0\n").unwrap();

        let store = home.open();
        let both = strict == Class::Internal;
        assert_eq!((is_here(&store, &one, &cid), is_here(&store, &other, &cid)), (both, true), "{strict:?}");
        let here = |byte, builder| is_here(&store, builder, &file(byte).cid());
        assert!(here(1, &one) && !here(1, &other) && here(2, &other) && !here(2, &one));
        assert_eq!((here(3, &one), here(3, &other)), (both, true), "{strict:?}");
        let format =
            lookup(&store.reader().unwrap().txn, tables::META, tables::meta::SCHEMA, |format| format);
        assert_eq!(format.unwrap(), Some(u64::from(crate::FORMAT)));
        // What the entries link is what it was, and goes with the sessions.
        assert_eq!(store.reader().unwrap().linkers(cid.digest()).unwrap().len(), 2);
        end_leases(&store);
        assert_clean(&store, one.controls());
        forget(&store, &other);
        assert_eq!(store.reader().unwrap().block(&cid).unwrap().is_some(), both);
    }
}
