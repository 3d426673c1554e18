//! Moves between nodes with real networks on loopback.

use serde_json::json;
use throughline_protocol::code::Code;
use throughline_protocol::entry::Class;
use throughline_protocol::id::{Cid, Epoch, SessionId};
use throughline_protocol::view::EntryDraft;
use throughline_store::{PayloadState, SessionState};

use super::testbench::{Bench, append, message, named, until_stored};
use super::{Leave, Question};
use crate::core::{AppendRequest, Node};
use crate::sync::{FetchRequest, Use, Wanted};

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
    let (session, id) = named(&asked);
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

/// A session at A with two files: one that A has, and one whose bytes A lost, so that nobody has it. Its CID, and its bytes.
fn with_a_lost_file(bench: &Bench) -> (SessionId, Cid, Vec<u8>) {
    let session = bench.session(1);
    let (kept, lost) = (vec![3; 40_000], vec![7; 50_000]);
    let files = [&kept, &lost].map(|bytes| bench.a.put_file(bytes, Some(session)).unwrap());
    // Before anybody else can hear of it.
    let mut below = vec![bench.a.dirs().data().join("payloads")];
    let mut removed = 0;
    while let Some(path) = below.pop() {
        if path.is_dir() {
            below.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if std::fs::read(&path).unwrap() == lost {
            std::fs::remove_file(path).unwrap();
            removed += 1;
        }
    }
    assert_eq!(removed, 1, "the file lies by itself");
    let attachments = files.map(|file| {
        json!({"cid": file.cid.to_string(), "size": file.size_bytes, "mediaType": "application/octet-stream"})
    });
    let block = json!({"id": "b1", "type": "Paragraph", "text": "see the files", "children": []});
    let draft = json!({
        "type": "SessionUserMessage", "origin": "trigger", "body": [block], "attachments": attachments,
    });
    let base = bench.a.reader().unwrap().session(session).unwrap().unwrap().tip.cid;
    let entries = vec![EntryDraft::from_json(&draft).unwrap(), message("and go on")];
    let request = AppendRequest { session, base: Some(base), entries, key: None, dry_run: false };
    bench.a.append(&request).unwrap();
    (session, files[1].cid, lost)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_nobody_has_stops_no_move_and_comes_later_from_anyone() {
    let bench = Bench::over_network().await;
    let (session, lost, bytes) = with_a_lost_file(&bench);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asks = bench.until(&begun, &["needs-confirmation", "needs-handoff", "rolled-back"]).await;
    assert_eq!(
        (&asks["state"], &asks["phase"]),
        (&json!("needs-confirmation"), &json!("handoff")),
        "{asks:#}"
    );
    let files = json!({"linked": 2, "here": 1, "missing": 1, "withdrawn": 0, "asked": true});
    assert_eq!((&asks["files"], &asks["payloads"]["missing"]), (&files, &json!(0)), "{asks:#}");
    assert_eq!(asks["lacking"], json!([lost.to_string()]));
    let (_, id) = named(&begun);
    bench.desk().confirm(session, id, Question::Lacking).await.unwrap();
    bench.sign(&bench.until(&begun, &["needs-handoff"]).await).await;
    let told = bench.until(&begun, &["done", "waiting", "rolled-back", "aborted"]).await;
    assert_eq!((&told["state"], &told["files"]), (&json!("done"), &files), "{told:#}");
    append(&bench.b, session, "carrying on").unwrap();

    // Somebody finds it again.
    bench.d.put_file(&bytes, Some(session)).unwrap();
    let from = vec![bench.d.principal().to_string()];
    let (payloads, mode) = (Wanted::All, Use::Adopt);
    let request = FetchRequest { session, from, payloads, idle: None, mode, peers_min: 1 };
    bench.b.network().unwrap().fetch(request).await.unwrap();
    let inventory = bench.b.inventory(session, &mut |_| ()).unwrap();
    assert_eq!((inventory.files.here, inventory.files.missing), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_to_a_missing_file_leaves_the_session_where_it_was() {
    let bench = Bench::over_network().await;
    let (session, ..) = with_a_lost_file(&bench);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let asks = bench.until(&begun, &["needs-confirmation", "needs-handoff", "rolled-back"]).await;
    assert_eq!(asks["state"], "needs-confirmation", "{asks:#}");
    let (_, id) = named(&begun);
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!((&told["state"], &told["from"]["state"]), (&json!("aborted"), &json!("active")), "{told:#}");
    append(&bench.a, session, "as before").unwrap();
    // It still says what was lacking.
    assert_eq!(told["files"]["missing"], 1);
}
