use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use crate::api::openapi::ROUTES;
use crate::api::{App, router};
use crate::config::{Config, Overrides};
use crate::core::Node;
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;

fn node(home: &std::path::Path) -> Node {
    let dirs = Dirs::locate(Some(home), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let config = Config::load(&dirs, &Overrides::default()).unwrap();
    Node::open(dirs, config, "test").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_described_route_is_routed() {
    let home = tempfile::tempdir().unwrap();
    let node = node(home.path());
    let router = router(App::new(node.clone()), None);
    for route in ROUTES.iter().filter(|route| !matches!(route.path, "/v1/stop" | "/v1/events")) {
        let path = route
            .path
            .replace("{session}", "bafyreicbynj3udcjhjrmyvtz45sm4gaao6x5zev3nrpr6sadtx7ab53bty")
            .replace("{cid}", "bafyreicbynj3udcjhjrmyvtz45sm4gaao6x5zev3nrpr6sadtx7ab53bty")
            .replace("{entry}", "0")
            .replace("{move}", "00000000000000000000000000000000")
            .replace("{alias}", "nobody");
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
