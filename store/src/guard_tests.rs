use std::fs;
use std::sync::Arc;

use throughline_protocol::code::Code;
use throughline_protocol::id::Epoch;
use throughline_protocol::testing::{SessionBuilder, epoch};

use crate::fixture::*;
use crate::*;

/// A session that this node took over by its genesis and signed one entry in.
fn held(home: &Home, label: &str) -> (Store, SessionBuilder) {
    let builder = session(label, 1);
    let store = home.open();
    store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    store.adopt(segment(&builder, 1, 2), signed(&builder)).unwrap();
    (store, builder)
}

fn guard_error(result: Result<Adopted, AdoptError>) -> GuardError {
    match result {
        Err(AdoptError::SignGuard(error)) => error,
        other => panic!("expected the sign guard to refuse, got {other:?}"),
    }
}

#[test]
fn the_row_is_the_last_signed_entry_with_its_bytes() {
    let home = Home::new();
    let (store, mut builder) = held(&home, "row");
    push(&mut builder, "second");
    push(&mut builder, "third");
    store.adopt(segment(&builder, 2, 4), signed(&builder)).unwrap();
    let row = store.reader().unwrap().guard(builder.session()).unwrap().unwrap();
    assert_eq!((row.cid, row.seq), (builder.head().entry.cid(), seq(3)));
    assert_eq!(row.bytes, builder.head().entry.bytes().to_vec());
    drop(store);
    let row = home.open().reader().unwrap().guard(builder.session()).unwrap().unwrap();
    assert_eq!(row.cid, builder.head().entry.cid());
}

#[test]
fn without_a_row_nothing_is_signed_in_an_existing_session() {
    let (home, mut builder) = (Home::new(), session("norow", 3));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let head = mark(builder.head());
    let reader = store.reader().unwrap();
    assert_eq!(check(&reader, &builder, epoch(0), head).unwrap(), Err(GuardError::NoRow));
    push(&mut builder, "ours?");
    assert_eq!(guard_error(store.adopt(last(&builder), signed(&builder))), GuardError::NoRow);
    assert_holds(&store, &builder.at(3));

    let server1 = Arc::clone(&builder.server1);
    let mut builder = builder.at(3);
    builder.handoff(Some(&server1));
    store.adopt(last(&builder), activated()).unwrap();
    push(&mut builder, "ours now");
    store.adopt(last(&builder), signed(&builder)).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn a_session_that_is_created_here_needs_no_row() {
    let home = Home::new();
    let builder = session("created", 0);
    let store = home.open();
    // Signed by another key than the one that says it signed: refused whatever the row.
    assert_eq!(guard_error(store.adopt(whole(&builder), signed(&builder))), GuardError::NotOurs);
    let owner = GuardUse::Signed(builder.owner.key.principal());
    store.adopt(whole(&builder), AdoptOptions { guard: owner, ..at() }).unwrap();
    assert!(store.reader().unwrap().guard(builder.session()).unwrap().is_some());
}

#[test]
fn what_was_signed_and_left_the_chain_forbids_another_signature_in_its_epoch() {
    let home = Home::new();
    let (store, builder) = held(&home, "left");
    let cut = ReplaceTail {
        session: builder.session(),
        expected_tip: builder.head().entry.cid(),
        keep_through: mark(&builder.entries()[0]),
        tail: NewTail::Cut(Box::new(state_at(&builder, 0))),
        statuses: std::collections::BTreeMap::new(),
        fallback: SideStatus::Forked,
        options: at(),
    };
    store.run(cut).unwrap();
    let mut second = builder.at(0).branch("second");
    push(&mut second, "another history");
    let refused = guard_error(store.adopt(last(&second), signed(&second)));
    assert_eq!(refused, GuardError::NotDescendant { seq: seq(1), epoch: epoch(0) });

    let mut next = builder.at(0);
    let server1 = Arc::clone(&next.server1);
    next.handoff(Some(&server1));
    store.adopt(last(&next), activated()).unwrap();
    push(&mut next, "after the handoff");
    store.adopt(last(&next), signed(&next)).unwrap();
}

#[test]
fn an_epoch_behind_the_row_is_refused() {
    let home = Home::new();
    let (store, mut builder) = held(&home, "behind");
    let server1 = Arc::clone(&builder.server1);
    builder.handoff(Some(&server1));
    store.adopt(last(&builder), activated()).unwrap();
    let reader = store.reader().unwrap();
    let prev = mark(&builder.entries()[1]);
    let expected = GuardError::EpochBehind { signed: epoch(1), offered: epoch(0) };
    assert_eq!(check(&reader, &builder, epoch(0), prev).unwrap(), Err(expected));
    assert_eq!(check(&reader, &builder, epoch(1), mark(builder.head())).unwrap(), Ok(()));
}

fn check(
    reader: &Reader,
    builder: &SessionBuilder,
    epoch: Epoch,
    prev: Mark,
) -> Result<Result<(), GuardError>, StoreError> {
    reader.check_guard(&reader.session(builder.session()).unwrap().unwrap(), epoch, prev)
}

/// Copies a data directory file by file, as a backup or `cp -r` does.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn assert_signs_nothing(store: &Store, builder: &SessionBuilder) {
    let reader = store.reader().unwrap();
    assert!(!reader.is_guard_trusted().unwrap());
    assert_eq!(reader.guard(builder.session()).unwrap(), None);
    let head = reader.session(builder.session()).unwrap().unwrap().tip;
    assert_eq!(check(&reader, builder, epoch(0), head).unwrap(), Err(GuardError::NoRow));
    let EventPage::Events(events) = reader.events_since(0, 1_000).unwrap() else { panic!("a gap") };
    assert!(events.iter().any(|event| event.change == Change::GuardReset));
    // Nor by taking a session over by its genesis, which the original may have done and signed after.
    let fresh = session("fresh", 0);
    assert_eq!(guard_error(store.adopt(whole(&fresh), activated())), GuardError::NoRow);
}

