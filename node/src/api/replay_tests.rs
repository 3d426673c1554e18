use axum::http::Request as HttpRequest;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::api::openapi::ROUTES;
use crate::api::router;
use crate::api::routes::tests::{filled, node};

struct Door {
    router: axum::Router,
    _home: tempfile::TempDir,
}

impl Door {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        Door { router: router(App::new(node(home.path())), None), _home: home }
    }

    async fn post(&self, path: &str, key: &str, kind: &str, body: impl Into<Body>) -> (u16, Value) {
        let request = HttpRequest::post(path).header("content-type", kind).header("idempotency-key", key);
        self.send(request.body(body.into()).unwrap()).await
    }

    async fn send(&self, request: HttpRequest<Body>) -> (u16, Value) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }
}

fn ticket(seed: u8) -> Value {
    let key = throughline_protocol::sign::SigningKey::from_seed(&[seed; 32]).principal();
    let ticket = throughline_protocol::ticket::PeerTicket { principal: key, peer: key, addresses: vec![] };
    throughline_protocol::ticket::Ticket::Peer(ticket).to_string().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_has_the_same_answer_and_another_is_refused() {
    let door = Door::new();
    let add = |seed| json!({"alias": "server-b", "ticket": ticket(seed)}).to_string();
    let (status, first) = door.post("/v1/peers", "k1", "application/json", add(1)).await;
    assert_eq!(
        (status, &first["unchanged"], &first["replayed"]),
        (201, &json!(false), &Value::Null),
        "{first}"
    );
    let (status, mut again) = door.post("/v1/peers", "k1", "application/json", add(1)).await;
    assert_eq!((status, again["replayed"].take()), (200, json!(true)));
    again.as_object_mut().unwrap().remove("replayed");
    assert_eq!(again, first, "the answer of then, although it would be another one now");
    for (path, body) in [("/v1/peers", add(2)), ("/v1/fsck", "{}".to_owned()), ("/v1/fsck?dryRun=1", add(1))]
    {
        let (status, refused) = door.post(path, "k1", "application/json", body).await;
        assert_eq!((status, &refused["code"]), (422, &json!("E_IDEMPOTENCY")), "{path} {refused}");
    }
    // Without the key it is asked anew.
    let plain = HttpRequest::post("/v1/peers").header("content-type", "application/json");
    let (_, plain) = door.send(plain.body(add(1).into()).unwrap()).await;
    assert_eq!((&plain["unchanged"], &plain["replayed"]), (&json!(true), &Value::Null), "{plain}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_post_tells_a_used_key_as_it_was_given() {
    let door = Door::new();
    let add = json!({"alias": "server-b", "ticket": ticket(1)}).to_string();
    assert_eq!(door.post("/v1/peers", "k1", "application/json", add).await.0, 201);
    // The keys of entries are their session's.
    let posts = ROUTES.iter().filter(|route| route.method == "post" && !route.path.ends_with("/entries"));
    for route in posts {
        let (status, refused) = door.post(&filled(route.path), "k1", "application/json", "{}").await;
        assert_eq!((status, &refused["code"]), (422, &json!("E_IDEMPOTENCY")), "{}: {refused}", route.path);
        assert_eq!(refused["detail"], "key `k1` stands for another request", "{}", route.path);
        let hint = "send the first request again as it was, or this one under a key of its own";
        assert_eq!(refused["hint"], hint, "{}", route.path);
    }
}

#[test]
fn how_long_an_answer_is_kept_is_described() {
    let peers = ROUTES.iter().find(|route| (route.method, route.path) == ("post", "/v1/peers"));
    let says = peers.unwrap().headers[0].says;
    assert!(says.contains(&format!("for {} hours", KEPT_MS / 3_600_000)), "{says}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_may_be_tried_again_under_its_key() {
    let door = Door::new();
    let (status, _) = door.post("/v1/peers", "k1", "application/json", "{").await;
    assert_eq!(status, 400);
    let add = json!({"alias": "server-b", "ticket": ticket(1)}).to_string();
    assert_eq!(door.post("/v1/peers", "k1", "application/json", add).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_any_size_is_compared_too() {
    let door = Door::new();
    let large = vec![7_u8; BODY_BYTES_MAX + 1];
    let (status, first) = door.post("/v1/blobs", "k1", "text/plain", large.clone()).await;
    assert_eq!((status, &first["unchanged"]), (201, &json!(false)), "{first}");
    let (status, again) = door.post("/v1/blobs", "k1", "text/plain", large.clone()).await;
    assert_eq!((status, &again["replayed"], &again["unchanged"]), (200, &json!(true), &json!(false)));
    assert_eq!(again["cid"], first["cid"]);
    let mut other = large;
    other[BODY_BYTES_MAX] = 8;
    let (status, refused) = door.post("/v1/blobs", "k1", "text/plain", other).await;
    assert_eq!((status, &refused["code"]), (422, &json!("E_IDEMPOTENCY")), "{refused}");
    let (status, refused) =
        door.post("/v1/peers", "k2", "application/json", vec![b' '; BODY_BYTES_MAX + 1]).await;
    assert_eq!((status, &refused["code"]), (413, &json!("E_TOO_BIG")), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_a_time_are_one() {
    let door = Door::new();
    let add = || json!({"alias": "server-b", "ticket": ticket(1)}).to_string();
    let one = || door.post("/v1/peers", "k1", "application/json", add());
    let answers = futures::future::join_all((0..8).map(|_| one())).await;
    let replayed = answers.iter().filter(|(_, answer)| answer["replayed"] == true).count();
    assert_eq!(replayed, 7, "{answers:?}");
    assert!(answers.iter().all(|(_, answer)| answer["unchanged"] == false), "{answers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_cannot_be_kept_is_refused() {
    let door = Door::new();
    let stream =
        HttpRequest::post("/v1/fsck").header("idempotency-key", "k").header("accept", "text/event-stream");
    let (status, refused) = door.send(stream.body(Body::from("{}")).unwrap()).await;
    assert_eq!((status, &refused["code"]), (400, &json!("E_API_BODY")), "{refused}");
    for key in ["", &"k".repeat(201)] {
        let (status, refused) = door.post("/v1/fsck", key, "application/json", "{}").await;
        assert_eq!((status, &refused["code"]), (400, &json!("E_API_BODY")), "{refused}");
    }
}
