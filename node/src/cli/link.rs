//! The way to the API: a running node's socket, a URL that was named, or this process itself.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;
use throughline_protocol::code::Code;

use super::context::Context;
use super::engine::Engine;
use crate::address;
use crate::api::client::{Call, Client, Endpoint, Reply};
use crate::api::error::{Answer, Problem};
use crate::api::token;
use crate::config::Config;
use crate::keys::KeyError;
use crate::runtime::{self, Guard, NetworkNeed};

/// How long a command waits for another command to let the data directory go.
pub(super) const LOCK_WAIT_MAX: Duration = Duration::from_secs(10);
/// Between two tries.
pub(super) const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// A connection to the API, used from ordinary code.
pub(crate) struct Api<'c> {
    engine: &'c Engine,
    client: Client,
    guard: Option<Guard>,
}

impl<'c> Api<'c> {
    /// Finds the API. Without a running node the data directory is opened here, and let go when this is dropped.
    ///
    /// # Errors
    /// `E_NOT_INITIALISED` where there is no node, `E_LOCKED` when another command holds the data directory for too
    /// long, `E_UNREACHABLE` when the named API does not answer, and what opening gives.
    pub(super) fn find(ctx: &'c Context, need: NetworkNeed) -> Answer<Self> {
        let engine = ctx.engine()?;
        if let Some(url) = ctx.api_url() {
            return Ok(Api { engine, client: Client::new(named(ctx, url)?), guard: None });
        }
        let config = ctx.config()?;
        let deadline = Instant::now() + LOCK_WAIT_MAX.min(ctx.timeout());
        engine.wait(async {
            loop {
                if let Some(socket) = running(ctx, config).await {
                    let client = Client::new(Endpoint::Socket(socket));
                    return Ok(Api { engine, client, guard: None });
                }
                ctx.expect_initialised()?;
                match runtime::open_in_process(ctx.dirs(), config, need).await {
                    Ok((client, guard)) => return Ok(Api { engine, client, guard: Some(guard) }),
                    Err(problem) if problem.code() == Code::Locked && Instant::now() < deadline => {
                        tokio::time::sleep(LOCK_PAUSE).await;
                    }
                    Err(problem) if problem.code() == Code::Locked => {
                        return Err(address::locked(ctx.dirs()));
                    }
                    Err(problem) => return Err(problem),
                }
            }
        })
    }

    /// Whether no node runs and this process does the work.
    #[must_use]
    pub(crate) fn is_in_process(&self) -> bool {
        self.client.is_in_process()
    }

    /// Asks and reads a JSON answer.
    ///
    /// # Errors
    /// The refusal, `E_UNREACHABLE` or `E_INTERRUPTED`.
    pub(crate) fn ask(&self, call: Call<'_>) -> Answer<Value> {
        self.engine.wait(self.client.ask(call))
    }

    /// GETs a JSON answer.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub(crate) fn get(&self, path: &str) -> Answer<Value> {
        self.ask(Call::get(path))
    }

    /// Asks and reads the answer's bytes.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub(crate) fn bytes(&self, call: Call<'_>) -> Answer<Bytes> {
        self.engine.wait(self.client.fetch(call))
    }

    /// Asks for an answer that is read piece by piece.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub(crate) fn open(&self, call: Call<'_>) -> Answer<Reply> {
        self.engine.wait(self.client.open(call))
    }

    /// The next piece of an answer.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub(crate) fn chunk(&self, reply: &mut Reply) -> Answer<Option<Bytes>> {
        self.engine.wait(reply.chunk())
    }

    /// Posts the bytes of a signed blob.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub(crate) fn post_blob(&self, path: &str, bytes: &[u8]) -> Answer<Value> {
        self.ask(Call::body(axum::http::Method::POST, path, "application/cbor", bytes.to_vec()))
    }
}

impl Drop for Api<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.engine.finish(guard.close());
        }
    }
}

/// The socket of the running node: the one that the configuration names, else where the node that holds the data directory says
/// that it answers.
pub(super) async fn running(ctx: &Context, config: &Config) -> Option<PathBuf> {
    if Client::answers(&config.api.socket).await {
        return Some(config.api.socket.clone());
    }
    address::find(ctx.dirs()).await
}

/// The API that `--api` names.
fn named(ctx: &Context, url: &str) -> Answer<Endpoint> {
    if let Some(path) = url.strip_prefix("unix:") {
        return Ok(Endpoint::Socket(path.into()));
    }
    let expected =
        || super::refusal::usage("expected --api unix:/path or http://127.0.0.1:PORT, got something else");
    let authority = url
        .strip_prefix("http://")
        .map(|rest| rest.strip_suffix('/').unwrap_or(rest))
        .ok_or_else(expected)?;
    // The token goes over the wire in the clear: to this machine only.
    let address: std::net::SocketAddr = match authority.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}").parse().map_err(|_| expected())?,
        None => authority.parse().map_err(|_| expected())?,
    };
    if !address.ip().is_loopback() {
        return Err(super::refusal::usage(
            "expected --api to name a loopback address: the token is not encrypted",
        ));
    }
    let file = ctx.token_file();
    let token = token::read(&file).map_err(|error| {
        if let KeyError::Missing { .. } = error {
            let what = format!("expected the API token in {}, got no file", file.display());
            return Problem::new(Code::ApiToken, what);
        }
        super::refusal::key(error)
    })?;
    Ok(Endpoint::Http { authority: address.to_string(), token: token.to_string() })
}
