//! What a stranger needs to judge a session goes with it, however much its owner revoked.
#![allow(clippy::large_futures, reason = "a test runs once")]

use std::path::Path;

use throughline_protocol::block::Signed;
use throughline_protocol::build::sign;
use throughline_protocol::control::{Capability, Role};
use throughline_protocol::testing::{self, Reach as Shown, SessionBuilder};

use super::*;
use crate::sync::testbench::*;

/// A grant that differs from every other of the same key.
fn grant(delegate: Principal, role: Role, nth: u64) -> Signed<Control> {
    let account = testing::key("account");
    let capability = Capability {
        ts: testing::ts(nth),
        signer: account.principal(),
        delegate,
        role: Some(role.word().to_owned()),
        path: None,
        label: None,
        audience: None,
    };
    sign(Control::Capability(capability), &account).unwrap()
}

/// What a stranger that asks one node for a published session comes to: verdict and head.
async fn as_a_stranger(node: &TestNode, builder: &SessionBuilder) -> (String, Option<u64>) {
    let stranger = TestNode::stranger(TCP).await;
    stranger.bring(builder.session(), &[node.ticket().await]).await.unwrap();
    let row = stranger.row(builder.session()).unwrap();
    (row.summary.verdict.clone(), row.summary.head.map(|head| head.seq.get()))
}

/// A public session, what its owner granted and revoked 256 times since, and a stranger: nothing of that fitted beside the tombstones.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_gets_the_session_of_an_owner_that_revoked_256_grants() {
    in_time(async {
        let file = "../tests/cases/found/owner-with-256-revocations.car";
        let node = TestNode::stranger(TCP).await;
        let taken = node.node.take_car(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file), false).unwrap();
        assert_eq!((&taken["verdict"], &taken["adopted"]), (&"valid".into(), &true.into()));
        let session = taken["session"].as_str().unwrap().parse().unwrap();
        let stranger = TestNode::stranger(TCP).await;
        stranger.bring(session, &[node.ticket().await]).await.unwrap();
        assert_eq!(stranger.row(session).unwrap().summary, node.row(session).unwrap().summary);
    })
    .await;
}

/// The grant of a device that only anchored is cited by no entry.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_device_anchored_counts_for_a_stranger_too() {
    in_time(async {
        let mut builder = public("anchored by a device", 6);
        let (device, server) = (builder.device.clone(), builder.server1.capability.clone().unwrap());
        builder.reference(&device, 5, Shown::Publishes);
        builder.tombstone(&server, Vec::new());
        let node = TestNode::start(TCP).await;
        node.take(&builder);
        let own = node.row(builder.session()).unwrap().summary.head.unwrap();
        assert_eq!(own.seq.get(), 5);
        let strangers = as_a_stranger(&node, &builder).await;
        assert_eq!(strangers, ("valid".to_owned(), Some(5)));
    })
    .await;
}

/// What is needed has more than one frame, and stands beside more that is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_granted_and_revoked_300_times_is_judged_alike() {
    in_time(async {
        let mut builder = public("revoked often", 6);
        let (owner, server) = (builder.owner.clone(), builder.server1.clone());
        builder.reference(&owner, 4, Shown::Publishes);
        let others: Vec<_> = (0..300).map(|nth| grant(server.key.principal(), Role::Writer, nth)).collect();
        let node = TestNode::start(TCP).await;
        node.take(&builder);
        node.hold(&others);
        let revoked: Vec<_> = others.iter().chain(&server.capability).collect();
        let tombstones: Vec<_> =
            revoked.into_iter().map(|grant| builder.tombstone(grant, Vec::new())).collect();
        node.hold(&tombstones);
        let own = node.row(builder.session()).unwrap().summary;
        let head = own.head.map(|head| head.seq.get());
        assert_eq!(head, Some(4), "what the owner anchored");
        assert_eq!(as_a_stranger(&node, &builder).await, ("valid".to_owned(), head));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_are_taken_up_to_both_bounds_and_the_first_that_does_not_fit_is_told() {
    let node = TestNode::start(TCP).await;
    let controls: Vec<_> =
        (0..3).map(|nth| grant(testing::key("x").principal(), Role::Reader, nth)).collect();
    node.hold(&controls);
    let reader = node.node.reader().unwrap();
    let taken = |blobs_max, bytes_max| {
        let mut sending = Sending::new(&reader);
        let fits =
            controls.iter().map(|control| sending.take(&control.hash(), blobs_max, bytes_max).unwrap());
        let fits: Vec<bool> = fits.collect();
        (fits, sending.blobs.len())
    };
    let size = controls[0].bytes().len();
    assert_eq!(taken(3, 3 * size), (vec![true, true, true], 3));
    assert_eq!(taken(2, 3 * size), (vec![true, true, false], 2));
    assert_eq!(taken(3, 3 * size - 1), (vec![true, true, false], 2));
    let mut sending = Sending::new(&reader);
    assert!(sending.take(&[0; 32], 3, size).unwrap(), "what is not held is not missing");
}
