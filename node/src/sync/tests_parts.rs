//! A session of a revoked key that is larger than a batch, and than what may lie beside a chain: what comes last decides about it.
#![allow(clippy::large_futures, reason = "a test runs once")]

use std::io::Write as _;
use std::sync::Arc;

use throughline_protocol::block::Signed;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::id::SessionId;
use throughline_protocol::testing::{Reach, SessionBuilder};

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
        let fetched = desktop.bring(builder.session(), &[server.ticket().await]).await.unwrap();
        assert!(is_whole(&builder)(&desktop.node), "{:?}", desktop.row(builder.session()));
        assert_eq!(fetched.missing_blocks, 0);
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

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_was_left_is_asked_for_again_once_it_is_anchored() {
    in_time(async {
        let (builder, tombstone, anchor) = of_a_revoked_server("anchored afterwards");
        let session = builder.session();
        let (server, desktop) = server_and_desktop(&builder, &tombstone).await;
        desktop.meet("server", &server).await;
        desktop.until(|node| verdict(node, session).is_some_and(|(verdict, _)| verdict == "revoked-tail")).await;
        let held = desktop.node.reader().unwrap().stats().unwrap();
        assert!(held.side_entries > 0 && held.side_entries < MESSAGES as u64, "{held:?}");

        // Nothing has changed: it is not asked for again.
        let bytes = |node: &Node| node.reader().unwrap().newest_event().unwrap();
        let before = bytes(&desktop.node);
        desktop.network.compare_with("server").await.unwrap();
        assert_eq!(bytes(&desktop.node), before);

        desktop.hold(&[anchor]);
        desktop.network.compare_with("server").await.unwrap();
        desktop.until(is_whole(&builder)).await;
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
