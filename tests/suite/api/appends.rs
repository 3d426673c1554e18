//! Appends by JSON: the node signs as holder.

use serde_json::{Value, json};
use throughline_node::api::client::Call;
use throughline_protocol::control::Role;

use super::home::{Home, code, of, response, trigger};

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_is_appended_and_survives() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let path = format!("/v1/sessions/{session}/entries");
    let body = json!({"base": head, "entry": response("hi")});
    let reply = home.client.send(Call::post(&path, &body).header("idempotency-key", "k1")).await.unwrap();
    assert_eq!(reply.status, 201);
    let tag = reply.headers.get("etag").unwrap().to_str().unwrap().to_owned();
    let answer: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
    assert_eq!(answer["head"]["seq"], 2);
    assert_eq!((&answer["durable"], &answer["replayed"]), (&json!(true), &json!(false)));
    assert_eq!(answer["entries"][0]["type"], "SessionModelResponse");
    assert_eq!(tag, format!("\"{}\"", of(&answer["head"], "cid")));
    assert_eq!(home.verdict(&session).await, "valid");

    let home = home.reopened();
    let shown = home.get(&format!("{path}/head")).await.unwrap();
    assert_eq!(shown["cid"], answer["head"]["cid"]);
    assert_eq!(shown["entry"]["content"][0]["text"], "hi");
    assert_eq!((&shown["status"], &shown["role"]), (&json!("valid"), &json!("holder")));
    // The guard row came back with it: the node may go on.
    home.append(&session, &of(&shown, "cid"), "and on").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_gives_the_first_answer_and_another_body_is_refused() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let path = format!("/v1/sessions/{session}/entries");
    let body = json!({"base": head, "entry": response("once")});
    let (first, made) = home.post_as(&path, "k1", &body).await;
    let (again, same) = home.post_as(&path, "k1", &body).await;
    assert_eq!((first, again), (201, 200));
    assert_eq!(same["entries"], made["entries"]);
    assert_eq!((&same["replayed"], &same["head"]), (&json!(true), &made["head"]));
    let other = json!({"base": head, "entry": response("twice")});
    let (status, refused) = home.post_as(&path, "k1", &other).await;
    assert_eq!((status, code(&refused)), (422, "E_IDEMPOTENCY"));
    // By the name that the caller gave it.
    assert_eq!(refused["detail"], "key `k1` stands for another request");
    for (key, body, other) in [
        ("draft", json!({"title": "draft"}), json!({"title": "another"})),
        ("first", json!({"firstEntry": trigger("a")}), json!({"firstEntry": trigger("b")})),
    ] {
        assert_eq!(home.post_as("/v1/sessions", key, &body).await.0, 201);
        let (status, refused) = home.post_as("/v1/sessions", key, &other).await;
        assert_eq!((status, code(&refused)), (422, "E_IDEMPOTENCY"));
        assert_eq!(refused["detail"], format!("key `{key}` stands for another request"));
    }
    // The same text under another session is another key, and what was refused left nothing.
    let (second, head) = home.session("another").await;
    let body = json!({"base": head, "entry": response("once")});
    assert_eq!(home.post_as(&format!("/v1/sessions/{second}/entries"), "k1", &body).await.0, 201);
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_base_is_told_what_to_sign_on() {
    let home = Home::new().await;
    let (session, old) = home.session("hello").await;
    let first = home.append(&session, &old, "one").await;
    let head = home.append(&session, &first, "two").await;
    let body = json!({"base": old, "entry": response("late")});
    let (status, refused) = home.post_as(&format!("/v1/sessions/{session}/entries"), "k", &body).await;
    assert_eq!((status, code(&refused)), (409, "E_HEAD_MOVED"));
    assert_eq!(refused["head"]["cid"], json!(head));
    assert_eq!(refused["signingBase"]["prev"], json!(head));
    assert_eq!(refused["signingBase"], home.get(&format!("/v1/sessions/{session}/base")).await.unwrap());
    assert_eq!((&refused["base"]["cid"], &refused["base"]["seq"]), (&json!(old), &json!(1)));
    let between: Vec<&str> =
        refused["between"].as_array().unwrap().iter().map(|entry| entry["cid"].as_str().unwrap()).collect();
    assert_eq!(between, [first, head]);
    assert_eq!(refused["retry"], "now");
    // The same key goes on working once the base is right: nothing was remembered for a refusal.
    let body = json!({"base": refused["head"]["cid"], "entry": response("late")});
    assert_eq!(home.post_as(&format!("/v1/sessions/{session}/entries"), "k", &body).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_all_or_nothing() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let path = format!("/v1/sessions/{session}/entries");
    let unlinked = json!({"type": "SessionNote", "kind": "rewind", "to": of_nothing()});
    let body = json!({"base": head, "entries": [response("one"), trigger("two"), unlinked]});
    let before = home.node.reader().unwrap().stats().unwrap();
    let (status, refused) = home.post_as(&path, "k1", &body).await;
    assert_eq!((status, code(&refused)), (422, "E_ANCESTOR"), "{refused}");
    assert_eq!(refused["entry"], 2);
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), before);

    let body = json!({"base": head, "entries": [response("one"), trigger("two"), response("three")]});
    let (status, answer) = home.post_as(&path, "k2", &body).await;
    assert_eq!((status, answer["entries"].as_array().unwrap().len()), (201, 3));
    assert_eq!(answer["head"]["seq"], 4);
    assert_eq!(home.verdict(&session).await, "valid");
    let many: Vec<Value> = (0..257).map(|n| response(&n.to_string())).collect();
    let (status, refused) =
        home.post_as(&path, "k3", &json!({"base": answer["head"]["cid"], "entries": many})).await;
    assert_eq!((status, code(&refused)), (400, "E_API_BODY"));
}

