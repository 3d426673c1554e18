//! Frames: a length and one canonical map. `docs/PROTOCOL.md` §Streams.
//!
//! The length is a minimal unsigned varint of at most [`FRAME_BYTES_MAX`]; it is judged before a byte of the body is
//! waited for. Before the body becomes values its items are counted, because a value costs many times the byte that
//! encodes it: a frame of two million one-byte integers is refused at the cost of reading it once.

use crate::code::{Code, Reject};
use crate::codec::{self, Map, Value};
use crate::limits::{ENTRY_DEPTH_MAX, FRAME_BYTES_MAX, FRAME_ITEMS_MAX};

/// Longest length prefix, in bytes: 2,162,688 needs four.
pub const HEADER_BYTES_MAX: usize = 4;

/// A length prefix that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLength {
    /// Length of the body, in bytes.
    pub body_bytes: usize,
    /// Length of the prefix itself, in bytes.
    pub header_bytes: usize,
}

/// Reads the length prefix at the start of `bytes`; none when more bytes are needed to tell.
///
/// # Errors
/// `E_FRAME_LEN` when it is not minimal or above [`FRAME_BYTES_MAX`].
pub fn read_length(bytes: &[u8]) -> Result<Option<FrameLength>, Reject> {
    let mut value = 0_usize;
    for (index, &byte) in bytes.iter().enumerate().take(HEADER_BYTES_MAX) {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 != 0 {
            continue;
        }
        if byte == 0 && index > 0 {
            return Err(Reject::new(Code::FrameLen, "expected the shortest varint, got a longer one"));
        }
        return check_length(value)
            .map(|body_bytes| Some(FrameLength { body_bytes, header_bytes: index + 1 }));
    }
    if bytes.len() < HEADER_BYTES_MAX {
        return Ok(None);
    }
    Err(Reject::new(Code::FrameLen, format!("expected a length of at most {FRAME_BYTES_MAX}, got more")))
}

/// A body with its length in front.
///
/// # Errors
/// `E_FRAME_LEN` when the body is longer than [`FRAME_BYTES_MAX`].
pub fn encode(body: &[u8]) -> Result<Vec<u8>, Reject> {
    let mut out = Vec::with_capacity(HEADER_BYTES_MAX + body.len());
    let mut rest = check_length(body.len())?;
    loop {
        let [low, ..] = rest.to_le_bytes();
        rest >>= 7;
        if rest == 0 {
            out.push(low & 0x7f);
            break;
        }
        out.push(low | 0x80);
    }
    out.extend(body);
    Ok(out)
}

fn check_length(length: usize) -> Result<usize, Reject> {
    if length <= FRAME_BYTES_MAX {
        Ok(length)
    } else {
        let what = format!("expected a length of at most {FRAME_BYTES_MAX}, got {length}");
        Err(Reject::new(Code::FrameLen, what))
    }
}

/// Reads a body: one canonical map of bounded depth and number of items, all keys ASCII.
pub(super) fn read_body(body: &[u8]) -> Result<Map<'_>, Reject> {
    check_length(body.len())?;
    codec::expect_heads(body, FRAME_ITEMS_MAX, Code::Budget)?;
    let (value, facts) = codec::decode(body, ENTRY_DEPTH_MAX)?;
    let Value::Map(map) = value else {
        return Err(Reject::new(Code::SchemaType, "expected a map"));
    };
    if facts.non_ascii_key {
        return Err(Reject::new(Code::SchemaKey, "a key that is not ASCII"));
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_round_trip_and_wait_for_their_bytes() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, FRAME_BYTES_MAX] {
            let frame = encode(&vec![0; length]).unwrap();
            let header = frame.len() - length;
            for cut in 0..header {
                assert_eq!(read_length(&frame[..cut]).unwrap(), None, "{length} cut at {cut}");
            }
            let expected = FrameLength { body_bytes: length, header_bytes: header };
            assert_eq!(read_length(&frame).unwrap(), Some(expected));
        }
    }

    #[test]
    fn bad_lengths_are_refused_as_soon_as_they_show() {
        let bad: [&[u8]; 5] =
            [&[0x80, 0x00], &[0x87, 0x80, 0x00], &[0x81, 0x80, 0x84, 0x01], &[0xff; 4], &[0xff; 9]];
        for bytes in bad {
            assert_eq!(read_length(bytes).unwrap_err().code, Code::FrameLen, "{bytes:02x?}");
        }
        assert_eq!(encode(&vec![0; FRAME_BYTES_MAX + 1]).unwrap_err().code, Code::FrameLen);
    }

    #[test]
    fn many_small_items_are_refused_before_they_become_values() {
        // {"a": [0, 0, …]}: one byte an item.
        let items = FRAME_ITEMS_MAX;
        let mut body = vec![0xa1, 0x61, b'a', 0x99];
        body.extend(u16::try_from(items).unwrap().to_be_bytes());
        body.extend(vec![0; items]);
        assert_eq!(read_body(&body).unwrap_err().code, Code::Budget);
        body.truncate(6 + items - 4);
        body[4..6].copy_from_slice(&u16::try_from(items - 4).unwrap().to_be_bytes());
        assert!(read_body(&body).is_ok());
    }

    #[test]
    fn a_body_is_one_map() {
        for (body, code) in [
            (&[0x80][..], Code::SchemaType),
            (&[], Code::CborEof),
            (&[0xa0, 0x00], Code::CborTrailing),
            (&[0xb8, 0x01, 0x61, b'k', 0x01], Code::CborNoncanon),
            (&[0xa1, 0x62, 0xc3, 0xa9, 0x01], Code::SchemaKey),
        ] {
            assert_eq!(read_body(body).unwrap_err().code, code, "{body:02x?}");
        }
    }
}
