//! `/throughline/append/1`: a signed entry for the holder to put in order.
//!
//! Who may not write to the session learns nothing about it: not even whether it is here. An entry proves its signer, not
//! who sends it: what came after it is told only to an asker who may read the session.

use std::sync::Arc;
use std::time::Duration;

use libp2p::PeerId;
use serde_json::Value;
use throughline_protocol::block::{Block, Decoded, Signed};
use throughline_protocol::code::Code;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{EntryCid, Epoch, Seq, SessionId};
use throughline_protocol::limits;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::wire::append::{Accepted, AppendAnswer, AppendRequest, Base};
use throughline_protocol::wire::{Message, WireError};
use throughline_store::Reader;

use super::super::policy::{Asker, Gate, Party, Reach, Seen, View, party};
use super::super::shared::{Shared, blocking};
use super::{asker, failed, not_found, read_request, told};
use crate::api::error::{Answer, Problem};
use crate::core::{Appended, Node, SignedAppend};
use crate::net::{FrameError, FrameStream};

/// How long the files of one entry may take to come. Less than its sender waits for the answer (30 s without a byte).
const PULL_TIME: Duration = Duration::from_secs(25);
/// Blocks and bytes of files that come with one entry at most, a round of asking more or less.
const PULL_BLOCKS_MAX: usize = 4_096;
const PULL_BYTES_MAX: usize = 256 << 20;

/// Answers one append.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    peer: PeerId,
    stream: &mut FrameStream,
) -> Result<(), FrameError> {
    let Some(request) = read_request::<AppendRequest>(shared, peer, stream).await? else { return Ok(()) };
    let grants = request.credentials.grants.iter().map(|grant| grant.to_vec()).collect();
    let Some(asker) = asker(shared, peer, request.credentials.clone()).await else { return Ok(()) };
    let clock = asker.clock_error();
    let answer = match append_with_files(shared, &asker, request, grants).await {
        Ok(AppendAnswer::Error(error)) => AppendAnswer::Error(told(error, clock)),
        Ok(answer) => answer,
        Err(problem) => AppendAnswer::Error(refusal(&problem)),
    };
    stream.write(&answer.encode_body()).await?;
    stream.finish().await
}

/// Puts an entry in order. Payload, config block and files that are not here for its session are asked for first: of whoever sends the entry,
/// over its connection, once it is known that the entry would be next (R-ST-6).
async fn append_with_files(
    shared: &Arc<Shared>,
    asker: &Asker,
    request: AppendRequest,
    grants: Vec<Vec<u8>>,
) -> Answer<AppendAnswer> {
    let attempt = || {
        let (worker, asker, request, grants) =
            (Arc::clone(shared), asker.clone(), request.clone(), grants.clone());
        blocking(move || append(&worker, &asker, request, grants))
    };
    match attempt().await {
        Err(problem) if problem.code() == Code::InputNotFound => {
            if tokio::time::timeout(PULL_TIME, pull(shared, asker.peer, &request)).await.is_err() {
                tracing::debug!(peer = %asker.peer, "the files of an entry did not come in time");
            }
            // What came stays for a day: the next try goes on from there.
            attempt().await
        }
        answered => answered,
    }
}

/// Asks the sender of an entry for what is not here of it, level by level, and stores that for the entry's session. It ends when nothing is
/// lacking, nothing more comes or a bound is met; whether all is here is judged by whoever puts the entry in order.
async fn pull(shared: &Arc<Shared>, peer: PeerId, request: &AppendRequest) -> Answer<()> {
    let entry = Decoded::<Entry>::decode(Arc::clone(&request.entry))?;
    let (session, owner) = (entry.value().session(entry.cid()), entry.value().owner());
    let credentials = shared.credentials(peer, Some(owner), None).await?;
    let (mut blocks, mut bytes) = (0, 0);
    while blocks < PULL_BLOCKS_MAX && bytes < PULL_BYTES_MAX {
        let asked = request.clone();
        let lacking =
            shared.on_node(move |node| node.lacking(&asked.entry, asked.payload, limits::BLOBS_MAX)).await?;
        if lacking.is_empty() {
            break;
        }
        let mut got: Vec<Block> = Vec::new();
        let ended = shared.ask_blocks(peer, &credentials, &lacking, PULL_TIME, &mut got).await;
        if let Err(fault) = &ended {
            tracing::debug!(%peer, %fault, "the files of an entry did not come");
        }
        if got.is_empty() {
            break;
        }
        blocks += got.len();
        bytes += got.iter().map(|block| block.bytes().len()).sum::<usize>();
        shared.on_node(move |node| node.put_blocks(session, got)).await?;
        if ended.is_err() {
            break;
        }
    }
    Ok(())
}

