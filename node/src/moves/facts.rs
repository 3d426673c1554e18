//! What the store says about a session that is on the move: openings, places to sign, who may ask, what was sent.
//!
//! It reads verified entries only and decides nothing about the move.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::clock;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::content::Content;
use throughline_protocol::control::{Control, Ref, Role};
use throughline_protocol::entry::{Body, Entry, Handoff};
use throughline_protocol::fork::Controls;
use throughline_protocol::handoff::driver::{Input, Unsigned};
use throughline_protocol::handoff::{Opening, Point, Receipt};
use throughline_protocol::id::{Cid, EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use throughline_protocol::payload::Payload;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::skip;
use throughline_store::{PayloadState, Reader, StoredEntry};

use crate::api::error::{Answer, Problem};
use crate::core::{Granted, controls_of, grant_of, now};

/// Entries beside the main chain that are walked to find where they leave it.
const SIDE_WALK_MAX: usize = 10_000;

/// An entry that was verified before it was stored.
pub(super) fn read(stored: StoredEntry) -> Answer<Signed<Entry>> {
    Ok(Decoded::<Entry>::decode(Arc::<[u8]>::from(stored.bytes))?.assume_signed())
}

/// The main chain's entry at a seq.
fn main_entry(reader: &Reader, session: SessionId, seq: Seq) -> Answer<Signed<Entry>> {
    let stored = reader.entry_at(session, seq)?.ok_or_else(|| {
        Problem::new(Code::Incomplete, format!("seq {seq} of {} is not held", session.short()))
    })?;
    read(stored)
}

/// Whether a point is on the main chain.
pub(super) fn is_held(reader: &Reader, session: SessionId, point: Point) -> Answer<bool> {
    Ok(reader.entry_at(session, point.seq)?.is_some_and(|stored| stored.cid == point.cid))
}

/// The entry that opened the epoch in which the main chain stands at `through`; none in epoch 0. Epochs never fall along
/// a chain, so it is found by halving.
pub(super) fn opening(
    reader: &Reader,
    session: SessionId,
    owner: Principal,
    through: Seq,
) -> Answer<Option<Opening>> {
    let epoch = main_entry(reader, session, through)?.value().epoch();
    if epoch == Epoch::ZERO {
        return Ok(None);
    }
    let (mut below, mut at) = (0, through.get());
    while at - below > 1 {
        let middle = below + (at - below) / 2;
        if main_entry(reader, session, Seq::new(middle)?)?.value().epoch() < epoch {
            below = middle;
        } else {
            at = middle;
        }
    }
    let signed = main_entry(reader, session, Seq::new(at)?)?;
    Ok(Some(Opening::of(&signed, owner)?))
}

/// What the copy here comes to for a move that `ends` an epoch: the opening of a later one, else the newest entry. None: it is
/// behind that epoch, or not held.
pub(super) fn own_copy(
    reader: &Reader,
    session: SessionId,
    owner: Principal,
    ends: Epoch,
) -> Answer<Option<Input>> {
    let Some(tip) = reader.session(session)?.map(|row| row.tip) else { return Ok(None) };
    Ok(match tip.epoch.cmp(&ends) {
        Ordering::Greater => {
            opening(reader, session, owner, tip.seq)?.map(|opening| Input::Learned { opening })
        }
        Ordering::Equal => Some(Input::Held { head: Point { cid: tip.cid, seq: tip.seq } }),
        Ordering::Less => None,
    })
}

/// What a verified head that somebody told stands for: its epoch's opening, and where it is. None when it is not held.
pub(super) fn told_head(
    reader: &Reader,
    session: SessionId,
    owner: Principal,
    head: EntryCid,
) -> Answer<Option<(Option<Opening>, Point)>> {
    let Some((held, stored)) = reader.entry(head)?.filter(|(held, _)| *held == session) else {
        return Ok(None);
    };
    let point = Point { cid: head, seq: stored.seq };
    if is_held(reader, held, point)? {
        return Ok(Some((opening(reader, session, owner, stored.seq)?, point)));
    }
    let mut at = read(stored)?;
    let epoch = at.value().epoch();
    for _ in 0..SIDE_WALK_MAX {
        let Some(prev) = at.value().prev() else { return Ok(Some((None, point))) };
        let Some((_, below)) = reader.entry(prev)? else { return Ok(None) };
        let below = read(below)?;
        if below.value().epoch() < epoch {
            return Ok(Some((Some(Opening::of(&at, owner)?), point)));
        }
        if is_held(reader, session, Point { cid: prev, seq: below.value().seq() })? {
            return Ok(Some((opening(reader, session, owner, below.value().seq())?, point)));
        }
        at = below;
    }
    Ok(None)
}

/// The Ref of the highest epoch that `signer` made for the session, among those held.
pub(super) fn newest_ref(reader: &Reader, session: SessionId, signer: Principal) -> Answer<Option<Receipt>> {
    let mut newest: Option<Receipt> = None;
    for bytes in reader.refs_of_session(session)? {
        let receipt = Receipt::of(&Decoded::<Ref>::decode(Arc::<[u8]>::from(bytes))?.assume_signed())?;
        if receipt.signer() == signer && newest.as_ref().is_none_or(|held| held.epoch() < receipt.epoch()) {
            newest = Some(receipt);
        }
    }
    Ok(newest)
}

/// The facts of a handoff to sign, as the owner's program reads them.
pub(super) fn to_sign(reader: &Reader, facts: &Unsigned) -> Answer<Value> {
    let Unsigned { session, epoch, prev, seq, holder, grant } = *facts;
    if !is_held(reader, session, prev)? {
        let what = format!("expected seq {} to be {}, which is not held", prev.seq, prev.cid.short());
        return Err(Problem::new(Code::Incomplete, what));
    }
    let before = main_entry(reader, session, prev.seq)?;
    let skip = main_entry(reader, session, Seq::new(skip::target(seq.get()))?)?.cid();
    Ok(json!({
        "genesis": session.to_string(),
        "prev": prev.cid.to_string(),
        "seq": seq.get(),
        "epoch": epoch.get(),
        "holder": holder.to_string(),
        "grant": grant.map(|grant| grant.to_string()),
        "notBeforeMs": before.value().ts.get(),
        "skip": (skip != prev.cid).then(|| skip.to_string()),
    }))
}

/// Checks that a signed handoff says exactly what [`to_sign`] asked for.
pub(super) fn check_signed(
    signed: &Signed<Entry>,
    owner: Principal,
    asked: &Value,
) -> Result<Opening, Reject> {
    let opening = Opening::of(signed, owner)?;
    let entry = signed.value();
    let place = entry.place.ok_or(Code::Genesis)?;
    let Body::Handoff(Handoff { grant, .. }) = &entry.body else {
        return Err(Reject::new(Code::Type, "expected a handoff, got another entry"));
    };
    let text = |cid: Option<String>| cid.map_or(Value::Null, Value::from);
    let fields = [
        ("genesis", Value::from(place.genesis.to_string())),
        ("prev", Value::from(place.prev.to_string())),
        ("seq", Value::from(place.seq.get())),
        ("epoch", Value::from(place.epoch.get())),
        ("skip", text(place.skip.map(|skip| skip.to_string()))),
        ("holder", text(opening.holder().map(|holder| holder.to_string()))),
        ("grant", text(grant.map(|grant| grant.to_string()))),
    ];
    for (name, got) in fields {
        if asked[name] != got {
            return Err(Reject::new(Code::MoveState, format!("expected {name} {}, got {got}", asked[name])));
        }
    }
    let prev = UnixMillis::new(asked["notBeforeMs"].as_u64().unwrap_or_default())?;
    if entry.ts < prev {
        return Err(Reject::new(Code::TsOrder, "the handoff is older than the entry it stands on"));
    }
    clock::check(entry.ts, prev, now())?;
    Ok(opening)
}

/// Capabilities that came with a request and are the owner's, their signatures checked. Others are passed over.
pub(super) fn presented(grants: &[Arc<[u8]>], owner: Principal) -> Vec<Signed<Control>> {
    let mut keys = VerifyingKeys::default();
    let signed =
        grants.iter().filter_map(|bytes| Signed::<Control>::check(Arc::clone(bytes), &mut keys).ok());
    signed
        .filter(|signed| match signed.value() {
            Control::Capability(capability) => capability.signer == owner && capability.grant().is_ok(),
            Control::Tombstone(_) | Control::Ref(_) => false,
        })
        .collect()
}

/// Whether `key` may move sessions of the owner: it is the owner's, or that of a live device.
pub(super) fn may_move(controls: &Controls, owner: Principal, key: Principal) -> bool {
    key == owner || matches!(grant_of(controls, owner, key, Role::Agent, None), Granted::Live(_))
}

/// Bytes of the capabilities that a request to `target` has to bring: its own, and the one that this node asks under.
pub(super) fn grants_for(
    reader: &Reader,
    owner: Principal,
    own: Principal,
    grant: Option<Cid>,
) -> Answer<Vec<Arc<[u8]>>> {
    let controls = controls_of(reader, owner, None)?;
    let device = match grant_of(&controls, owner, own, Role::Agent, None) {
        Granted::Live(cid) => Some(cid),
        Granted::Revoked(_) | Granted::Never => None,
    };
    let mut bytes = Vec::new();
    for cid in grant.into_iter().chain(device) {
        bytes.extend(reader.control(&cid)?.map(Arc::<[u8]>::from));
    }
    Ok(bytes)
}

/// What a target lacked of a chain, by the bytes that the chain names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Entries that it lacked.
    pub(super) entries: u64,
    /// Files that those entries name.
    pub(super) blobs: u64,
    /// Bytes of entries, payloads and files.
    pub(super) bytes: u64,
    /// Entries that it told to hold before.
    pub(super) already_there: u64,
}

