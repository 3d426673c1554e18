//! The file: which blocks, in which order. Blobs only; what they show is for [`super::check`].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{EXHIBIT_BYTES_MAX, EXHIBIT_ENTRIES_MAX, shows_nothing};
use crate::block::Signed;
use crate::car::{self, CarEvent, CarReader, CidForms};
use crate::code::{Code, Reject};
use crate::codec;
use crate::control::Control;
use crate::entry::Entry;
use crate::id::{EntryCid, Seq};
use crate::sign::VerifyingKeys;

/// Kinds of control blobs in their order in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Capability,
    Tombstone,
}

/// The signed blobs of a file, each once, in the file's order.
#[derive(Clone, Debug, Default)]
pub(super) struct Blobs {
    entries: BTreeMap<(Seq, EntryCid), Signed<Entry>>,
    controls: BTreeMap<(Place, EntryCid), Signed<Control>>,
}

impl Blobs {
    pub(super) fn entries(&self) -> impl Iterator<Item = &Signed<Entry>> {
        self.entries.values()
    }

    pub(super) fn controls(&self) -> impl Iterator<Item = &Signed<Control>> {
        self.controls.values()
    }

    pub(super) fn entry(&self, cid: EntryCid) -> Option<&Signed<Entry>> {
        self.entries().find(|entry| entry.cid() == cid)
    }

    pub(super) fn control(&self, cid: EntryCid) -> Option<&Signed<Control>> {
        self.controls().find(|control| control.cid() == cid)
    }

    pub(super) fn put_entry(&mut self, entry: Signed<Entry>) {
        self.entries.insert((entry.value().seq(), entry.cid()), entry);
    }

    /// Puts a capability or a tombstone in.
    ///
    /// # Errors
    /// `E_CAR_ORDER` for a Ref: none is evidence.
    pub(super) fn put_control(&mut self, control: Signed<Control>) -> Result<(), Reject> {
        let place = match control.value() {
            Control::Capability(_) => Place::Capability,
            Control::Tombstone(_) => Place::Tombstone,
            Control::Ref(_) => {
                return Err(Reject::new(Code::CarOrder, "a Ref shows nothing of a key's fault"));
            }
        };
        self.controls.insert((place, control.cid()), control);
        Ok(())
    }

    /// The file: genesis, capabilities, tombstones, entries ascending by seq and CID.
    pub(super) fn write(&self, roots: [EntryCid; 2]) -> Vec<u8> {
        let mut out = Vec::new();
        car::write_header(&mut out, &roots.map(|root| root.cid()));
        let mut put = |cid: EntryCid, bytes: &[u8]| car::write_block(&mut out, &cid.cid(), bytes);
        let mut entries = self.entries();
        if let Some(genesis) = entries.next() {
            put(genesis.cid(), genesis.bytes());
        }
        self.controls().for_each(|control| put(control.cid(), control.bytes()));
        entries.for_each(|entry| put(entry.cid(), entry.bytes()));
        out
    }

    /// Reads a file and checks every signature in it. The order of blocks is not looked at.
    ///
    /// # Errors
    /// `E_TOO_BIG`; `E_CAR_…`; `E_BUDGET` for too many blocks; what a blob is refused for.
    pub(super) fn read(bytes: &[u8], keys: &mut VerifyingKeys) -> Result<([EntryCid; 2], Self), Reject> {
        if bytes.len() > EXHIBIT_BYTES_MAX {
            let what = format!("expected at most {EXHIBIT_BYTES_MAX} bytes of evidence, got {}", bytes.len());
            return Err(Reject::new(Code::TooBig, what));
        }
        let mut reader = CarReader::new(CidForms::V1);
        reader.push(bytes);
        let (mut roots, mut blobs, mut count) = (None, Blobs::default(), 0);
        while let Some(event) = reader.next() {
            match event? {
                CarEvent::Roots(found) => roots = Some(two_roots(&found)?),
                CarEvent::Block(block) => {
                    count += 1;
                    if count > 2 * EXHIBIT_ENTRIES_MAX {
                        let what = format!("expected at most {} blocks of evidence", 2 * EXHIBIT_ENTRIES_MAX);
                        return Err(Reject::new(Code::Budget, what));
                    }
                    blobs.take(&block, keys)?;
                }
            }
        }
        reader.finish()?;
        let roots = roots.ok_or_else(|| Reject::new(Code::CarTruncated, "the file has no header"))?;
        Ok((roots, blobs))
    }

    fn take(&mut self, block: &crate::block::Block, keys: &mut VerifyingKeys) -> Result<(), Reject> {
        let bytes = Arc::clone(block.bytes());
        match codec::type_word(block.bytes())?.as_deref() {
            Some("Capability" | "CapabilityTombstone" | "Ref") => {
                self.put_control(Signed::<Control>::check(bytes, keys)?)
            }
            Some(word) if word.starts_with("Session") => {
                self.put_entry(Signed::<Entry>::check(bytes, keys)?);
                Ok(())
            }
            _ => Err(shows_nothing(format!("{} is no signed blob of a session", block.cid().short()))),
        }
    }
}

fn two_roots(roots: &[crate::id::Cid]) -> Result<[EntryCid; 2], Reject> {
    let [a, b] = roots else {
        return Err(Reject::new(
            Code::CarRoot,
            format!("expected the two roots of evidence, got {}", roots.len()),
        ));
    };
    let entry = |cid: &crate::id::Cid| {
        EntryCid::try_from(*cid).map_err(|reject| Reject::new(Code::CarRoot, reject.detail))
    };
    Ok([entry(a)?, entry(b)?])
}

/// Whether a file that begins like this is evidence and no session: it has two roots. None when more bytes are needed to tell.
#[must_use]
pub fn has_two_roots(start: &[u8]) -> Option<bool> {
    let mut reader = CarReader::new(CidForms::V1);
    reader.push(start);
    match reader.next()? {
        Ok(CarEvent::Roots(roots)) => Some(roots.len() == 2),
        Ok(CarEvent::Block(_)) | Err(_) => Some(false),
    }
}
