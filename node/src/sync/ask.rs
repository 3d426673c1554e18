//! Asking a peer: one stream, one request, its answer frames. Every request carries a proof of who asks.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::PeerId;
use throughline_protocol::block::Block;
use throughline_protocol::clock::Apart;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{Cid, Codec, HashKind, Principal};
use throughline_protocol::limits;
use throughline_protocol::wire::append::{AppendAnswer, AppendRequest};
use throughline_protocol::wire::chain::{ChainAnswer, ChainAsk, ChainRequest, HeadState, OwnerState};
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest};
use throughline_protocol::wire::proof::{self, Ends};
use throughline_protocol::wire::{Credentials, Message};
use throughline_store::Reader;
use tokio::time::timeout;

use super::fault::PeerFault;
use super::shared::{Shared, blocking};
use crate::api::error::Answer;
use crate::core::{Node, controls_of};
use crate::net::{FrameStream, Protocol, principal_of};

/// Heads taken from one peer's answer.
const HEADS_MAX: usize = 16_384;

/// An answer of chain sync, frame by frame.
pub(super) struct Line {
    stream: FrameStream,
    /// Bytes of the frames that came.
    pub(super) bytes: u64,
}

impl Line {
    /// The next frame; none after `end`.
    pub(super) async fn next(&mut self) -> Result<Option<ChainAnswer>, PeerFault> {
        read_answer(&self.body().await?)
    }

    /// The bytes of the next frame, for [`read_answer`] on whatever thread. Dropping the future loses nothing.
    pub(super) async fn body(&mut self) -> Result<Vec<u8>, PeerFault> {
        let Some(body) = self.stream.read().await? else {
            return Err(PeerFault::nobodys(Code::Unreachable, "the answer broke off"));
        };
        self.bytes += body.len() as u64;
        Ok(body)
    }
}

/// A frame of an answer; none for `end`, and what `error` says as the fault that it tells.
pub(super) fn read_answer(body: &[u8]) -> Result<Option<ChainAnswer>, PeerFault> {
    match ChainAnswer::decode_body(body).map_err(PeerFault::peers)? {
        ChainAnswer::End => Ok(None),
        ChainAnswer::Error(error) => Err(error.into()),
        frame @ (ChainAnswer::Heads { .. }
        | ChainAnswer::Path(_)
        | ChainAnswer::Control(_)
        | ChainAnswer::Entries(_)
        | ChainAnswer::Blob { .. }) => Ok(Some(frame)),
    }
}

/// What a peer holds.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadsTold {
    pub(super) owners: Vec<OwnerState>,
    pub(super) sessions: Vec<HeadState>,
    pub(super) bytes: u64,
}

/// The frame is none that answers the request.
pub(super) fn unsolicited<T>(what: &str) -> Result<T, PeerFault> {
    Err(PeerFault::peers(Reject::new(Code::SyncUnsolicited, what)))
}

impl Shared {
    /// Proof and grants for a request to `peer` about what `owner` owns.
    pub(super) async fn credentials(
        &self,
        peer: PeerId,
        owner: Option<Principal>,
        extra: Option<Arc<[u8]>>,
    ) -> Answer<Credentials> {
        let node = self.node()?;
        let Some(auth) = self.proof(peer)? else { return Ok(Credentials::default()) };
        blocking(move || {
            let mut grants: Vec<Arc<[u8]>> = extra.into_iter().collect();
            if let Some(owner) = owner.or(node.owner()) {
                grants.extend(own_grants(&node.reader()?, owner, &node)?);
            }
            grants.truncate(limits::GRANTS_MAX);
            Ok(Credentials { auth: Some(auth), grants })
        })
        .await
    }

    /// The proof of who asks, for the connection to a peer. None for one whose key proves nothing.
    fn proof(&self, peer: PeerId) -> Answer<Option<Arc<[u8]>>> {
        let Some(theirs) = principal_of(&peer) else { return Ok(None) };
        let ends = Ends { mine: self.net.peer_principal(), theirs };
        Ok(Some(Arc::clone(proof::build(self.node()?.key(), ends, (self.limits.clock)())?.bytes())))
    }

    async fn open(&self, peer: PeerId, protocol: Protocol, body: Vec<u8>) -> Result<FrameStream, PeerFault> {
        let mut stream = self.net.open(peer, protocol).await?;
        stream.write(&body).await?;
        stream.finish().await?;
        Ok(stream)
    }

    /// Sends a chain request. One of many under the same credentials, so it brings a proof of its own: the first may be too old by now.
    pub(super) async fn chain(
        &self,
        peer: PeerId,
        credentials: &Credentials,
        ask: ChainAsk,
    ) -> Result<Line, PeerFault> {
        let mut credentials = credentials.clone();
        if credentials.auth.is_some() {
            credentials.auth = self.proof(peer).map_err(|problem| PeerFault::ours(&problem))?;
        }
        let request = ChainRequest { credentials, ask };
        let stream = self.open(peer, Protocol::Chain, request.encode_body()).await?;
        if let Some(key) = principal_of(&peer) {
            self.contacts.heard(key);
        }
        Ok(Line { stream, bytes: 0 })
    }

