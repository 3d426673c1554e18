//! What a signer of the next entry needs, and the answer to one that signed on an older head.

use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::entry::{Entry, Place};
use throughline_protocol::fork::Ending;
use throughline_protocol::id::{EntryCid, Seq, SessionId};
use throughline_protocol::verify::ChainState;
use throughline_store::{Found, Lane, Reader, SessionRow, SessionState};

use super::{Node, shape};
use crate::api::error::{Answer, Problem};

/// Entries listed between an old base and the tip.
const BETWEEN_MAX: u64 = 64;

/// Whether an entry is held with all that it stands on. What shows a fault is kept beside the chain also where there is no room for what
/// is below it.
///
/// # Errors
/// When the store cannot be read.
pub(crate) fn is_held(reader: &Reader, entry: EntryCid) -> Answer<bool> {
    let mut at = Some(entry);
    while let Some(cid) = at {
        match reader.find(&cid.cid())? {
            Some(Found::Entry { lane: Lane::Main, .. }) => return Ok(true),
            Some(Found::Entry { lane: Lane::Side, .. }) => {
                let Some(side) = reader.side_entry(cid)? else { return Ok(false) };
                at = Decoded::<Entry>::decode(side.bytes)?.value().prev();
            }
            Some(Found::Control { .. } | Found::Block { .. }) | None => return Ok(false),
        }
    }
    Ok(true)
}

/// A session as it stands: its row and the verifier's state after its tip.
pub(crate) struct Standing {
    pub(crate) row: SessionRow,
    pub(crate) state: ChainState,
}

/// The session, or `E_NOT_FOUND_YET`, the same whether it is absent or not for the asker.
pub(crate) fn need_session(reader: &Reader, session: SessionId) -> Answer<SessionRow> {
    reader.session(session)?.ok_or_else(|| not_found(session))
}

/// The one wording for *absent* and *not for you*.
pub(crate) fn not_found(session: SessionId) -> Problem {
    Problem::new(
        Code::NotFoundYet,
        "nobody that was asked has it; it may not exist, be private, or its holders may be off",
    )
    .with("session", session.to_string())
    .with("searched", json!({"store": true, "peers": 0, "dht": false, "forMs": 0}))
    .hint(format!("throughline fetch {session}"))
}

/// Row and chain state.
pub(crate) fn standing(reader: &Reader, session: SessionId) -> Answer<Standing> {
    standing_by(reader, session, |_| None)
}

/// As [`standing`], with a state that is decoded already if `kept` has it for these bytes.
fn standing_by(
    reader: &Reader,
    session: SessionId,
    kept: impl FnOnce(&[u8]) -> Option<ChainState>,
) -> Answer<Standing> {
    let row = need_session(reader, session)?;
    let bytes = reader.chain_state(session)?.ok_or_else(|| {
        Problem::new(Code::IndexCorrupt, format!("{} has no verifier state", session.short()))
    })?;
    if let Some(state) = kept(&bytes) {
        return Ok(Standing { row, state });
    }
    let state = ChainState::from_bytes(&bytes)
        .map_err(|reject| Problem::new(Code::StoreCorrupt, format!("verifier state: {}", reject.detail)))?;
    Ok(Standing { row, state })
}

/// Where the entry after the tip stands.
pub(crate) fn next_place(state: &ChainState) -> Place {
    let tip = state.tip();
    let (_, skip) = state.path().next_skip();
    Place {
        genesis: state.session().genesis(),
        prev: tip.cid,
        seq: tip.seq.next(),
        epoch: tip.epoch,
        skip: (skip != tip.cid).then_some(skip),
    }
}

/// What a signer needs, as JSON.
pub(crate) fn base_json(standing: &Standing) -> Value {
    let place = next_place(&standing.state);
    json!({
        "genesis": place.genesis.to_string(),
        "prev": place.prev.to_string(),
        "seq": place.seq.get(),
        "epoch": place.epoch.get(),
        "skip": place.skip.map(|skip| skip.to_string()),
        "notBeforeMs": standing.state.position().ts.get(),
        "holder": standing.state.holder().map(|holder| holder.to_string()),
        "owner": standing.state.owner().to_string(),
        "agent": standing.state.agent().to_string(),
        "class": standing.state.class().word(),
        "frozen": matches!(standing.row.state, SessionState::Frozen { .. }),
        "sealed": standing.state.position().ending == Ending::Sealed,
    })
}

/// `E_HEAD_MOVED` with the head, what to sign on, and what came between.
pub(crate) fn head_moved(reader: &Reader, standing: &Standing, base: EntryCid) -> Answer<Problem> {
    let session = standing.row.session;
    let tip = standing.state.tip();
    let found = reader.entry(base)?.filter(|(held, _)| *held == session).map(|(_, entry)| entry.seq);
    let mut between = Vec::new();
    if let Some(seq) = found {
        let last = Seq::new((seq.get() + BETWEEN_MAX).min(tip.seq.get()))?;
        for stored in reader.entries(session, seq.next(), last)? {
            let stored = stored?;
            let decoded = Decoded::<Entry>::decode(stored.bytes)?;
            between.push(json!({
                "cid": stored.cid.to_string(),
                "seq": stored.seq.get(),
                "type": decoded.value().body.type_name(),
                "signer": decoded.value().signer.to_string(),
            }));
        }
    }
    let from =
        found.map_or_else(|| "an entry that is not on this chain".to_owned(), |seq| format!("seq {seq}"));
    Ok(Problem::new(Code::HeadMoved, format!("base is {from}, head is seq {}", tip.seq))
        .with("base", json!({"cid": base.to_string(), "seq": found.map(Seq::get)}))
        .with("head", shape::mark(&tip))
        .with("signingBase", base_json(standing))
        .with("between", between)
        .hint("sign again on head"))
}

impl Node {
    /// Row and chain state for an act that goes on from there: the state from the last act if it is the one that is stored.
    pub(super) fn standing(&self, reader: &Reader, session: SessionId) -> Answer<Standing> {
        standing_by(reader, session, |bytes| self.warm().take_state(session, bytes))
    }

    /// What a signer of the next entry of a session needs.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`.
    pub fn signing_base(&self, session: SessionId) -> Answer<Value> {
        Ok(base_json(&standing(&self.reader()?, session)?))
    }
}
