//! The two verifiers side by side: this one and `verify/`, which another hand wrote from `docs/PROTOCOL.md` in JavaScript.
//!
//! Both get the same records and answer each in one line ([`answers`]); a line that differs is a fault of one of them or of the text. What is
//! compared is decided by a seed ([`plan`]); the other verifier is one or more processes that read records from a pipe ([`run`]):
//!
//! ```text
//! plan: record n ─┬─▶ answers (Rust) ────────────────┐
//!                 └─▶ node verify/bin/differ.mjs ────┴─▶ the same line, or a difference, kept as a file
//! ```
//!
//! A record is one byte of kind, its length as a big-endian u32, and its bytes. `docs/decisions/0019` says why so.

pub mod answers;
pub mod plan;
pub mod run;

/// What a record asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A blob as received: its type, or why it is refused.
    Blob,
    /// A payload: the kind of its entry, a zero byte, the block.
    Payload,
    /// A CID in binary form.
    Cid,
    /// Blobs of a session, as a DAG-CBOR map of `blobs` and `genesis`: what selection makes of them.
    Set,
    /// A CAR: what a report says of it.
    Car,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] = [Kind::Blob, Kind::Payload, Kind::Cid, Kind::Set, Kind::Car];

    /// The byte on the pipe.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Kind::Blob => b'b',
            Kind::Payload => b'q',
            Kind::Cid => b'c',
            Kind::Set => b's',
            Kind::Car => b'v',
        }
    }
}

/// One question to both verifiers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// What is asked.
    pub kind: Kind,
    /// About what.
    pub bytes: Vec<u8>,
}

impl Record {
    /// The record as it goes through the pipe.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("a record below 4 GiB");
        [&[self.kind.byte()][..], &length.to_be_bytes(), &self.bytes].concat()
    }

    /// The record of such a frame; none when it is another's or cut.
    #[must_use]
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        let (kind, rest) = frame.split_first()?;
        let (length, bytes) = rest.split_first_chunk::<4>()?;
        let kind = Kind::ALL.into_iter().find(|known| known.byte() == *kind)?;
        let whole = u32::try_from(bytes.len()).ok()? == u32::from_be_bytes(*length);
        whole.then(|| Record { kind, bytes: bytes.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_from_its_frame_and_nothing_else() {
        for kind in Kind::ALL {
            let record = Record { kind, bytes: vec![1, 2, 3] };
            let frame = record.frame();
            assert_eq!(Record::of_frame(&frame).as_ref(), Some(&record));
            assert_eq!(Record::of_frame(&frame[..frame.len() - 1]), None);
            assert_eq!(Record::of_frame(&[&frame[..], &[0]].concat()), None);
        }
        assert_eq!(Record::of_frame(b"z\0\0\0\0"), None);
    }
}
