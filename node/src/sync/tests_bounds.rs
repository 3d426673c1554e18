//! More peers, keys and owners than can be asked or followed: who is named is never crowded out, and what was left out is said.
#![allow(clippy::large_futures, reason = "a test runs once")]

use std::sync::Arc;

use throughline_protocol::control::Role;
use throughline_protocol::sync::choice::Rank;
use throughline_protocol::testing::{self, SessionBuilder};
use throughline_store::{Pin, PinDepth, SetPin};

use super::testbench::*;
use super::*;
use crate::core::now;

const LIARS: usize = 16;

/// A server that tells a head above all others and shows nothing of it.
async fn liar(asker: &TestNode, real: &SessionBuilder, nth: usize, below: Principal) -> Liar {
    let mut told = real.clone().branch(&format!("lie {nth}"));
    let server = told.server1.clone();
    for _ in 0..=nth {
        told.user(&server, "more");
    }
    let nothing: Lie = Arc::new(|_| Script { frames: Vec::new(), then: Then::End });
    let liar = Liar::start_below(&told, nothing, below).await;
    asker.network.compare_with(&liar.ticket().await).await.unwrap();
    liar
}

/// An asker, sixteen strangers that lie, and one honest node that the asker knows by name: 18 nodes.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_liars_keep_no_named_peer_from_being_asked_and_their_claims_are_said_to_be_claims() {
    in_time(async {
        let real = session("the right head", 8);
        let (honest, asker) = (TestNode::start(TCP).await, TestNode::stranger(TCP).await);
        honest.take(&real);
        honest.hold(&[asker.grant(Role::Reader)]);
        asker.meet("nuc", &honest).await;
        // Their keys are all lower than the honest one, as of somebody who tried a few.
        let below = honest.network.peer_principal();
        let mut liars = Vec::new();
        for nth in 0..LIARS {
            liars.push(liar(&asker, &real, nth, below).await);
        }
        for mode in [Use::Audit, Use::Adopt] {
            let fetched = asker.network.fetch(request(real.session(), &[], mode)).await.unwrap();
            assert_eq!(fetched.told.cid, real.head().entry.cid(), "{mode:?}");
            let freshness = &fetched.freshness;
            assert_eq!(freshness.peers, Count { asked: 1, answered: 1, agree: 1 });
            assert_eq!((freshness.strangers.agree, &freshness.silent), (0, &Vec::new()));
            let claimed: Vec<_> = freshness.unshown.iter().map(|claim| claim.who.rank).collect();
            assert!(claimed.iter().all(|rank| *rank == Rank::Stranger));
            // In the second round some of them are blocked for what they did in the first.
            assert_eq!(claimed.len(), freshness.strangers.answered);
            assert!(mode == Use::Adopt || claimed.len() == LIARS, "{freshness:?}");
            let answer = fetch::answer(&asker.node, &fetched, fetch::Wanted::Referenced).unwrap();
            assert_eq!(answer["verdict"], "valid");
            assert_eq!(
                (&answer["freshness"]["peersAgree"], &answer["freshness"]["peersAsked"]),
                (&1.into(), &1.into())
            );
        }
        assert_eq!(asker.row(real.session()).unwrap().tip.cid, real.head().entry.cid());
    })
    .await;
}

/// A crowd of strangers that all tell the same is no agreement, and makes up for no peer that has to answer.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_counted_apart_and_never_as_peers() {
    in_time(async {
        let real = session("told by many", 3);
        let asker = TestNode::stranger(TCP).await;
        let honestly: Lie = Arc::new(|frames| Script { frames, then: Then::End });
        let mut crowd = Vec::new();
        for _ in 0..3 {
            let one = Liar::start(&real, Arc::clone(&honestly)).await;
            asker.network.compare_with(&one.ticket().await).await.unwrap();
            crowd.push(one);
        }
        let fetched = asker.network.fetch(request(real.session(), &[], Use::Audit)).await.unwrap();
        assert_eq!(fetched.freshness.peers, Count::default());
        assert_eq!(fetched.freshness.strangers, Count { asked: 3, answered: 3, agree: 3 });
        let demanding = FetchRequest { peers_min: 1, ..request(real.session(), &[], Use::Audit) };
        assert_eq!(asker.network.fetch(demanding).await.unwrap_err().code(), Code::Unreachable);
        // One that is named and is off is named in the report.
        let gone = {
            let other = TestNode::start(TCP).await;
            let ticket = other.ticket().await;
            other.network.stopped().await;
            ticket
        };
        peers::add(&asker.node, &peers::KnownPeer::of_ticket("old-laptop", &gone).unwrap()).unwrap();
        let fetched = asker.network.fetch(request(real.session(), &[], Use::Audit)).await.unwrap();
        assert_eq!(fetched.freshness.peers, Count { asked: 1, answered: 0, agree: 0 });
        let silent: Vec<_> = fetched.freshness.silent.iter().map(|who| who.alias.as_deref()).collect();
        assert_eq!(silent, [Some("old-laptop")]);
    })
    .await;
}

/// More strangers than are asked: those that are not are counted, here and in `status`.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_asked_is_said() {
    in_time(async {
        let real = session("many have it", 2);
        let limits = SyncLimits { peers_max: 2, ..quiet() };
        let asker = TestNode::with(TCP, None, limits, |_| {}).await;
        let honestly: Lie = Arc::new(|frames| Script { frames, then: Then::End });
        let mut crowd = Vec::new();
        for _ in 0..5 {
            let one = Liar::start(&real, Arc::clone(&honestly)).await;
            asker.network.compare_with(&one.ticket().await).await.unwrap();
            crowd.push(one);
        }
        assert_eq!(asker.node.cuts(), Vec::<Value>::new());
        let fetched = asker.network.fetch(request(real.session(), &[], Use::Audit)).await.unwrap();
        assert_eq!((fetched.freshness.strangers.asked, fetched.freshness.not_asked), (2, 3));
        let cuts = asker.node.cuts();
        assert_eq!((&cuts[0]["what"], &cuts[0]["leftOut"]), (&"providers".into(), &3.into()));
        assert_eq!(cuts[0]["names"].as_array().map(Vec::len), Some(3));
    })
    .await;
}

/// A topic that is refused ends no list: the node's own is followed, and those that are not are said.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_refused_ends_no_list() {
    in_time(async {
        // Its own owner's key is the highest of all, so that it would be the last.
        let names = (0..64).map(|nth| format!("owner {nth}"));
        let own = names.map(|name| testing::key(&name).principal()).max().unwrap();
        let node = TestNode::with(TCP, Some(own), quiet(), |config| config.limits.topics_max = 1).await;
        let kept = session("kept of somebody else", 1);
        node.take(&kept);
        let (session, at) = (kept.session(), now());
        let pin = Some(Pin { depth: PinDepth::Entries, since: at });
        node.node.store().run(SetPin { session, pin, at }).unwrap();
        let peer = TestNode::start(TCP).await;
        peer.meet("node", &node).await;
        node.network.compare_with(&peer.ticket().await).await.unwrap();
        let cut = || node.node.cuts().into_iter().find(|cut| cut["what"] == "topics");
        node.until_met(|_| cut().is_some()).await;
        assert_eq!(cut().unwrap()["names"], serde_json::json!([owner().to_string()]));
    })
    .await;
}