    /// Compares heads. A peer whose clock differs too much for a proof tells those that anybody may know, and that it does.
    pub(super) async fn ask_heads(
        &self,
        peer: PeerId,
        credentials: &Credentials,
        ask: ChainAsk,
    ) -> Result<HeadsTold, PeerFault> {
        let mut line = self.chain(peer, credentials, ask).await?;
        let mut told = HeadsTold::default();
        loop {
            let frame = match line.next().await {
                Ok(Some(frame)) => frame,
                Ok(None) => {
                    self.with_key(peer, |key| self.contacts.took_proof(key));
                    break;
                }
                Err(PeerFault { apart: Some(apart), .. }) => {
                    let apart = Apart { ours: (self.limits.clock)(), ..apart };
                    self.with_key(peer, |key| self.contacts.apart(key, apart));
                    break;
                }
                Err(fault) => return Err(fault),
            };
            let ChainAnswer::Heads { owners, sessions } = frame else {
                return unsolicited("expected heads, got another frame");
            };
            told.owners.extend(owners);
            told.sessions.extend(sessions);
            if told.sessions.len() > HEADS_MAX || told.owners.len() > limits::HEADS_OWNERS_MAX {
                return unsolicited("more heads than anybody asks for");
            }
        }
        told.bytes = line.bytes;
        Ok(told)
    }

    fn with_key(&self, peer: PeerId, act: impl FnOnce(Principal)) {
        if let Some(key) = principal_of(&peer) {
            act(key);
        }
    }

    /// Asks for blocks by CID, at most [`limits::BLOBS_MAX`], each frame within `idle`. Those that the peer has and that hash to what
    /// was asked are put into `got`, also where the answer ends early.
    pub(super) async fn ask_blocks(
        &self,
        peer: PeerId,
        credentials: &Credentials,
        cids: &[Cid],
        idle: Duration,
        got: &mut Vec<Block>,
    ) -> Result<(), PeerFault> {
        let late = |_| PeerFault::nobodys(Code::Timeout, "the peer sent nothing for too long");
        let ask = ChainAsk::Blobs { cids: cids.to_vec() };
        let mut line = timeout(idle, self.chain(peer, credentials, ask)).await.map_err(late)??;
        for asked in cids {
            let frame = timeout(idle, line.next()).await.map_err(late)??;
            let Some(ChainAnswer::Blob { cid, bytes }) = frame else {
                return unsolicited("expected one frame for each block");
            };
            if cid != *asked {
                return unsolicited("expected blocks in the order asked");
            }
            if let Some(bytes) = bytes {
                got.push(Block::check(cid, bytes).map_err(PeerFault::peers)?);
            }
        }
        match timeout(idle, line.next()).await.map_err(late)?? {
            None => Ok(()),
            Some(_) => unsolicited("a frame after the last block"),
        }
    }

    /// Hands an announcement over; returns when the peer has taken it in.
    pub(super) async fn tell(
        &self,
        peer: PeerId,
        credentials: &Credentials,
        message: Arc<[u8]>,
    ) -> Result<(), PeerFault> {
        let mut line = self.chain(peer, credentials, ChainAsk::Announce { message }).await?;
        match line.next().await? {
            None => Ok(()),
            Some(_) => unsolicited("expected nothing but the end"),
        }
    }

    /// Sends an append request and waits for its answer.
    pub(super) async fn ask_append(
        &self,
        peer: PeerId,
        request: &AppendRequest,
    ) -> Result<AppendAnswer, PeerFault> {
        self.single(peer, Protocol::Append, request.encode_body()).await
    }

    /// Sends a handoff request and waits for its answer.
    pub(super) async fn ask_handoff(
        &self,
        peer: PeerId,
        request: &HandoffRequest,
    ) -> Result<HandoffAnswer, PeerFault> {
        self.single(peer, Protocol::Handoff, request.encode_body()).await
    }

    fn single<'a, A: Message + Send + 'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        body: Vec<u8>,
    ) -> BoxFuture<'a, Result<A, PeerFault>> {
        async move {
            let mut stream = self.open(peer, protocol, body).await?;
            let answer = stream.read().await?;
            let answer =
                answer.ok_or_else(|| PeerFault::nobodys(Code::Unreachable, "the peer gave no answer"))?;
            A::decode_body(&answer).map_err(PeerFault::peers)
        }
        .boxed()
    }
}

/// Live grants of this node's own key by an owner, as bytes. A request carries a few: those come first that reach furthest.
fn own_grants(reader: &Reader, owner: Principal, node: &Node) -> Answer<Vec<Arc<[u8]>>> {
    let controls = controls_of(reader, owner, None)?;
    let mut bytes = Vec::new();
    for cid in live_grants(&controls, owner, node.principal()).into_iter().take(limits::GRANTS_MAX) {
        bytes.extend(reader.control(&cid)?.map(Arc::from));
    }
    Ok(bytes)
}

fn live_grants(controls: &Controls, owner: Principal, delegate: Principal) -> Vec<Cid> {
    let own = controls.capabilities().filter_map(|(hash, capability)| {
        let grant =
            capability.grant().ok().filter(|grant| grant.owner == owner && grant.delegate == delegate)?;
        let cid = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash);
        controls.revoked_by(&cid, owner).is_none().then_some(((grant.scope.is_some(), grant.role), cid))
    });
    let mut own: Vec<_> = own.collect();
    own.sort_by_key(|(reach, _)| *reach);
    own.into_iter().map(|(_, cid)| cid).collect()
}

#[cfg(test)]
mod tests {
    use throughline_protocol::control::Role;
    use throughline_protocol::testing;

    use super::*;

    #[test]
    fn the_grants_that_reach_furthest_are_sent_first() {
        let (account, delegate) = (testing::key("account"), testing::key("server").principal());
        let narrow = |nth: u32| {
            let path = format!("/agent-{nth}");
            testing::capability(&account, delegate, Role::Writer, Some(&path))
        };
        let wide =
            [Role::Agent, Role::Writer].map(|role| testing::capability(&account, delegate, role, None));
        let mut controls = Controls::new();
        for grant in (0..40).map(narrow).chain(wide.clone()) {
            controls.insert(&grant);
        }
        let sent = live_grants(&controls, account.principal(), delegate);
        assert_eq!(sent[..2], wide.map(|grant| grant.cid().cid()));
        assert_eq!(sent.len(), 42);
    }
}
