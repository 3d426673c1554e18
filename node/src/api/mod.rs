//! The local HTTP API: one router for the socket, for TCP and for commands that run without a node.
//!
//! A handler reads its input, calls one act of [`crate::core`] (on a thread that may block) and shapes the answer. It decides
//! nothing about sessions.

pub mod client;
mod described;
pub mod error;
pub mod gate;
pub mod listen;
pub mod openapi;
mod pace;
mod replay;
mod routes;
pub mod token;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::middleware;
use throughline_protocol::code::Code;

use crate::core::Node;
use error::{Answer, Problem};
use gate::Gate;

/// What handlers share.
#[derive(Clone)]
pub struct App {
    node: Node,
    http: Arc<OnceLock<SocketAddr>>,
    turns: replay::Turns,
}

impl App {
    /// The API of a node.
    #[must_use]
    pub fn new(node: Node) -> Self {
        App { node, http: Arc::default(), turns: replay::Turns::default() }
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Whose turn it is under an idempotency key.
    fn turns(&self) -> &replay::Turns {
        &self.turns
    }

    /// Remembers where the TCP door is.
    pub fn set_http(&self, addr: SocketAddr) {
        let _ = self.http.set(addr);
    }

    /// Where the TCP door is.
    #[must_use]
    pub fn http(&self) -> Option<SocketAddr> {
        self.http.get().copied()
    }

    /// Runs an act that may block, on a thread that may.
    ///
    /// # Errors
    /// The act's refusal; `E_INTERNAL` when it panicked.
    pub async fn act<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Node) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let node = self.node.clone();
        tokio::task::spawn_blocking(move || act(&node))
            .await
            .unwrap_or_else(|error| Err(Problem::new(Code::Internal, format!("an act failed: {error}"))))
    }
}

/// The router; without a gate it is for this process only.
pub fn router(app: App, gate: Option<Arc<Gate>>) -> Router {
    let keep = middleware::from_fn_with_state(app.clone(), replay::keep);
    let router = routes::all().layer(keep).layer(middleware::from_fn(described::hold)).with_state(app);
    match gate {
        Some(gate) => router.layer(middleware::from_fn_with_state(gate, gate::check)),
        None => router.layer(middleware::from_fn(gate::check_own)),
    }
}
