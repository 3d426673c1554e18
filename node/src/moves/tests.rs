use std::time::Duration;

use serde_json::{Value, json};
use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::entry::Entry;
use throughline_protocol::handoff::{MoveId, Point, RequestId, source, target};
use throughline_protocol::id::{EntryCid, Epoch, Principal, Seq, SessionId};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::verify::Prechecked;
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffState, HandoffStep};
use throughline_protocol::wire::{ErrorCode, WireError};
use throughline_store::{SessionRow, SessionState, SetState};

use super::testbench::{Bench, append, named, sign_handoff};
use super::wires::{Step, copy};
use super::{Asker, Begin, Depth, Leave, Question, wire};
use crate::core::{Arrived, Node, now};

pub(super) fn row(node: &Node, session: SessionId) -> SessionRow {
    node.reader().unwrap().session(session).unwrap().unwrap()
}

fn staged(node: &Node, session: SessionId) -> usize {
    node.reader().unwrap().staged_list(session, None, 10).unwrap().len()
}

/// Every node that would sign as holder of the session now.
pub(super) fn holders(bench: &Bench, session: SessionId) -> Vec<Principal> {
    let nodes = [&bench.a, &bench.b, &bench.d].into_iter();
    let may = |node: &&Node| {
        let row = node.reader().unwrap().session(session).unwrap();
        row.is_some_and(|row| {
            row.state == SessionState::Active && row.summary.holder == Some(node.principal())
        })
    };
    nodes.filter(may).map(Node::principal).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_while_both_servers_are_up() {
    let bench = Bench::new();
    let session = bench.session(5);
    let told = bench.move_to(session, &bench.b, Leave::Auto).await;
    assert_eq!(told["state"], "done", "{told:#}");
    assert_eq!((&told["from"]["state"], &told["to"]["state"]), (&json!("retired"), &json!("active")));
    assert_eq!((&told["from"]["epoch"], &told["to"]["epoch"]), (&json!(0), &json!(1)));
    assert_eq!((&told["base"]["seq"], &told["handoff"]["seq"]), (&json!(6), &json!(7)));
    assert_eq!(told["receipt"]["signer"], bench.b.principal().to_string());
    assert_eq!((&told["sent"]["entries"], &told["sent"]["alreadyThere"]), (&json!(7), &json!(0)));
    assert_eq!(told["cut"], json!([]));
    let phases: Vec<_> =
        told["phases"].as_array().unwrap().iter().map(|phase| phase["phase"].clone()).collect();
    assert_eq!(phases, ["freeze", "copy", "prepare", "handoff", "active", "retired"]);

    assert_eq!(holders(&bench, session), [bench.b.principal()]);
    assert_eq!(row(&bench.a, session).state, SessionState::Retired { epoch: Epoch::ZERO });
    assert_eq!(append(&bench.a, session, "too late"), Err(Code::Retired));
    assert_eq!(append(&bench.b, session, "carrying on").unwrap()["epoch"], 1);
    assert_eq!(row(&bench.d, session).tip.epoch.get(), 1);
    assert_eq!(bench.desk().list(), [told]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_server_is_left_and_learns_it_when_it_comes_back() {
    let bench = Bench::new();
    let session = bench.session(3);
    // Before it died it told a head that nobody else has.
    let lost = Point { cid: EntryCid::from_digest([3; 32]), seq: Seq::new(6).unwrap() };
    bench.wires.lines().told.insert(bench.a.principal(), lost);
    bench.wires.kill(&bench.a);
    let told = bench.move_to(session, &bench.b, Leave::Offline).await;
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("done"), &json!("unheard")), "{told:#}");
    assert_eq!(told["cut"], json!([{"cid": lost.cid.to_string(), "seq": 6}]));
    assert!(!bench.wires.asked(&bench.a).contains(&"freeze"));

    // It does not know: what it signs alone is an entry that everybody else fences.
    append(&bench.a, session, "written alone").unwrap();
    let forged = row(&bench.a, session).tip.cid;
    bench.wires.revive(&bench.a);
    assert!(copy(&bench.a, &bench.b, session));
    assert!(copy(&bench.b, &bench.a, session));
    assert_eq!(row(&bench.a, session).state, SessionState::Retired { epoch: Epoch::ZERO });
    assert_eq!(append(&bench.a, session, "again"), Err(Code::Retired));
    for node in [&bench.a, &bench.b] {
        let side = node.reader().unwrap().side_entry(forged).unwrap().expect("kept as evidence");
        assert_eq!(side.status.word(), "fenced");
        assert_eq!(row(node, session).summary.verdict, "fenced-tail");
    }
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
    let status = wire::request(session, MoveId::from_bytes([9; 16]), HandoffStep::Status, Vec::new());
    let answer = bench.a.moves().unwrap().answer(Asker::Proven(bench.owner.principal()), status).await;
    assert!(matches!(answer, HandoffAnswer::State(status) if status.state == HandoffState::Retired));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_left_only_when_a_person_says_so() {
    let bench = Bench::new();
    let session = bench.session(3);
    bench.wires.kill(&bench.a);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asks = bench.until(&begun, &["needs-confirmation"]).await;
    assert!(asks["reason"].as_str().unwrap().contains("seq 4"), "{asks:#}");
    let (session, id) = named(&begun);
    bench.desk().confirm(session, id, Question::Silence).await.unwrap();
    let asks = bench.until(&begun, &["needs-handoff"]).await;
    bench.sign(&asks).await;
    assert_eq!(bench.until(&begun, &["done", "waiting"]).await["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_a_grant_is_refused_before_anybody_is_asked() {
    let bench = Bench::without_grant_for_b();
    let session = bench.session(2);
    let told = bench.begin(session, &bench.b, Leave::Auto).await;
    assert_eq!(told["state"], "needs-grant");
    assert_eq!(told["error"]["code"], "E_CAP_MISSING");
    let hint = format!("throughline grant {} --agent hm://{}", bench.b.principal(), bench.owner.principal());
    assert_eq!(told["error"]["hint"], hint);
    assert_eq!(bench.wires.asked(&bench.a), [""; 0]);
    assert_eq!(bench.wires.asked(&bench.b), [""; 0]);
    assert_eq!(staged(&bench.b, session), 0);
    append(&bench.a, session, "goes on").unwrap();

    bench.grant(bench.b.principal(), Role::Writer);
    assert_eq!(bench.move_to(session, &bench.b, Leave::Auto).await["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_does_nothing() {
    let bench = Bench::new();
    let session = bench.session(1);
    let to = bench.b.principal().to_string();
    let begin = Begin { session, to, leave: Leave::Auto, ask: None, depth: Depth::DryRun };
    let told = bench.desk().begin(begin).await.unwrap();
    assert_eq!((&told["state"], &told["base"]["seq"]), (&json!("planned"), &json!(2)));
    assert_eq!(bench.wires.asked(&bench.a), [""; 0]);
    assert!(bench.desk().list().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_activate_waits_and_a_resume_finishes() {
    let bench = Bench::new();
    let session = bench.session(2);
    bench.wires.dies_after(&bench.b, Step::Activate);
    let told = bench.move_to(session, &bench.b, Leave::Auto).await;
    assert_eq!(
        (&told["state"], &told["error"]["code"]),
        (&json!("waiting"), &json!("E_UNREACHABLE")),
        "{told:#}"
    );
    assert!(append(&bench.a, session, "must not").is_err());
    let (session, id) = named(&told);
    let refused = bench.desk().abort(session, id, Leave::Auto).await.unwrap_err();
    assert_eq!(refused.code(), Code::MoveState);

    bench.wires.revive(&bench.b);
    bench.desk().resume(session, id).await.unwrap();
    let told = bench.until(&told, &["done"]).await;
    assert_eq!(told["from"]["state"], "retired");
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_taken_back_leaves_no_trace() {
    let bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    assert_eq!(append(&bench.a, session, "not now"), Err(Code::Frozen));
    let (session, id) = named(&asked);
    let again = Begin { session, to: "self".to_owned(), leave: Leave::Auto, ask: None, depth: Depth::Begin };
    assert_eq!(bench.desk().begin(again).await.unwrap_err().code(), Code::MoveState);

    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("aborted"), &json!("active")), "{told:#}");
    assert_eq!(row(&bench.a, session).state, SessionState::Active);
    append(&bench.a, session, "as if nothing had happened").unwrap();
    assert_eq!(staged(&bench.b, session), 0);
    let late = bench.desk().give_handoff(session, id, bench.handoff(&asked["sign"]).bytes().to_vec()).await;
    assert_eq!(late.unwrap_err().code(), Code::MoveState);

    // What the target verified then is not sent again.
    assert!(copy(&bench.a, &bench.d, session));
    let told = bench.move_to(session, &bench.b, Leave::Auto).await;
    assert_eq!((&told["sent"]["entries"], &told["sent"]["alreadyThere"]), (&json!(1), &json!(4)), "{told:#}");
    assert_eq!(told["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_handoff_that_was_asked_for_is_taken() {
    let bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    let (session, id) = named(&asked);
    let with = |key: &str, value: serde_json::Value| {
        let mut facts = asked["sign"].clone();
        facts[key] = value;
        facts
    };
    let elsewhere = bench.a.principal().to_string();
    for facts in [with("holder", elsewhere.into()), with("epoch", 2.into()), with("grant", json!(null))] {
        let wrong = bench.handoff(&facts).bytes().to_vec();
        assert_eq!(bench.desk().give_handoff(session, id, wrong).await.unwrap_err().code(), Code::MoveState);
    }
    let stranger = sign_handoff(&SigningKey::from_seed(&[9; 32]), &asked["sign"]).bytes().to_vec();
    assert_eq!(bench.desk().give_handoff(session, id, stranger).await.unwrap_err().code(), Code::CapRole);
    assert_eq!(bench.desk().get(session, id).unwrap()["state"], "needs-handoff");
    bench.sign(&asked).await;
    assert_eq!(bench.until(&begun, &["done", "rolled-back"]).await["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_the_node_that_drives_it_needs_no_network_for_its_own_part() {
    let bench = Bench::new();
    bench.grant(bench.d.principal(), Role::Writer);
    let session = bench.session(2);
    let told = bench.move_to(session, &bench.d, Leave::Auto).await;
    assert_eq!((&told["state"], &told["to"]["peer"]), (&json!("done"), &json!("self")), "{told:#}");
    assert_eq!(bench.wires.asked(&bench.d), [""; 0]);
    assert_eq!(holders(&bench, session), [bench.d.principal()]);
    append(&bench.d, session, "here now").unwrap();
    // And back to where it came from.
    let told = bench.move_to(session, &bench.a, Leave::Auto).await;
    assert_eq!((&told["state"], &told["to"]["epoch"]), (&json!("done"), &json!(2)), "{told:#}");
    assert_eq!(holders(&bench, session), [bench.a.principal()]);
    append(&bench.a, session, "home again").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_change_nothing() {
    let mut bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
    bench.reopen("a").await;
    assert_eq!(append(&bench.a, session, "still frozen"), Err(Code::Frozen));
    bench.reopen("d").await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    bench.wires.dies_after(&bench.b, Step::Activate);
    bench.sign(&asked).await;
    bench.until(&begun, &["waiting"]).await;
    bench.reopen("d").await;
    bench.until(&begun, &["waiting"]).await;
    bench.wires.revive(&bench.b);
    let told = bench.until(&begun, &["done"]).await;
    assert_eq!((&told["handoff"]["seq"], &told["sent"]["entries"]), (&json!(4), &json!(4)), "{told:#}");
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
    bench.reopen("a").await;
    assert_eq!(append(&bench.a, session, "retired for good"), Err(Code::Retired));
    bench.reopen("d").await;
    assert_eq!(bench.desk().list(), [told]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_state_and_row_is_caught_up_with() {
    let bench = Bench::new();
    let session = bench.session(1);
    let (move_id, epoch) = (MoveId::from_bytes([5; 16]), Epoch::ZERO);
    let to = SessionState::Frozen { epoch, move_id: move_id.to_bytes() };
    let froze = SetState { session, from: SessionState::Active, to, at: now() };
    bench.a.store().run(froze).unwrap();
    let ask = async |step| {
        let request = wire::request(session, move_id, step, Vec::new());
        match bench.a.moves().unwrap().answer(Asker::Proven(bench.owner.principal()), request).await {
            HandoffAnswer::State(status) => status,
            HandoffAnswer::Error(error) => panic!("{error:?}"),
        }
    };
    assert_eq!(ask(HandoffStep::Status).await.state, HandoffState::Frozen);
    assert_eq!(ask(HandoffStep::Abort).await.state, HandoffState::Active { receipt: None });
    append(&bench.a, session, "thawed").unwrap();
    // The other order: the row remembers the abort, and the state was not set yet.
    bench.a.store().run(SetState { session, from: SessionState::Active, to, at: now() }).unwrap();
    assert_eq!(ask(HandoffStep::Status).await.state, HandoffState::Active { receipt: None });
    append(&bench.a, session, "thawed again").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_write_the_machines_are_read_again() {
    let bench = Bench::new();
    let session = bench.session(1);
    let (request, move_id) = (RequestId::new(1), MoveId::from_bytes([5; 16]));
    let at_a = bench.a.moves().unwrap().held(session).unwrap();
    if let Some(source) = &mut at_a.lock().unwrap().source {
        source.handle(source::Input::Abort { request, move_id });
        let Some(source::Output::Persist { ticket, .. }) = source.poll_output() else { panic!("a write") };
        source.handle(source::Input::PersistFailed { ticket });
        assert!(source.is_in_doubt());
    }
    let at_b = bench.b.moves().unwrap().held(session).unwrap();
    {
        let target = &mut at_b.lock().unwrap().target;
        target.handle(target::Input::Abort { request, move_id });
        let Some(target::Output::Persist { ticket, .. }) = target.poll_output() else { panic!("a write") };
        target.handle(target::Input::PersistFailed { ticket });
        assert!(target.is_in_doubt());
    }
    let told = bench.move_to(session, &bench.b, Leave::Auto).await;
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("done"), &json!("retired")), "{told:#}");
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_the_owner_and_its_devices_moves_a_session() {
    let bench = Bench::new();
    let session = bench.session(1);
    let other = SessionId::of_genesis(EntryCid::from_digest([1; 32]));
    let stranger = SigningKey::from_seed(&[9; 32]).principal();
    for asker in [Asker::Stranger, Asker::Proven(stranger), Asker::Proven(bench.b.principal())] {
        for session in [session, other] {
            let freeze = HandoffStep::Freeze { epoch: Epoch::ZERO };
            let request = wire::request(session, MoveId::from_bytes([1; 16]), freeze, Vec::new());
            let answer = bench.a.moves().unwrap().answer(asker, request).await;
            let refused = |error: &WireError| *error.code() == ErrorCode::Known(Code::CapMissing);
            assert!(matches!(&answer, HandoffAnswer::Error(error) if refused(error)), "{answer:?}");
        }
    }
    append(&bench.a, session, "untouched").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_that_comes_by_another_way_counts_as_handed_over() {
    let bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    let signed = bench.handoff(&asked["sign"]);
    // As after a crash of the target between its chain and its row: the chain has the handoff, the row does not.
    let arrived =
        Arrived { entries: vec![Prechecked::of(signed.clone(), None).unwrap()], ..Arrived::default() };
    bench.b.take_in(session, arrived).unwrap();
    append(&bench.b, session, "first to know").unwrap();
    let (session, id) = named(&asked);
    bench.desk().give_handoff(session, id, signed.bytes().to_vec()).await.unwrap();
    let told = bench.until(&begun, &["done", "waiting", "rolled-back"]).await;
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("done"), &json!("retired")), "{told:#}");
    assert_eq!(told["receipt"]["signer"], bench.b.principal().to_string());
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_retire_is_asked_for_again() {
    let bench = Bench::new();
    let session = bench.session(1);
    bench.wires.dies_after(&bench.a, Step::Retire);
    let told = bench.move_to(session, &bench.b, Leave::Auto).await;
    // The source is not heard any more. It learns of the handoff from any peer: nobody waits for it.
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("done"), &json!("unheard")), "{told:#}");
    assert!(bench.wires.asked(&bench.a).contains(&"retire"));
    assert_eq!(append(&bench.a, session, "too late"), Err(Code::Retired));
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_abort_did_not_reach_does_not_stand_in_the_way() {
    let bench = Bench::new();
    let session = bench.session(1);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    bench.wires.kill(&bench.b);
    let (session, id) = named(&asked);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("aborted"), &json!("active")), "{told:#}");
    append(&bench.a, session, "thawed").unwrap();
    bench.wires.revive(&bench.b);

    // Until the first move is given up there, the target refuses another one.
    let done = loop {
        let begun = bench.begin(session, &bench.b, Leave::Auto).await;
        let told = bench.until(&begun, &["needs-handoff", "rolled-back"]).await;
        if told["state"] == "needs-handoff" {
            bench.sign(&told).await;
            break bench.until(&begun, &["done", "waiting"]).await;
        }
        assert_eq!(told["error"]["code"], "E_MOVE_STATE", "{told:#}");
    };
    assert_eq!(done["state"], "done");
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

/// A move that was taken back after its source stood still for it and died.
pub(super) async fn waits_for_a_dead_source(bench: &Bench, session: SessionId) -> Value {
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    bench.wires.kill(&bench.a);
    let (session, id) = named(&asked);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["phase"]), (&json!("waiting"), &json!("rollback")), "{told:#}");
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_source_is_given_up_and_never_thaws_behind_the_next_move() {
    let mut bench = Bench::new();
    let session = bench.session(2);
    let waits = waits_for_a_dead_source(&bench, session).await;
    let (_, id) = named(&waits);

    // Another move waits for it too, and says what to do.
    let to = bench.b.principal().to_string();
    let auto = Begin { session, to, leave: Leave::Auto, ask: None, depth: Depth::Begin };
    let refused = bench.desk().begin(auto.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::MoveState);
    assert!(
        refused.to_json()["hint"].as_str().unwrap().contains("--source offline"),
        "{}",
        refused.to_json()
    );

    // It ends when the source is given up, and stays ended after a crash.
    bench.desk().abort(session, id, Leave::Offline).await.unwrap();
    let told = bench.until(&waits, &["aborted"]).await;
    assert_eq!(told["from"]["state"], "unheard", "{told:#}");
    bench.reopen("d").await;
    assert_eq!(bench.desk().get(session, id).unwrap()["state"], "aborted");
    let refused = bench.desk().abort(session, id, Leave::Offline).await.unwrap_err();
    assert_eq!(refused.code(), Code::MoveState);

    // The source comes back before the next move: it stands still, hears no abort, and takes part in no other move.
    bench.wires.revive(&bench.a);
    assert_eq!(append(&bench.a, session, "frozen still"), Err(Code::Frozen));
    let begun = bench.desk().begin(auto).await.unwrap();
    let told = bench.until(&begun, &["rolled-back"]).await;
    assert_eq!((&told["error"]["code"], &told["from"]["state"]), (&json!("E_FROZEN"), &json!("frozen")));
    let done = bench.move_to(session, &bench.b, Leave::Offline).await;
    assert_eq!(done["state"], "done", "{done:#}");
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
    assert!(copy(&bench.b, &bench.a, session));
    assert_eq!(append(&bench.a, session, "retired"), Err(Code::Retired));
    append(&bench.b, session, "goes on").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_without_the_source_gives_up_the_one_that_waits_for_it() {
    let bench = Bench::new();
    let session = bench.session(2);
    let waits = waits_for_a_dead_source(&bench, session).await;
    let asked_before = bench.wires.asked(&bench.a);
    let to = bench.b.principal().to_string();
    let dry = Begin { session, to, leave: Leave::Offline, ask: None, depth: Depth::DryRun };
    assert_eq!(bench.desk().begin(dry).await.unwrap_err().code(), Code::MoveState);
    let done = bench.move_to(session, &bench.b, Leave::Offline).await;
    assert_eq!((&done["state"], &done["from"]["state"]), (&json!("done"), &json!("unheard")), "{done:#}");
    let (session, id) = named(&waits);
    assert_eq!(bench.desk().get(session, id).unwrap()["state"], "aborted");
    // What the dead one is asked after it was given up is not the old abort.
    assert_eq!(bench.wires.asked(&bench.a), asked_before);
    bench.wires.revive(&bench.a);
    assert_eq!(append(&bench.a, session, "frozen still"), Err(Code::Frozen));
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_on_its_way_to_a_source_that_was_given_up() {
    let bench = Bench::new();
    let session = bench.session(1);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
    bench.wires.stall(&bench.a);
    let (session, id) = named(&begun);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["phase"]), (&json!("waiting"), &json!("rollback")), "{told:#}");
    assert!(bench.wires.on_the_way() > 0, "the abort is still dialled");
    let told = bench.desk().abort(session, id, Leave::Offline).await.unwrap();
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("aborted"), &json!("unheard")), "{told:#}");
    assert_eq!(bench.wires.on_the_way(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_on_its_way_to_a_source_that_is_left_while_the_move_goes_on() {
    let bench = Bench::new();
    let session = bench.session(1);
    bench.wires.stall(&bench.a);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-confirmation"]).await;
    assert!(bench.wires.on_the_way() > 0, "the freeze is still dialled");
    let (session, id) = named(&begun);
    bench.desk().confirm(session, id, Question::Silence).await.unwrap();
    assert_eq!(bench.wires.on_the_way(), 0);
    bench.until(&begun, &["needs-handoff"]).await;
}

/// A node learns of a handoff that another device of the owner signed.
pub(super) fn learns(node: &Node, session: SessionId, handoff: &Signed<Entry>) {
    let entries = vec![Prechecked::of(handoff.clone(), None).unwrap()];
    node.take_in(session, Arrived { entries, ..Arrived::default() }).unwrap();
}

/// The source is told of the epoch that another device opened, and nothing else.
async fn ends_with_the_source_retired(bench: &Bench, told: &Value) {
    bench.wires.revive(&bench.a);
    let told = bench.until(told, &["aborted"]).await;
    assert_eq!(
        (&told["from"]["state"], &told["to"]["state"]),
        (&json!("retired"), &json!("idle")),
        "{told:#}"
    );
    assert_eq!(told["supersededBy"], json!({"epoch": 1}));
    assert_eq!(bench.wires.asked(&bench.a), ["freeze", "retire"]);
    assert_eq!(append(&bench.a, named(&told).0, "in the old epoch"), Err(Code::Retired));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_epoch_that_is_learned_while_a_move_is_taken_back_retires_the_source() {
    let bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    bench.wires.kill(&bench.a);
    let (session, id) = named(&begun);
    bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    learns(&bench.d, session, &bench.handoff(&asked["sign"]));
    bench.until_shown(&begun, |told| told["supersededBy"]["epoch"] == 1).await;
    ends_with_the_source_retired(&bench, &begun).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_epoch_that_was_learned_while_no_move_ran_is_told_before_anything_is_sent() {
    let mut bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    bench.wires.kill(&bench.a);
    let (session, id) = named(&begun);
    bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    let (handoff, wires, a) = (bench.handoff(&asked["sign"]), bench.wires.clone(), bench.a.clone());
    let reopened = bench.reopen_after("d", |d| {
        learns(d, session, &handoff);
        wires.revive(&a);
    });
    reopened.await;
    ends_with_the_source_retired(&bench, &begun).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_without_the_source_that_is_taken_back_says_nothing_of_it() {
    let bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Offline).await;
    bench.until(&begun, &["needs-handoff"]).await;
    let (session, id) = named(&begun);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("aborted"), &json!("unheard")), "{told:#}");
    assert!(!bench.wires.asked(&bench.a).contains(&"abort"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_not_held_here_is_asked_for_before_it_is_refused() {
    let bench = Bench::new();
    let session = bench.session_known_to_a(3);
    assert!(bench.d.reader().unwrap().session(session).unwrap().is_none());
    let begin = |ask: Option<String>, depth| Begin {
        session,
        to: bench.b.principal().to_string(),
        leave: Leave::Auto,
        ask,
        depth,
    };
    // A dry run brings nothing here; who does not have it is no help; what does not exist is refused.
    let refused = bench.desk().begin(begin(None, Depth::DryRun)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFoundYet);
    assert_eq!(refused.to_json()["hint"], format!("throughline fetch {session}"));
    let ask_b = begin(Some(bench.b.principal().to_string()), Depth::Begin);
    assert_eq!(bench.desk().begin(ask_b).await.unwrap_err().code(), Code::NotFoundYet);
    assert!(bench.d.reader().unwrap().session(session).unwrap().is_none());
    let nowhere =
        Begin { session: SessionId::of_genesis(EntryCid::from_digest([3; 32])), ..begin(None, Depth::Begin) };
    assert_eq!(bench.desk().begin(nowhere).await.unwrap_err().code(), Code::NotFoundYet);

    let told = bench.move_to(session, &bench.b, Leave::Auto).await;
    assert_eq!(told["state"], "done", "{told:#}");
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_named_is_asked_for_what_is_newest() {
    let bench = Bench::new();
    let session = bench.session(1);
    append(&bench.a, session, "news").unwrap();
    let ask = Some(bench.a.principal().to_string());
    let to = bench.b.principal().to_string();
    let begun = bench
        .desk()
        .begin(Begin { session, to, leave: Leave::Auto, ask, depth: Depth::Begin })
        .await
        .unwrap();
    assert_eq!(row(&bench.d, session).tip, row(&bench.a, session).tip);
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    bench.sign(&asked).await;
    assert_eq!(bench.until(&begun, &["done", "waiting"]).await["state"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn this_node_takes_over_what_it_holds_of_a_dead_server_whoever_else_is_there() {
    let bench = Bench::new();
    bench.grant(bench.d.principal(), Role::Writer);
    let session = bench.session(3);
    bench.wires.kill(&bench.a);
    // B is connected and has nothing of the session: it gives nothing that would be missing here.
    assert!(bench.b.reader().unwrap().session(session).unwrap().is_none());
    let told = bench.move_to(session, &bench.d, Leave::Offline).await;
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("done"), &json!("unheard")), "{told:#}");
    assert_eq!((&told["base"]["seq"], &told["sent"]["entries"]), (&json!(4), &json!(0)), "{told:#}");
    assert_eq!(holders(&bench, session), [bench.a.principal(), bench.d.principal()], "A has not heard of it");
    assert_eq!(append(&bench.d, session, "here now").unwrap()["epoch"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_the_holder_signs_nothing() {
    let bench = Bench::new();
    let session = bench.session(1);
    let moved = bench.move_to(session, &bench.b, Leave::Auto).await;
    assert_eq!(moved["state"], "done", "{moved:#}");
    let tip = row(&bench.d, session).tip;
    for (leave, depth) in [
        (Leave::Auto, Depth::Begin),
        (Leave::Offline, Depth::Begin),
        (Leave::Auto, Depth::DryRun),
        (Leave::Offline, Depth::DryRun),
    ] {
        let to = bench.b.principal().to_string();
        let told = bench.desk().begin(Begin { session, to, leave, ask: None, depth }).await.unwrap();
        assert_eq!((&told["state"], &told["move"]), (&json!("held"), &Value::Null), "{told:#}");
        assert_eq!((&told["to"]["epoch"], &told["to"]["state"]), (&json!(1), &json!("active")), "{told:#}");
    }
    // Nor when it does not answer: then it could take nothing over either.
    bench.wires.kill(&bench.b);
    assert_eq!(bench.begin(session, &bench.b, Leave::Auto).await["state"], "held");
    assert_eq!((row(&bench.d, session).tip, bench.desk().list()), (tip, vec![moved]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_stands_still_is_handed_the_session_anew() {
    let bench = Bench::new();
    let session = bench.session(2);
    let waits = waits_for_a_dead_source(&bench, session).await;
    let (session, id) = named(&waits);
    bench.desk().abort(session, id, Leave::Offline).await.unwrap();
    bench.wires.revive(&bench.a);
    assert_eq!(append(&bench.a, session, "frozen still"), Err(Code::Frozen));
    let told = bench.move_to(session, &bench.a, Leave::Offline).await;
    assert_eq!((&told["state"], &told["to"]["epoch"]), (&json!("done"), &json!(1)), "{told:#}");
    assert_eq!(append(&bench.a, session, "in a new epoch").unwrap()["epoch"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_says_how_long_a_server_may_be_silent() {
    let mut bench = Bench::new();
    // A node whose own patience outlasts the test.
    bench.reopen_patient("d").await;
    let session = bench.session(1);
    let patient = || bench.desk().patient(Some(Duration::from_millis(200)));
    bench.wires.kill(&bench.a);
    let to = bench.b.principal().to_string();
    let begin = Begin { session, to, leave: Leave::Auto, ask: None, depth: Depth::Begin };
    let begun = patient().begin(begin.clone()).await.unwrap();
    bench.until(&begun, &["needs-confirmation"]).await;

    // The same for a move that was begun without saying so.
    bench.wires.revive(&bench.a);
    let (session, id) = named(&begun);
    // The move kept its patience, and what is to be heard now takes as long as it takes.
    let hears = bench.desk().patient(Some(Duration::from_secs(600)));
    let told = hears.abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!(told["state"], "aborted", "{told:#}");
    let begun = bench.desk().begin(begin).await.unwrap();
    bench.until(&begun, &["needs-handoff"]).await;
    bench.wires.kill(&bench.a);
    let (session, id) = named(&begun);
    let told = patient().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["phase"]), (&json!("waiting"), &json!("rollback")), "{told:#}");
}
