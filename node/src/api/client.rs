//! The API as a program on this machine uses it: over the socket, over TCP, or — when no node runs — in this very
//! process, through the same router. A command is written once and works either way.

use std::io;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use throughline_protocol::code::Code;
use tokio::net::{TcpStream, UnixStream};
use tower::ServiceExt as _;

use super::error::{Answer, Problem};
use super::gate::Via;

/// Where the API is.
#[derive(Clone)]
pub enum Endpoint {
    /// A running node's socket.
    Socket(PathBuf),
    /// A running node's TCP door, with the token.
    Http {
        /// `host:port`.
        authority: String,
        /// The bearer token.
        token: String,
    },
    /// No node: this process serves itself.
    InProcess(Router),
}

/// A client of the local API.
#[derive(Clone)]
pub struct Client {
    endpoint: Endpoint,
}

/// An answer whose body was not read yet.
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: axum::http::HeaderMap,
    /// The body.
    pub body: Body,
}

/// One request.
pub struct Call<'a> {
    method: Method,
    path: &'a str,
    headers: Vec<(&'static str, String)>,
    body: Body,
}

impl<'a> Call<'a> {
    /// A GET.
    #[must_use]
    pub fn get(path: &'a str) -> Self {
        Call { method: Method::GET, path, headers: Vec::new(), body: Body::empty() }
    }

    /// A request with a JSON body.
    #[must_use]
    pub fn json(method: Method, path: &'a str, body: &Value) -> Self {
        Call { method, path, headers: Vec::new(), body: Body::from(body.to_string()) }
            .header("content-type", "application/json")
    }

    /// A POST with a JSON body.
    #[must_use]
    pub fn post(path: &'a str, body: &Value) -> Self {
        Call::json(Method::POST, path, body)
    }

    /// A request with another body.
    #[must_use]
    pub fn body(method: Method, path: &'a str, content_type: &str, body: impl Into<Body>) -> Self {
        Call { method, path, headers: Vec::new(), body: body.into() }.header("content-type", content_type)
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

impl Client {
    /// A client of `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Client { endpoint }
    }

    /// Whether a node answers on the socket.
    pub async fn answers(socket: &Path) -> bool {
        UnixStream::connect(socket).await.is_ok()
    }

    /// Whether this process serves itself.
    #[must_use]
    pub fn is_in_process(&self) -> bool {
        matches!(self.endpoint, Endpoint::InProcess(_))
    }

    /// Sends a request and returns the answer with its body still to be read.
    ///
    /// # Errors
    /// `E_UNREACHABLE` when the node does not answer. A refusal is an answer here, not an error.
    pub async fn send(&self, call: Call<'_>) -> Answer<Reply> {
        let mut request = Request::builder().method(call.method).uri(call.path);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        let authority = match &self.endpoint {
            Endpoint::Http { authority, token } => {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
                authority.as_str()
            }
            Endpoint::Socket(_) | Endpoint::InProcess(_) => "localhost",
        };
        let mut request = request
            .header(header::HOST, authority)
            .body(call.body)
            .map_err(|error| Problem::new(Code::ApiPath, error.to_string()))?;
        let response = match &self.endpoint {
            Endpoint::InProcess(router) => {
                request.extensions_mut().insert(Via::InProcess);
                match router.clone().oneshot(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
            Endpoint::Socket(path) => exchange(UnixStream::connect(path).await, request).await?,
            Endpoint::Http { authority, .. } => {
                exchange(TcpStream::connect(authority).await, request).await?
            }
        };
        let (parts, body) = response.into_parts();
        Ok(Reply { status: parts.status, headers: parts.headers, body })
    }

    /// Sends a request and reads a JSON answer.
    ///
    /// # Errors
    /// The refusal that the node answered, or `E_UNREACHABLE`.
    pub async fn ask(&self, call: Call<'_>) -> Answer<Value> {
        let reply = self.send(call).await?;
        let status = reply.status;
        let bytes = reply.bytes().await?;
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|_| Problem::new(Code::Internal, format!("the node answered {status} without JSON")))?;
        if status.is_success() {
            Ok(value)
        } else {
            Err(Problem::from_json(&value)
                .unwrap_or_else(|| Problem::new(Code::Internal, format!("the node answered {status}"))))
        }
    }

    /// Sends a request and reads the answer's bytes.
    ///
    /// # Errors
    /// The refusal that the node answered, or `E_UNREACHABLE`.
    pub async fn fetch(&self, call: Call<'_>) -> Answer<Bytes> {
        self.open(call).await?.bytes().await
    }

    /// Sends a request; a refusal becomes an error, a success keeps its body to be streamed.
    ///
    /// # Errors
    /// The refusal that the node answered, or `E_UNREACHABLE`.
    pub async fn open(&self, call: Call<'_>) -> Answer<Reply> {
        let reply = self.send(call).await?;
        if reply.status.is_success() {
            return Ok(reply);
        }
        let status = reply.status;
        let bytes = reply.bytes().await?;
        Err(serde_json::from_slice(&bytes)
            .ok()
            .and_then(|value: Value| Problem::from_json(&value))
            .unwrap_or_else(|| Problem::new(Code::Internal, format!("the node answered {status}"))))
    }
}

impl Reply {
    /// Reads the whole body.
    ///
    /// # Errors
    /// `E_UNREACHABLE` when the node went away in the middle.
    pub async fn bytes(self) -> Answer<Bytes> {
        let collected = self.body.collect().await.map_err(|error| went_away(&error))?;
        Ok(collected.to_bytes())
    }

    /// The next piece of the body, for answers that stream.
    ///
    /// # Errors
    /// `E_UNREACHABLE` when the node went away in the middle.
    pub async fn chunk(&mut self) -> Answer<Option<Bytes>> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(went_away(&error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

fn went_away(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::Unreachable, format!("the node stopped answering: {error}"))
}

async fn exchange<S>(stream: io::Result<S>, request: Request<Body>) -> Answer<axum::http::Response<Body>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let stream =
        stream.map_err(|error| Problem::new(Code::Unreachable, format!("no node answers: {error}")))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| went_away(&error))?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(|error| went_away(&error))?;
    Ok(response.map(Body::new))
}