/// A CID that nothing has.
fn of_nothing() -> String {
    throughline_protocol::id::EntryCid::of(b"nothing").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_link_what_is_far_back() {
    let home = Home::new().await;
    let (session, first) = home.session("hello").await;
    let mut head = first.clone();
    for round in 0..20 {
        head = home.append(&session, &head, &round.to_string()).await;
    }
    let body = json!({"base": head, "entry": {"type": "SessionNote", "kind": "rewind", "to": first}});
    let (status, answer) = home.post_as(&format!("/v1/sessions/{session}/entries"), "r", &body).await;
    assert_eq!(status, 201, "{answer}");
    assert_eq!(home.verdict(&session).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_lives_until_its_first_entry() {
    let home = Home::new().await;
    let stats = home.node.reader().unwrap().stats().unwrap();
    let (status, draft) = home.post_as("/v1/sessions", "d1", &json!({"title": "Draft"})).await;
    assert_eq!((status, &draft["state"], &draft["replayed"]), (201, &json!("draft"), &json!(false)));
    let session = of(&draft, "session");
    let (status, again) = home.post_as("/v1/sessions", "d1", &json!({"title": "Draft"})).await;
    assert_eq!((status, of(&again, "session")), (200, session.clone()));
    assert_eq!(again["replayed"], true);
    let (status, other) = home.post_as("/v1/sessions", "d1", &json!({"title": "Another"})).await;
    assert_eq!((status, code(&other)), (422, "E_IDEMPOTENCY"));
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["state"], "draft");
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), stats, "a draft stores nothing");

    let path = format!("/v1/sessions/{session}/entries");
    let (status, refused) =
        home.post_as(&path, "e0", &json!({"base": of_nothing(), "entry": trigger("a")})).await;
    assert_eq!((status, code(&refused)), (409, "E_HEAD_MOVED"));
    let dry = format!("{path}?dryRun=1");
    let (status, tried) = home.post_as(&dry, "e1", &json!({"entry": trigger("first")})).await;
    assert_eq!((status, &tried["durable"]), (200, &json!(false)), "{tried}");
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), stats, "a dry run stores nothing");
    let (status, answer) = home.post_as(&path, "e1", &json!({"entry": trigger("first")})).await;
    assert_eq!((status, &answer["head"]["seq"]), (201, &json!(1)), "{answer}");
    // The answer was lost: the same request again, which never had a base.
    let (status, same) = home.post_as(&path, "e1", &json!({"entry": trigger("first")})).await;
    assert_eq!((status, &same["head"]), (200, &answer["head"]));
    assert_eq!(home.verdict(&session).await, "valid");
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["title"], "Draft");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_that_is_lost_says_so() {
    let home = Home::new().await;
    let draft = home.post("/v1/sessions", &json!({})).await.unwrap();
    let session = of(&draft, "session");
    let home = home.reopened();
    let path = format!("/v1/sessions/{session}/entries");
    let (status, gone) = home.post_as(&path, "e1", &json!({"entry": trigger("first")})).await;
    assert_eq!((status, code(&gone)), (404, "E_DRAFT_GONE"));
    let (_, other) =
        home.post_as(&path, "e2", &json!({"base": of_nothing(), "entry": trigger("first")})).await;
    assert_eq!(code(&other), "E_NOT_FOUND_YET");
    assert_eq!(other["searched"]["store"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_and_its_first_entry_are_one_commit() {
    let home = Home::new().await;
    let body =
        json!({"agent": format!("hm://{}/scout", home.owner.principal()), "firstEntry": trigger("first")});
    let (status, made) = home.post_as("/v1/sessions", "s1", &body).await;
    assert_eq!((status, &made["state"], &made["head"]["seq"]), (201, &json!("active"), &json!(1)));
    let (status, same) = home.post_as("/v1/sessions", "s1", &body).await;
    assert_eq!((status, &same["session"], &same["kind"]), (200, &made["session"], &json!("session")));
    assert_eq!(home.get("/v1/sessions").await.unwrap()["items"].as_array().unwrap().len(), 1);
    // A key is what makes a repeat safe, so it is asked for.
    let refused = home.post("/v1/sessions", &body).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_API_BODY");
    // What is refused leaves no session behind.
    let bad = json!({"firstEntry": {"type": "SessionModelResponse"}});
    let (status, refused) = home.post_as("/v1/sessions", "s2", &bad).await;
    assert_eq!((status, code(&refused)), (422, "E_SCHEMA_MISSING"));
    let (status, refused) =
        home.post_as("/v1/sessions", "s3", &json!({"class": "public", "firstEntry": trigger("x")})).await;
    assert_eq!((status, code(&refused)), (403, "E_CLASS_DOWNGRADE"));
    let before = home.node.reader().unwrap().stats().unwrap();
    let (status, tried) =
        home.post_as("/v1/sessions?dryRun=1", "s4", &json!({"firstEntry": trigger("x")})).await;
    assert_eq!((status, &tried["durable"]), (200, &json!(false)));
    assert_eq!(home.node.reader().unwrap().stats().unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_grant_nothing_is_signed() {
    let home = Home::bare().await;
    let body = json!({"firstEntry": trigger("first")});
    let (status, refused) = home.post_as("/v1/sessions", "s", &body).await;
    assert_eq!((status, code(&refused)), (403, "E_CAP_MISSING"));
    let capability = home.grant(home.node.principal(), Role::Writer).await;
    let (session, head) = home.session("now it may").await;
    home.revoke(capability).await;
    let body = json!({"base": head, "entry": response("no more")});
    let (status, refused) = home.post_as(&format!("/v1/sessions/{session}/entries"), "k", &body).await;
    assert_eq!(status, 403, "{refused}");
    assert_eq!(code(&refused), "E_REVOKED");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_follows_a_seal() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let shown = home.get(&format!("/v1/sessions/{session}/entries")).await.unwrap();
    let times: Vec<u64> = shown["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["claimedTsMs"].as_u64().unwrap())
        .collect();
    let seal = json!({
        "type": "SessionSeal", "count": 2, "participants": [home.node.principal().to_string()],
        "firstTs": times[0], "lastTs": times[1],
    });
    let path = format!("/v1/sessions/{session}/entries");
    let (status, sealed) = home.post_as(&path, "seal", &json!({"base": head, "entry": seal})).await;
    assert_eq!(status, 201, "{sealed}");
    assert_eq!(home.verdict(&session).await, "sealed");
    let body = json!({"base": sealed["head"]["cid"], "entry": response("more")});
    let (status, refused) = home.post_as(&path, "k", &body).await;
    assert_eq!((status, code(&refused)), (409, "E_SEALED"));
    let base = home.get(&format!("/v1/sessions/{session}/base")).await.unwrap();
    assert_eq!(base["sealed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_session_waits() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let frozen = throughline_store::SetState {
        session: session.parse().unwrap(),
        from: throughline_store::SessionState::Active,
        to: throughline_store::SessionState::Frozen {
            epoch: throughline_protocol::id::Epoch::ZERO,
            move_id: [7; 16],
        },
        at: throughline_node::core::now(),
    };
    home.node.store().run(frozen).unwrap();
    let body = json!({"base": head, "entry": response("wait")});
    let (status, refused) = home.post_as(&format!("/v1/sessions/{session}/entries"), "k", &body).await;
    assert_eq!((status, code(&refused)), (409, "E_FROZEN"));
    assert_eq!(home.get(&format!("/v1/sessions/{session}/base")).await.unwrap()["frozen"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_at_the_same_time_make_one_chain() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let home = std::sync::Arc::new(home);
    let tasks: Vec<_> = (0..8)
        .map(|writer| {
            let (home, session) = (std::sync::Arc::clone(&home), session.clone());
            tokio::spawn(async move {
                for round in 0..5 {
                    let text = format!("{writer} {round}");
                    // As an outbox does: on a conflict the same entry again, on the head that was told.
                    let mut base =
                        of(&home.get(&format!("/v1/sessions/{session}/base")).await.unwrap(), "prev");
                    loop {
                        let body = json!({"base": base, "entry": response(&text)});
                        let path = format!("/v1/sessions/{session}/entries");
                        let (status, answer) = home.post_as(&path, &text, &body).await;
                        match status {
                            201 => break,
                            409 => base = of(&answer["head"], "cid"),
                            _ => panic!("{status} {answer}"),
                        }
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(home.verdict(&session).await, "valid");
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 41);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_each_entry_once() {
    let home = Home::new().await;
    let (session, mut head) = home.session("hello").await;
    for round in 0..7 {
        head = home.append(&session, &head, &round.to_string()).await;
    }
    for (order, expected) in [("", (0..=8).collect::<Vec<u64>>()), ("&reverse=1", (0..=8).rev().collect())] {
        let mut seen = Vec::new();
        let mut window = String::new();
        loop {
            let path = format!("/v1/sessions/{session}/entries?limit=2{order}{window}");
            let page = home.get(&path).await.unwrap();
            seen.extend(page["items"].as_array().unwrap().iter().map(|entry| entry["seq"].as_u64().unwrap()));
            let Some(next) = page["next"].as_u64() else { break };
            window = if order.is_empty() { format!("&after={next}") } else { format!("&before={next}") };
        }
        assert_eq!(seen, expected);
    }
    let path = format!("/v1/sessions/{session}/entries?types=UserMessage&limit=5");
    let page = home.get(&path).await.unwrap();
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
}