/// What somebody who holds the first `already_there` entries lacks of the main chain up to `base`.
pub(super) fn sent(reader: &Reader, session: SessionId, base: Point, already_there: u64) -> Answer<Sent> {
    let mut sent = Sent { already_there: already_there.min(base.seq.get() + 1), ..Sent::default() };
    let mut files = BTreeMap::new();
    if already_there <= base.seq.get() {
        for stored in reader.entries(session, Seq::new(already_there)?, base.seq)? {
            let signed = read(stored?)?;
            sent.entries += 1;
            sent.bytes += signed.bytes().len() as u64;
            if let Some(named) = signed.value().payload {
                sent.bytes += named.size;
                if let PayloadState::Present(bytes) = reader.payload(named.cid)? {
                    files.extend(files_of(&Payload::check(signed.value(), bytes)?));
                }
            }
        }
    }
    sent.blobs = files.len() as u64;
    sent.bytes += files.values().sum::<u64>();
    Ok(sent)
}

/// Files that a payload names, with their sizes.
fn files_of(payload: &Payload) -> Vec<(Cid, u64)> {
    let attached = payload.attachments().iter().map(|attachment| (attachment.cid, attachment.size));
    let media = payload.content().iter().filter_map(|content| {
        let Content::Media(media) = content else { return None };
        Some((media.cid, media.size))
    });
    attached.chain(media).collect()
}
