//! A signed append that this node may not put in order goes to the holder. What comes back is what the holder said.

use std::sync::Arc;

use serde_json::json;
use throughline_protocol::block::Decoded;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::{Body, Entry};
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
            let entry = Decoded::<Entry>::decode(Arc::clone(&append.entry))?;
            if let Err(reject) = expect_answer_to(&entry, accepted) {
                shared.net.charge(peer, reject.code).await;
                return Err(Problem::from(reject)
                    .with("session", session.to_string())
                    .with("holder", holder.to_string()));
            }
            Ok(Some(accepted_answer(session, holder, &entry, accepted)))
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
    // Also where the stream broke: `E_UNREACHABLE` would say that nothing was changed.
    Problem::new(Code::Timeout, what)
        .with("session", session.to_string())
        .with("holder", holder.to_string())
        .hint("send this again once the holder is back: it is in order once in any case")
}

/// Holds an answer against what was asked: it is about this very entry, where that says it stands. Only a message may have been
/// accepted before under another signature.
fn expect_answer_to(entry: &Decoded<Entry>, accepted: Accepted) -> Result<(), Reject> {
    let asked = (entry.cid(), entry.value().seq(), entry.value().epoch());
    let is_message = matches!(entry.value().body, Body::UserMessage(_));
    let is_earlier = accepted.replayed && is_message && accepted.head != asked.0;
    if is_earlier || (accepted.head, accepted.seq, accepted.epoch) == asked {
        return Ok(());
    }
    let what = format!(
        "expected the holder to answer about {} at seq {}, got {} at seq {}; whether the entry is in order is not known",
        asked.0.short(),
        asked.1,
        accepted.head.short(),
        accepted.seq
    );
    Err(Reject::new(Code::SyncUnsolicited, what))
}

/// What a program on this machine is told: as if the entry had been put in order here, and by whom it was. That it is durable is the
/// holder's word, which answers after its commit (R-ST-6).
fn accepted_answer(
    session: SessionId,
    holder: Principal,
    entry: &Decoded<Entry>,
    accepted: Accepted,
) -> Appended {
    let (cid, seq) = (accepted.head.to_string(), accepted.seq.get());
    let answer = json!({
        "v": 1, "kind": "append", "session": session.to_string(),
        "entries": [{"cid": cid, "seq": seq, "type": entry.value().body.type_name()}],
        "head": {"cid": cid, "seq": seq}, "epoch": accepted.epoch.get(), "replayed": accepted.replayed,
        "durable": true, "holder": holder.to_string(),
    });
    Appended { answer, replayed: accepted.replayed }
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

#[cfg(test)]
mod tests {
    use throughline_protocol::entry::{Class, Note};
    use throughline_protocol::id::{EntryCid, Seq};
    use throughline_protocol::testing::SessionBuilder;

    use super::*;

    fn answer_to(entry: &Decoded<Entry>) -> Accepted {
        let (seq, epoch) = (entry.value().seq(), entry.value().epoch());
        Accepted { head: entry.cid(), seq, epoch, replayed: false }
    }

    #[test]
    fn an_answer_is_about_the_entry_that_was_sent() {
        let mut builder = SessionBuilder::new("answers");
        let owner = builder.owner.clone();
        builder.user(&owner, "a message");
        let message = Decoded::<Entry>::decode(Arc::clone(builder.head().entry.bytes())).unwrap();
        builder.note(&owner, Note::Class(Class::Public));
        let note = Decoded::<Entry>::decode(Arc::clone(builder.head().entry.bytes())).unwrap();
        let code = |entry, accepted| expect_answer_to(entry, accepted).map_err(|reject| reject.code);
        let other = EntryCid::of(b"of somebody else");
        for entry in [&message, &note] {
            let honest = answer_to(entry);
            assert_eq!(code(entry, honest), Ok(()));
            assert_eq!(code(entry, Accepted { replayed: true, ..honest }), Ok(()));
            for wrong in [
                Accepted { head: other, ..honest },
                Accepted { seq: Seq::ZERO, ..honest },
                Accepted { epoch: honest.epoch.next(), ..honest },
                Accepted { seq: Seq::ZERO, replayed: true, ..honest },
            ] {
                assert_eq!(code(entry, wrong), Err(Code::SyncUnsolicited), "{wrong:?}");
            }
        }
        // The same words may be in order under an earlier signature; a note is known by its CID alone.
        let earlier = |entry| Accepted { head: other, seq: Seq::ZERO, replayed: true, ..answer_to(entry) };
        assert_eq!(code(&message, earlier(&message)), Ok(()));
        assert_eq!(code(&note, earlier(&note)), Err(Code::SyncUnsolicited));
    }
}
