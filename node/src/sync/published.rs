//! What a session's Refs publish. `docs/PROTOCOL.md` R-CL-2, §Control blobs.
//!
//! An owner's or a live device's Ref without `visibility` publishes its head and that head's ancestors, unless the class in force at
//! the head is confidential; the holder's does where that class is public. Everything newer than the highest such head
//! stays unpublished, so an old Ref shown again shows nothing new.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use throughline_protocol::block::Decoded;
use throughline_protocol::control::{Control, Ref, Role};
use throughline_protocol::entry::{Body, Class, Entry, Note};
use throughline_protocol::fork::{Controls, Mark, Standing, check_publishes};
use throughline_protocol::id::{EntryCid, Epoch, Principal, Seq, SessionId};
use throughline_store::{Found, Lane, Reader, StoredEntry};

use super::policy::View;
use crate::api::error::Answer;

/// Sessions whose class notes are remembered: as many as one answer may list, so that one listing after the other finds them.
const SESSIONS_MAX: usize = 16_384;
/// Publishing Refs that are looked at, highest heads first.
const REFS_MAX: usize = 64;
/// What an entry of type note holds somewhere; entries without it are not decoded.
const NOTE_TYPE: &[u8] = b"SessionNote";

/// Which class is in force where, remembered per session.
#[derive(Default)]
pub(super) struct Classes(Mutex<BTreeMap<SessionId, Arc<Known>>>);

/// The class notes of a chain up to one of its entries.
struct Known {
    through: (Seq, EntryCid),
    notes: Vec<(Seq, Class)>,
}

impl Classes {
    /// The class in force at an entry of the main chain.
    fn at(&self, reader: &Reader, session: SessionId, seq: Seq) -> Answer<Class> {
        let known = self.through(reader, session, seq)?;
        let before = known.notes.iter().take_while(|(at, _)| *at <= seq).last();
        Ok(before.map_or(Class::Confidential, |(_, class)| *class))
    }

    fn through(&self, reader: &Reader, session: SessionId, seq: Seq) -> Answer<Arc<Known>> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&session).cloned();
        let held = match held {
            Some(held) if is_on_chain(reader, session, held.through)? => Some(held),
            Some(_) | None => None,
        };
        let (first, mut notes) = match &held {
            Some(held) if held.through.0 >= seq => return Ok(Arc::clone(held)),
            Some(held) => (held.through.0.next(), held.notes.clone()),
            None => (Seq::ZERO, Vec::new()),
        };
        let mut through = None;
        for stored in reader.entries(session, first, seq)? {
            let stored = stored?;
            notes.extend(class_of(&stored)?.map(|class| (stored.seq, class)));
            through = Some((stored.seq, stored.cid));
        }
        let Some(through) = through else {
            return Ok(
                held.unwrap_or_else(|| Arc::new(Known { through: (Seq::ZERO, session.genesis()), notes }))
            );
        };
        let known = Arc::new(Known { through, notes });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SESSIONS_MAX && !all.contains_key(&session) {
            all.pop_first();
        }
        all.insert(session, Arc::clone(&known));
        Ok(known)
    }
}

fn is_on_chain(reader: &Reader, session: SessionId, (seq, cid): (Seq, EntryCid)) -> Answer<bool> {
    Ok(reader.is_ancestor(session, cid, seq)?)
}

/// The class that an entry sets.
fn class_of(stored: &StoredEntry) -> Answer<Option<Class>> {
    let is_note = stored.bytes.windows(NOTE_TYPE.len()).any(|window| window == NOTE_TYPE);
    if stored.seq > Seq::ZERO && !is_note {
        return Ok(None);
    }
    let entry = Decoded::<Entry>::decode(stored.bytes.as_slice())?;
    Ok(match &entry.value().body {
        Body::Genesis(genesis) => Some(genesis.class),
        Body::Note(Note::Class(class)) => Some(*class),
        Body::Note(_)
        | Body::UserMessage(_)
        | Body::ModelResponse(_)
        | Body::ToolCall(_)
        | Body::Handoff(_)
        | Body::Seal(_) => None,
    })
}

/// The highest published entry of a session's main chain, by its Refs and its owner's `controls`.
pub(super) fn published(
    reader: &Reader,
    classes: &Classes,
    view: &View,
    controls: &Controls,
) -> Answer<Option<Mark>> {
    let session = view.row.session;
    let mut heads = Vec::new();
    for bytes in reader.refs_of_session(session)? {
        let blob = Decoded::<Control>::decode(bytes)?;
        let Control::Ref(value) = blob.value() else { continue };
        if value.private {
            continue;
        }
        let Some(standing) = standing(value, view, controls) else { continue };
        let Ok(named) = value.session_head() else { continue };
        let found = reader.find(&named.head.cid())?;
        if let Some(Found::Entry { session: held, seq, lane: Lane::Main }) = found
            && held == session
        {
            heads.push((seq, named.head, named.epoch, standing, value.signer));
        }
    }
    heads.sort_unstable_by_key(|(seq, ..)| std::cmp::Reverse(*seq));
    for (seq, head, epoch, standing, signer) in heads.into_iter().take(REFS_MAX) {
        let class = classes.at(reader, session, seq)?;
        let fits = check_publishes(standing, class).is_ok()
            && epoch_at(reader, session, seq)? == Some(epoch)
            && (standing != Standing::Holder || holder_in(reader, view, epoch)? == Some(signer));
        if fits {
            return Ok(Some(Mark { seq, epoch, cid: head }));
        }
    }
    Ok(None)
}

/// As what a Ref's signer acts, while its capability is live.
fn standing(value: &Ref, view: &View, controls: &Controls) -> Option<Standing> {
    let owner = view.row.owner;
    if value.owner() != owner {
        return None;
    }
    if value.signer == owner {
        return Some(Standing::Owner);
    }
    let cited = value.capability?;
    let grant = controls.grant(&cited, value.signer, owner).ok()?;
    let live =
        controls.revoked_by(&cited, owner).is_none() && grant.covers(view.row.session, view.state.agent());
    match grant.role {
        Role::Agent if live => Some(Standing::Device),
        Role::Writer if live => Some(Standing::Holder),
        Role::Agent | Role::Writer | Role::Contributor | Role::Reader => None,
    }
}

fn epoch_at(reader: &Reader, session: SessionId, seq: Seq) -> Answer<Option<Epoch>> {
    let Some(stored) = reader.entry_at(session, seq)? else { return Ok(None) };
    Ok(Some(Decoded::<Entry>::decode(stored.bytes)?.value().epoch()))
}

/// Who held the session in an epoch: the present one and the first are known at once. Of an epoch between them nobody's Ref
/// counts; a later one covers what it would have published.
fn holder_in(reader: &Reader, view: &View, epoch: Epoch) -> Answer<Option<Principal>> {
    if epoch == view.state.tip().epoch {
        return Ok(view.state.holder());
    }
    if epoch != Epoch::ZERO {
        return Ok(None);
    }
    let Some(stored) = reader.entry_at(view.row.session, Seq::ZERO)? else { return Ok(None) };
    let genesis = Decoded::<Entry>::decode(stored.bytes)?;
    Ok(match &genesis.value().body {
        Body::Genesis(body) => Some(body.holder.unwrap_or(genesis.value().signer)),
        Body::UserMessage(_)
        | Body::ModelResponse(_)
        | Body::ToolCall(_)
        | Body::Note(_)
        | Body::Handoff(_)
        | Body::Seal(_) => None,
    })
}
