use std::collections::BTreeSet;

use axum::Router;
use axum::http::Request as HttpRequest;
use axum::routing::any;
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;
use crate::api::openapi::{self, Takes};
use crate::api::routes::tests::{filled, node};
use crate::api::{App, router};

/// A request to a route, with the body that it takes, empty.
fn asks(route: &Route, query: &str) -> axum::http::request::Builder {
    let kind = route.takes.first().map_or("application/json", |media| media.kind);
    let kind = if kind == "*/*" { "text/plain" } else { kind };
    HttpRequest::builder()
        .method(route.method.to_uppercase().as_str())
        .uri(filled(route.path) + query)
        .header("content-type", kind)
}

/// Status and first piece of an answer; a stream has no end.
async fn told(router: &Router, request: HttpRequest<Body>) -> (u16, Value) {
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let is_stream = response.headers().get("content-type").is_some_and(|kind| kind == "text/event-stream");
    if is_stream {
        let first = response.into_body().into_data_stream().next().await.unwrap().unwrap();
        return (status, String::from_utf8_lossy(&first).into());
    }
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let mut body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Some(body) = body.as_object_mut() {
        // How long it took is another figure each time.
        body.retain(|key, _| !key.ends_with("Ms"));
    }
    (status, body)
}

#[tokio::test]
async fn a_route_sees_the_headers_that_are_described_and_no_others() {
    let all: BTreeSet<String> = ROUTES
        .iter()
        .flat_map(|route| route.headers)
        .map(|header| header.name.to_lowercase())
        .chain(["accept", "if-match", "range", "x-anything", "cookie"].map(str::to_owned))
        .collect();
    let echo = async |request: Request| {
        request.headers().keys().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    for route in ROUTES {
        let router = Router::new().route(route.path, any(echo)).layer(axum::middleware::from_fn(hold));
        let request = all.iter().fold(asks(route, ""), |request, name| request.header(name, "1"));
        let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let seen = response.into_body().collect().await.unwrap().to_bytes();
        let seen: BTreeSet<&str> = std::str::from_utf8(&seen).unwrap().split(' ').collect();
        let listed: Vec<String> = route.headers.iter().map(|header| header.name.to_lowercase()).collect();
        let listed = listed.iter().map(String::as_str).chain(["accept", "content-type"]).collect();
        assert_eq!(seen, listed, "{} {}", route.method, route.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_header_that_is_described_is_read() {
    let home = tempfile::tempdir().unwrap();
    let router = router(App::new(node(home.path())), None);
    let (ends, others): (Vec<&Route>, Vec<&Route>) =
        ROUTES.iter().partition(|route| route.path == "/v1/stop");
    for route in others.into_iter().chain(ends) {
        for header in route.headers {
            // No key may be as long, and no other header says this by chance.
            let odd = "z".repeat(300);
            let plain = || asks(route, "").body(Body::empty()).unwrap();
            // What a first request makes is there for the second.
            told(&router, plain()).await;
            let without = told(&router, plain()).await;
            let with = asks(route, "").header(header.name, odd).body(Body::empty()).unwrap();
            let with = told(&router, with).await;
            assert_ne!(without, with, "{} {}: {} changes nothing", route.method, route.path, header.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_or_word_that_is_not_described_is_refused_with_what_was_expected() {
    let home = tempfile::tempdir().unwrap();
    let router = router(App::new(node(home.path())), None);
    let refused = async |route: &'static Route, query: &str| {
        let (status, problem) = told(&router, asks(route, query).body(Body::empty()).unwrap()).await;
        let place = format!("{} {}{query}", route.method, route.path);
        assert_eq!((status, &problem["code"]), (400, &json!("E_API_QUERY")), "{place}: {problem}");
        problem["detail"].as_str().unwrap().to_owned()
    };
    for route in ROUTES {
        let detail = refused(route, "?nosuch=1").await;
        assert!(detail.contains("nosuch"), "{detail}");
        for parameter in route.query {
            assert!(detail.contains(parameter.name), "{detail}");
            if let Takes::Flag = parameter.takes {
                let detail = refused(route, &format!("?{0}=1&{0}=0", parameter.name)).await;
                assert!(detail.contains("once"), "{detail}");
            }
            let words = match parameter.takes {
                Takes::Flag => openapi::FLAG,
                Takes::Word(words) | Takes::Words(words) => words,
                Takes::Number(..) => &["a whole number"],
                Takes::Text => continue,
            };
            for text in ["", "nosuch", "-1", "%2C"] {
                let detail = refused(route, &format!("?{}={text}", parameter.name)).await;
                assert!(words.iter().all(|word| detail.contains(word)), "{detail}");
                assert!(detail.contains(parameter.name), "{detail}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_word_that_is_described_is_taken() {
    let home = tempfile::tempdir().unwrap();
    let router = router(App::new(node(home.path())), None);
    for route in ROUTES {
        for parameter in route.query {
            let words: Vec<String> = match parameter.takes {
                Takes::Flag => openapi::FLAG.iter().map(ToString::to_string).collect(),
                Takes::Word(words) => words.iter().map(ToString::to_string).collect(),
                Takes::Words(words) => {
                    words.iter().map(ToString::to_string).chain([words.join(",")]).collect()
                }
                Takes::Number(from, to) => vec![from.to_string(), to.min(1_000).to_string()],
                Takes::Text => continue,
            };
            for word in words {
                let query = format!("?{}={word}", parameter.name);
                let request = asks(route, &query).body(Body::empty()).unwrap();
                let (_, answer) = told(&router, request).await;
                // The reference that is missing where one has to be is no word of this parameter.
                let is_refused = answer["code"] == "E_API_QUERY" && parameter.name != "any";
                assert!(!is_refused, "{} {}{query}: {answer}", route.method, route.path);
            }
        }
    }
}

#[test]
fn numbers_are_held_to_their_bounds() {
    let page = Takes::Number(1, 500);
    for (text, is_taken) in [("1", true), ("500", true), ("0", false), ("501", false), ("1e2", false)] {
        assert_eq!(page.refuses(text).is_none(), is_taken, "{text}");
    }
    assert_eq!(page.refuses("many").unwrap(), "expected a whole number from 1 to 500");
}
