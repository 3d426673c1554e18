//! Who may talk to the local API: checked before routing, cheapest first. `docs/THREAT_MODEL.md` §This machine.
//!
//! The unix socket proves the caller by its uid; over TCP a bearer token does. A web page can reach 127.0.0.1 with the
//! user's browser, so `Host` must be an allowed name, `Origin` one of them or absent, and a cross-site request is refused
//! whatever it carries. There are no cookies and no CORS headers.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use throughline_protocol::code::Code;

use super::error::Problem;
use super::token::{Scope, Tokens};

/// How a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// From this very process: a command that runs without a node.
    InProcess,
    /// Over the unix socket; the caller's uid was checked.
    Socket,
    /// Over TCP on loopback; needs a token.
    Tcp,
}

/// What the gate checks against.
#[derive(Debug)]
pub struct Gate {
    /// Names that `Host` may have, without the port.
    pub hosts: Vec<String>,
    /// The tokens.
    pub tokens: Tokens,
}

/// Longest request path in bytes.
const PATH_BYTES_MAX: usize = 1_024;

/// The middleware.
pub async fn check(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response<Body> {
    match gate.judge(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

impl Gate {
    fn judge(&self, request: &Request) -> Result<(), Problem> {
        check_path(request.uri().path())?;
        let via = request.extensions().get::<Via>().copied().unwrap_or(Via::Tcp);
        if via == Via::Tcp {
            self.check_host(request)?;
            self.check_origin(request)?;
            self.check_token(request)?;
        }
        check_content_type(request)
    }

    fn check_host(&self, request: &Request) -> Result<(), Problem> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
        if hosts.next().is_none() && self.allows(host) {
            Ok(())
        } else {
            Err(Problem::new(Code::ApiHost, "expected a Host from api.allowed_hosts"))
        }
    }

    /// Whether `authority` is an allowed name, with or without a port. The comparison is exact.
    fn allows(&self, authority: &str) -> bool {
        let name = match authority.rsplit_once(':') {
            Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => authority,
        };
        self.hosts.iter().any(|allowed| allowed == name)
    }

    fn check_origin(&self, request: &Request) -> Result<(), Problem> {
        for origin in request.headers().get_all(header::ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let same = origin.strip_prefix("http://").is_some_and(|host| self.allows(host));
            if !same {
                return Err(Problem::new(Code::ApiOrigin, "expected no Origin or this node's own"));
            }
        }
        let site = request.headers().get("sec-fetch-site").map(|site| site.as_bytes().to_vec());
        match site.as_deref() {
            None | Some(b"same-origin" | b"none") => Ok(()),
            Some(_) => Err(Problem::new(Code::ApiFetchsite, "expected a request from the same site")),
        }
    }

    fn check_token(&self, request: &Request) -> Result<(), Problem> {
        if request.uri().path() == "/v1/health" {
            return Ok(());
        }
        let query = request.uri().query().unwrap_or_default();
        if query.split('&').any(|pair| pair.split('=').next() == Some("token")) {
            return Err(Problem::new(Code::ApiToken, "a token never stands in a URL"));
        }
        let bearer = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            // The name of a scheme has no case (RFC 9110 §11.1); the token's letters do.
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim_start_matches(' '));
        let scope = bearer.and_then(|token| self.tokens.scope_of(token)).ok_or(Code::ApiToken)?;
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        if reads || scope == Scope::Write {
            Ok(())
        } else {
            Err(Problem::new(Code::ApiScope, "this token may read only"))
        }
    }
}

/// What is asked of this very process too: a clean path. Anything else would be refused further in, and not as a problem.
pub(super) async fn check_own(request: Request, next: Next) -> Response<Body> {
    match check_path(request.uri().path()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// A clean path: absolute, no dot or empty segments, no escapes, no control characters.
fn check_path(path: &str) -> Result<(), Problem> {
    let segment_ok = |segment: &str| {
        !segment.is_empty()
            && segment != "."
            && segment != ".."
            && segment.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%' && byte != b'\\')
    };
    let clean = path.len() <= PATH_BYTES_MAX
        && path.strip_prefix('/').is_some_and(|rest| rest.is_empty() || rest.split('/').all(segment_ok));
    if clean { Ok(()) } else { Err(Problem::new(Code::ApiPath, "expected a path such as /v1/status")) }
}

/// Bodies are JSON, CBOR or CAR; only upload and import routes take raw bytes.
fn check_content_type(request: &Request) -> Result<(), Problem> {
    if !matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH) {
        return Ok(());
    }
    let path = request.uri().path();
    let raw_route = path == "/v1/blobs" || path == "/v1/import" || path == "/v1/verify";
    let value = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.map(|value| value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match essence.as_deref() {
        Some("application/json" | "application/cbor" | "application/vnd.ipld.car") => Ok(()),
        Some(_) if raw_route => Ok(()),
        None if raw_route || is_empty(request) => Ok(()),
        _ => Err(Problem::new(
            Code::ApiCtype,
            "expected application/json, application/cbor or application/vnd.ipld.car",
        )),
    }
}

fn is_empty(request: &Request) -> bool {
    request.headers().get(header::TRANSFER_ENCODING).is_none()
        && request.headers().get(header::CONTENT_LENGTH).is_none_or(|length| length.as_bytes() == b"0")
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
