//! Rows that are made again: equal to what they were where other rows tell it, and nothing is signed where they do not.

use std::sync::Arc;

use throughline_protocol::code::Code;
use throughline_protocol::id::UnixMillis;
use throughline_protocol::testing::{SessionBuilder, epoch, ts};

use crate::corrupt_tests::flip_rows;
use crate::fixture::*;
use crate::tables::{self, Spec as _};
use crate::testing::Dice;
use crate::*;

/// A session that this node holds, with two entries that it signed. Its title is in the payload of its genesis.
fn held(label: &str) -> (Home, Store, SessionBuilder) {
    let (home, builder) = (Home::new(), session(label, 2));
    let store = home.open();
    let summary = Some(told(&builder));
    let options = AdoptOptions { controls: builder.controls().to_vec(), summary, ..activated() };
    store.adopt(segment(&builder, 0, 1), options).unwrap();
    store.adopt(segment(&builder, 1, 3), signed(&builder)).unwrap();
    (home, store, builder)
}

/// What the chain tells of what lists show; the rest is judged.
fn told(builder: &SessionBuilder) -> Summary {
    let state = state_at(builder, 0);
    let title = segment(builder, 0, 1).entries()[0].title().map(str::to_owned);
    assert!(title.is_some());
    Summary { class: state.class(), holder: state.holder(), title, ..Summary::default() }
}

fn row(store: &Store, builder: &SessionBuilder) -> SessionRow {
    store.reader().unwrap().session(builder.session()).unwrap().unwrap()
}

fn lose_session(store: &Store) {
    flip_rows(store, tables::SESSIONS, 0..1, &mut Dice::new(3));
}

fn rebuild_at(store: &Store, builder: &SessionBuilder, at: UnixMillis) -> Result<Vec<LostRow>, StoreError> {
    let reader = store.reader().unwrap();
    let chain = reader.read_again(builder.session(), &mut |_| {})?;
    store.run(Rebuild { chain, at })
}

fn rebuild(store: &Store, builder: &SessionBuilder) -> Result<Vec<LostRow>, StoreError> {
    rebuild_at(store, builder, now())
}

fn refused<T: std::fmt::Debug>(result: Result<T, AdoptError>) -> GuardError {
    match result {
        Err(error @ AdoptError::SignGuard(why)) => {
            assert_eq!(error.code(), Code::SignGuard);
            why
        }
        other => panic!("expected the sign guard to refuse, got {other:?}"),
    }
}

/// Signs, or would, the next entry after everything that is held.
fn sign(store: &Store, builder: &SessionBuilder) -> Result<Adopted, AdoptError> {
    let mut next = builder.clone();
    push(&mut next, "one more");
    store.adopt(last(&next), signed(&next))
}

/// The same session after the owner handed it to this node again.
fn handed_over(builder: &SessionBuilder) -> SessionBuilder {
    let mut next = builder.clone();
    let server1 = Arc::clone(&next.server1);
    next.handoff(Some(&server1));
    next
}

#[test]
fn a_state_that_is_damaged_or_missing_is_what_it_was_after_the_chain_was_verified_again() {
    let (_home, store, builder) = held("state");
    let good = store.reader().unwrap().chain_state(builder.session()).unwrap();
    let before = row(&store, &builder);
    let flip = || flip_rows(&store, tables::CHAIN_STATES, 0..1, &mut Dice::new(5));
    let remove = || {
        write_behind(&store, |txn| {
            txn.open_table(tables::CHAIN_STATES::DEFINITION).unwrap().remove(before.number).unwrap();
        });
    };
    for damage in [&flip as &dyn Fn(), &remove] {
        damage();
        let found = store.fsck().unwrap();
        assert_eq!(found.rows.iter().copied().collect::<Vec<_>>(), [LostRow::State(builder.session())]);
        assert_eq!(found.problem_count, 1, "{:?}", found.problems);
        let mut seqs = Vec::new();
        let reader = store.reader().unwrap();
        let chain = reader.read_again(builder.session(), &mut |seq| seqs.push(seq.get())).unwrap();
        assert_eq!(store.run(Rebuild { chain, at: now() }).unwrap(), [LostRow::State(builder.session())]);
        assert_eq!(seqs, [0, 1, 2]);
        assert!(store.fsck().unwrap().is_clean());
        assert_eq!(store.reader().unwrap().chain_state(builder.session()).unwrap(), good);
        assert_eq!(row(&store, &builder), before);
        assert_eq!(rebuild(&store, &builder).unwrap(), [], "a second time changes nothing");
    }
    // All that a signature needs was known throughout.
    sign(&store, &builder).unwrap();
}

