//! Evidence at a node: made, kept, copied, taken from others, and judged again whatever comes when.

use std::sync::Arc;

use axum::http::Method;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use throughline_node::api::client::Call;
use throughline_protocol::block::Signed;
use throughline_protocol::control::Control;
use throughline_protocol::testing::{Built, Reach, SessionBuilder};
use throughline_store::{Change, EventPage};

use super::home::{Home, code};

const CAR: &str = "application/vnd.ipld.car";

/// A message, an answer, and then two histories by one key.
fn forked(label: &str) -> (SessionBuilder, SessionBuilder) {
    let mut one = SessionBuilder::new(label);
    let (owner, server) = (Arc::clone(&one.owner), Arc::clone(&one.server1));
    one.user(&owner, "clean up");
    one.response(&server, "what exactly?", &[]);
    let mut other = one.clone().branch("other");
    one.response(&server, "now delete the staging bucket", &[]);
    other.response(&server, "now list the staging bucket", &[]);
    (one, other)
}

async fn evidence(home: &Home, session: &str) -> Vec<Value> {
    let listed = home.get(&format!("/v1/sessions/{session}/evidence")).await.unwrap();
    listed["items"].as_array().unwrap().clone()
}

async fn file(home: &Home, session: &str, item: &Value) -> Vec<u8> {
    let path = format!("/v1/sessions/{session}/evidence/{}", item["id"].as_str().unwrap());
    home.client.fetch(Call::get(&path).header("accept", CAR)).await.unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_shown_with_the_words_of_both_sides_and_kept_as_a_file() {
    let (one, other) = forked("shown");
    let session = one.session().to_string();
    let home = Home::bare().await;
    home.take_in(&one, one.entries()).unwrap();
    home.take_in(&other, &other.entries()[3..]).unwrap();
    let shown = home.get(&format!("/v1/sessions/{session}/fork")).await.unwrap();
    assert_eq!((&shown["verdict"], &shown["at"]["seq"]), (&json!("forked"), &json!(2)), "{shown}");
    let mut said: Vec<&str> = shown["branches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| b["differs"]["text"].as_str().unwrap())
        .collect();
    said.sort_unstable();
    assert_eq!(said, ["delete the staging bucket", "list the staging bucket"], "{shown}");
    // The file and its copy are the same bytes, and anybody's `verify` says so.
    let items = evidence(&home, &session).await;
    assert_eq!((items.len(), &items[0]["shows"]), (1, &json!("equivocation")), "{items:?}");
    let bytes = file(&home, &session, &items[0]).await;
    assert_eq!(std::fs::read(items[0]["path"].as_str().unwrap()).unwrap(), bytes);
    let stranger = Home::bare().await;
    let verified = stranger.send("/v1/verify", CAR, bytes.clone()).await.unwrap();
    assert_eq!((&verified["verdict"], &verified["evidence"]["id"]), (&json!("forked"), &items[0]["id"]));
    let refused = stranger.send("/v1/car", CAR, bytes).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_CAR_ROOT");
    // Both branches' words are here; what selection left aside is not lost.
    for head in [one.head(), other.head()] {
        let entry = home.get(&format!("/v1/sessions/{session}/entries/{}", head.entry.cid())).await.unwrap();
        assert_eq!(entry["payload"], "present", "{entry}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_of_a_friend_changes_the_verdict_when_its_place_is_known() {
    let (one, other) = forked("friend");
    let session = one.session().to_string();
    let witness = Home::bare().await;
    witness.take_in(&one, one.entries()).unwrap();
    witness.take_in(&other, &other.entries()[3..]).unwrap();
    let items = evidence(&witness, &session).await;
    let bytes = file(&witness, &session, &items[0]).await;

    let home = Home::bare().await;
    let dry = home.send("/v1/evidence?dryRun=1", CAR, bytes.clone()).await.unwrap();
    assert_eq!((&dry["stored"], &dry["verdict"]), (&json!(false), &Value::Null), "{dry}");
    // It comes before the session: it is kept, and speaks up when the chain reaches its place.
    let early = home.send("/v1/evidence", CAR, bytes.clone()).await.unwrap();
    assert_eq!((&early["unchanged"], &early["from"]), (&json!(false), &Value::Null), "{early}");
    home.take_in(&one, &one.entries()[..1]).unwrap();
    assert_eq!(home.verdict(&session).await, "valid");
    // The file holds where they part, and all above: the entry below that is what it waits for.
    home.take_in(&one, &one.entries()[1..2]).unwrap();
    assert_eq!(home.verdict(&session).await, "forked");
    let again = home.send("/v1/evidence", CAR, bytes.clone()).await.unwrap();
    assert_eq!((&again["unchanged"], &again["verdict"]), (&json!(true), &json!("forked")), "{again}");
    // It survives the process.
    let home = home.reopened();
    assert_eq!(home.verdict(&session).await, "forked");
    assert_eq!(file(&home, &session, &evidence(&home, &session).await[0]).await, bytes);

    let late = Home::bare().await;
    late.take_in(&one, one.entries()).unwrap();
    let told = late.send("/v1/evidence", CAR, bytes.clone()).await.unwrap();
    assert_eq!((&told["from"], &told["verdict"]), (&json!("valid"), &json!("forked")), "{told}");
    // What is damaged, or shows nothing, is refused and leaves nothing.
    let mut damaged = bytes;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let call = Call::body(Method::POST, "/v1/evidence", CAR, damaged);
    let (status, refused) = Home::bare().await.told(call).await;
    assert_eq!((status, code(&refused)), (422, "E_CID_MISMATCH"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_accusation_is_one_event_and_a_verdict_that_changes_is_one() {
    let (one, other) = forked("events");
    let home = Home::bare().await;
    home.take_in(&one, one.entries()).unwrap();
    home.take_in(&other, &other.entries()[3..]).unwrap();
    let mut more = other.clone();
    let server = Arc::clone(&more.server1);
    more.response(&server, "and on", &[]);
    home.take_in(&more, &more.entries()[4..]).unwrap();
    let reader = home.node.reader().unwrap();
    let EventPage::Events(events) = reader.events_since(0, 1_000).unwrap() else {
        panic!("the log is whole")
    };
    let positions = |wanted: fn(&Change) -> bool| -> Vec<usize> {
        events.iter().enumerate().filter(|(_, event)| wanted(&event.change)).map(|(at, _)| at).collect()
    };
    let shown = positions(|change| matches!(change, Change::Evidence { .. }));
    let told = positions(|change| matches!(change, Change::Verdict { to, .. } if to == "forked"));
    let ([shown], [told]) = (&shown[..], &told[..]) else { panic!("expected one each: {shown:?} {told:?}") };
    assert!(shown < told, "whoever hears of the verdict finds what shows it");
}

/// What arrives at once: entries of one history, or a control blob.
#[derive(Clone, Debug)]
enum Parcel {
    Entries(Vec<Built>),
    Control(Box<Signed<Control>>),
}

/// A session that forks, is handed over, revoked and anchored, or not: as parcels that may come in any order, a history's own
/// in theirs.
fn story([forks, hands_over, revokes, anchors]: [bool; 4]) -> (SessionBuilder, Vec<Vec<Parcel>>) {
    let (mut one, mut other) = forked("any order");
    let (owner, server, next) = (Arc::clone(&one.owner), Arc::clone(&one.server1), Arc::clone(&one.server2));
    one.response(&server, "and more", &[]);
    other.user(&owner, "who is that?");
    if hands_over {
        one.handoff(Some(&next));
        one.response(&next, "carrying on", &[]);
    }
    let mut parcels = vec![vec![
        Parcel::Entries(one.entries()[..3].to_vec()),
        Parcel::Entries(one.entries()[3..4].to_vec()),
        Parcel::Entries(one.entries()[4..].to_vec()),
    ]];
    if forks {
        parcels.push(vec![
            Parcel::Entries(other.entries()[3..4].to_vec()),
            Parcel::Entries(other.entries()[4..].to_vec()),
        ]);
    }
    if anchors {
        parcels.push(vec![Parcel::Control(Box::new(one.reference(&owner, 3, Reach::Anchors)))]);
    }
    if revokes {
        let granted = server.capability.clone().unwrap();
        parcels.push(vec![Parcel::Control(Box::new(one.tombstone(&granted, Vec::new())))]);
    }
    (one, parcels)
}

/// Hands the parcels over in an order that keeps each list's own; the genesis comes first, or nothing can be held.
fn deliver(home: &Home, builder: &SessionBuilder, mut parcels: Vec<Vec<Parcel>>, picks: &[usize]) {
    let grants = SessionBuilder::new("any order");
    let first = parcels[0].remove(0);
    let Parcel::Entries(entries) = first else { panic!("the genesis comes first") };
    home.take_in(&grants, &entries).unwrap();
    let mut picks = picks.iter().cycle();
    while parcels.iter().any(|parcels| !parcels.is_empty()) {
        parcels.retain(|parcels| !parcels.is_empty());
        let at = picks.next().unwrap() % parcels.len();
        match parcels[at].remove(0) {
            Parcel::Entries(entries) => {
                let bare = throughline_node::core::Arrived {
                    entries: entries.iter().map(super::home::checked).collect(),
                    ..Default::default()
                };
                let evaluated = home.node.take_in(builder.session(), bare).unwrap();
                assert_eq!(evaluated.refused, None);
            }
            Parcel::Control(control) => {
                home.node.take_controls(vec![*control]).unwrap();
            }
        }
    }
}

/// The verdict and every file of evidence.
async fn outcome(home: &Home, session: &str) -> (String, Vec<Vec<u8>>) {
    let verdict = home.verdict(session).await;
    let mut files = Vec::new();
    for item in evidence(home, session).await {
        files.push(file(home, session, &item).await);
    }
    (verdict, files)
}

#[test]
fn any_order_of_arrival_gives_the_same_verdict_and_the_same_evidence() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let case =
        (any::<[bool; 4]>(), prop::collection::vec(0..4_usize, 8), prop::collection::vec(0..4_usize, 8));
    let mut runner = TestRunner::new(Config { cases: 24, ..Config::default() });
    let run = |(happens, one, other): ([bool; 4], Vec<usize>, Vec<usize>)| {
        runtime.block_on(async {
            let (builder, parcels) = story(happens);
            let session = builder.session().to_string();
            let (left, right) = (Home::bare().await, Home::bare().await);
            deliver(&left, &builder, parcels.clone(), &one);
            deliver(&right, &builder, parcels, &other);
            prop_assert_eq!(outcome(&left, &session).await, outcome(&right, &session).await);
            Ok(())
        })
    };
    runner.run(&case, run).unwrap();
}
