//! Rows with a checksum, so that a flipped bit in one is told when it is read. What is named by a hash is hashed besides; this
//! is for all that says something of its own: the state of a session, the sign guard, a lease.
//!
//! CRC-32 of ISO 3309 (reflected, polynomial `0xedb88320`), as in zlib and PNG: it sees every change of up to three bits in
//! rows of up to 11 KiB and every burst of up to 32 bits. It is no defence against somebody who writes the disk.
//!
//! redb asks for a value, not for a result: a row whose checksum does not fit reads as no bytes at all, which no row is, so
//! that whoever decodes it refuses it as damage.

use redb::{TypeName, Value};

/// Bytes that end in their CRC-32, big-endian. What is written and read is without it.
#[derive(Debug)]
pub(crate) struct Checked;

/// Bytes of the checksum.
const SUM_BYTES: usize = 4;

impl Value for Checked {
    type SelfType<'a> = &'a [u8];
    type AsBytes<'a> = Vec<u8>;

    fn fixed_width() -> Option<usize> {
        None
    }

    fn from_bytes<'a>(data: &'a [u8]) -> &'a [u8]
    where
        Self: 'a,
    {
        match data.split_last_chunk::<SUM_BYTES>() {
            Some((row, sum)) if crc32(row).to_be_bytes() == *sum => row,
            Some(_) | None => &[],
        }
    }

    fn as_bytes<'a, 'b: 'a>(value: &'a &'b [u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(value.len() + SUM_BYTES);
        bytes.extend_from_slice(value);
        let sum = crc32(value);
        #[cfg(test)]
        let sum = faults::flipped(sum);
        bytes.extend(sum.to_be_bytes());
        bytes
    }

    fn type_name() -> TypeName {
        TypeName::new("throughline::checked")
    }
}

/// CRC-32, with the processor's own instructions for it where it has them.
fn crc32(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

#[cfg(test)]
pub(crate) use faults::flip_sums;

/// Lets a test write one row as a disk that flips a bit would leave it: what is wrong, the bytes or their checksum, is the same
/// to whoever reads it.
#[cfg(test)]
mod faults {
    use std::cell::Cell;

    thread_local! {
        static BIT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Flips this bit in the checksum of every row that this thread writes, until told otherwise.
    pub(crate) fn flip_sums(bit: Option<u64>) {
        BIT.set(bit);
    }

    pub(super) fn flipped(sum: u32) -> u32 {
        BIT.get().map_or(sum, |bit| sum ^ (1 << bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        // The check value that catalogues of CRCs give. Rows of 1 KiB and more take another path of the library.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
        let long: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        // By zlib.
        assert_eq!(crc32(&long), 0xefdd_d36d);
    }

    #[test]
    fn a_row_with_any_bit_flipped_reads_as_none() {
        let row = &b"a row of a session"[..];
        let stored = Checked::as_bytes(&row);
        assert_eq!(Checked::from_bytes(&stored), row);
        for bit in 0..8 * stored.len() {
            let mut damaged = stored.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Checked::from_bytes(&damaged), b"", "bit {bit}");
        }
        assert_eq!(Checked::from_bytes(&stored[..3]), b"");
    }
}
