//! A session of a revoked key that is larger than a batch, and than what may lie beside a chain: what comes last decides about it.
#![allow(clippy::large_futures, reason = "a test runs once")]

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use throughline_protocol::block::Signed;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::id::SessionId;
use throughline_protocol::testing::{Reach, SessionBuilder};
use throughline_protocol::wire::chain::ChainAnswer;

use super::testbench::*;
use super::*;

/// Room beside a chain; the session has three batches of 4 MiB.
const SIDE_ROOM: u64 = 1 << 20;
const MESSAGES: usize = 120;

/// A session of a server, which is revoked: the tombstone, and the owner's anchor at the head.
fn of_a_revoked_server(label: &str) -> (SessionBuilder, Signed<Control>, Signed<Control>) {
    let mut builder = SessionBuilder::new(label);
    let server = Arc::clone(&builder.server1);
    for _ in 0..MESSAGES {
        builder.user(&server, &"x".repeat(100_000));
    }
    let session = builder.clone();
    let anchor = builder.reference(&Arc::clone(&builder.owner), MESSAGES, Reach::Anchors);
    let tombstone = builder.tombstone(server.capability.as_ref().unwrap(), Vec::new());
    (session, tombstone, anchor)
}

/// A server that holds it, and a desktop of the owner that knows of the tombstone.
async fn server_and_desktop(builder: &SessionBuilder, tombstone: &Signed<Control>) -> (TestNode, TestNode) {
    let (server, desktop) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
    let _ = desktop.node.clone().with_side_room(SIDE_ROOM);
    let grants = [server.grant(Role::Writer), desktop.grant(Role::Agent)];
    server.take(builder);
    server.hold(&grants);
    desktop.hold(&grants);
    desktop.hold(builder.controls());
    desktop.hold(std::slice::from_ref(tombstone));
    (server, desktop)
}

fn is_whole(builder: &SessionBuilder) -> impl Fn(&Node) -> bool {
    let (session, tip) = (builder.session(), builder.head().entry.cid());
    move |node| verdict(node, session).is_some_and(|(verdict, head)| verdict == "valid" && head == Some(tip))
}

fn verdict(node: &Node, session: SessionId) -> Option<(String, Option<throughline_protocol::id::EntryCid>)> {
    let row = node.reader().unwrap().session(session).unwrap()?;
    Some((row.summary.verdict, row.summary.head.map(|head| head.cid)))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_owner_anchored_is_fetched_whole() {
    in_time(async {
        let (builder, tombstone, anchor) = of_a_revoked_server("anchored and fetched");
        let (server, desktop) = server_and_desktop(&builder, &tombstone).await;
        server.hold(&[anchor, tombstone]);
        desktop.bring(builder.session(), &[server.ticket().await]).await.unwrap();
        assert!(is_whole(&builder)(&desktop.node), "{:?}", desktop.row(builder.session()));
        let inventory = desktop.node.inventory(builder.session(), &mut |_| ()).unwrap();
        assert!(!inventory.is_lacking(), "{inventory:?}");
        let stats = desktop.node.reader().unwrap().stats().unwrap();
        assert_eq!((stats.side_entries, stats.entries), (0, 1 + MESSAGES as u64));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_owner_anchored_is_followed_whole() {
    in_time(async {
        let (builder, tombstone, anchor) = of_a_revoked_server("anchored and followed");
        let (server, desktop) = server_and_desktop(&builder, &tombstone).await;
        server.hold(&[anchor, tombstone]);
        desktop.meet("server", &server).await;
        desktop.until(is_whole(&builder)).await;
    })
    .await;
}

/// A peer that knows of no tombstone and no anchor, and counts how often it is asked for a range.
fn counting(asked: &Arc<AtomicUsize>) -> Lie {
    let asked = Arc::clone(asked);
    Arc::new(move |frames| {
        asked.fetch_add(1, Ordering::SeqCst);
        Script { frames, then: Then::End }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_was_left_is_asked_for_again_once_it_is_anchored() {
    in_time(async {
        let (builder, tombstone, anchor) = of_a_revoked_server("anchored afterwards");
        let session = builder.session();
        let (_server, desktop) = server_and_desktop(&self::session("another", 1), &tombstone).await;
        let asked = Arc::new(AtomicUsize::new(0));
        let peer = Liar::start(&builder, counting(&asked)).await;
        peers::add(&desktop.node, &peers::KnownPeer::of_ticket("peer", &peer.ticket().await).unwrap())
            .unwrap();
        desktop.network.compare_with("peer").await.unwrap();
        let is_cut =
            |node: &Node| verdict(node, session).is_some_and(|(verdict, _)| verdict == "revoked-tail");
        desktop.until(is_cut).await;
        let held = desktop.node.reader().unwrap().stats().unwrap();
        assert!(held.side_entries > 0 && held.side_entries < MESSAGES as u64, "{held:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 3, "once, then to look ahead, then with what follows known");

        // Nothing has changed: it is not asked for again.
        desktop.network.compare_with("peer").await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 3);

        desktop.hold(&[anchor]);
        desktop.network.compare_with("peer").await.unwrap();
        desktop.until(is_whole(&builder)).await;
        assert_eq!(asked.load(Ordering::SeqCst), 6);
    })
    .await;
}

/// A peer that told a head is asked for it before the owner signs, and told of when it does not give it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_held_in_part_is_fetched_or_told() {
    in_time(async {
        let builder = self::session("held in part", 300);
        let (server, desktop) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let grants = [server.grant(Role::Writer), desktop.grant(Role::Agent)];
        server.take(&builder);
        server.hold(&grants);
        desktop.take(&builder.at(254));
        desktop.hold(&grants);
        let silent = |_: Vec<ChainAnswer>| Script { frames: Vec::new(), then: Then::End };
        let liar = Liar::start(&builder, Arc::new(silent)).await;
        let known = |alias, ticket: String| peers::KnownPeer::of_ticket(alias, &ticket).unwrap();
        peers::add(&desktop.node, &known("liar", liar.ticket().await)).unwrap();
        let unfetched = || desktop.network.unfetched(vec![builder.session()], Some(SOON));

        let (left, came, _) = unfetched().await.unwrap();
        assert_eq!((left.len(), came), (1, 0));
        assert_eq!((left[0].held.seq.get(), left[0].told.seq.get()), (254, 300));
        assert_eq!(left[0].by, ["liar".to_owned()].into());

        peers::add(&desktop.node, &known("server", server.ticket().await)).unwrap();
        let (left, came, _) = unfetched().await.unwrap();
        assert_eq!((left.len(), came), (0, 1));
        assert_eq!(desktop.row(builder.session()).unwrap().tip.cid, builder.head().entry.cid());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_judged_as_one() {
    let (builder, tombstone, anchor) = of_a_revoked_server("anchored in a file");
    let (server, desktop) = server_and_desktop(&builder, &tombstone).await;
    server.hold(&[anchor, tombstone]);
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut write = |part: Vec<u8>| {
        file.write_all(&part).unwrap();
        Ok(())
    };
    server.node.export_car(builder.session(), true, &mut write).unwrap();
    let answer = desktop.node.take_car(file.path(), false).unwrap();
    assert_eq!((&answer["verdict"], &answer["adopted"]), (&"valid".into(), &true.into()), "{answer}");
    assert!(is_whole(&builder)(&desktop.node));
}
