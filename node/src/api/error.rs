//! Refusals as `application/problem+json` (RFC 9457), which is also the error object of the command line.

use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};
use throughline_protocol::code::{Code, Reject};

use crate::outcome;

/// A refusal on its way out: a stable code, what was expected and what came, and facts that help to go on.
#[derive(Clone, Debug)]
pub struct Problem {
    code: Code,
    detail: String,
    facts: Map<String, Value>,
}

/// What a handler answers.
pub type Answer<T> = Result<T, Problem>;

impl Problem {
    /// A refusal with its detail.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Problem { code, detail: detail.into(), facts: Map::new() }
    }

    /// The same refusal with one more fact, such as `head` or `holder`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(key.to_owned(), value.into());
        self
    }

    /// The same refusal with the command that goes on from here.
    #[must_use]
    pub fn hint(self, command: impl Into<String>) -> Self {
        self.with("hint", command.into())
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// What was expected and what came.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// A fact of it.
    #[must_use]
    pub fn fact(&self, key: &str) -> Option<&Value> {
        self.facts.get(key)
    }

    /// The error object of the JSON interface.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let (_, status, retry) = outcome::of(self.code);
        let mut object = json!({
            "type": format!("urn:throughline:error:{}", self.code),
            "code": self.code.name(),
            "title": self.code.title(),
            "detail": self.detail,
            "fault": self.code.fault().word(),
            "status": status,
            "retry": retry.word(),
            "advice": self.code.advice(),
            "explain": format!("throughline explain {}", self.code),
        });
        if let Some(object) = object.as_object_mut() {
            object.extend(self.facts.clone());
            if !object.contains_key("hint") {
                object.insert("hint".into(), outcome::next(self.code).into());
            }
        }
        object
    }

    /// Reads an error object again, as a client of the API does.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Self> {
        let code = value.get("code")?.as_str()?.parse().ok()?;
        let detail = value.get("detail").and_then(Value::as_str).unwrap_or_default().to_owned();
        let derived = ["type", "code", "title", "detail", "fault", "status", "retry", "advice", "explain"];
        // What follows from the code alone is no word of whoever refused: one who knows more may say it.
        let general = outcome::next(code);
        let facts = value
            .as_object()?
            .iter()
            .filter(|(key, value)| {
                let is_general = *key == "hint" && **value == *general.as_str();
                !is_general && !derived.contains(&key.as_str())
            })
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Some(Problem { code, detail, facts })
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

impl From<Reject> for Problem {
    fn from(reject: Reject) -> Self {
        Problem::new(reject.code, reject.detail)
    }
}

impl From<Code> for Problem {
    fn from(code: Code) -> Self {
        Problem::new(code, code.title())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let (_, status, retry) = outcome::of(self.code);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = self.to_json().to_string();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::TOO_MANY_REQUESTS || retry == outcome::Retry::Later {
            headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}
