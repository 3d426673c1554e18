use throughline_protocol::testing::SessionBuilder;

use super::*;
use crate::fixture::*;
use crate::*;

/// A store with a session, and a tombstone of its contributor's capability.
fn world(home: &Home) -> (Store, SessionBuilder, Signed) {
    let mut builder = SessionBuilder::new("owed");
    let server = builder.server1.clone();
    builder.user(&server, "a message");
    let store = home.open();
    let controls = builder.controls().to_vec();
    let granted = builder.contributor.capability.clone().unwrap();
    let tombstone = builder.tombstone(&granted, Vec::new());
    store.adopt(whole(&builder), AdoptOptions { controls, ..at() }).unwrap();
    (store, builder, tombstone)
}

type Signed = throughline_protocol::block::Signed<throughline_protocol::control::Control>;

fn owed(store: &Store, owner: Principal) -> ToJudge {
    store.reader().unwrap().to_judge(owner).unwrap()
}

#[test]
fn a_tombstone_is_owed_from_the_commit_that_keeps_it_until_it_is_noted_as_judged() {
    let home = Home::new();
    let (store, builder, tombstone) = world(&home);
    let (owner, session) = (builder.owner.key.principal(), builder.session());
    assert_eq!(owed(&store, owner), ToJudge::default(), "grants owe nothing");
    assert!(!store.reader().unwrap().is_to_judge(session).unwrap());
    store.run(PutControls { controls: vec![tombstone.clone()], at: now() }).unwrap();
    drop(store);
    let store = home.open();
    assert_eq!(owed(&store, owner).tombstones, [tombstone.hash()]);
    assert_eq!(store.reader().unwrap().owners_to_judge().unwrap(), [owner]);
    assert!(store.reader().unwrap().is_to_judge(session).unwrap());

    let tombstones = vec![tombstone.hash()];
    store.run(NoteJudged { owner, tombstones, sessions: BTreeMap::new() }).unwrap();
    assert_eq!(owed(&store, owner), ToJudge::default());
    assert!(!store.reader().unwrap().is_to_judge(session).unwrap());
    // What was applied once is not owed again.
    store.run(PutControls { controls: vec![tombstone], at: now() }).unwrap();
    assert_eq!(owed(&store, owner), ToJudge::default());
}

#[test]
fn a_session_that_could_not_be_judged_is_marked_until_it_is_judged_or_forgotten() {
    let home = Home::new();
    let (store, builder, tombstone) = world(&home);
    let (owner, session) = (builder.owner.key.principal(), builder.session());
    store.run(PutControls { controls: vec![tombstone.clone()], at: now() }).unwrap();
    let stranger = SessionBuilder::new("not held").session();
    let note = |tombstones: &[[u8; 32]], wait| {
        let sessions = BTreeMap::from([(session, wait), (stranger, wait)]);
        store.run(NoteJudged { owner, tombstones: tombstones.to_vec(), sessions }).unwrap();
        owed(&store, owner)
    };
    for wait in [Wait::Mend, Wait::Start] {
        let found = note(&[tombstone.hash()], Some(wait));
        assert_eq!(found, ToJudge { tombstones: Vec::new(), sessions: BTreeMap::from([(session, wait)]) });
        assert!(store.reader().unwrap().is_to_judge(session).unwrap());
    }
    assert_eq!(note(&[], None), ToJudge::default());
    note(&[], Some(Wait::Mend));
    let expected_tip = builder.head().entry.cid();
    store.run(Forget { session, expected_tip, at: now() }).unwrap();
    assert_eq!(owed(&store, owner), ToJudge::default());
}

#[test]
fn what_was_judged_without_a_tombstone_that_came_since_is_not_adopted() {
    let home = Home::new();
    let (store, mut builder, tombstone) = world(&home);
    let owner = builder.owner.key.principal();
    let known = store.reader().unwrap().owner_digest(owner).unwrap();
    let options = AdoptOptions { judged_under: Some((owner, known)), ..at() };
    store.run(PutControls { controls: vec![tombstone], at: now() }).unwrap();
    let server = builder.server1.clone();
    builder.user(&server, "another");
    let refused = store.adopt(last(&builder), options.clone()).unwrap_err();
    assert!(matches!(refused, AdoptError::ControlsMoved), "{refused}");
    let known = store.reader().unwrap().owner_digest(owner).unwrap();
    store.adopt(last(&builder), AdoptOptions { judged_under: Some((owner, known)), ..options }).unwrap();
}

#[test]
fn a_directory_from_before_this_table_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.redb");
    let disk = || std::sync::Arc::new(crate::disk::RealDisk);
    let database = crate::database::Db::open(disk(), &path, 1 << 20).unwrap();
    crate::migrate::run(&database, crate::migrate::MIGRATIONS).unwrap();
    let txn = database.begin_write().unwrap();
    assert!(txn.delete_table(<tables::TO_JUDGE as tables::Spec>::DEFINITION).unwrap());
    crate::database::commit_durably(txn).unwrap();
    crate::migrate::run(&database, crate::migrate::MIGRATIONS).unwrap();
    let txn = database.begin_read().unwrap();
    assert!(txn.open_table(<tables::TO_JUDGE as tables::Spec>::DEFINITION).is_ok());
}
