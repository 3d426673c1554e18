//! What ended an epoch, told to the holder who was left behind it. `docs/PROTOCOL.md` R-HO-9.
//!
//! A server that was off while the owner moved its session, and that may read nothing any more when it comes back, is still told
//! one thing on its proof: the lowest opening above the last epoch that it held. That is what makes it stop. It is never the
//! latest opening, and nothing else of the session. It is found at each comparison, in either direction: it is the head that
//! such a server is told, and the block of that CID is all that it may have.

use std::sync::Arc;

use throughline_protocol::block::Decoded;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Epoch, Principal, Seq, SessionId};
use throughline_protocol::wire::chain::HeadState;
use throughline_store::{Reader, SessionRow};

use super::fetch::Provider;
use super::policy::{Gate, Reach, Seen};
use super::shared::Shared;
use crate::api::error::{Answer, Problem};
use crate::core::need_session;

/// Epochs that are looked at for the last one of a key, the newest first.
const EPOCHS_MAX: usize = 1_024;

/// What a comparison tells an asker of a session.
pub(super) enum Head {
    /// The end of what it may see.
    Seen(Box<Seen>, Mark),
    /// The opening that ended its last epoch.
    Ended(Mark),
}

impl Gate<'_> {
    /// The head of a session that the asker is told; none when that is nothing, whatever the reason.
    pub(super) fn head(&mut self, session: SessionId) -> Answer<Option<Head>> {
        let seen = self.session(session)?;
        if seen.as_ref().is_some_and(|seen| seen.reach == Reach::Whole) {
            return Ok(seen
                .map(|seen| (seen.view.row.tip, seen))
                .map(|(tip, seen)| Head::Seen(seen.into(), tip)));
        }
        let shown = seen.and_then(|seen| Some((seen.reach.limit(seen.view.row.tip)?, seen)));
        let ended = self.ended(session)?;
        Ok(match (shown, ended) {
            (Some((mark, _)), Some(ended)) if ended.epoch > mark.epoch => Some(Head::Ended(ended)),
            (Some((mark, seen)), _) => Some(Head::Seen(seen.into(), mark)),
            (None, ended) => ended.map(Head::Ended),
        })
    }

    /// The lowest opening above the last epoch that the asker held, where it may not read the session.
    pub(super) fn ended(&mut self, session: SessionId) -> Answer<Option<Mark>> {
        let Some(who) = self.asker.principal else { return Ok(None) };
        let Some(row) = self.reader.session(session)? else { return Ok(None) };
        if row.tip.epoch == Epoch::ZERO || !self.concerns(row.owner)? {
            return Ok(None);
        }
        ending(self.reader, &row, who)
    }
}

/// The opening after the last epoch that `who` held; none if it never held one, or holds the newest.
fn ending(reader: &Reader, row: &SessionRow, who: Principal) -> Answer<Option<Mark>> {
    let mut after = None;
    let mut last = row.tip.seq;
    for _ in 0..EPOCHS_MAX {
        let (mark, holder) = opening_of(reader, row.session, last)?;
        if holder == Some(who) {
            return Ok(after);
        }
        let Some(before) = mark.seq.get().checked_sub(1) else { break };
        (after, last) = (Some(mark), Seq::new(before)?);
    }
    Ok(None)
}

/// The first entry of the epoch that the main chain is in at `seq`, and who holds that epoch. Epochs never go down along a chain.
fn opening_of(reader: &Reader, session: SessionId, seq: Seq) -> Answer<(Mark, Option<Principal>)> {
    let epoch = at(reader, session, seq)?.value().epoch();
    let (mut low, mut high) = (0, seq.get());
    while low < high {
        let middle = low + (high - low) / 2;
        if at(reader, session, Seq::new(middle)?)?.value().epoch() < epoch {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let first = at(reader, session, Seq::new(low)?)?;
    let entry = first.value();
    let holder = match &entry.body {
        Body::Genesis(genesis) => Some(genesis.holder.unwrap_or(entry.signer)),
        Body::Handoff(handoff) => handoff.holder,
        Body::UserMessage(_) | Body::ModelResponse(_) | Body::ToolCall(_) | Body::Note(_) | Body::Seal(_) => {
            None
        }
    };
    Ok((Mark { seq: entry.seq(), epoch, cid: first.cid() }, holder))
}

fn at(reader: &Reader, session: SessionId, seq: Seq) -> Answer<Decoded<Entry>> {
    let missing = || Problem::from(throughline_protocol::code::Code::StoreCorrupt);
    let stored = reader.entry_at(session, seq)?.ok_or_else(missing)?;
    Ok(Decoded::<Entry>::decode(stored.bytes)?)
}

/// Asks whoever told a head of a later epoch, and does not give the session, for that one entry. If the owner opened an epoch
/// with it, this node stops there. Says whether it did.
pub(super) async fn take_ending(shared: &Arc<Shared>, from: &Provider, head: &HeadState) -> Answer<bool> {
    let (session, epoch) = (head.session, head.epoch);
    let owner = shared.on_node(move |node| {
        let row = need_session(&node.reader()?, session)?;
        Ok((epoch > row.fence.max(row.tip.epoch)).then_some(row.owner))
    });
    let (Some(owner), Some(handler)) = (owner.await?, shared.moves.get()) else { return Ok(false) };
    let credentials = shared.credentials(from.peer, Some(owner), None).await?;
    let idle = shared.node()?.config().limits.idle_timeout;
    let mut got = Vec::new();
    shared.ask_blocks(from.peer, &credentials, &[head.head.cid()], idle, &mut got).await?;
    let Some(block) = got.pop() else { return Ok(false) };
    handler.ended(session, Arc::clone(block.bytes())).await?;
    tracing::info!(session = session.short(), %epoch, "this session was handed over while this node was away");
    Ok(true)
}
