//! CAR v1: a file of blocks. `docs/PROTOCOL.md` §Announcements, tickets, files; the format is <https://ipld.io/specs/transport/car/carv1/>.
//!
//! [`CarReader`] takes bytes as they arrive and gives back blocks whose hash was checked. It does no I/O, allocates
//! nothing from a declared length and keeps no more than the section that is incomplete. It does not look for blocks that
//! stand twice, since that would take memory for each: [`session`] does, with the order of a session's blocks as help.
//!
//! The end of the input is told by the caller: only [`CarReader::finish`] knows a cut file from a slow one.

mod collect;
mod reader;
pub mod session;
mod session_write;
mod write;

use crate::code::Reject;
use crate::id::{Cid, Codec, HashKind};

pub use collect::{CarContent, CollectLimits, SessionBlobs, collect};
pub use reader::{CarEvent, CarReader};
pub use session_write::{EntryBlocks, SessionWriter};
pub use write::{write_block, write_header};

/// Which CIDs a reader takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CidForms {
    /// CIDv1 only: what this program writes.
    V1,
    /// Also CIDv0 (`Qm…`), read as the CIDv1 that it stands for: dag-pb under sha2-256. For files of others.
    V0AndV1,
}

/// The first two bytes of a CIDv0: sha2-256, 32 bytes.
const CID_V0_PREFIX: [u8; 2] = [0x12, 0x20];

impl CidForms {
    /// Reads a CID at the start of `bytes`; also returns what follows it.
    ///
    /// # Errors
    /// One of the `E_CID…` codes.
    pub fn read(self, bytes: &[u8]) -> Result<(Cid, &[u8]), Reject> {
        if self == CidForms::V0AndV1
            && let Some((digest, rest)) =
                bytes.strip_prefix(&CID_V0_PREFIX).and_then(|rest| rest.split_first_chunk::<32>())
        {
            return Ok((Cid::from_parts(Codec::DagPb, HashKind::Sha256, *digest), rest));
        }
        Cid::read(bytes)
    }
}

#[cfg(test)]
#[path = "car_tests.rs"]
mod tests;
