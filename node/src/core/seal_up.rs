//! Building entries: a stated draft becomes a signed entry on the tip of a verifier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throughline_protocol::build;
use throughline_protocol::code::Code;
use throughline_protocol::entry::{Authority, Body, Entry};
use throughline_protocol::id::{Cid, Codec, Seq, SessionId, UnixMillis};
use throughline_protocol::payload::Salt;
use throughline_protocol::sign::SigningKey;
use throughline_protocol::unixfs;
use throughline_protocol::verify::{Ancestry, Prechecked, Pushed, VerifiedEntry, Verifier};
use throughline_protocol::view::EntryDraft;
use throughline_store::Reader;

use super::base::next_place;
use crate::api::error::{Answer, Problem};

/// Signs a draft on the verifier's tip and links it there: local entries pass the line that fetched ones do.
pub(super) fn sign_on<A: Ancestry>(
    verifier: &mut Verifier<A>,
    draft: &EntryDraft,
    authority: Option<Authority>,
    ts: UnixMillis,
    salt: Salt,
    key: &SigningKey,
) -> Answer<()> {
    let (place, not_before) = match verifier.state() {
        Some(state) => (Some(next_place(state)), state.position().ts),
        None => (None, UnixMillis::default()),
    };
    let built = draft.payload.as_ref().map(|payload| payload.build(&draft.body, salt)).transpose()?;
    let entry = Entry {
        ts: ts.max(not_before),
        signer: key.principal(),
        authority,
        place,
        body: draft.body.clone(),
        payload: built.as_ref().map(|(_, named)| *named),
        ext: draft.ext.clone(),
    };
    let signed = build::sign(entry, key)?;
    let payload = built.map(|(bytes, _)| Arc::<[u8]>::from(bytes));
    let checked = Prechecked::of(signed, payload)?;
    checked.check_files()?;
    match verifier.link(checked)? {
        Pushed::Linked(..) => Ok(()),
        Pushed::Known | Pushed::Aside(_) => {
            Err(Problem::new(Code::Internal, "an entry signed on the tip was not linked to it"))
        }
    }
}

/// Refuses a payload that an earlier entry of the session names, or one of these does twice: when the words of one of them are
/// to be dropped, those of the other would go with them. Only a writer looks; what others wrote stands.
///
/// # Errors
/// `E_SCHEMA_EXCLUSIVE`, with the entry that names it.
pub(super) fn check_payloads(reader: &Reader, session: SessionId, entries: &[VerifiedEntry]) -> Answer<()> {
    let mut named = BTreeMap::new();
    for verified in entries {
        let entry = verified.signed().value();
        let Some(payload) = entry.payload.map(|payload| payload.cid) else { continue };
        let earlier = named.insert(payload, entry.seq());
        if let Some(seq) =
            earlier.map_or_else(|| reader.names_payload(session, payload), |seq| Ok(Some(seq)))?
        {
            let what = format!(
                "expected a payload of its own, got {} in entry {}, which entry {seq} names: salt it anew",
                payload.short(),
                entry.seq()
            );
            return Err(Problem::new(Code::SchemaExclusive, what).with("namedBy", seq.get()));
        }
    }
    Ok(())
}

/// Files and config blocks that entries name, by seq and digest: the store keeps them from then on. Of a file in many
/// blocks all that are held are named; whoever brings a block later links it then.
pub(super) fn links_of(reader: &Reader, entries: &[VerifiedEntry]) -> Answer<Vec<(Seq, [u8; 32])>> {
    let mut links = Vec::new();
    for verified in entries {
        let entry = verified.signed().value();
        let seq = entry.seq();
        if let Body::ModelResponse(response) = &entry.body {
            links.extend(response.config.map(|config| (seq, *config.digest())));
        }
        for file in verified.files() {
            links.extend(blocks_of(reader, *file)?.into_iter().map(|digest| (seq, digest)));
        }
    }
    Ok(links)
}

/// Digests of a file's blocks, as far as they are held; its root in any case.
pub(super) fn blocks_of(reader: &Reader, root: Cid) -> Answer<BTreeSet<[u8; 32]>> {
    let mut digests = BTreeSet::new();
    let mut waiting = vec![root];
    while let Some(cid) = waiting.pop() {
        if digests.insert(*cid.digest())
            && cid.codec() == Codec::DagPb
            && let Some(bytes) = reader.block(&cid)?
        {
            waiting.extend(unixfs::parts(&cid, &bytes));
        }
    }
    Ok(digests)
}
