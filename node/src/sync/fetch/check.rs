//! What a frame is by itself: read, hashed, its entries' schema, payloads and signatures checked. Depends on nothing but its
//! bytes, so frames are read on all cores at once.
//!
//! Where an entry stands is judged afterwards, in order; nothing here may pass as verified before that. The first item of a
//! frame that is refused for what it is ends the reading: nothing after it is taken in any case.

use std::sync::{Arc, Mutex, PoisonError};

use throughline_protocol::block::Decoded;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::Entry;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::sync::range::Place;
use throughline_protocol::verify::Prechecked;
use throughline_protocol::wire::chain::{ChainAnswer, EntryItem};

use crate::sync::ask::read_answer;
use crate::sync::fault::PeerFault;

/// A frame of a range answer that was read.
pub(super) enum Frame {
    /// Entries of the skip path.
    Path(Vec<Arc<[u8]>>),
    /// Control blobs.
    Control(Vec<Arc<[u8]>>),
    /// Entries, up to the first one that is refused for what it is.
    Items(Vec<Item>),
    /// The end of the answer.
    End,
    /// Nothing that answers a range.
    Other,
}

/// One item of a frame.
pub(super) enum Item {
    /// No entry at all.
    Unreadable {
        /// How many bytes it had, its payload included.
        bytes: usize,
        reject: Reject,
    },
    /// An entry, and whether it and its payload are what they should be by themselves.
    Read { place: Place, checked: Result<Box<Prechecked>, Failed> },
}

/// Which part of a readable item was refused.
pub(super) enum Failed {
    /// The entry's key or signature.
    Signature(Reject),
    /// The payload that came along.
    Payload(Reject),
}

impl Item {
    fn is_good(&self) -> bool {
        matches!(self, Item::Read { checked: Ok(_), .. })
    }
}

/// Keys that were checked before, handed from one frame's thread to the next: the checks of a key cost as much as a signature.
#[derive(Default)]
pub(super) struct KeyRing(Mutex<Vec<VerifyingKeys>>);

impl KeyRing {
    fn take(&self) -> VerifyingKeys {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give_back(&self, keys: VerifyingKeys) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(keys);
    }
}

/// Reads a frame.
///
/// # Errors
/// When it is no frame, or the peer says why it ends the answer.
pub(super) fn read_frame(body: &[u8], ring: &KeyRing) -> Result<Frame, PeerFault> {
    Ok(match read_answer(body)? {
        None => Frame::End,
        Some(ChainAnswer::Path(entries)) => Frame::Path(entries),
        Some(ChainAnswer::Control(blobs)) => Frame::Control(blobs),
        Some(ChainAnswer::Entries(items)) => {
            let mut keys = ring.take();
            let read = check_all(items, &mut keys);
            ring.give_back(keys);
            Frame::Items(read)
        }
        Some(
            ChainAnswer::Heads { .. } | ChainAnswer::Blob { .. } | ChainAnswer::End | ChainAnswer::Error(_),
        ) => Frame::Other,
    })
}

fn check_all(items: Vec<EntryItem>, keys: &mut VerifyingKeys) -> Vec<Item> {
    let mut read = Vec::with_capacity(items.len());
    for item in items {
        let item = check(item, keys);
        let is_good = item.is_good();
        read.push(item);
        if !is_good {
            break;
        }
    }
    read
}

fn check(item: EntryItem, keys: &mut VerifyingKeys) -> Item {
    let EntryItem { entry, payload } = item;
    let bytes = entry.len() + payload.as_ref().map_or(0, |payload| payload.len());
    let decoded = match Decoded::<Entry>::decode(entry) {
        Ok(decoded) => decoded,
        Err(reject) => return Item::Unreadable { bytes, reject },
    };
    let place = Place::of(&decoded, payload.as_deref());
    let checked = decoded.verify(keys).map_err(Failed::Signature).and_then(|signed| {
        // Whether it was asked for is a matter of its place.
        let payload = payload.filter(|_| signed.value().payload.is_some());
        Prechecked::of(signed, payload).map(Box::new).map_err(Failed::Payload)
    });
    Item::Read { place, checked }
}

impl Failed {
    /// Why, with where it was to stand.
    pub(super) fn at(self, place: &Place) -> Reject {
        match self {
            Failed::Signature(reject) | Failed::Payload(reject) => {
                reject.within(&format!("seq {}", place.seq()))
            }
        }
    }
}

/// A thread that reads frames ended early.
pub(super) fn lost() -> PeerFault {
    PeerFault::nobodys(Code::Internal, "a thread that checks signatures ended early")
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