#[test]
fn a_session_whose_row_was_lost_reads_as_before_and_signs_nothing_until_a_later_handoff() {
    let (_home, store, builder) = held("row");
    let before = row(&store, &builder);
    lose_session(&store);
    assert_eq!(store.reader().unwrap().session(builder.session()).unwrap_err().code(), Code::StoreCorrupt);
    assert_eq!(store.reader().unwrap().owner_of(builder.session()).unwrap(), Some(before.owner));
    let found = store.fsck().unwrap();
    assert_eq!(found.rows.iter().copied().collect::<Vec<_>>(), [LostRow::Session(builder.session())]);
    assert_eq!(found.problem_count, 1, "{:?}", found.problems);
    assert_eq!(found.problems[0].session, Some(builder.session()));

    assert_eq!(rebuild_at(&store, &builder, ts(0)).unwrap(), [LostRow::Session(builder.session())]);
    assert_eq!(row(&store, &builder), SessionRow { changed: ts(0), ..before });
    assert_holds(&store, &builder);
    let head = mark(builder.head());
    let unknown = GuardError::Unknown { epoch: epoch(0) };
    let (reader, held) = (store.reader().unwrap(), row(&store, &builder));
    assert_eq!(reader.check_guard(&held, epoch(0), head).unwrap(), Err(unknown));
    // Nor in an epoch above, while no handoff came through the guard.
    assert_eq!(reader.check_guard(&held, epoch(9), head).unwrap(), Err(unknown));
    assert_eq!(refused(sign(&store, &builder)), unknown);
    assert_eq!(rebuild(&store, &builder).unwrap(), [], "a second time changes nothing");

    let next = handed_over(&builder);
    assert_eq!(refused(store.adopt(last(&next), activated())), unknown);
    answer_offer(&store, &next);
    store.adopt(last(&next), activated()).unwrap();
    sign(&store, &next).unwrap();
}

#[test]
fn a_row_that_is_gone_is_found_by_the_list_of_ids() {
    let (_home, store, builder) = held("gone");
    let number = row(&store, &builder).number;
    write_behind(&store, |txn| {
        txn.open_table(tables::SESSIONS::DEFINITION).unwrap().remove(number).unwrap();
    });
    assert!(store.fsck().unwrap().rows.contains(&LostRow::Session(builder.session())));
    rebuild(&store, &builder).unwrap();
    assert_holds(&store, &builder);
    assert!(matches!(refused(sign(&store, &builder)), GuardError::Unknown { .. }));
}

