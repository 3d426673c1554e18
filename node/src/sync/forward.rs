//! A signed append that this node may not put in order goes to the holder. What comes back is what the holder said.

use std::sync::Arc;

use serde_json::json;
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::wire::Credentials;
use throughline_protocol::wire::append::{Accepted, AppendAnswer, AppendRequest, Base};

use super::fault::PeerFault;
use super::follow::{self, Scope};
use super::shared::Shared;
use crate::api::error::{Answer, Problem};
use crate::core::{Appended, SignedAppend};

/// Hands `append` to the holder of its session; none when that is this node, or nobody.
///
/// # Errors
/// What the holder refuses; `E_UNREACHABLE` when it cannot be asked: nothing is changed then; `E_TIMEOUT` when it does not say.
pub(super) async fn append(shared: &Arc<Shared>, append: &SignedAppend) -> Answer<Option<Appended>> {
    let session = append.session;
    let looked_up = shared.on_node(move |node| {
        let holder = node.reader()?.session(session)?.and_then(|row| row.summary.holder);
        Ok(holder.filter(|holder| *holder != node.principal()))
    });
    let Some(holder) = looked_up.await? else { return Ok(None) };
    if append.dry_run {
        return Ok(None);
    }
    let peer = shared.connect(&holder.to_string()).await.map_err(|why| unreached(session, holder, &why))?;
    let own = shared.credentials(peer, None, None).await?;
    let grants = append.grants.iter().map(|grant| Arc::from(grant.as_slice())).chain(own.grants);
    let grants = grants.take(throughline_protocol::limits::GRANTS_MAX).collect();
    let request = AppendRequest {
        credentials: Credentials { auth: own.auth, grants },
        entry: Arc::clone(&append.entry),
        payload: append.payload.clone(),
    };
    let answer =
        shared.ask_append(peer, &request).await.map_err(|fault| unanswered(session, holder, fault.into()))?;
    match answer {
        AppendAnswer::Accepted(accepted) => {
            follow::hint(shared, peer, Scope::Session(session));
            accepted_answer(append, accepted).map(Some)
        }
        AppendAnswer::Conflict { base, between } => {
            // Whoever signs again needs what came between.
            follow::hint(shared, peer, Scope::Session(session));
            Err(conflict(append, &base, &between)?)
        }
        AppendAnswer::Error(error) => {
            Err(Problem::from(PeerFault::from(error)).with("session", session.to_string()))
        }
    }
}

/// The holder alone may put the entry in order, and is not there.
fn unreached(session: SessionId, holder: Principal, why: &Problem) -> Problem {
    let what = format!(
        "expected to reach {}, which holds the session: {}; nothing was changed",
        holder.short(),
        why.detail()
    );
    Problem::new(Code::Unreachable, what)
        .with("session", session.to_string())
        .with("holder", holder.to_string())
        .hint("start the holder and send this again")
}

/// The holder was asked and did not say what became of the entry. Sent again it is the same entry.
fn unanswered(session: SessionId, holder: Principal, why: Problem) -> Problem {
    if !matches!(why.code(), Code::Timeout | Code::Unreachable) {
        return why;
    }
    let what = format!(
        "expected an answer of {}, which holds the session, got none: it may have put the entry in order or not",
        holder.short()
    );
    Problem::new(why.code(), what)
        .with("session", session.to_string())
        .with("holder", holder.to_string())
        .hint("send this again once the holder is back: it is in order once in any case")
}

fn accepted_answer(append: &SignedAppend, accepted: Accepted) -> Answer<Appended> {
    let entry = Decoded::<Entry>::decode(Arc::clone(&append.entry))?;
    let answer = json!({
        "v": 1, "kind": "append", "session": append.session.to_string(),
        "entries": [{
            "cid": accepted.head.to_string(), "seq": accepted.seq.get(), "type": entry.value().body.type_name(),
        }],
        "head": {"cid": accepted.head.to_string(), "seq": accepted.seq.get()},
        "epoch": accepted.epoch.get(), "replayed": accepted.replayed, "durable": true,
    });
    Ok(Appended { answer, replayed: accepted.replayed })
}

/// `E_HEAD_MOVED`, as this node itself would say it.
fn conflict(append: &SignedAppend, base: &Base, between: &[Arc<[u8]>]) -> Answer<Problem> {
    let refused = Decoded::<Entry>::decode(Arc::clone(&append.entry))?;
    let listed: Vec<_> = between
        .iter()
        .filter_map(|bytes| Decoded::<Entry>::decode(Arc::clone(bytes)).ok())
        .map(|entry| {
            json!({
                "cid": entry.cid().to_string(), "seq": entry.value().seq().get(),
                "type": entry.value().body.type_name(), "signer": entry.value().signer.to_string(),
            })
        })
        .collect();
    let seq = base.seq.get().saturating_sub(1);
    let prev = refused.value().prev();
    Ok(Problem::new(Code::HeadMoved, format!("the holder's head is seq {seq}"))
        .with("session", append.session.to_string())
        .with("base", json!({"cid": prev.map(|cid| cid.to_string()), "seq": refused.value().seq().get().checked_sub(1)}))
        .with("head", json!({"cid": base.prev.to_string(), "seq": seq}))
        .with("signingBase", json!({
            "genesis": base.session.to_string(), "prev": base.prev.to_string(), "seq": base.seq.get(),
            "epoch": base.epoch.get(), "skip": base.skip.map(|skip| skip.to_string()),
            "notBeforeMs": base.not_before.get(), "holder": base.holder.map(|holder| holder.to_string()),
        }))
        .with("between", listed)
        .hint("sign again on head"))
}
