use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use throughline_protocol::block::Signed;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::testing::{self, SessionBuilder};
use throughline_protocol::verify::Prechecked;
use tower::ServiceExt as _;

use crate::api::openapi::ROUTES;
use crate::api::{App, router};
use crate::config::{Config, Overrides};
use crate::core::{Arrived, Node};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;

pub(in crate::api) fn node(home: &std::path::Path) -> Node {
    let dirs = Dirs::locate(Some(home), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let config = Config::load(&dirs, &Overrides::default()).unwrap();
    Node::open(dirs, config, "test").unwrap()
}

/// A path with something in each of its braces that is held nowhere.
pub(in crate::api) fn filled(path: &str) -> String {
    path.replace("{session}", "bafyreicbynj3udcjhjrmyvtz45sm4gaao6x5zev3nrpr6sadtx7ab53bty")
        .replace("{cid}", "bafyreicbynj3udcjhjrmyvtz45sm4gaao6x5zev3nrpr6sadtx7ab53bty")
        .replace("{entry}", "0")
        .replace("{move}", "00000000000000000000000000000000")
        .replace("{alias}", "nobody")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_described_route_is_routed() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let router = router(App::new(node.clone()), None);
    for route in ROUTES.iter().filter(|route| !matches!(route.path, "/v1/stop" | "/v1/events")) {
        let path = filled(route.path);
        let request = Request::builder()
            .method(route.method.to_uppercase().as_str())
            .uri(&path)
            .header("content-type", "application/json")
            .body(Body::empty())
            .unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(
            !text.contains("\"code\":\"E_API_ROUTE\""),
            "{} {} is not routed: {text}",
            route.method,
            route.path
        );
        assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{} {}: {text}", route.method, route.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_route_is_named() {
    let home = tempfile::tempdir().unwrap();
    let router = router(App::new(node(home.path())), None);
    for (method, path) in [("GET", "/v1/nothing"), ("DELETE", "/v1/status")] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_body_is_refused_at_the_limit() {
    let home = tempfile::tempdir().unwrap();
    let router = router(App::new(node(home.path())), None);
    let piece = || Ok::<_, std::convert::Infallible>(vec![b' '; 1 << 16]);
    let body = Body::from_stream(futures::stream::repeat_with(piece));
    let request =
        Request::post("/v1/sessions").header("content-type", "application/json").body(body).unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("\"code\":\"E_TOO_BIG\""));
}

/// Found by fuzzing: without the gate, an escape that is no UTF-8 was refused in plain text.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_with_escapes_is_refused_as_a_problem() {
    let home = tempfile::tempdir().unwrap();
    let router = router(App::new(node(home.path())), None);
    for path in ["/v1/sessions/%ff", "/v1/blobs/%aa", "/v1//status"] {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{path}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(String::from_utf8_lossy(&body).contains("\"code\":\"E_API_PATH\""), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_are_not_named_by_text_are_not_everybody() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let router = router(App::new(node.clone()), None);
    let session = "bafyreicbynj3udcjhjrmyvtz45sm4gaao6x5zev3nrpr6sadtx7ab53bty";
    for (path, mut body) in
        [("/v1/fsck", json!({"repair": true})), ("/v1/fetch", json!({"session": session}))]
    {
        for (from, got) in [
            (json!([1]), "a number in it"),
            (json!(["server-a", null]), "null in it"),
            (json!({"peer": "server-a"}), "an object"),
            (json!("server-a"), "text"),
        ] {
            body["from"] = from;
            let request = Request::post(path).header("content-type", "application/json");
            let request = request.body(Body::from(body.to_string())).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            let problem: Value = serde_json::from_slice(&bytes).unwrap();
            let detail = format!("expected an array of text in `from`, got {got}");
            assert_eq!(
                (&problem["code"], &problem["detail"]),
                (&json!("E_API_BODY"), &json!(detail)),
                "{path}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_of_a_session_are_its_owners_and_cover_it() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let builder = SessionBuilder::new("granted");
    let genesis = &builder.entries()[0];
    let entries = vec![Prechecked::of(genesis.entry.clone(), genesis.payload.clone()).unwrap()];
    let controls = builder.controls().to_vec();
    node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
    let delegate = testing::key("next").principal();
    let granted = |owner: &str, path: Option<&str>| {
        testing::capability(&testing::key(owner), delegate, Role::Writer, path)
    };
    // The session's agent is `/scout` of the account.
    let fitting = [granted("account", Some("/scout")), granted("account", Some(&builder.session().path()))];
    let others = [granted("account", Some("/other")), granted("somebody else", None)];
    node.take_controls(fitting.iter().chain(&others).cloned().collect()).unwrap();
    let router = router(App::new(node.clone()), None);
    let listed = async |query: String| {
        let path = format!("/v1/capabilities?delegate={delegate}{query}");
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        let cids =
            answer["items"].as_array().unwrap().iter().map(|item| item["cid"].as_str().unwrap().to_owned());
        cids.collect::<BTreeSet<String>>()
    };
    let cids = |grants: &[Signed<Control>]| {
        grants.iter().map(|grant| grant.cid().cid().to_string()).collect::<BTreeSet<String>>()
    };
    assert_eq!(listed(format!("&session={}", builder.session())).await, cids(&fitting));
    assert_eq!(listed(String::new()).await.len(), fitting.len() + others.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_cannot_be_read_is_told_with_what_was_expected() {
    let home = tempfile::tempdir().unwrap();
    let router = router(App::new(node(home.path())), None);
    for (query, told) in [
        (
            "state=nosuch",
            "query parameter `state`: got \"nosuch\": expected one of active, frozen, retired, sealed, suspended",
        ),
        ("limit=many", "query parameter `limit`: got \"many\": expected a whole number from 1 to 500"),
        ("owner=", "query parameter `owner`: got \"\": E_KEY_CODEC: expected a principal such as z6Mk…"),
        (
            "stat=active",
            "expected query parameters among agent, owner, parent, state, limit, cursor, got \"stat\"",
        ),
    ] {
        let request = Request::get(format!("/v1/sessions?{query}")).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let problem: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&problem["code"], &problem["detail"]), (&json!("E_API_QUERY"), &json!(told)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_what_is_stored_tells_how_many_entries_it_verified() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let mut builder = SessionBuilder::new("checked");
    let server = builder.server1.clone();
    builder.user(&server, "a message");
    let checked = |built: &testing::Built| Prechecked::of(built.entry.clone(), None).unwrap();
    let (entries, controls) = (builder.entries().iter().map(checked).collect(), builder.controls().to_vec());
    node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
    let router = router(App::new(node.clone()), None);
    for (body, phase) in [(json!({}), "fsck"), (json!({"repair": true}), "repair")] {
        let request = Request::post("/v1/fsck")
            .header("content-type", "application/json")
            .header("accept", "text/event-stream")
            .body(Body::from(body.to_string()))
            .unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let events: Vec<(&str, Value)> = text
            .split_terminator("\n\n")
            .map(|event| {
                let (name, data) = event.split_once('\n').unwrap();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                (name.strip_prefix("event: ").unwrap(), data)
            })
            .collect();
        let [.., (progress, last), (answer, found)] = &events[..] else { panic!("two events: {text}") };
        assert_eq!((*progress, *answer), ("progress", "answer"));
        // A repair verifies everything before and after it.
        let done = if phase == "repair" { 4 } else { 2 };
        assert_eq!(
            (&last["phase"], &last["done"], &last["total"]),
            (&json!(phase), &json!(done), &json!(done))
        );
        assert_eq!(found["problems"], json!([]), "{found}");
    }
    node.stop();
}
