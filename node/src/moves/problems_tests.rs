//! What `status` says of a session whose holder, or whose move, does not go on: on this bench because it takes several nodes.

use std::time::Duration;

use serde_json::Value;
use throughline_protocol::build;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Control, Role, Tombstone};
use throughline_protocol::handoff::{Limits, MoveId};
use throughline_protocol::id::{Epoch, Principal, SessionId, UnixMillis};
use throughline_protocol::testing;
use throughline_store::{SessionState, SetState};

use super::Leave;
use super::testbench::{Bench, append, limits, named, open, until_stored};
use super::tests::{learns, row, waits_for_a_dead_source};
use super::wires::copy;
use crate::core::{Granted, Lookout, Node, controls_of, grant_of, now};
use crate::dirs::{Dirs, Environment};

/// Code and fix of each problem of a session, as this node tells it.
fn told(node: &Node, session: SessionId) -> Vec<(String, String)> {
    told_after(node, session, Duration::ZERO)
}

/// The same, as long after the session's row was written.
fn told_after(node: &Node, session: SessionId, time: Duration) -> Vec<(String, String)> {
    let (reader, row) = (node.reader().unwrap(), row(node, session));
    let now = row.changed.get() + u64::try_from(time.as_millis()).unwrap();
    let problems = Lookout::at(node, &reader, UnixMillis::new(now).unwrap()).of(&row);
    let text = |problem: &Value, key: &str| problem[key].as_str().unwrap().to_owned();
    for problem in &problems {
        // Only the owner grants and hands over.
        let is_signed = ["grant ", "move "].iter().any(|act| text(problem, "fix").contains(act));
        assert_eq!(problem["by"], if is_signed { "owner" } else { "operator" }, "{problem}");
    }
    problems.iter().map(|problem| (text(problem, "code"), text(problem, "fix"))).collect()
}

fn only(node: &Node, session: SessionId) -> (String, String) {
    let mut told = told(node, session);
    assert_eq!(told.len(), 1, "{told:?}");
    told.remove(0)
}

/// That this node stands still for a move, and what is said to be done.
fn stands_still(session: SessionId) -> (String, String) {
    let fix = format!("throughline move --resume {}, on the node that began the move", session.short());
    ("E_FROZEN".to_owned(), fix)
}

