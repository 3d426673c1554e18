//! Building entries: a stated draft becomes a signed entry on the tip of a verifier.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throughline_protocol::build;
use throughline_protocol::clock;
use throughline_protocol::code::Code;
use throughline_protocol::entry::{Authority, Body, Entry, Note};
use throughline_protocol::id::{Cid, Codec, Seq, SessionId, UnixMillis};
use throughline_protocol::payload::Salt;
use throughline_protocol::sign::SigningKey;
use throughline_protocol::unixfs;
use throughline_protocol::verify::{Ancestry, Prechecked, Pushed, VerifiedEntry, Verifier};
use throughline_protocol::view::EntryDraft;
use throughline_store::{Found, Naming, Reader};

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
        ts: clock::written(ts, not_before),
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

/// What entries name: config blocks and files, block by block, and whether all of that is at hand.
pub(super) struct Links {
    /// By seq and digest; of a file as far as it is at hand, its root in any case.
    pub(super) links: Vec<(Seq, [u8; 32])>,
    /// The first block that is not at hand: a payload that did not come along, a config block, a file or a part of one.
    lacking: Option<Cid>,
}

impl Links {
    /// The links, for an entry that is put in order only with what it names (R-AP-4).
    ///
    /// # Errors
    /// `E_INPUT_NOT_FOUND`, the same whether another session has the block or nobody.
    pub(super) fn at_hand(self) -> Answer<Vec<(Seq, [u8; 32])>> {
        match self.lacking {
            None => Ok(self.links),
            Some(cid) => Err(not_at_hand(cid)),
        }
    }
}

fn not_at_hand(cid: Cid) -> Problem {
    let what = format!("expected {cid}, which the entry names, to be here for its session");
    Problem::new(Code::InputNotFound, what)
        .hint("upload it with POST /v1/blobs?session=SESSION, then send this again")
}

/// What entries of a session name. A part of a file that comes later is linked then, by whoever brings it.
pub(super) fn links_of(
    reader: &Reader,
    session: SessionId,
    entries: &[VerifiedEntry],
    naming: Naming,
) -> Answer<Links> {
    let mut found = Links { links: Vec::new(), lacking: None };
    for verified in entries {
        let entry = verified.signed().value();
        let absent = entry.payload.filter(|_| verified.payload().is_none()).map(|payload| payload.cid.cid());
        if let Some(cid) = absent
            && !is_at_hand(reader, session, &cid, naming)?
        {
            found.lacking.get_or_insert(cid);
        }
        for file in verified.files() {
            let blocks = blocks_of(reader, session, *file, naming)?;
            found.links.extend(blocks.digests.into_iter().map(|digest| (entry.seq(), digest)));
            // The transcript that an import was made from may be elsewhere, as the `source` of its entries.
            if !matches!(entry.body, Body::Note(Note::Import)) {
                found.lacking = found.lacking.or(blocks.lacking.first().copied());
            }
        }
    }
    Ok(found)
}

/// The blocks of a file, as far as nodes that are at hand name them.
pub(super) struct FileBlocks {
    /// Digests of all, the root in any case.
    pub(super) digests: BTreeSet<[u8; 32]>,
    /// Those that are not at hand.
    pub(super) lacking: Vec<Cid>,
}

/// Walks a file from its root down.
pub(super) fn blocks_of(
    reader: &Reader,
    session: SessionId,
    root: Cid,
    naming: Naming,
) -> Answer<FileBlocks> {
    let mut found = FileBlocks { digests: BTreeSet::new(), lacking: Vec::new() };
    let mut waiting = vec![root];
    while let Some(cid) = waiting.pop() {
        if !found.digests.insert(*cid.digest()) {
            continue;
        }
        if !is_at_hand(reader, session, &cid, naming)? {
            found.lacking.push(cid);
        } else if cid.codec() == Codec::DagPb
            && let Some(bytes) = reader.block(&cid)?
        {
            waiting.extend(unixfs::parts(&cid, &bytes));
        }
    }
    Ok(found)
}

/// Whether a session's entry may name a block: it is here for the session; or this node signs the entry for a client that may read the
/// block. A client of the local door may read all that is held: once a token is bound to sessions or to a class, what it may read is to be
/// asked here, and nowhere else.
fn is_at_hand(reader: &Reader, session: SessionId, cid: &Cid, naming: Naming) -> Answer<bool> {
    Ok(match naming {
        Naming::Brings => matches!(reader.find(cid)?, Some(Found::Block { .. })),
        Naming::Nothing => reader.is_here(session, cid)?,
    })
}
