//! What is here of the words and files that a session names. `docs/PROTOCOL.md` R-VE-7.

use std::sync::Arc;

use throughline_protocol::block::Decoded;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Cid, Codec, EntryCid, Seq, SessionId};
use throughline_protocol::payload::Payload;
use throughline_protocol::unixfs;
use throughline_protocol::verify::{Inventory, LinkCounts, Links};
use throughline_store::{PayloadState, Reader};

use super::Node;
use super::base::need_session;
use super::verify::SIDE_PAGE;
use crate::api::error::{Answer, Problem};

/// Sessions that a check lists as lacking something.
const LACKING_SESSIONS_MAX: usize = 100;

/// What a block of a file links that is here for a session; none: it is not here. A config block links nothing.
pub(crate) fn links_here(reader: &Reader, session: SessionId, cid: &Cid) -> Answer<Option<Vec<Cid>>> {
    if !reader.is_here(session, cid)? {
        return Ok(None);
    }
    if cid.codec() != Codec::DagPb {
        return Ok(Some(Vec::new()));
    }
    Ok(reader.block(cid)?.map(|bytes| unixfs::parts(cid, &bytes)))
}

/// What all sessions here name, and those that lack something of it.
#[derive(Clone, Debug, Default)]
pub struct StoreInventory {
    /// Of all of them.
    pub payloads: LinkCounts,
    /// Of all of them.
    pub files: LinkCounts,
    /// The first of those that lack something.
    pub lacking: Vec<(SessionId, Inventory)>,
}

impl Node {
    /// Reads the words of a session and counts. `read` is told how many bytes were gone through.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`; `E_STORE_CORRUPT` when stored bytes do not hash to their CID.
    pub(crate) fn inventory(&self, session: SessionId, read: &mut dyn FnMut(u64)) -> Answer<Inventory> {
        let reader = self.reader()?;
        let row = need_session(&reader, session)?;
        let mut links = Links::default();
        for stored in reader.entries(session, Seq::ZERO, row.tip.seq)? {
            let stored = stored?;
            read(take(&reader, session, &mut links, (stored.bytes, stored.payload))?);
        }
        let mut after = None;
        loop {
            let page = reader.side_entries(session, after, SIDE_PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.cid);
            for side in page {
                read(take(&reader, session, &mut links, (side.bytes, side.payload))?);
            }
        }
        links.inventory(|cid| links_here(&reader, session, cid))
    }

    /// As [`Node::inventory`], of every session. One that cannot be read is passed over: whoever asks for this lists the damage.
    ///
    /// # Errors
    /// When the database cannot be read at all.
    pub fn inventory_of_all(&self) -> Answer<StoreInventory> {
        let mut all = StoreInventory::default();
        let mut after = None;
        loop {
            let page = self.reader()?.sessions(after, SIDE_PAGE)?;
            let Some(last) = page.last() else { return Ok(all) };
            after = Some(last.session);
            for row in &page {
                let inventory = match self.inventory(row.session, &mut |_| ()) {
                    Ok(inventory) => inventory,
                    Err(problem) => {
                        tracing::warn!(session = row.session.short(), "a session is not counted: {problem}");
                        continue;
                    }
                };
                all.payloads.add(&inventory.payloads);
                all.files.add(&inventory.files);
                if inventory.is_lacking() && all.lacking.len() < LACKING_SESSIONS_MAX {
                    all.lacking.push((row.session, inventory));
                }
            }
        }
    }
}

/// Takes one entry in; the bytes that were read for it.
fn take(
    reader: &Reader,
    session: SessionId,
    links: &mut Links,
    (bytes, payload): (Vec<u8>, Option<EntryCid>),
) -> Answer<u64> {
    let decoded = Decoded::<Entry>::decode(bytes)?;
    let (entry, mut read) = (decoded.value(), decoded.bytes().len());
    let here = payload.map(|cid| Ok::<_, Problem>(reader.is_here(session, &cid.cid())?.then_some(cid)));
    let words = match here.transpose()?.flatten() {
        None => None,
        Some(cid) => match reader.payload(cid)? {
            PayloadState::Present(bytes) => {
                read += bytes.len();
                // What fits another entry only is not this one's words.
                Payload::check(entry, Arc::<[u8]>::from(bytes)).ok().map(|words| words.files())
            }
            PayloadState::Absent | PayloadState::Dropped => None,
        },
    };
    links.entry(decoded.cid(), entry, words.as_deref());
    Ok::<_, Problem>(read as u64)
}
