//! The routes, by what they are about.

mod called;
mod control;
mod entries;
mod events;
mod evidence;
mod files;
mod info;
mod input;
mod moves;
mod network;
mod sessions;
mod watched;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use throughline_protocol::code::Code;

use super::App;
use super::error::Problem;
pub(super) use input::shown;

/// Largest body of a route that does not stream, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 4 << 20;

/// All routes.
pub(super) fn all() -> Router<App> {
    Router::new()
        .merge(info::routes())
        .merge(sessions::routes())
        .merge(entries::routes())
        .merge(control::routes())
        .merge(files::routes())
        .merge(network::routes())
        .merge(moves::routes())
        .merge(events::routes())
        .merge(evidence::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// The idempotency key of a request, as the store keeps it.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    Ok(input::idempotency(headers, &[])?.map(|(key, _)| key))
}

async fn unknown(request: axum::extract::Request) -> axum::response::Response {
    let what = format!("no route {} {}", request.method(), request.uri().path());
    Problem::new(Code::ApiRoute, what).into_response()
}

#[cfg(test)]
#[path = "routes_tests.rs"]
pub(super) mod tests;
