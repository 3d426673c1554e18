//! Evidence on the network: told once, checked by everybody, to strangers only where all is public.
#![allow(clippy::large_futures, reason = "a test runs once")]

use serde_json::json;
use throughline_protocol::control::Role;
use throughline_protocol::entry::Class;
use throughline_protocol::evidence::Exhibit;
use throughline_protocol::testing::{Reach, SessionBuilder};
use throughline_store::{Change, EventPage, KeptEvidence, PinDepth, SetPin};

use super::testbench::*;
use super::*;
use crate::core::{Fate, Source, now};

fn verdict_is(session: SessionId, verdict: &'static str) -> impl Fn(&Node) -> bool {
    move |node| node.reader().unwrap().session(session).unwrap().unwrap().summary.verdict == verdict
}

fn held(node: &Node, session: SessionId) -> Vec<KeptEvidence> {
    node.reader().unwrap().evidence(session).unwrap()
}

fn is_told(session: SessionId) -> impl Fn(&Node) -> bool {
    move |node| {
        let held = held(node, session);
        !held.is_empty() && held.iter().all(|kept| kept.told.is_some())
    }
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

/// The one file of evidence that a node holds of a session.
fn exhibit(node: &Node, session: SessionId) -> Exhibit {
    let [kept] = &held(node, session)[..] else { panic!("expected one piece of evidence") };
    crate::exhibit::check(kept.bytes.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accusation_that_an_anchor_refutes_is_not_kept_nor_heard_again() {
    in_time(async {
        let mut revoked = session("refuted", 4);
        let (account, grant) = (revoked.owner.clone(), revoked.server1.capability.clone().unwrap());
        revoked.tombstone(&grant, Vec::new());
        let mut anchored = revoked.clone();
        anchored.reference(&account, 4, Reach::Anchors);
        let id = revoked.session();
        let (accuser, node) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        accuser.take(&revoked);
        assert!(verdict_is(id, "revoked-tail")(&accuser.node));
        node.take(&anchored);
        let accusation = exhibit(&accuser.node, id);
        let shared = &node.network.shared;
        assert_eq!(evidence::weigh(shared, &accusation).await, Ok(news::Worth::Good), "nobody knows yet");
        let taken = node.node.take_evidence(&accusation, Source::Peer).unwrap();
        assert_eq!((taken.fate, taken.after.as_deref()), (Fate::Void, Some("valid")));
        // Not kept, so not told either; and whoever tells it again is not listened to.
        assert!(held(&node.node, id).is_empty());
        assert_eq!(evidence::weigh(shared, &accusation).await, Ok(news::Worth::Doubtful));
        let again = node.node.import_evidence(accusation.bytes().to_vec(), false).unwrap();
        assert_eq!((&again["void"], &again["stored"]), (&json!(true), &json!(false)), "{again}");
        assert!(held(&node.node, id).is_empty());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_whether_evidence_would_be_news() {
    in_time(async {
        let (one, other) = fork(&session("dry run", 3));
        let (witness, node) = (TestNode::start(TCP).await, TestNode::start(TCP).await);
        witness.take(&one);
        witness.take(&other);
        let bytes = exhibit(&witness.node, one.session()).bytes().to_vec();
        let dry = || node.node.import_evidence(bytes.clone(), true).unwrap();
        assert_eq!((&dry()["unchanged"], &dry()["stored"]), (&json!(false), &json!(false)), "{}", dry());
        node.node.import_evidence(bytes.clone(), false).unwrap();
        assert_eq!((&dry()["unchanged"], &dry()["stored"]), (&json!(true), &json!(false)), "{}", dry());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_to_be_told_does_not_wait_for_ever() {
    in_time(async {
        let mut base = session("long", 1);
        let (account, server) = (base.owner.clone(), base.server1.clone());
        let mut other = base.clone().branch("other");
        // Entries of others between those that are shown: the file holds both paths.
        for number in 0..40 {
            base.user(&account, &format!("message {number}"));
        }
        base.response(&server, "one history", &[]);
        other.response(&server, "another history", &[]);
        let witness = TestNode::start(TCP).await;
        witness.take(&base);
        witness.take(&other);
        let id = base.session();
        let size = exhibit(&witness.node, id).bytes().len();
        assert!(size > throughline_protocol::limits::ANNOUNCEMENT_BYTES_MAX, "{size}");
        assert!(evidence::untold(&witness.node, id).unwrap().is_empty(), "there is no message for it");
        assert!(is_told(id)(&witness.node));
        let waiting = witness.node.reader().unwrap().sessions_with_untold_evidence(10);
        assert!(waiting.unwrap().is_empty());
    })
    .await;
}
