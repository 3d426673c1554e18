//! How a move reaches other nodes. One implementation is the network; tests have one that loses what they want lost.

use std::sync::Arc;

use futures::future::BoxFuture;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::handoff::Point;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest};

use crate::api::error::Answer;
use crate::core::Node;
use crate::sync::Tally;

/// Where something is fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    /// A peer that this node knows.
    Peer(Principal),
    /// A multiaddr that ends in `/p2p/…`, as text from an offer.
    Address(String),
}

/// Ways to other nodes. A request that has no answer in time is `E_TIMEOUT`, one that could not be sent `E_UNREACHABLE`.
pub(super) trait Road: Send + Sync + 'static {
    /// Takes in handoff requests of others from now on.
    fn serve(&self, node: &Node);

    /// Whether other nodes can be reached at all.
    fn is_open(&self, node: &Node) -> bool;

    /// Sends a request of a move and waits for its answer.
    fn ask<'a>(
        &'a self,
        node: &'a Node,
        peer: Principal,
        request: HandoffRequest,
    ) -> BoxFuture<'a, Result<HandoffAnswer, Code>>;

    /// Asks a peer for its head of a session, fetches and verifies what is new in it, and takes that in. The head is what
    /// the peer told, verified or not.
    ///
    /// # Errors
    /// `E_UNREACHABLE` or `E_TIMEOUT`: it did not answer.
    fn look<'a>(
        &'a self,
        node: &'a Node,
        peer: Principal,
        session: SessionId,
    ) -> BoxFuture<'a, Result<Option<Point>, Code>>;

    /// Fetches what `from`, or everybody who is known, has of a session, verifies it and takes it in.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET` when nobody who was asked has it or gives it, `E_UNREACHABLE`, `E_PEER_UNKNOWN`.
    fn find<'a>(
        &'a self,
        node: &'a Node,
        session: SessionId,
        from: Option<String>,
    ) -> BoxFuture<'a, Answer<()>>;

    /// Fetches a session up to `head`, with payloads and files, verifies it and takes it in. A payload or file that nobody gives
    /// is no failure. `tally` tells meanwhile how far it is.
    fn fetch<'a>(
        &'a self,
        node: &'a Node,
        session: SessionId,
        head: Point,
        from: Vec<Provider>,
        tally: Arc<Tally>,
    ) -> BoxFuture<'a, Result<(), Reject>>;

    /// Lets the target of a move see the session here, whatever its class, until [`Road::close`].
    fn open(&self, node: &Node, session: SessionId, target: Principal);

    /// The move is over.
    fn close(&self, node: &Node, session: SessionId, target: Principal);

    /// Addresses of peers and of this node, in the order given; what is not known is left out.
    fn addresses<'a>(&'a self, node: &'a Node, peers: Vec<Principal>) -> BoxFuture<'a, Vec<String>>;

    /// The newest head of a session that a peer told this node, verified or not, now or while it was last heard.
    fn told<'a>(
        &'a self,
        node: &'a Node,
        peer: Principal,
        session: SessionId,
    ) -> BoxFuture<'a, Option<Point>>;

    /// The peers that the user knows and that are connected now.
    fn peers<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Vec<Principal>>;
}
