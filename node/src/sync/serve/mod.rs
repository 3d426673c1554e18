//! Answering peers. Each stream is one request; each answer is decided by [`super::policy`] before any content is read.
//! `docs/PROTOCOL.md` §Streams.
//!
//! Only adopted entries of main chains are served; what is held as evidence beside them, or staged, never leaves. A long answer is
//! read from one snapshot on a thread of its own and sent frame by frame: neither side ever holds a whole session. The net
//! bounds how many streams a peer may have open.

mod append;
mod blobs;
mod handoff;
mod heads;
mod range;

use std::sync::Arc;

use libp2p::PeerId;
use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::wire::chain::{ChainAnswer, ChainAsk, ChainRequest};
use throughline_protocol::wire::proof::{self, Ends, Refused};
use throughline_protocol::wire::{Credentials, ErrorCode, Message, WireError};
use throughline_store::Reader;
use tokio::sync::mpsc;

use super::contacts::Proved;
use super::follow::{self, Scope};
use super::news;
use super::parties;
use super::policy::{Asker, Gate};
use super::shared::{Shared, blocking};
use crate::api::error::{Answer, Problem};
use crate::net::{FrameError, FrameStream, Protocol, principal_of};

pub use handoff::HandoffHandler;

/// Frames that wait to be sent: reading from the store goes no further ahead.
const FRAMES_AHEAD: usize = 2;

/// Why an answer ends.
enum End {
    /// It is complete.
    Done,
    /// It is refused.
    Refused(WireError),
}

/// Where the frames of an answer go, as bytes. The stream may be gone; then the work stops.
struct Out(mpsc::Sender<Vec<u8>>);

/// The asker is gone.
struct Gone;

impl Out {
    /// Writes a frame and queues it, waiting while the asker reads slowly. For threads of their own only: meanwhile the one
    /// before it is sent.
    fn send(&self, frame: &ChainAnswer) -> Result<(), Gone> {
        self.0.blocking_send(frame.encode_body()).map_err(|_| Gone)
    }
}

/// What a request is answered from.
struct Scene {
    reader: Reader,
    shared: Arc<Shared>,
    asker: Asker,
}

impl Scene {
    fn gate(&self) -> Gate<'_> {
        Gate::new(&self.reader, &self.asker, &self.shared.targets, &self.shared.classes)
    }
}

/// The refusal for *absent* and *not for you* alike.
fn not_found() -> WireError {
    WireError::new(Code::NotFoundYet)
}

/// What an asker is told whose proof is right but for its time, where another one is told *not found*. It is as true of what is absent,
/// so it tells nothing of what is held.
fn told(error: WireError, clock: Option<WireError>) -> WireError {
    match clock {
        Some(clock) if *error.code() == ErrorCode::Known(Code::NotFoundYet) => clock,
        Some(_) | None => error,
    }
}

/// What a failure of our own looks like from outside: nothing of the store shows.
fn failed(problem: &Problem) -> WireError {
    tracing::warn!(code = %problem.code(), detail = problem.detail(), "a request could not be answered");
    WireError::new(Code::Internal)
}

/// Answers one stream.
pub(super) async fn serve(shared: Arc<Shared>, peer: PeerId, protocol: Protocol, mut stream: FrameStream) {
    let served = match protocol {
        Protocol::Chain => chain(&shared, peer, &mut stream).await,
        Protocol::Append => append::serve(&shared, peer, &mut stream).await,
        Protocol::Handoff => handoff::serve(&shared, peer, &mut stream).await,
    };
    if let Err(error) = served {
        tracing::debug!(%peer, %protocol, %error, "an answer ended early");
    }
}

/// Reads the one request of a stream. A message that no honest program sends is charged.
async fn read_request<M: Message>(
    shared: &Shared,
    peer: PeerId,
    stream: &mut FrameStream,
) -> Result<Option<M>, FrameError> {
    let body = match stream.read().await {
        Ok(Some(body)) => body,
        Ok(None) => return Ok(None),
        Err(error) => {
            // A length that no frame has; slow and broken lines are no proof of ill will.
            if let FrameError::Prefix | FrameError::TooLong { .. } = error {
                shared.net.charge(peer, error.code()).await;
            }
            return Err(error);
        }
    };
    match M::decode_body(&body) {
        Ok(request) => Ok(Some(request)),
        Err(reject) => {
            tracing::debug!(%peer, %reject, "a request that cannot be read");
            // An operation that a later version knows is no fault.
            if reject.code != Code::SchemaType {
                shared.net.charge(peer, reject.code).await;
            }
            Ok(None)
        }
    }
}

