//! Moves between nodes with real networks on loopback.

use serde_json::json;
use throughline_protocol::code::Code;
use throughline_protocol::entry::Class;
use throughline_protocol::id::Epoch;
use throughline_store::{PayloadState, SessionState};

use super::Leave;
use super::testbench::{Bench, append, until_stored};
use crate::core::Node;

const RETIRED: SessionState = SessionState::Retired { epoch: Epoch::ZERO };

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_over_the_network_with_its_words() {
    let bench = Bench::over_network().await;
    for class in [Class::Internal, Class::Confidential] {
        let session = bench.session_of(class, 3);
        append(&bench.a, session, "not at the desktop yet").unwrap();
        let told = bench.move_to(session, &bench.b, Leave::Auto).await;
        assert_eq!((&told["state"], &told["from"]["state"]), (&json!("done"), &json!("retired")), "{told:#}");
        assert_eq!((&told["from"]["peer"], &told["to"]["peer"]), (&json!("server-a"), &json!("server-b")));
        assert_eq!((&told["base"]["seq"], &told["sent"]["entries"]), (&json!(5), &json!(6)));
        let reader = bench.b.reader().unwrap();
        let stored =
            reader.entry_at(session, throughline_protocol::id::Seq::new(5).unwrap()).unwrap().unwrap();
        assert!(matches!(reader.payload(stored.payload.unwrap()).unwrap(), PayloadState::Present(_)));
        assert_eq!(append(&bench.a, session, "too late"), Err(Code::Retired));
        assert_eq!(append(&bench.b, session, "carrying on").unwrap()["epoch"], 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_off_learns_from_its_peers_that_it_was_left() {
    let mut bench = Bench::over_network().await;
    let session = bench.session(2);
    bench.unplug_a().await;
    let told = bench.move_to(session, &bench.b, Leave::Offline).await;
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("done"), &json!("unheard")), "{told:#}");
    append(&bench.a, session, "written alone").unwrap();
    let forged = bench.a.reader().unwrap().session(session).unwrap().unwrap().tip.cid;

    bench.plug_in_a().await;
    let row = |node: &Node| node.reader().unwrap().session(session).unwrap().unwrap();
    until_stored(&bench.a, |node| row(node).state == RETIRED).await;
    assert_eq!(append(&bench.a, session, "again"), Err(Code::Retired));
    let reader = bench.a.reader().unwrap();
    assert_eq!(reader.side_entry(forged).unwrap().expect("kept as evidence").status.word(), "fenced");
    until_stored(&bench.a, |node| row(node).summary.verdict == "fenced-tail").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_taken_back_over_the_network_thaws() {
    let bench = Bench::over_network().await;
    let session = bench.session(1);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff", "rolled-back"]).await;
    assert_eq!(asked["state"], "needs-handoff", "{asked:#}");
    assert_eq!(append(&bench.a, session, "not now"), Err(Code::Frozen));
    let (session, id) = super::testbench::named(&asked);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!(told["state"], "aborted", "{told:#}");
    append(&bench.a, session, "as before").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_this_node_never_heard_of_is_found_at_a_peer_and_moved() {
    let bench = Bench::over_network().await;
    let session = bench.session_known_to_a(2);
    let told = bench.move_to(session, &bench.b, Leave::Auto).await;
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("done"), &json!("retired")), "{told:#}");
    assert_eq!((&told["from"]["peer"], &told["base"]["seq"]), (&json!("server-a"), &json!(3)));
}
