//! `/throughline/handoff/1`: who may ask is decided here, what is answered by the part of the node that moves sessions.
//!
//! Only the owner and its live devices move a session. Of a session that is not here, the owner is the one this node works
//! for: nobody becomes one by what a request brings.

use std::sync::Arc;

use futures::future::BoxFuture;
use libp2p::PeerId;
use throughline_protocol::code::Code;
use throughline_protocol::id::SessionId;
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest};
use throughline_protocol::wire::{Message, WireError};

use super::super::policy::{Asker, Gate, Party};
use super::super::shared::{Shared, blocking};
use super::{asker, failed, not_found, read_request};
use crate::api::error::Answer;
use crate::net::{FrameError, FrameStream};

/// Answers handoff requests. Asked again, it gives the state that the request led to.
pub trait HandoffHandler: Send + Sync {
    /// Answers one request of an asker that is the session's owner or a live device of it. It must answer within
    /// seconds: work that takes longer goes on by itself, and the asker asks again.
    fn handle(&self, asker: Asker, request: HandoffRequest) -> BoxFuture<'static, HandoffAnswer>;

    /// Takes an opening that somebody showed: if the owner signed it, the epoch before it is over here.
    fn ended(&self, session: SessionId, opening: Arc<[u8]>) -> BoxFuture<'static, Answer<()>>;
}

/// Answers one handoff request.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    peer: PeerId,
    stream: &mut FrameStream,
) -> Result<(), FrameError> {
    let Some(request) = read_request::<HandoffRequest>(shared, peer, stream).await? else { return Ok(()) };
    let Some(asker) = asker(shared, peer, request.credentials.clone()).await else { return Ok(()) };
    let answer = answer(shared, asker, request).await;
    stream.write(&answer.encode_body()).await?;
    stream.finish().await
}

async fn answer(shared: &Arc<Shared>, asker: Asker, request: HandoffRequest) -> HandoffAnswer {
    let (worker, session, who) = (Arc::clone(shared), request.session, asker.clone());
    let clock = asker.clock_error();
    match blocking(move || may_move(&worker, &who, session)).await {
        Ok(true) => {}
        Ok(false) if asker.principal.is_none() => {
            let error = clock.unwrap_or_else(|| WireError::new(Code::PeerProof));
            return HandoffAnswer::Error(error);
        }
        Ok(false) => return HandoffAnswer::Error(not_found()),
        Err(problem) => return HandoffAnswer::Error(failed(&problem)),
    }
    match shared.moves.get() {
        Some(handler) => handler.handle(asker, request).await,
        None => HandoffAnswer::Error(WireError::with_detail(Code::Refused, "this node moves no sessions")),
    }
}

fn may_move(shared: &Shared, asker: &Asker, session: SessionId) -> Answer<bool> {
    let node = shared.node()?;
    let reader = node.reader()?;
    if asker.principal.is_none() {
        return Ok(false);
    }
    let owner = match reader.session(session)? {
        Some(row) => Some(row.owner),
        None => node.owner(),
    };
    let Some(owner) = owner else { return Ok(false) };
    let mut gate = Gate::new(&reader, asker, &shared.targets, &shared.classes);
    Ok(gate.party_to(owner)? <= Party::Device)
}