#[test]
fn a_copied_directory_signs_nothing() {
    let (home, clone) = (Home::new(), Home::new());
    let (store, builder) = held(&home, "clone");
    drop(store);
    copy(&home.path(), &clone.path());
    assert_signs_nothing(&clone.open(), &builder);
    // The original is not affected.
    let mut builder = builder;
    push(&mut builder, "goes on");
    home.open().adopt(last(&builder), signed(&builder)).unwrap();
}

#[test]
fn an_older_database_put_back_in_place_signs_nothing() {
    let home = Home::new();
    let (store, builder) = held(&home, "rollback");
    drop(store);
    let older = fs::read(home.path().join("store.redb")).unwrap();
    drop(home.open());
    // Written over the same inode, as `cp` onto an existing file does.
    fs::write(home.path().join("store.redb"), older).unwrap();
    assert_signs_nothing(&home.open(), &builder);
}

#[test]
fn a_handoff_from_before_a_restore_takes_nothing_over() {
    let (home, clone) = (Home::new(), Home::new());
    let (store, mut builder) = held(&home, "stale");
    drop(store);
    copy(&home.path(), &clone.path());
    let store = clone.open();
    let server1 = Arc::clone(&builder.server1);
    builder.handoff(Some(&server1));
    // The fixture's handoff is older than the time at which the copy was opened.
    assert_eq!(guard_error(store.adopt(last(&builder), activated())), GuardError::NoRow);
    assert_eq!(AdoptError::SignGuard(GuardError::NoRow).code(), Code::SignGuard);
}

#[test]
fn a_key_older_than_its_directory_takes_no_genesis_over() {
    let (home, builder) = (Home::new(), session("older", 0));
    let store = Store::open(&home.path(), OpenOptions::new(now(), "test")).unwrap();
    assert_eq!(guard_error(store.adopt(whole(&builder), activated())), GuardError::NoRow);
    store.adopt(whole(&builder), at()).unwrap();
}
