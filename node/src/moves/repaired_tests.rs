//! Moves that go on after the row of their session was damaged and made again: whatever their journals remember, this node signs nothing
//! until a handoff that is made later.

use std::collections::BTreeSet;

use serde_json::json;
use throughline_protocol::code::Code;
use throughline_protocol::id::SessionId;

use super::Leave;
use super::testbench::{Bench, append, named};
use super::tests::{learns, row};
use crate::core::Node;
use crate::sync::{BlobsCame, Tally};

/// Bytes of the row of a session that no other row has: the name of its fence.
const FENCE: &[u8] = b"\x65fence";

/// A's disk flips a bit in the row of its session, and a repair makes it again.
async fn repaired(bench: &mut Bench, session: SessionId) {
    bench.reopen_damaged("a", FENCE).await;
    assert_eq!(bench.a.reader().unwrap().session(session).unwrap_err().code(), Code::StoreCorrupt);
    repair(&bench.a);
}

fn repair(node: &Node) {
    let found = node.fsck(&Tally::default()).unwrap();
    node.mend(&BTreeSet::new(), &BlobsCame::default()).unwrap();
    node.mend_rows(&found, &Tally::default()).unwrap();
    let found = node.fsck(&Tally::default()).unwrap();
    assert!(found.is_clean(), "{:?}", found.problems);
}

async fn signs_after_a_handoff(bench: &Bench, session: SessionId) {
    let own = bench.a.clone();
    assert_eq!(bench.move_to(session, &own, Leave::Auto).await["state"], "done");
    append(&bench.a, session, "after the handoff").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_thaws_after_a_repair_signs_nothing() {
    let mut bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;
    assert_eq!(append(&bench.a, session, "not now"), Err(Code::Frozen));
    repaired(&mut bench, session).await;
    // Before the move asks again, and after it was taken back.
    let refused = append(&bench.a, session, "as if nothing had been asked").unwrap_err();
    assert!([Code::Frozen, Code::SignGuard].contains(&refused), "{refused}");
    let (_, id) = named(&begun);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("aborted"), &json!("active")), "{told:#}");
    assert_eq!(append(&bench.a, session, "thawed"), Err(Code::SignGuard));
    bench.reopen("a").await;
    assert_eq!(append(&bench.a, session, "after a restart"), Err(Code::SignGuard));
    signs_after_a_handoff(&bench, session).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_resumes_after_a_repair_of_its_source_ends_as_it_would_have() {
    let mut bench = Bench::new();
    let session = bench.session(2);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    repaired(&mut bench, session).await;
    bench.sign(&asked).await;
    assert_eq!(bench.until(&begun, &["done", "waiting", "rolled-back"]).await["state"], "done");
    append(&bench.b, session, "goes on").unwrap();
    assert_eq!(append(&bench.a, session, "in the old epoch"), Err(Code::Retired));
    assert_eq!(row(&bench.a, session).tip.epoch.get(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_from_before_a_repair_takes_nothing_over() {
    let mut bench = Bench::new();
    let session = bench.session(2);
    assert_eq!(bench.move_to(session, &bench.b, Leave::Auto).await["state"], "done");
    let back = bench.a.clone();
    let begun = bench.begin(session, &back, Leave::Auto).await;
    drop(back);
    let asked = bench.until(&begun, &["needs-handoff"]).await;
    let handoff = bench.handoff(&asked["sign"]);
    repaired(&mut bench, session).await;
    // It may be one that was signed after in another life: it is history here, and nothing follows it.
    learns(&bench.a, session, &handoff);
    let held = row(&bench.a, session);
    assert_eq!((held.tip.cid, held.summary.holder), (handoff.cid(), Some(bench.a.principal())));
    assert_eq!(append(&bench.a, session, "too early"), Err(Code::SignGuard));
    bench.reopen("a").await;
    assert_eq!(append(&bench.a, session, "after a restart"), Err(Code::SignGuard));
}
