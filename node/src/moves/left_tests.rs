//! Moves that leave their source, while it lives: nothing that this node holds is cut, and a Yes counts for what was asked.

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::id::SessionId;

use super::testbench::{Bench, append, named};
use super::tests::{holders, row};
use super::wires::copy;
use super::{Leave, Question};

/// A move without A, which was down, that waits for the owner's signature; with what it asks.
async fn without_a(bench: &Bench, session: SessionId) -> Value {
    bench.wires.kill(&bench.a);
    let begun = bench.begin(session, &bench.b, Leave::Offline).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    assert_eq!((&asked["source"], &asked["from"]["state"]), (&json!("offline"), &json!("unheard")));
    asked
}

/// A is back, and goes on as the holder that it is; D hears of it.
fn a_goes_on(bench: &Bench, session: SessionId, entries: usize) {
    bench.wires.revive(&bench.a);
    for at in 0..entries {
        append(&bench.a, session, &format!("written by the living holder {at}")).unwrap();
    }
    assert!(copy(&bench.a, &bench.d, session));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_below_what_is_held_here_is_refused_and_the_move_goes_on_from_there() {
    let bench = Bench::new();
    let session = bench.session(1);
    let asked = without_a(&bench, session).await;
    assert_eq!(asked["base"]["seq"], 2, "{asked:#}");
    a_goes_on(&bench, session, 3);
    let (_, id) = named(&asked);
    let signed = bench.handoff(&asked["sign"]).bytes().to_vec();
    let refused = bench.desk().give_handoff(session, id, signed.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::HeadMoved, "{refused}");
    assert_eq!(refused.fact("held").map(|held| held["seq"].clone()), Some(json!(5)), "{refused}");

    // It is asked for again, on the newest entry. What was signed before is refused whenever it comes.
    let again = bench.until(&asked, &["needs-handoff"]).await;
    assert_eq!((&again["base"]["seq"], &again["sign"]["seq"]), (&json!(5), &json!(6)), "{again:#}");
    let refused = bench.desk().give_handoff(session, id, signed).await.unwrap_err();
    assert_eq!(refused.code(), Code::HeadMoved, "{refused}");
    bench.sign(&again).await;
    let told = bench.until(&again, &["done", "waiting", "rolled-back"]).await;
    assert_eq!((&told["state"], &told["cut"]), (&json!("done"), &json!([])), "{told:#}");
    assert_eq!((row(&bench.d, session).tip.seq.get(), told["handoff"]["seq"].clone()), (6, json!(6)));
    assert_eq!(row(&bench.d, session).summary.verdict, "valid");
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_arrived_while_no_task_ran_is_handed_over_too() {
    let mut bench = Bench::new();
    let session = bench.session(1);
    let asked = without_a(&bench, session).await;
    let a = bench.a.clone();
    append(&a, session, "written while the other one was down").unwrap();
    bench.reopen_after("d", |d| assert!(copy(&a, d, session))).await;
    let again = bench.until(&asked, &["needs-handoff"]).await;
    assert_eq!(again["base"]["seq"], 3, "{again:#}");
    bench.sign(&again).await;
    assert_eq!(bench.until(&again, &["done", "rolled-back"]).await["state"], "done");
    assert_eq!(row(&bench.d, session).summary.verdict, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_yes_counts_for_the_question_that_was_read() {
    let bench = Bench::new();
    let session = bench.session(1);
    bench.wires.kill(&bench.a);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asks = bench.until(&begun, &["needs-confirmation"]).await;
    assert_eq!((&asks["phase"], &asks["source"]), (&json!(Question::Silence.phase()), &json!("auto")));
    let (_, id) = named(&begun);
    let refused = bench.desk().confirm(session, id, Question::Lacking).await.unwrap_err();
    assert_eq!(refused.code(), Code::MoveState, "{refused}");
    assert!(refused.detail().contains("freeze") && refused.detail().contains("does not answer"), "{refused}");
    let still = bench.desk().get(session, id).unwrap();
    assert_eq!((&still["state"], &still["reason"]), (&asks["state"], &asks["reason"]), "{still:#}");
    bench.desk().confirm(session, id, Question::Silence).await.unwrap();
    let asks = bench.until(&begun, &["needs-handoff"]).await;
    assert_eq!(asks["source"], "offline");
}
