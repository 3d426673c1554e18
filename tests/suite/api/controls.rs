//! Grants, revocations and anchors, and whether a preview of a revocation tells what then happens.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use throughline_protocol::control::Role;
use throughline_protocol::entry::Authority;
use throughline_protocol::id::Cid;
use throughline_protocol::sign::SigningKey;
use throughline_protocol::testing::key;

use super::home::{Home, code, of, says};

#[tokio::test(flavor = "multi_thread")]
async fn grants_are_listed_with_their_state() {
    let home = Home::new().await;
    let server = key("server1").principal();
    let capability = home.grant(server, Role::Writer).await;
    let listed = home.get(&format!("/v1/capabilities?delegate={server}")).await.unwrap();
    assert_eq!(
        (listed["items"].as_array().unwrap().len(), &listed["items"][0]["state"]),
        (1, &json!("active"))
    );
    let revoked = home.revoke(capability).await;
    let listed = home.get(&format!("/v1/capabilities?delegate={server}&state=revoked")).await.unwrap();
    assert_eq!(listed["items"][0]["tombstone"], revoked["cid"]);
    assert_eq!(listed["items"][0]["cid"], json!(capability.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_blob_is_checked_before_it_is_kept() {
    let home = Home::new().await;
    let signed = home.capability(key("server1").principal(), Role::Writer);
    let before = home.node.reader().unwrap().stats().unwrap();
    let mut broken = signed.bytes().to_vec();
    let at = broken.windows(3).position(|window| window == b"sig").unwrap() + 10;
    broken[at] ^= 1;
    let refused = home.send("/v1/capabilities", "application/cbor", broken).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_SIG");
    let refused = home.send("/v1/tombstones", "application/cbor", signed.bytes().to_vec()).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_TYPE");
    let tried =
        home.send("/v1/capabilities?dryRun=1", "application/cbor", signed.bytes().to_vec()).await.unwrap();
    assert_eq!(tried["unchanged"], false);
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), before);
    let kept = home.send("/v1/capabilities", "application/cbor", signed.bytes().to_vec()).await.unwrap();
    let again = home.send("/v1/capabilities", "application/cbor", signed.bytes().to_vec()).await.unwrap();
    assert_eq!((&kept["unchanged"], &again["unchanged"]), (&json!(false), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_without_an_anchor_is_cut_and_comes_back() {
    let home = Home::new().await;
    let contributor = key("contributor");
    let (session, _) = home.session("hello").await;
    let capability = home.grant(contributor.principal(), Role::Contributor).await;
    let authority = Some(Authority { space: home.owner.principal(), capability });
    let (entry, payload) = home.message(&session, &contributor, authority, says("unanchored")).await;
    assert_eq!(home.post_signed(&session, &entry, Some(&payload), &[]).await.0, 201);
    let revoked = home.revoke(capability).await;
    assert_eq!(revoked["sessions"], json!([{"session": session, "from": "valid", "to": "revoked-tail"}]));
    assert_eq!(home.verdict(&session).await, "revoked-tail");
    let shown = home.get(&format!("/v1/sessions/{session}/entries/{}", entry.cid())).await.unwrap();
    assert_eq!(shown["status"], "revoked");
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 1);
    // Anchors only add, whenever they arrive: the owner keeps the tail after all.
    let facts = json!({"head": {"cid": entry.cid().to_string()}, "epoch": 0});
    let anchored = home.anchor(&session, &facts).await.unwrap();
    assert_eq!(anchored["sessions"], json!([{"session": session, "from": "revoked-tail", "to": "valid"}]));
    assert_eq!(home.verdict(&session).await, "valid");
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_anchor_says_how_deep() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let first = home.append(&session, &head, "one").await;
    let facts = home.get(&format!("/v1/sessions/{session}/anchor")).await.unwrap();
    assert_eq!((&facts["head"]["cid"], &facts["anchoredThrough"]), (&json!(first), &Value::Null));
    home.anchor(&session, &facts).await.unwrap();
    let next = home.append(&session, &first, "two").await;
    home.append(&session, &next, "three").await;
    // What was anchored stays anchored, although the chain's own state never saw the Ref.
    let verified = home.get(&format!("/v1/sessions/{session}/verify")).await.unwrap();
    assert_eq!(verified["anchoredThrough"]["seq"], 2);
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["anchoredThrough"], 2);
    // An older head may be anchored too; one that is nowhere may not.
    let facts = json!({"head": {"cid": next}, "epoch": 0});
    home.anchor(&session, &facts).await.unwrap();
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["anchoredThrough"], 3);
    let nowhere = throughline_protocol::id::EntryCid::of(b"nowhere").to_string();
    let refused = home.anchor(&session, &json!({"head": {"cid": nowhere}, "epoch": 0})).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_INCOMPLETE");
    let refused = home.anchor(&session, &json!({"head": {"cid": next}, "epoch": 3})).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_REF_MISMATCH");
}

/// Who wrote the next entry of a small session.
#[derive(Clone, Copy, Debug)]
enum Step {
    Node,
    Owner,
    Device,
    Contributor,
    /// The owner anchors the tip.
    Anchor,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Node),
        1 => Just(Step::Owner),
        1 => Just(Step::Device),
        4 => Just(Step::Contributor),
        1 => Just(Step::Anchor),
    ]
}

