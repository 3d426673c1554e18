//! Appends that arrive signed: by the owner, a device, a contributor.

use serde_json::json;
use throughline_protocol::build::sign;
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Authority, Entry};
use throughline_protocol::payload::UserWords;
use throughline_protocol::testing::key;

use super::home::{Home, code, message_on, of, response, says};

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_says_something() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let (entry, payload) = home.message(&session, &home.owner, None, says("mine")).await;
    let (status, answer) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    assert_eq!((status, &answer["head"]["cid"]), (201, &json!(entry.cid().to_string())), "{answer}");
    let shown = home.get(&format!("/v1/sessions/{session}")).await.unwrap();
    assert_eq!(
        (&shown["pending"], &shown["head"]["seq"], &shown["tip"]["seq"]),
        (&json!(1), &json!(1), &json!(2))
    );
    // The holder's next entry takes it in.
    home.append(&session, &entry.cid().to_string(), "answered").await;
    let shown = home.get(&format!("/v1/sessions/{session}")).await.unwrap();
    assert_eq!((&shown["pending"], &shown["anchoredThrough"]), (&json!(0), &json!(2)));
    assert_eq!(home.verdict(&session).await, "valid");
    // The same bytes again.
    let (status, again) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    assert_eq!((status, &again["replayed"], &again["head"]["seq"]), (200, &json!(true), &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contributor_writes_under_a_grant_that_it_brings() {
    let home = Home::new().await;
    let contributor = key("contributor");
    let (session, head) = home.session("hello").await;
    let grant = home.capability(contributor.principal(), Role::Contributor);
    let authority = Authority { space: home.owner.principal(), capability: grant.cid().cid() };
    let (entry, payload) = home.message(&session, &contributor, Some(authority), says("me too")).await;

    let (status, refused) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    assert_eq!((status, code(&refused)), (404, "E_INCOMPLETE"), "the grant is not known yet");
    let path_dry = format!("/v1/sessions/{session}");
    let before = home.get(&path_dry).await.unwrap();
    let (status, answer) = home.post_signed(&session, &entry, Some(&payload), &[&grant]).await;
    assert_eq!(status, 201, "{answer}");
    assert_eq!(before["tip"]["seq"], 1);
    assert_eq!(
        home.get("/v1/capabilities?state=active").await.unwrap()["items"].as_array().unwrap().len(),
        3
    );

    // Signed on an older head: a conflict with what came between, and nothing is stored.
    let base = json!({
        "genesis": session, "prev": head, "seq": 2, "epoch": 0, "skip": null, "notBeforeMs": 0,
    });
    let (late, payload) = message_on(&base, &contributor, Some(authority), says("late"));
    let (status, conflict) = home.post_signed(&session, &late, Some(&payload), &[]).await;
    assert_eq!((status, code(&conflict)), (409, "E_HEAD_MOVED"));
    assert_eq!(conflict["between"][0]["cid"], json!(entry.cid().to_string()));
    let (again, payload) = message_on(&conflict["signingBase"], &contributor, Some(authority), says("late"));
    assert_eq!(home.post_signed(&session, &again, Some(&payload), &[]).await.0, 201);
    assert_eq!(home.verdict(&session).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_of_others_are_not_stored() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let (entry, payload) = home.message(&session, &home.owner, None, says("mine")).await;
    let foreign = throughline_protocol::testing::capability(
        &key("stranger"),
        home.node.principal(),
        Role::Writer,
        None,
    );
    let before = home.node.reader().unwrap().stats().unwrap();
    let (status, refused) = home.post_signed(&session, &entry, Some(&payload), &[&foreign]).await;
    assert_eq!((status, code(&refused)), (403, "E_CAP_ISSUER"));
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_key_is_not_put_in_order() {
    let home = Home::new().await;
    let contributor = key("contributor");
    let (session, _) = home.session("hello").await;
    let capability = home.grant(contributor.principal(), Role::Contributor).await;
    let authority = Authority { space: home.owner.principal(), capability };
    home.revoke(capability).await;
    // In the chain it would be; the next entry of the holder would anchor it for ever.
    let (entry, payload) = home.message(&session, &contributor, Some(authority), says("still here")).await;
    let (status, refused) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    assert_eq!((status, code(&refused)), (403, "E_REVOKED"));
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_message_is_one_entry() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let words = || UserWords { client_message_id: Some("m-77".to_owned()), ..says("once") };
    let (entry, payload) = home.message(&session, &home.owner, None, words()).await;
    let (_, first) = home.post_signed(&session, &entry, Some(&payload), &[]).await;
    home.append(&session, &entry.cid().to_string(), "seen").await;
    // The answer was lost; the desktop signs the text again on the new head.
    let (again, payload) = home.message(&session, &home.owner, None, words()).await;
    assert_ne!(again.cid(), entry.cid());
    let (status, same) = home.post_signed(&session, &again, Some(&payload), &[]).await;
    assert_eq!((status, &same["replayed"], &same["head"]), (200, &json!(true), &first["head"]));
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 3);
    // Another signer may use the same id.
    let contributor = key("contributor");
    let capability = home.grant(contributor.principal(), Role::Contributor).await;
    let authority = Some(Authority { space: home.owner.principal(), capability });
    let (other, payload) = home.message(&session, &contributor, authority, words()).await;
    assert_eq!(home.post_signed(&session, &other, Some(&payload), &[]).await.0, 201);
}

/// Dropping the words of one of two such entries would drop those of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_an_earlier_entry_names_is_refused() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let (first, payload) = home.message(&session, &home.owner, None, says("mine")).await;
    assert_eq!(home.post_signed(&session, &first, Some(&payload), &[]).await.0, 201);
    home.append(&session, &first.cid().to_string(), "answered").await;
    let again = |base: &serde_json::Value| {
        let named = first.value().payload;
        let place = Some(super::home::place(base));
        let entry =
            Entry { ts: throughline_node::core::now(), place, payload: named, ..first.value().clone() };
        sign(entry, &home.owner).unwrap()
    };
    let base = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
    let second = again(&base);
    // With the words and without: the name is what counts.
    for words in [Some(payload.as_slice()), None] {
        let (status, refused) = home.post_signed(&session, &second, words, &[]).await;
        assert_eq!((status, code(&refused)), (422, "E_SCHEMA_EXCLUSIVE"), "{refused}");
        assert_eq!(refused["namedBy"], 2, "{refused}");
    }
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 3);
    // The first entry again is the first entry, and the payload may be named in another session.
    let (status, same) = home.post_signed(&session, &first, Some(&payload), &[]).await;
    assert_eq!((status, &same["replayed"]), (200, &json!(true)));
    let (other, _) = home.session("other").await;
    let base = home.get(&format!("/v1/sessions/{other}/base")).await.unwrap();
    let (status, answer) = home.post_signed(&other, &again(&base), Some(&payload), &[]).await;
    assert_eq!(status, 201, "{answer}");
    // A file of the same bytes is another thing than their payload.
    let (third, payload) = home.message(&session, &home.owner, None, says("attached before")).await;
    home.send("/v1/blobs", "application/octet-stream", payload.clone()).await.unwrap();
    assert_eq!(home.post_signed(&session, &third, Some(&payload), &[]).await.0, 201);
    assert_eq!(home.verdict(&session).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_signed_entry_is_said() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let (other, _) = home.session("other").await;
    let (entry, payload) = home.message(&session, &home.owner, None, says("mine")).await;
    let (status, refused) = home.post_signed(&other, &entry, Some(&payload), &[]).await;
    assert_eq!((status, code(&refused)), (422, "E_SESSION_MISMATCH"));
    let (_, wrong) = home.message(&session, &home.owner, None, says("ours")).await;
    let (status, refused) = home.post_signed(&session, &entry, Some(&wrong), &[]).await;
    assert_eq!((status, code(&refused)), (422, "E_CID_MISMATCH"));
    let stranger = key("stranger");
    let (forged, payload) = home.message(&session, &stranger, None, says("let me in")).await;
    let (status, refused) = home.post_signed(&session, &forged, Some(&payload), &[]).await;
    assert_eq!((status, code(&refused)), (403, "E_CAP_MISSING"), "{refused}");
    // Ahead of the clock by more than five minutes.
    let mut base = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
    base["notBeforeMs"] = (throughline_node::core::now().get() + 600_000).into();
    let (future, payload) = message_on(&base, &home.owner, None, says("from the future"));
    let (_, refused) = home.post_signed(&session, &future, Some(&payload), &[]).await;
    assert_eq!(code(&refused), "W_FUTURE");
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_ends_what_this_node_may_do() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let server = key("server2").principal();
    home.grant(server, Role::Writer).await;
    let handoff = home.handoff(&session, Some(server)).await;
    let (status, answer) = home.post_signed(&session, &handoff, None, &[]).await;
    assert_eq!((status, &answer["epoch"], &answer["verdict"]), (201, &json!(1), &json!("valid")), "{answer}");
    let body = json!({"base": handoff.cid().to_string(), "entry": response("too late")});
    let (status, refused) = home.post_as(&format!("/v1/sessions/{session}/entries"), "k", &body).await;
    assert_eq!((status, code(&refused)), (409, "E_RETIRED"));
    let (status, again) = home.post_signed(&session, &handoff, None, &[]).await;
    assert_eq!((status, &again["replayed"]), (200, &json!(true)));
    // Back to this node: it may sign again, with a guard row.
    let back = home.handoff(&session, Some(home.node.principal())).await;
    let (status, answer) = home.post_signed(&session, &back, None, &[]).await;
    assert_eq!(status, 201, "{answer}");
    home.append(&session, &back.cid().to_string(), "back").await;
    assert_eq!(home.verdict(&session).await, "valid");
    assert_ne!(head, back.cid().to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_opening_that_breaks_a_rule_is_refused() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let mut base = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
    base["seq"] = 7.into();
    let place = super::home::place(&base);
    let entry = throughline_protocol::entry::Entry {
        ts: throughline_node::core::now(),
        signer: home.owner.principal(),
        authority: None,
        place: Some(throughline_protocol::entry::Place { epoch: place.epoch.next(), ..place }),
        body: throughline_protocol::entry::Body::Handoff(throughline_protocol::entry::Handoff::default()),
        payload: None,
        ext: None,
    };
    let signed = throughline_protocol::build::sign(entry, &home.owner).unwrap();
    let (status, refused) = home.post_signed(&session, &signed, None, &[]).await;
    assert_eq!((status, code(&refused)), (422, "E_SEQ"));
    assert_eq!(of(&home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"], "cid"), head);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_openings_of_one_epoch_freeze_the_session() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let (one, two) = (key("server1").principal(), key("server2").principal());
    let first = home.handoff(&session, Some(one)).await;
    let second = home.handoff(&session, Some(two)).await;
    assert_eq!(home.post_signed(&session, &first, None, &[]).await.0, 201);
    let (status, answer) = home.post_signed(&session, &second, None, &[]).await;
    assert_eq!((status, &answer["verdict"]), (201, &json!("frozen")), "{answer}");
    assert_eq!(home.verdict(&session).await, "frozen");
    // It is evidence, and is shown as such under its CID.
    let shown = home.get(&format!("/v1/sessions/{session}/entries/{}", second.cid())).await.unwrap();
    assert_eq!(shown["status"], "forked");
    let (status, again) = home.post_signed(&session, &second, None, &[]).await;
    assert_eq!((status, &again["replayed"], &again["verdict"]), (200, &json!(true), &json!("frozen")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_of_a_handoff_changes_nothing() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let handoff = home.handoff(&session, None).await;
    let frame = throughline_protocol::wire::append::AppendRequest {
        credentials: throughline_protocol::wire::Credentials::default(),
        entry: std::sync::Arc::clone(handoff.bytes()),
        payload: None,
    };
    let before = home.node.reader().unwrap().stats().unwrap();
    let body = throughline_protocol::wire::Message::encode_body(&frame);
    let path = format!("/v1/sessions/{session}/entries?dryRun=1");
    let answer = home.send(&path, "application/cbor", body).await.unwrap();
    assert_eq!(
        (&answer["durable"], &answer["verdict"], &answer["epoch"]),
        (&json!(false), &json!("valid"), &json!(1))
    );
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), before);
}