fn append(
    shared: &Shared,
    asker: &Asker,
    request: AppendRequest,
    grants: Vec<Vec<u8>>,
) -> Answer<AppendAnswer> {
    let node = shared.node()?;
    let reader = node.reader()?;
    let signed = Signed::<Entry>::check(Arc::clone(&request.entry), &mut VerifyingKeys::default())?;
    let session = signed.value().session(signed.cid());
    let gate = Gate::new(&reader, asker, &shared.targets, &shared.classes);
    if !may_write(gate, session, &signed)? {
        return Ok(AppendAnswer::Error(not_found()));
    }
    drop(reader);
    let act =
        SignedAppend { session, entry: request.entry, payload: request.payload, grants, dry_run: false };
    match node.append_signed(&act) {
        Ok(appended) => accepted(&signed, &appended),
        Err(problem) if problem.code() == Code::HeadMoved => conflict(&node, session, signed.value()),
        Err(problem) => Err(problem),
    }
}

/// Whether the entry's signer is one of the session's writers and the asker may read all of it: only then anything about
/// the session is said.
fn may_write(mut gate: Gate<'_>, session: SessionId, signed: &Signed<Entry>) -> Answer<bool> {
    let seen = gate.session(session)?.filter(|seen| seen.reach == Reach::Whole);
    let Some(Seen { view, .. }) = seen else { return Ok(false) };
    let (owner, covers) = (view.row.owner, (session, view.state.agent()));
    let signer = signed.value().signer;
    let standing = party(gate.controls(owner)?, owner, Some(signer), Some(covers));
    Ok(standing <= Party::Contributor)
}

/// What a program on this machine would be answered: of a message that was accepted before under another signature, the entry that it
/// became then, wherever the session is now.
fn accepted(entry: &Signed<Entry>, appended: &Appended) -> Answer<AppendAnswer> {
    let first = &appended.answer["entries"][0];
    let head: EntryCid = first["cid"].as_str().and_then(|cid| cid.parse().ok()).ok_or(Code::StoreCorrupt)?;
    let (seq, epoch) = if head == entry.cid() {
        (entry.value().seq(), entry.value().epoch())
    } else {
        let number = |of: &Value| of.as_u64().ok_or(Code::StoreCorrupt);
        (Seq::new(number(&first["seq"])?)?, Epoch::new(number(&appended.answer["epoch"])?)?)
    };
    Ok(AppendAnswer::Accepted(Accepted { head, seq, epoch, replayed: appended.replayed }))
}

fn conflict(node: &Node, session: SessionId, refused: &Entry) -> Answer<AppendAnswer> {
    let reader = node.reader()?;
    let view = View::read(&reader, session)?.ok_or(Code::NotFoundYet)?;
    let tip = view.state.tip();
    let (_, skip) = view.state.path().next_skip();
    let base = Base {
        session,
        prev: tip.cid,
        seq: tip.seq.next(),
        skip: (skip != tip.cid).then_some(skip),
        epoch: tip.epoch,
        holder: view.state.holder(),
        not_before: view.state.position().ts,
    };
    let between = match refused.prev() {
        Some(prev) => between(&reader, session, prev, tip.seq)?,
        None => Vec::new(),
    };
    Ok(AppendAnswer::Conflict { base, between })
}

/// Entries after `prev`, oldest first; none when that is not on the chain.
fn between(reader: &Reader, session: SessionId, prev: EntryCid, tip: Seq) -> Answer<Vec<Arc<[u8]>>> {
    let Some((held, stored)) = reader.entry(prev)? else { return Ok(Vec::new()) };
    if held != session || !reader.is_ancestor(session, prev, tip)? {
        return Ok(Vec::new());
    }
    let entries = reader.entries(session, stored.seq.next(), tip)?.take(limits::CONFLICT_BETWEEN_MAX);
    entries.map(|entry| Ok(Arc::from(entry?.bytes))).collect()
}

/// What a writer is told. What went wrong inside this node is not for outside.
fn refusal(problem: &Problem) -> WireError {
    use throughline_protocol::code::Fault;
    let is_told = matches!(
        problem.code(),
        Code::InputNotFound
            | Code::NotHolder
            | Code::Frozen
            | Code::Retired
            | Code::Sealed
            | Code::Idempotency
    );
    if problem.code().fault() == Fault::Local && !is_told {
        return failed(problem);
    }
    WireError::with_detail(problem.code(), problem.detail())
}