/// Whom the owner revokes, and whether it anchors first.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Node,
    Device,
    Contributor,
}

/// Parties of a session beside the node.
struct Cast {
    device: (SigningKey, Cid),
    contributor: (SigningKey, Cid),
}

impl Cast {
    async fn of(home: &Home) -> Self {
        let (device, contributor) = (key("device"), key("contributor"));
        let for_device = home.grant(device.principal(), Role::Agent).await;
        let for_contributor = home.grant(contributor.principal(), Role::Contributor).await;
        Cast { device: (device, for_device), contributor: (contributor, for_contributor) }
    }
}

async fn play(home: &Home, cast: &Cast, session: &str, steps: &[Step]) {
    for (at, step) in steps.iter().enumerate() {
        let text = format!("{at}");
        let space = home.owner.principal();
        let (signer, authority) = match step {
            Step::Node => {
                let base = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
                home.append(session, &of(&base, "prev"), &text).await;
                continue;
            }
            Step::Anchor => {
                let facts = home.get(&format!("/v1/sessions/{session}/anchor")).await.unwrap();
                home.anchor(session, &facts).await.unwrap();
                continue;
            }
            Step::Owner => (&home.owner, None),
            Step::Device => (&cast.device.0, Some(Authority { space, capability: cast.device.1 })),
            Step::Contributor => {
                (&cast.contributor.0, Some(Authority { space, capability: cast.contributor.1 }))
            }
        };
        let (entry, payload) = home.message(session, signer, authority, says(&text)).await;
        let (status, answer) = home.post_signed(session, &entry, Some(&payload), &[]).await;
        assert_eq!(status, 201, "{answer}");
    }
}

#[test]
fn a_preview_tells_what_then_happens() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let gone = prop_oneof![Just(Gone::Node), Just(Gone::Device), Just(Gone::Contributor)];
    let strategy = (prop::collection::vec(step(), 0..9), gone, any::<bool>());
    runner
        .run(&strategy, |(steps, gone, anchors)| {
            runtime.block_on(preview_holds(&steps, gone, anchors));
            Ok(())
        })
        .unwrap();
}

async fn preview_holds(steps: &[Step], gone: Gone, anchors: bool) {
    let home = Home::bare().await;
    let node = home.grant(home.node.principal(), Role::Writer).await;
    let cast = Cast::of(&home).await;
    let (session, _) = home.session("small").await;
    play(&home, &cast, &session, steps).await;
    let capability = match gone {
        Gone::Node => node,
        Gone::Device => cast.device.1,
        Gone::Contributor => cast.contributor.1,
    };
    let stats = home.node.reader().unwrap().stats().unwrap();
    let preview =
        home.post("/v1/tombstones/preview", &json!({"capability": capability.to_string()})).await.unwrap();
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), stats, "a preview stores nothing");
    let before = home.get(&format!("/v1/sessions/{session}")).await.unwrap();
    let told = preview["sessions"].as_array().unwrap().first().cloned();
    if anchors && let Some(told) = &told {
        home.anchor(&session, &told["anchor"]).await.unwrap();
    }
    home.revoke(capability).await;
    home.verdict(&session).await;
    let after = home.get(&format!("/v1/sessions/{session}")).await.unwrap();
    let Some(told) = told else {
        assert_eq!(after["tip"], before["tip"], "{steps:?} {gone:?}: it never wrote here");
        return;
    };
    let (kept, cut) = if anchors {
        (told["keptThrough"]["seq"].clone(), told["cutEntries"].as_u64().unwrap())
    } else {
        (told["anchoredBefore"].clone(), told["cutWithoutAnchor"].as_u64().unwrap())
    };
    let context = format!("{steps:?} {gone:?} anchors {anchors}\n{told}\n{after}");
    let tip = before["tip"]["seq"].as_u64().unwrap();
    if kept.is_null() {
        // The genesis itself does not count any more: nothing moves, and nothing is valid.
        assert_eq!(cut, tip + 1, "{context}");
        assert_eq!(after["verdict"], "revoked-tail", "{context}");
        return;
    }
    assert_eq!(kept, after["tip"]["seq"], "{context}");
    assert_eq!(cut, tip - after["tip"]["seq"].as_u64().unwrap(), "{context}");
    assert_eq!(after["verdict"], if cut == 0 { "valid" } else { "revoked-tail" }, "{context}");
    assert_eq!(told["holder"], matches!(gone, Gone::Node), "{context}");
    assert_eq!(preview["stillHolder"].as_array().unwrap().len(), usize::from(matches!(gone, Gone::Node)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_of_nobody_is_refused() {
    let home = Home::new().await;
    let stranger = key("stranger").principal().to_string();
    let refused = home.post("/v1/tombstones/preview", &json!({"delegate": stranger})).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_CAP_MISSING");
    let (status, refused) =
        home.told(throughline_node::api::client::Call::post("/v1/tombstones/preview", &json!({}))).await;
    assert_eq!((status, code(&refused)), (400, "E_API_BODY"));
}
