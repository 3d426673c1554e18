//! Building entries: a stated draft becomes a signed entry on the tip of a verifier.

use std::sync::Arc;

use throughline_protocol::build;
use throughline_protocol::entry::{Authority, Entry};
use throughline_protocol::id::{Seq, UnixMillis};
use throughline_protocol::payload::{Payload, Salt};
use throughline_protocol::content::Content;
use throughline_protocol::entry::Body;
use throughline_protocol::sign::SigningKey;
use throughline_protocol::verify::{Ancestry, Prechecked, Pushed, Verifier, VerifiedEntry};
use throughline_protocol::view::EntryDraft;

use super::base::next_place;
use crate::api::error::{Answer, Problem};
use throughline_protocol::code::Code;

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
    match verifier.link(Prechecked::of(signed, payload)?)? {
        Pushed::Linked(..) => Ok(()),
        Pushed::Known | Pushed::Aside(_) => {
            Err(Problem::new(Code::Internal, "an entry signed on the tip was not linked to it"))
        }
    }
}

/// Files and config blocks that entries name, by seq and digest: the store keeps them from then on.
pub(super) fn links_of(entries: &[VerifiedEntry]) -> Answer<Vec<(Seq, [u8; 32])>> {
    let mut links = Vec::new();
    for verified in entries {
        let entry = verified.signed().value();
        let seq = entry.seq();
        if let Body::ModelResponse(response) = &entry.body {
            links.extend(response.config.map(|config| (seq, *config.digest())));
        }
        let Some(bytes) = verified.payload() else { continue };
        let payload = Payload::check(entry, bytes.clone())?;
        links.extend(payload.attachments().iter().map(|attachment| (seq, *attachment.cid.digest())));
        links.extend(payload.content().iter().filter_map(|content| match content {
            Content::Media(media) => Some((seq, *media.cid.digest())),
            _ => None,
        }));
        if let Some(report) = payload.import_report() {
            links.extend(report.segments.iter().map(|segment| (seq, *segment.cid.digest())));
        }
    }
    Ok(links)
}
