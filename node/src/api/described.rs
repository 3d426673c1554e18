//! Holds every request to the description of its route: `docs/decisions/0032`.
//!
//! A query parameter that the description does not list, or a word that it does not list for one, is refused with what was expected. A
//! header that it does not list is taken away, so that no handler can read what is described nowhere. It must never judge what only
//! an act can: whether a key or a CID is one.

use axum::body::Body;
use axum::extract::{MatchedPath, Query, Request};
use axum::http::{HeaderMap, Method, Response, Uri, header};
use axum::middleware::Next;
use axum::response::IntoResponse as _;
use throughline_protocol::code::Code;

use super::error::{Answer, Problem};
use super::openapi::{ROUTES, Route};
use super::routes::shown;

/// Headers that OpenAPI describes by the bodies that a route takes and gives.
const OF_BODIES: [header::HeaderName; 2] = [header::ACCEPT, header::CONTENT_TYPE];

/// The middleware. What is no route goes through to the refusal that says so.
pub(super) async fn hold(mut request: Request, next: Next) -> Response<Body> {
    if let Some(route) = route_of(&request) {
        if let Err(problem) = check_query(route, request.uri()) {
            return problem.into_response();
        }
        let listed = listed(route, request.headers());
        *request.headers_mut() = listed;
    }
    next.run(request).await
}

fn route_of(request: &Request) -> Option<&'static Route> {
    let path = request.extensions().get::<MatchedPath>()?.as_str();
    let is_asked = |route: &&Route| match *request.method() {
        Method::GET | Method::HEAD => route.method == "get",
        ref method => method.as_str().eq_ignore_ascii_case(route.method),
    };
    ROUTES.iter().filter(|route| route.path == path).find(is_asked)
}

fn check_query(route: &Route, uri: &Uri) -> Answer<()> {
    let refused = |what: String| Err(Problem::new(Code::ApiQuery, what));
    let Ok(Query(pairs)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
        return refused(
            "expected a query string of `name=value` pairs in UTF-8, percent-encoded, got another".to_owned(),
        );
    };
    for (at, (name, text)) in pairs.iter().enumerate() {
        let Some(parameter) = route.query.iter().find(|parameter| parameter.name == name) else {
            return refused(unknown(route, name));
        };
        if pairs.iter().take(at).any(|(before, _)| before == name) {
            return refused(format!("expected query parameter `{name}` once, got it again"));
        }
        if let Some(expected) = parameter.takes.refuses(text) {
            return refused(format!("query parameter `{name}`: got {:?}: {expected}", shown(text)));
        }
    }
    Ok(())
}

/// A parameter that a route does not take. One of a dry run stands for what must not be done, so it has words of its own.
fn unknown(route: &Route, name: &str) -> String {
    let names: Vec<&str> = route.query.iter().map(|parameter| parameter.name).collect();
    match (name, names.as_slice()) {
        ("dryRun", _) => "expected no `dryRun`: this route has no dry run".to_owned(),
        (_, []) => format!("expected no query parameters, got {:?}", shown(name)),
        (_, names) => format!("expected query parameters among {}, got {:?}", names.join(", "), shown(name)),
    }
}

fn listed(route: &Route, sent: &HeaderMap) -> HeaderMap {
    let of_route = route.headers.iter().filter_map(|header| header.name.parse().ok());
    let names = OF_BODIES.into_iter().chain(of_route);
    names.filter_map(|name| sent.get(&name).cloned().map(|value| (name, value))).collect()
}

#[cfg(test)]
#[path = "described_tests.rs"]
mod tests;
