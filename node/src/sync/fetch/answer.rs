//! A fetch as the object that the API answers with.

use serde_json::{Value, json};

use throughline_protocol::id::EntryCid;
use throughline_protocol::sync::choice::Rank;

use super::{Claim, Fetched, Freshness, Transfer, Use, Wanted, Who};
use crate::api::error::Answer;
use crate::core::{Node, PayloadUse, shape};
use crate::report;
use crate::sync::view::millis;

/// The shape of `verify`, over what an audit saw or what is held now, with the figures of the transfer.
pub(in crate::sync) fn answer(node: &Node, fetched: &Fetched, wanted: Wanted) -> Answer<Value> {
    let mut answer = match &fetched.report {
        Some(report) => report::verify(report, "peers", wanted.required()),
        None => {
            // Its signatures were checked when it was adopted; `verify` checks them again.
            let told = told_to(node, fetched)?;
            let held = node.review(fetched.session, PayloadUse::Present, told)?;
            report::verify(&held, "peers", wanted.required())
        }
    };
    let row = node.reader()?.session(fetched.session)?.filter(|_| fetched.mode == Use::Adopt);
    answer["ahead"] = row.and_then(|row| row.ahead).as_ref().map(shape::ahead).into();
    answer["kind"] = "fetch".into();
    answer["adopted"] = (fetched.mode == Use::Adopt).into();
    answer["transfer"] = transfer(&fetched.transfer);
    answer["elapsedMs"] = millis(fetched.transfer.elapsed).into();
    answer["freshness"] = freshness(&fetched.freshness);
    if let Some(signer) = fetched.told_by {
        answer["checks"]["head"]["by"] = signer.to_string().into();
    }
    Ok(answer)
}

/// The head that what is held is judged against. Peers that are behind tell one that this node has gone on from: that says nothing
/// about its own, so the head stays unchecked.
fn told_to(node: &Node, fetched: &Fetched) -> Answer<Option<EntryCid>> {
    let (reader, told) = (node.reader()?, fetched.told);
    let head = reader.session(fetched.session)?.and_then(|row| row.summary.head);
    let is_behind = head.is_some_and(|head| told.seq < head.seq)
        && reader.entry_at(fetched.session, told.seq)?.is_some_and(|stored| stored.cid == told.cid);
    Ok(Some(told.cid).filter(|_| !is_behind))
}

/// Named peers and parties, strangers, who was silent, who claimed what it did not show.
fn freshness(freshness: &Freshness) -> Value {
    let who = |who: &Who| json!({"peer": who.peer.to_string(), "alias": who.alias, "stranger": who.rank == Rank::Stranger});
    let claim = |claim: &Claim| {
        let mut object = who(&claim.who);
        object["head"] = json!({"cid": claim.head.cid.to_string(), "seq": claim.head.seq.get()});
        object["epoch"] = claim.head.epoch.get().into();
        object
    };
    let (peers, strangers) = (freshness.peers, freshness.strangers);
    json!({
        "source": "peers", "headSeenAgeMs": 0,
        "peersAsked": peers.asked, "peersAnswered": peers.answered, "peersAgree": peers.agree,
        "silent": freshness.silent.iter().map(who).collect::<Vec<_>>(),
        "strangers": {"asked": strangers.asked, "answered": strangers.answered, "agree": strangers.agree},
        "unshown": freshness.unshown.iter().map(claim).collect::<Vec<_>>(),
        "notAsked": freshness.not_asked,
    })
}

fn transfer(transfer: &Transfer) -> Value {
    let from: Vec<Value> = transfer
        .from
        .iter()
        .map(|from| {
            json!({
                "peer": from.peer.to_string(), "alias": from.alias, "road": from.road,
                "entries": from.entries, "bytes": from.bytes,
            })
        })
        .collect();
    json!({
        "state": "done", "from": from, "roundTrips": transfer.round_trips, "bytes": transfer.bytes,
        "resumedFromSeq": transfer.resumed_from, "elapsedMs": millis(transfer.elapsed),
    })
}
