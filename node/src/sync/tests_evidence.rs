//! Evidence on the network: told once, checked by everybody, to strangers only where all is public.
#![allow(clippy::large_futures, reason = "a test runs once")]

use throughline_protocol::control::Role;
use throughline_protocol::entry::Class;
use throughline_protocol::testing::{Reach, SessionBuilder};
use throughline_store::{Change, EventPage, KeptEvidence, PinDepth, SetPin};

use super::testbench::*;
use super::*;
use crate::core::now;

fn verdict_is(session: SessionId, verdict: &'static str) -> impl Fn(&Node) -> bool {
    move |node| node.reader().unwrap().session(session).unwrap().unwrap().summary.verdict == verdict
}

fn held(node: &Node, session: SessionId) -> Vec<KeptEvidence> {
    node.reader().unwrap().evidence(session).unwrap()
}

fn is_told(session: SessionId) -> impl Fn(&Node) -> bool {
    move |node| held(node, session).iter().all(|kept| kept.told.is_some())
}

/// How often a node learned of evidence that it did not have.
fn learned(node: &Node) -> usize {
    let EventPage::Events(events) = node.reader().unwrap().events_since(0, 10_000).unwrap() else {
        panic!("the log is whole")
    };
    events.iter().filter(|event| matches!(event.change, Change::Evidence { .. })).count()
}

/// One more entry of the holder on the same head, twice.
fn fork(base: &SessionBuilder) -> (SessionBuilder, SessionBuilder) {
    let server = base.server1.clone();
    let (mut one, mut other) = (base.clone().branch("one"), base.clone().branch("other"));
    one.response(&server, "one history", &[]);
    other.response(&server, "another history", &[]);
    (one, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_is_told_once_to_those_who_may_read() {
    in_time(async {
        let (witness, reader) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let stranger = TestNode::stranger(TCP).await;
        let grants = [witness.grant(Role::Agent), reader.grant(Role::Agent)];
        witness.hold(&grants);
        reader.hold(&grants);
        let (one, other) = fork(&session("told", 3));
        let id = one.session();
        for node in [&witness, &reader, &stranger] {
            node.take(&one);
        }
        reader.meet("witness", &witness).await;
        stranger.meet("witness", &witness).await;
        witness.until_proven(&reader).await;
        witness.until_proven(&stranger).await;
        witness.take(&other);
        reader.until(verdict_is(id, "forked")).await;
        assert_eq!(held(&reader.node, id)[0].bytes, held(&witness.node, id)[0].bytes);
        witness.until(is_told(id)).await;
        reader.until(is_told(id)).await;
        assert_eq!((learned(&witness.node), learned(&reader.node)), (1, 1));
        assert!(held(&stranger.node, id).is_empty(), "the session is not for everybody");
        assert!(verdict_is(id, "valid")(&stranger.node));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_of_a_public_session_reaches_strangers_on_the_topic() {
    in_time(async {
        let mut base = SessionBuilder::with_genesis("public", |genesis| genesis.class = Class::Public);
        let (account, server) = (base.owner.clone(), base.server1.clone());
        base.response(&server, "for everybody", &[]);
        base.reference(&account, 1, Reach::Publishes);
        let (one, other) = fork(&base);
        let id = one.session();
        let (witness, mirror) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        witness.take(&one);
        mirror.take(&one);
        let pin = throughline_store::Pin { since: now(), depth: PinDepth::Payloads };
        mirror.node.store().run(SetPin { session: id, pin: Some(pin), at: now() }).unwrap();
        mirror.meet("witness", &witness).await;
        witness.until_followed_by(&mirror).await;
        witness.take(&other);
        mirror.until(verdict_is(id, "forked")).await;
        // Passing it on was telling it: the mirror says nothing more.
        mirror.until(is_told(id)).await;
        assert_eq!((learned(&witness.node), learned(&mirror.node)), (1, 1));
        assert_eq!(mirror.network.counts().charges, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_about_sessions_that_are_not_held_is_not_stored() {
    in_time(async {
        let (witness, reader) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        let grants = [witness.grant(Role::Agent), reader.grant(Role::Reader)];
        witness.hold(&grants);
        reader.hold(&grants);
        let (one, other) = fork(&session("elsewhere", 1));
        witness.take(&one);
        witness.meet("reader", &reader).await;
        reader.meet("witness", &witness).await;
        witness.until_proven(&reader).await;
        witness.take(&other);
        witness.until(is_told(one.session())).await;
        assert!(held(&reader.node, one.session()).is_empty());
        assert_eq!(reader.node.reader().unwrap().session(one.session()).unwrap(), None);
    })
    .await;
}