/// Who asks, as far as the request proves it. Grants that are not what they should be are left out.
async fn asker(shared: &Arc<Shared>, peer: PeerId, credentials: Credentials) -> Option<Asker> {
    let (theirs, mine) = (principal_of(&peer)?, shared.net.peer_principal());
    let at = (shared.limits.clock)();
    let work = blocking(move || {
        let mut keys = VerifyingKeys::default();
        let proven = credentials.auth.map(|auth| proof::check(&auth, &mut keys, Ends { mine, theirs }, at));
        let grants = credentials
            .grants
            .into_iter()
            .filter_map(|grant| Signed::<Control>::check(grant, &mut keys).ok())
            .collect();
        Ok((proven, grants))
    });
    let (proven, grants) = work.await.ok()?;
    let mut apart = None;
    let principal = match proven {
        None => None,
        Some(Ok(principal)) => {
            if shared.contacts.proved(theirs, principal) == Proved::Now {
                // What is for this principal was not asked for while it was a stranger.
                follow::hint(shared, peer, Scope::All);
                parties::proved(shared, peer, principal).await;
            }
            Some(principal)
        }
        Some(Err(refused)) => {
            if let Refused::Apart(by) = refused {
                apart = Some(by);
                shared.contacts.apart(theirs, by);
            }
            tracing::debug!(%peer, reject = %Reject::from(refused), "treated as a stranger");
            None
        }
    };
    shared.contacts.heard(theirs);
    Some(Asker { peer, peer_key: theirs, principal, grants, apart })
}

async fn chain(shared: &Arc<Shared>, peer: PeerId, stream: &mut FrameStream) -> Result<(), FrameError> {
    let Some(request) = read_request::<ChainRequest>(shared, peer, stream).await? else { return Ok(()) };
    let Some(asker) = asker(shared, peer, request.credentials).await else { return Ok(()) };
    if let ChainAsk::Announce { message } = request.ask {
        let end = match news::take_announced(shared, peer, message).await {
            Ok(()) => ChainAnswer::End,
            Err(reject) => ChainAnswer::Error(reject.into()),
        };
        return close(stream, &end).await;
    }
    let (sender, mut frames) = mpsc::channel(FRAMES_AHEAD);
    let clock = asker.clock_error();
    // Lists are shorter for a stranger, and say nothing of what they leave out.
    let is_list = matches!(request.ask, ChainAsk::Heads { .. } | ChainAsk::Control { .. });
    let work = answer(Arc::clone(shared), asker, request.ask, Out(sender));
    let work = tokio::spawn(work);
    while let Some(frame) = frames.recv().await {
        stream.write(&frame).await?;
    }
    let end = match work.await {
        Ok(Ok(End::Done)) => clock.filter(|_| is_list).map_or(ChainAnswer::End, ChainAnswer::Error),
        Ok(Ok(End::Refused(error))) => ChainAnswer::Error(told(error, clock)),
        Ok(Err(problem)) => ChainAnswer::Error(failed(&problem)),
        Err(_) => ChainAnswer::Error(WireError::new(Code::Internal)),
    };
    close(stream, &end).await
}

async fn close(stream: &mut FrameStream, end: &ChainAnswer) -> Result<(), FrameError> {
    stream.write(&end.encode_body()).await?;
    stream.finish().await
}

/// Answers from one snapshot; every read is on a thread of its own.
async fn answer(shared: Arc<Shared>, asker: Asker, ask: ChainAsk, out: Out) -> Answer<End> {
    let node = shared.node()?;
    let worker = Arc::clone(&shared);
    let poke = asker.peer;
    let wanted = if let ChainAsk::Heads { owners, .. } = &ask { owners.clone() } else { Vec::new() };
    let key = asker.peer_key;
    let end = blocking(move || {
        let scene = Scene { reader: node.reader()?, shared: worker, asker };
        let answered = match ask {
            ChainAsk::Heads { owners, sessions } => heads::heads(&scene, &owners, &sessions, &out),
            ChainAsk::Control { owner, have } => heads::control(&scene, owner, &have, &out),
            ChainAsk::Range(range) => range::range(&scene, &range, &out),
            ChainAsk::Blobs { cids } => blobs::blobs(&scene, &cids, &out),
            ChainAsk::Announce { .. } => Ok(Ok(End::Done)),
        };
        // An asker that is gone needs no end.
        answered.map(|sent| sent.unwrap_or(End::Done))
    })
    .await?;
    if !wanted.is_empty() {
        follow::notice_digests(&shared, poke, key, &wanted).await;
    }
    Ok(end)
}

/// What the parts of this module return: a failure of our own, an asker that left, or how the answer ends.
type Served = Answer<Result<End, Gone>>;

/// As `?` for frames: ends the answer when the asker is gone.
macro_rules! send {
    ($out:expr, $frame:expr) => {
        if $out.send(&$frame).is_err() {
            return Ok(Err(crate::sync::serve::Gone));
        }
    };
}
use send;

/// A refusal as the end of an answer.
fn refuse(error: WireError) -> Served {
    Ok(Ok(End::Refused(error)))
}

/// A fault of the asker as the end of an answer.
fn wrong(code: Code, detail: &str) -> Served {
    refuse(Reject::new(code, detail).into())
}

#[cfg(test)]
mod tests;
