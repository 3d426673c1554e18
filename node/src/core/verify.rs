//! The five checks over what this node holds of a session.

use std::sync::Arc;

use throughline_protocol::code::Code;
use throughline_protocol::id::{EntryCid, Seq, SessionId};
use throughline_protocol::verify::{Auditor, NotLinear, Prechecked, Report};
use throughline_store::{PayloadState, Reader, SessionRow};

use super::Node;
use super::base::need_session;
use super::controls::held_controls;
use super::inventory::links_here;
use super::scene::from_store;
use crate::api::error::{Answer, Problem};

/// Side entries that are read at a time.
pub(super) const SIDE_PAGE: usize = 1_000;

/// Which payloads are checked along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadUse {
    /// None.
    None,
    /// Those that are held.
    Present,
}

impl Node {
    /// Verifies everything that is held of a session: hashes, schema, signatures, chain, authority, selection.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`; `E_STORE_CORRUPT` when stored bytes do not hash to their CID.
    pub fn verify(&self, session: SessionId, payloads: PayloadUse, told: Option<EntryCid>) -> Answer<Report> {
        self.audit(session, payloads, told, Signatures::Check)
    }

    /// As [`Node::verify`], but for the signatures: those of what is held were checked before it was adopted, and the bytes
    /// still hash to what was signed.
    ///
    /// # Errors
    /// As [`Node::verify`].
    pub(crate) fn review(
        &self,
        session: SessionId,
        payloads: PayloadUse,
        told: Option<EntryCid>,
    ) -> Answer<Report> {
        self.audit(session, payloads, told, Signatures::Checked)
    }

    fn audit(
        &self,
        session: SessionId,
        payloads: PayloadUse,
        told: Option<EntryCid>,
        signatures: Signatures,
    ) -> Answer<Report> {
        let reader = self.reader()?;
        need_session(&reader, session)?;
        let with = |auditor: Auditor| {
            let auditor = match told {
                Some(head) => auditor.told(head),
                None => auditor,
            };
            audit(&reader, session, payloads, Reading { auditor, signatures })
        };
        match with(Auditor::new().of_session(session))? {
            Ok(report) => Ok(report),
            // Branches or late blobs: judged as a set, in a second reading.
            Err(_) => with(Auditor::over_set(session))?.map_err(|not_linear| not_linear.reason.into()),
        }
    }
}

/// What becomes of the signatures of what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signatures {
    /// They are checked.
    Check,
    /// They were checked when it was stored.
    Checked,
}

/// An auditor that is given what is held.
struct Reading {
    auditor: Auditor,
    signatures: Signatures,
}

impl Reading {
    /// All that the session is judged by.
    fn controls(&mut self, reader: &Reader, row: &SessionRow) -> Answer<Result<(), NotLinear>> {
        if self.signatures == Signatures::Checked {
            let mut held = held_controls(reader, row.owner, Some(row.session))?.into_iter();
            return Ok(held.try_for_each(|control| self.auditor.checked_control(&control)));
        }
        let refs = reader.refs_of_session(row.session)?;
        let mut held = reader.controls_of_owner(row.owner)?.into_iter().chain(refs);
        Ok(held.try_for_each(|bytes| self.auditor.control(bytes)))
    }

    /// An entry that is held under `cid`.
    fn entry(
        &mut self,
        cid: EntryCid,
        bytes: Vec<u8>,
        payload: Option<Arc<[u8]>>,
    ) -> Answer<Result<(), NotLinear>> {
        if self.signatures == Signatures::Checked {
            let signed = from_store(bytes)?;
            if signed.cid() != cid {
                let what = format!("the entry held as {} hashes to {}", cid.short(), signed.cid().short());
                return Err(Problem::new(Code::StoreCorrupt, what).hint("throughline fsck"));
            }
            return Ok(self.auditor.checked_entry(Prechecked::of(signed, payload)?));
        }
        Ok(self.auditor.entry(bytes, payload))
    }
}

/// One reading of what is held, into an auditor.
fn audit(
    reader: &Reader,
    session: SessionId,
    payloads: PayloadUse,
    mut into: Reading,
) -> Answer<Result<Report, NotLinear>> {
    let row = need_session(reader, session)?;
    if let Err(not_linear) = into.controls(reader, &row)? {
        return Ok(Err(not_linear));
    }
    for stored in reader.entries(session, Seq::ZERO, row.tip.seq)? {
        let stored = stored?;
        let payload = payload(reader, stored.payload, payloads)?;
        if let Err(not_linear) = into.entry(stored.cid, stored.bytes, payload)? {
            return Ok(Err(not_linear));
        }
    }
    let mut after = None;
    loop {
        let page = reader.side_entries(session, after, SIDE_PAGE)?;
        let Some(last) = page.last() else { break };
        after = Some(last.cid);
        for side in page {
            // Beside the chain there are words too: a fork and a cut tail keep theirs.
            let payload = payload(reader, side.payload, payloads)?;
            if let Err(not_linear) = into.entry(side.cid, side.bytes, payload)? {
                return Ok(Err(not_linear));
            }
        }
    }
    settle_links(reader, session, &mut into.auditor)?;
    into.auditor.take_stock(|cid| links_here(reader, session, cid))?;
    Ok(Ok(into.auditor.report()))
}

/// Links that are too far back for the auditor's memory are looked up in the index.
pub(crate) fn settle_links(reader: &Reader, session: SessionId, auditor: &mut Auditor) -> Answer<()> {
    let targets: Vec<EntryCid> = auditor.unsettled().iter().map(|link| link.target).collect();
    for target in targets {
        if let Some((held, stored)) = reader.entry(target)?
            && held == session
        {
            auditor.settle(target, stored.seq);
        }
    }
    Ok(())
}

/// The words of an entry that names them, when they are asked for and held.
fn payload(reader: &Reader, named: Option<EntryCid>, payloads: PayloadUse) -> Answer<Option<Arc<[u8]>>> {
    match (named, payloads) {
        (Some(cid), PayloadUse::Present) => Ok(match reader.payload(cid)? {
            PayloadState::Present(bytes) => Some(bytes.into()),
            PayloadState::Absent | PayloadState::Dropped => None,
        }),
        _ => Ok(None),
    }
}
