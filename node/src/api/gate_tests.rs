use axum::http::Request as HttpRequest;

use super::*;

const TOKEN: &str = "dGhpcyBpcyBub3QgYSByZWFsIHRva2VuIGF0IGFsbCE";

fn gate(dir: &std::path::Path) -> Gate {
    crate::keys::write_private(&dir.join("token"), TOKEN).unwrap();
    let hosts = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec();
    Gate { hosts, tokens: Tokens::open(dir).unwrap() }
}

fn judge(method: &str, path: &str, headers: &[(&str, &str)]) -> Option<Code> {
    let dir = tempfile::tempdir().unwrap();
    let mut request = HttpRequest::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(Via::Tcp);
    gate(dir.path()).judge(&request).err().map(|problem| problem.code())
}

fn bearer() -> String {
    format!("Bearer {TOKEN}")
}

#[test]
fn a_local_program_with_the_token_passes() {
    let auth = bearer();
    for host in ["localhost", "127.0.0.1:7420", "[::1]:7420", "[::1]"] {
        assert_eq!(judge("GET", "/v1/status", &[("host", host), ("authorization", &auth)]), None, "{host}");
    }
}

#[test]
fn other_hosts_are_refused() {
    let auth = bearer();
    for host in [
        "evil.example",
        "evil.example:7420",
        "localhost.:7420",
        "LOCALHOST",
        "127.1",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
    ] {
        let code = judge("GET", "/v1/status", &[("host", host), ("authorization", &auth)]);
        assert_eq!(code, Some(Code::ApiHost), "{host}");
    }
    assert_eq!(judge("GET", "/v1/status", &[("authorization", &auth)]), Some(Code::ApiHost));
    let twice = [("host", "localhost"), ("host", "evil.example"), ("authorization", auth.as_str())];
    assert_eq!(judge("GET", "/v1/status", &twice), Some(Code::ApiHost));
}

#[test]
fn web_pages_are_refused() {
    let auth = bearer();
    let with = |name, value| {
        judge("GET", "/v1/status", &[("host", "localhost"), ("authorization", &auth), (name, value)])
    };
    assert_eq!(with("origin", "https://evil.example"), Some(Code::ApiOrigin));
    assert_eq!(with("origin", "null"), Some(Code::ApiOrigin));
    assert_eq!(with("origin", "http://localhost:7420"), None);
    assert_eq!(with("sec-fetch-site", "cross-site"), Some(Code::ApiFetchsite));
    assert_eq!(with("sec-fetch-site", "same-origin"), None);
}

#[test]
fn the_token_is_needed_and_stands_in_no_url() {
    let host = ("host", "localhost");
    let auth = bearer();
    assert_eq!(judge("GET", "/v1/status", &[host]), Some(Code::ApiToken));
    assert_eq!(judge("GET", "/v1/status", &[host, ("authorization", "Bearer x")]), Some(Code::ApiToken));
    assert_eq!(judge("GET", "/v1/status", &[host, ("authorization", &auth[..20])]), Some(Code::ApiToken));
    // The scheme's name has no case; another scheme is another, and a token's case counts.
    for scheme in ["Bearer", "bearer", "BEARER", "Bearer "] {
        let auth = format!("{scheme} {TOKEN}");
        assert_eq!(judge("GET", "/v1/status", &[host, ("authorization", &auth)]), None, "{auth}");
    }
    for auth in [TOKEN.to_owned(), format!("Basic {TOKEN}"), format!("Bearer{TOKEN}")] {
        assert_eq!(
            judge("GET", "/v1/status", &[host, ("authorization", &auth)]),
            Some(Code::ApiToken),
            "{auth}"
        );
    }
    let url = format!("/v1/status?token={TOKEN}");
    assert_eq!(judge("GET", &url, &[host, ("authorization", &auth)]), Some(Code::ApiToken));
    assert_eq!(judge("GET", "/v1/health", &[host]), None);
}

#[test]
fn paths_are_clean() {
    let auth = bearer();
    let headers = [("host", "localhost"), ("authorization", auth.as_str())];
    for path in ["/v1/../admin", "/v1/%2e%2e/admin", "/v1//status", "/v1/a%00b", "/./v1"] {
        assert_eq!(judge("GET", path, &headers), Some(Code::ApiPath), "{path}");
    }
    let long = format!("/{}", "a".repeat(10_000));
    assert_eq!(judge("GET", &long, &headers), Some(Code::ApiPath));
}

#[test]
fn bodies_have_a_known_type() {
    let auth = bearer();
    let post = |path, ctype| {
        judge(
            "POST",
            path,
            &[
                ("host", "localhost"),
                ("authorization", &auth),
                ("content-type", ctype),
                ("content-length", "2"),
            ],
        )
    };
    assert_eq!(post("/v1/sessions", "application/json; charset=utf-8"), None);
    assert_eq!(post("/v1/sessions", "text/plain"), Some(Code::ApiCtype));
    assert_eq!(post("/v1/sessions", "application/x-www-form-urlencoded"), Some(Code::ApiCtype));
    assert_eq!(post("/v1/blobs", "image/png"), None);
}