/// The owner anchors a session where it is, and revokes the writer grant of a delegate; A and D learn of both.
fn revoke(bench: &Bench, session: SessionId, delegate: Principal) {
    let anchor = bench.d.device_anchor(session).unwrap().unwrap();
    let owner = bench.owner.principal();
    let controls = controls_of(&bench.d.reader().unwrap(), owner, None).unwrap();
    let Granted::Live(capability) = grant_of(&controls, owner, delegate, Role::Writer, None) else {
        panic!("expected a live grant");
    };
    let tombstone =
        Tombstone { ts: now(), signer: owner, capability, keep: Vec::new(), reason: None, ext: None };
    let tombstone = build::sign(Control::Tombstone(tombstone), &bench.owner).unwrap();
    for node in [&bench.a, &bench.d] {
        node.take_controls(vec![anchor.clone()]).unwrap();
        node.take_controls(vec![tombstone.clone()]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_holder_is_a_problem_on_its_own_node_and_on_the_owners() {
    let bench = Bench::new();
    let session = bench.session(1);
    for node in [&bench.a, &bench.d] {
        assert_eq!(told(node, session), []);
    }
    revoke(&bench, session, bench.a.principal());
    for node in [&bench.a, &bench.d] {
        assert_eq!(row(node, session).summary.verdict, "valid", "all of it was anchored");
        let fix = format!("throughline move {} --to PEER", session.short());
        assert_eq!(only(node, session), ("E_REVOKED".to_owned(), fix));
    }
    // With a new grant the holder goes on.
    bench.grant(bench.a.principal(), Role::Writer);
    append(&bench.a, session, "goes on").unwrap();
    for node in [&bench.a, &bench.d] {
        assert_eq!(told(node, session), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_never_granted_anything_is_a_problem() {
    let bench = Bench::new();
    let session = bench.session(1);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    // Another device lets the owner hand over to somebody whose grant nobody has.
    let somebody = testing::key("somebody").principal();
    let mut facts = asked["sign"].clone();
    facts["holder"] = somebody.to_string().into();
    facts["grant"] = Value::Null;
    learns(&bench.a, session, &bench.handoff(&facts));
    assert_eq!(row(&bench.a, session).summary.holder, Some(somebody));
    let fix = format!("throughline grant {somebody} --agent {}", row(&bench.a, session).agent);
    assert_eq!(only(&bench.a, session), ("E_CAP_MISSING".to_owned(), fix));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_lost_its_store_may_not_sign_and_says_so() {
    let bench = Bench::new();
    let session = bench.session(1);
    // The keys are all that is left of server A, and it fetches its session again.
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    for key in std::fs::read_dir(bench.a.dirs().keys()).unwrap() {
        let key = key.unwrap();
        std::fs::copy(key.path(), dirs.keys().join(key.file_name())).unwrap();
    }
    let again = open(home.path().to_owned(), bench.owner.principal());
    assert_eq!(again.principal(), bench.a.principal());
    assert!(copy(&bench.a, &again, session));
    assert_eq!(append(&again, session, "from memory"), Err(Code::SignGuard));
    let fix = format!("throughline move {} --to self", session.short());
    assert_eq!(only(&again, session), ("E_SIGN_GUARD".to_owned(), fix));
    // Where the holder's store is somebody else's, it is none of its business.
    assert_eq!(told(&bench.d, session), []);
}

/// The source knows since when it stands still, and no more: it says nothing for as long as a step of a move may take.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_waits_for_the_owner_is_a_problem_where_it_is_driven_and_in_time_where_it_froze() {
    let bench = Bench::new();
    let session = bench.session(1);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
    let resume = format!("throughline move --resume {}", session.short());
    assert_eq!(only(&bench.d, session), ("E_MOVE_STATE".to_owned(), resume));
    let (idle_max, blink) = (limits().idle_max, Duration::from_millis(1));
    for healthy in [Duration::ZERO, idle_max - blink] {
        assert_eq!(told_after(&bench.a, session, healthy), []);
    }
    for too_long in [idle_max, idle_max * 1_000] {
        assert_eq!(told_after(&bench.a, session, too_long), [stands_still(session)]);
    }
    // Once it is done nothing is left to be told.
    bench.sign(&bench.until(&begun, &["needs-handoff"]).await).await;
    bench.until(&begun, &["done"]).await;
    for node in [&bench.a, &bench.b, &bench.d] {
        assert_eq!(told_after(node, session, idle_max), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_that_seems_to_lie_ahead_is_told_once_the_clock_was_set_back_too_far() {
    let bench = Bench::new();
    let session = bench.session(1);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
    let (reader, row) = (bench.a.reader().unwrap(), row(&bench.a, session));
    let idle_ms = u64::try_from(limits().idle_max.as_millis()).unwrap();
    for (back_ms, problems) in [(1, 0), (idle_ms - 1, 0), (idle_ms, 1)] {
        let now = UnixMillis::new(row.changed.get() - back_ms).unwrap();
        assert_eq!(Lookout::at(&bench.a, &reader, now).of(&row).len(), problems, "{back_ms} ms");
    }
}

/// The owner's desktop holds the session itself: it knows of the move, however long that takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_drives_the_move_of_its_own_session_knows_whether_it_goes_on() {
    let mut bench = Bench::new();
    bench.grant(bench.d.principal(), Role::Writer);
    let session = bench.session(1);
    assert_eq!(bench.move_to(session, &bench.d, Leave::Auto).await["state"], "done");
    bench.reopen_patient("d").await;
    let long = Limits::default().idle_max * 1_000;

    bench.wires.kill(&bench.b);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    until_stored(&bench.d, |d| matches!(row(d, session).state, SessionState::Frozen { .. })).await;
    assert_eq!(told_after(&bench.d, session, long), []);
    let (_, id) = named(&begun);
    assert_eq!(bench.desk().get(session, id).unwrap()["state"], "running");

    bench.wires.revive(&bench.b);
    let taken_back = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!(taken_back["state"], "aborted", "{taken_back:#}");
    assert_eq!(told_after(&bench.d, session, long), []);

    // It froze for a move that ended without it, and for one that nobody knows.
    let freeze = |move_id: MoveId| {
        let from = row(&bench.d, session).state;
        let to = SessionState::Frozen { epoch: Epoch::new(1).unwrap(), move_id: move_id.to_bytes() };
        bench.d.store().run(SetState { session, from, to, at: now() }).unwrap();
    };
    freeze(id);
    assert_eq!(told(&bench.d, session), [stands_still(session)]);
    freeze(MoveId::from_bytes([5; 16]));
    assert_eq!(told(&bench.d, session), []);
    assert_eq!(told_after(&bench.d, session, long), [stands_still(session)]);
}

/// As where a command asks, and no node runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_was_stuck_is_stuck_after_a_restart_without_a_network() {
    let mut bench = Bench::new();
    let (taken_back, unsigned, done) = (bench.session(1), bench.session(1), bench.session(1));
    assert_eq!(bench.move_to(done, &bench.b, Leave::Auto).await["state"], "done");
    let begun = bench.begin(unsigned, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
    waits_for_a_dead_source(&bench, taken_back).await;
    let before = only(&bench.d, taken_back);
    bench.wires.cut();
    bench.reopen("d").await;
    assert_eq!(only(&bench.d, taken_back), before);
    let resume = format!("throughline move --resume {}", unsigned.short());
    assert_eq!(only(&bench.d, unsigned), ("E_UNREACHABLE".to_owned(), resume));
    assert_eq!(told(&bench.d, done), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_being_taken_back_is_a_problem_until_it_ends() {
    let mut bench = Bench::new();
    let session = bench.session(2);
    waits_for_a_dead_source(&bench, session).await;
    let fix = format!(
        "throughline move --resume {0}, or without it: throughline move --abort {0} --source offline",
        session.short()
    );
    assert_eq!(only(&bench.d, session), ("E_UNREACHABLE".to_owned(), fix.clone()));
    // After a restart too, from its journal.
    bench.reopen("d").await;
    assert_eq!(only(&bench.d, session).1, fix);
    bench.wires.revive(&bench.a);
    let told_last = bench.desk().list().remove(0);
    bench.until(&told_last, &["aborted"]).await;
    for node in [&bench.a, &bench.d] {
        assert_eq!(told(node, session), []);
    }
}
