//! What `status` says of a session whose holder, or whose move, does not go on: on this bench because it takes several nodes.

use serde_json::Value;
use throughline_protocol::build;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Control, Role, Tombstone};
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::testing;

use super::Leave;
use super::testbench::{Bench, append, open};
use super::tests::{learns, row, waits_for_a_dead_source};
use super::wires::copy;
use crate::core::{Granted, Lookout, Node, controls_of, grant_of, now};
use crate::dirs::{Dirs, Environment};

/// Code and fix of each problem of a session, as this node tells it.
fn told(node: &Node, session: SessionId) -> Vec<(String, String)> {
    let reader = node.reader().unwrap();
    let text = |problem: &Value, key: &str| problem[key].as_str().unwrap().to_owned();
    let problems = Lookout::new(node, &reader).of(&row(node, session));
    problems.iter().map(|problem| (text(problem, "code"), text(problem, "fix"))).collect()
}

fn only(node: &Node, session: SessionId) -> (String, String) {
    let mut told = told(node, session);
    assert_eq!(told.len(), 1, "{told:?}");
    told.remove(0)
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

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_waits_for_the_owner_is_a_problem_where_it_is_driven_and_where_it_froze() {
    let bench = Bench::new();
    let session = bench.session(1);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
    let resume = format!("throughline move --resume {}", session.short());
    assert_eq!(only(&bench.d, session), ("E_MOVE_STATE".to_owned(), resume.clone()));
    let (code, fix) = only(&bench.a, session);
    assert_eq!(code, "E_FROZEN");
    assert!(fix.starts_with(&resume), "{fix}");
    // Once it is done nothing is left to be told.
    bench.sign(&bench.until(&begun, &["needs-handoff"]).await).await;
    bench.until(&begun, &["done"]).await;
    for node in [&bench.a, &bench.b, &bench.d] {
        assert_eq!(told(node, session), []);
    }
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