#[test]
fn what_only_the_lost_row_said_forbids_signatures_still() {
    let frozen = |store: &Store, builder: &SessionBuilder, to: SessionState| {
        let session = builder.session();
        store.run(SetState { session, from: SessionState::Active, to, at: now() }).unwrap();
    };
    let fence = |store: &Store, builder: &SessionBuilder| {
        store.run(RaiseFence { session: builder.session(), epoch: epoch(7), at: now() }).unwrap();
    };
    let move_id = [7; 16];
    type Tell<'a> = &'a dyn Fn(&Store, &SessionBuilder);
    let states: [(&str, Tell<'_>); 3] = [
        ("frozen", &|store, builder| {
            frozen(store, builder, SessionState::Frozen { epoch: epoch(0), move_id });
        }),
        ("retired", &|store, builder| frozen(store, builder, SessionState::Retired { epoch: epoch(0) })),
        ("fenced", &fence),
    ];
    for (name, told) in states {
        let (_home, store, builder) = held(name);
        told(&store, &builder);
        assert!(sign(&store, &builder).is_err());
        lose_session(&store);
        rebuild(&store, &builder).unwrap();
        assert_eq!(refused(sign(&store, &builder)), GuardError::Unknown { epoch: epoch(0) }, "{name}");
        // A handoff that was made before may be one that this node signed after, or one that was overtaken.
        let next = handed_over(&builder);
        let unknown = GuardError::Unknown { epoch: epoch(0) };
        assert_eq!(refused(store.adopt(last(&next), activated())), unknown, "{name}");
        store.adopt(last(&next), at()).unwrap();
        assert_eq!(refused(sign(&store, &next)), unknown, "{name}");
    }
}

#[test]
fn epochs_that_are_known_from_beside_the_chain_are_not_opened_again() {
    let (_home, store, builder) = held("beside");
    let next = handed_over(&builder);
    store.adopt(last(&next), activated()).unwrap();
    let cut = ReplaceTail {
        session: builder.session(),
        expected_tip: next.head().entry.cid(),
        keep_through: mark(builder.head()),
        tail: NewTail::Cut(Box::new(state_at(&builder, 2))),
        statuses: std::collections::BTreeMap::new(),
        fallback: SideStatus::Branch,
        options: at(),
    };
    store.run(cut).unwrap();
    lose_session(&store);
    // The sign guard too: only the entry beside the chain knows of the epoch.
    flip_rows(&store, tables::GUARD, 0..1, &mut Dice::new(7));
    rebuild_at(&store, &builder, ts(0)).unwrap();
    let behind = GuardError::EpochBehind { signed: epoch(1), offered: epoch(1) };
    assert_eq!(refused(store.adopt(last(&next), activated())), behind);
}

#[test]
fn nothing_is_made_again_of_a_chain_that_is_damaged_or_shorter_than_it_was() {
    let (_home, store, builder) = held("short");
    lose_session(&store);
    flip_rows(&store, tables::ENTRIES, 1..2, &mut Dice::new(11));
    let found = store.fsck().unwrap();
    assert_eq!(rebuild(&store, &builder).unwrap_err().code(), Code::StoreCorrupt);
    // The entry comes back although the session's row is lost, and the row is made again then.
    let entry =
        Damage::Entry { session: builder.session(), seq: seq(1), cid: builder.entries()[1].entry.cid() };
    assert!(found.damaged.contains(&entry), "{found:?}");
    let blobs = vec![(entry, Arc::from(&builder.entries()[1].entry.bytes()[..]))];
    store.run(Mend { blobs, at: now() }).unwrap();
    rebuild(&store, &builder).unwrap();
    assert_holds(&store, &builder);

    lose_session(&store);
    write_behind(&store, |txn| {
        txn.open_table(tables::ENTRIES::DEFINITION).unwrap().remove((1, 2)).unwrap();
    });
    assert_eq!(rebuild(&store, &builder).unwrap_err().code(), Code::IndexCorrupt);
    // Also when the verifier's state does not tell.
    flip_rows(&store, tables::CHAIN_STATES, 0..1, &mut Dice::new(13));
    assert_eq!(rebuild(&store, &builder).unwrap_err().code(), Code::IndexCorrupt);
}

#[test]
fn a_tombstone_that_cannot_be_read_keeps_a_chain_from_being_made_again() {
    let (_home, store, builder) = held("tombstone");
    flip_rows(&store, tables::CHAIN_STATES, 0..1, &mut Dice::new(17));
    flip_rows(&store, tables::CONTROLS, 0..1, &mut Dice::new(19));
    assert_eq!(rebuild(&store, &builder).unwrap_err().code(), Code::StoreCorrupt);
    assert!(!store.fsck().unwrap().is_clean());
}

#[test]
fn a_chain_that_went_on_since_it_was_verified_is_not_overwritten() {
    let (_home, store, mut builder) = held("went on");
    let chain = store.reader().unwrap().read_again(builder.session(), &mut |_| {}).unwrap();
    push(&mut builder, "meanwhile");
    store.adopt(last(&builder), signed(&builder)).unwrap();
    assert_eq!(store.run(Rebuild { chain, at: now() }).unwrap_err().code(), Code::HeadMoved);
    assert_holds(&store, &builder);
}

#[test]
fn a_damaged_sign_guard_is_never_made_up() {
    let (_home, store, builder) = held("guard");
    flip_rows(&store, tables::GUARD, 0..1, &mut Dice::new(23));
    let found = store.fsck().unwrap();
    assert_eq!(found.rows.iter().copied().collect::<Vec<_>>(), [LostRow::Guard(builder.session())]);
    assert_eq!(found.problem_count, 1, "{:?}", found.problems);
    assert!(found.problems[0].what.contains("until a handoff"), "{:?}", found.problems);
    assert_eq!(refused(sign(&store, &builder)), GuardError::Damaged);
    // Nor by a handoff: what was answered cannot be noted beside it.
    let next = handed_over(&builder);
    answer_offer(&store, &next);
    assert_eq!(refused(store.adopt(last(&next), activated())), GuardError::Damaged);

    let note = NoteUnknownGuard { session: builder.session() };
    assert_eq!(store.run(note).unwrap(), Noted::Now);
    assert_eq!(store.run(note).unwrap(), Noted::Needless);
    assert!(store.fsck().unwrap().is_clean());
    assert_eq!(store.reader().unwrap().guard(builder.session()).unwrap(), None);
    let unknown = GuardError::Unknown { epoch: epoch(0) };
    assert_eq!(refused(sign(&store, &builder)), unknown);
    // What was answered while the row was damaged was no answer to go by.
    assert_eq!(refused(store.adopt(last(&next), activated())), unknown);
    answer_offer(&store, &next);
    store.adopt(last(&next), activated()).unwrap();
    sign(&store, &next).unwrap();
}

#[test]
fn a_guard_that_knows_nothing_outlives_its_session() {
    let (_home, store, builder) = held("forgotten");
    lose_session(&store);
    rebuild(&store, &builder).unwrap();
    let expected_tip = builder.head().entry.cid();
    store.run(Forget { session: builder.session(), expected_tip, at: now() }).unwrap();
    let behind = GuardError::EpochBehind { signed: epoch(0), offered: epoch(0) };
    assert_eq!(refused(store.adopt(segment(&builder, 0, 1), activated())), behind);
    store.adopt(whole(&builder), at()).unwrap();
    assert_eq!(refused(sign(&store, &builder)), GuardError::Unknown { epoch: epoch(0) });
}
