use std::fs;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use throughline_protocol::code::Code;
use throughline_protocol::codec::{self, Map};
use throughline_protocol::id::Epoch;
use throughline_protocol::testing::{SessionBuilder, epoch, ts};

use crate::fixture::*;
use crate::tables::{self, Spec as _};
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

/// The same session after the owner handed it to this node again, on an entry and in an epoch of its own.
fn handed_over(builder: &SessionBuilder) -> SessionBuilder {
    let (mut next, server1) = (builder.clone(), Arc::clone(&builder.server1));
    next.handoff(Some(&server1));
    next
}

#[test]
fn after_a_reset_only_a_handoff_whose_offer_was_answered_since_counts() {
    let (home, clone) = (Home::new(), Home::new());
    let (store, builder) = held(&home, "stale");
    // Answered before the directory was copied, and by the original.
    answer_offer(&store, &handed_over(&builder));
    drop(store);
    copy(&home.path(), &clone.path());
    let store = clone.open();
    let mut later = handed_over(&builder);
    let refused = |built: &SessionBuilder| guard_error(store.adopt(last(built), activated()));
    // Whatever its time: that of a handoff is whatever the clock of its signer showed.
    assert_eq!(refused(&later), GuardError::NoRow);
    assert_eq!(AdoptError::SignGuard(GuardError::NoRow).code(), Code::SignGuard);

    // An answer about another epoch, or about another entry, is about another handoff.
    let place = later.head().entry.value().place.unwrap();
    let offer = NoteOffer { session: builder.session(), epoch: place.epoch, head: place.prev };
    store.run(NoteOffer { epoch: epoch(2), ..offer }).unwrap();
    assert_eq!(refused(&later), GuardError::NoRow);
    store.run(NoteOffer { head: builder.entries()[0].entry.cid(), ..offer }).unwrap();
    assert_eq!(refused(&later), GuardError::NoRow);

    store.run(offer).unwrap();
    // It is durable, and outlives a restart that is none into another life.
    drop(store);
    let store = clone.open();
    store.adopt(last(&later), activated()).unwrap();
    push(&mut later, "of this life");
    store.adopt(last(&later), signed(&later)).unwrap();

    // One of a later epoch that only came here is one that the original may go on after.
    let next = handed_over(&later);
    assert_eq!(guard_error(store.adopt(last(&next), activated())), GuardError::NoRow);
    store.adopt(last(&next), at()).unwrap();
    let mut next = next;
    push(&mut next, "beside the original");
    let refused = guard_error(store.adopt(last(&next), signed(&next)));
    assert_eq!(refused, GuardError::NotTakenOver { signed: epoch(1), epoch: epoch(2) });
}

#[test]
fn a_guard_that_was_reset_by_a_program_of_before_is_reset_still() {
    let (home, clone) = (Home::new(), Home::new());
    let (store, builder) = held(&home, "before");
    drop(store);
    copy(&home.path(), &clone.path());
    let store = clone.open();
    write_behind(&store, |txn| {
        txn.open_table(tables::IDENTITY::DEFINITION).unwrap().remove("life").unwrap();
        txn.open_table(tables::META::DEFINITION).unwrap().insert("guard_reset_ms", 7).unwrap();
        // A row of before: what was signed is unknown since a time.
        let row = codec::encode_map(&Map::new().with("epoch", epoch(0)).with("unknown", ts(7)));
        let mut guard = txn.open_table(tables::GUARD::DEFINITION).unwrap();
        guard.insert(builder.session().genesis().digest(), row.as_slice()).unwrap();
    });
    drop(store);
    let store = clone.open();
    let of_all = |problem: &Problem| problem.session.is_none();
    assert!(!store.fsck().unwrap().problems.iter().any(of_all));
    let life = store.reader().unwrap().guard_life().unwrap();
    assert!(life.is_some());
    let next = handed_over(&builder);
    let unknown = GuardError::Unknown { epoch: epoch(0) };
    assert_eq!(guard_error(store.adopt(last(&next), activated())), unknown);
    answer_offer(&store, &next);
    drop(store);
    let store = clone.open();
    assert_eq!(store.reader().unwrap().guard_life().unwrap(), life, "it is named once");
    store.adopt(last(&next), activated()).unwrap();
}

/// What happens to a directory of a node whose key is in use elsewhere too, as far as it can tell.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// It answers the offer of the next handoff.
    Answer,
    /// The next handoff comes, however.
    Handoff,
    /// It wants to sign.
    Sign,
    /// The process ends and begins again.
    Restart,
    /// The directory is put back from a copy of itself.
    Restore,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        Just(Act::Answer),
        Just(Act::Handoff),
        Just(Act::Sign),
        Just(Act::Restart),
        Just(Act::Restore)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In any order: each epoch is signed in by the one life that took part in its handoff, or by none.
    #[test]
    fn an_epoch_is_signed_in_by_the_life_that_answered_for_it(acts in vec(act(), 1..24)) {
        let mut home = Home::new();
        let (store, mut builder) = held(&home, "lives");
        let (mut store, mut is_reset) = (Some(store), false);
        let (mut answered, mut may_sign) = (false, true);
        for act in acts {
            let open = store.as_ref().unwrap();
            match act {
                Act::Answer => {
                    answer_offer(open, &handed_over(&builder));
                    answered = true;
                }
                Act::Handoff => {
                    builder = handed_over(&builder);
                    may_sign = answered || !is_reset;
                    answered = false;
                    match open.adopt(last(&builder), activated()) {
                        Ok(_) => prop_assert!(may_sign),
                        refused => {
                            guard_error(refused);
                            prop_assert!(!may_sign);
                            open.adopt(last(&builder), at()).unwrap();
                        }
                    }
                }
                Act::Sign => {
                    let mut next = builder.clone();
                    push(&mut next, "words");
                    let adopted = open.adopt(last(&next), signed(&next));
                    prop_assert_eq!(adopted.is_ok(), may_sign);
                    if may_sign {
                        (builder, answered) = (next, false);
                    }
                }
                Act::Restart => {
                    drop(store.take());
                    store = Some(home.open());
                }
                Act::Restore => {
                    drop(store.take());
                    let copied = Home::new();
                    copy(&home.path(), &copied.path());
                    (home, is_reset, answered, may_sign) = (copied, true, false, false);
                    store = Some(home.open());
                }
            }
        }
    }
}

#[test]
fn a_key_older_than_its_directory_takes_no_genesis_over() {
    let (home, builder) = (Home::new(), session("older", 0));
    let store = Store::open(&home.path(), OpenOptions::new(now(), "test")).unwrap();
    assert_eq!(guard_error(store.adopt(whole(&builder), activated())), GuardError::NoRow);
    store.adopt(whole(&builder), at()).unwrap();
}
