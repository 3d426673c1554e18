//! Session files whose container is wrong, around blobs that are right.

use throughline_protocol::car::session::SessionReader;
use throughline_protocol::car::{write_block, write_header};
use throughline_protocol::code::Reject;
use throughline_protocol::id::{Cid, Codec, EntryCid};
use throughline_protocol::testing::SessionBuilder;

use super::make::{Outcome, file, session, word};
use super::{Row, row};

pub(super) const ROWS: &[Row] = &[row(
    "IM06",
    &[
        "E_CAR_VARINT",
        "E_CAR_VARINT",
        "E_CAR_HEADER",
        "E_CID_MISMATCH",
        "E_CID_VERSION",
        "E_CID_HASH",
        "E_CAR_ROOT",
        "E_CAR_HEADER",
        "E_CAR_DUP",
        "E_CAR_VARINT",
        "E_CAR_TRUNCATED",
    ],
    |_| {
        vec![
            // A section of 2^63 bytes, and one of 2^27.
            read(then(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])),
            read(then(&[0x80, 0x80, 0x80, 0x40])),
            read([&[0x80, 0x80, 0x80, 0x80, 0x08][..], &whole()[1..]].concat()),
            read(another_digest()),
            read(then(&section(&[&[0x12, 0x20][..], &[7; 32]].concat()))),
            read(then(&section(&[0x01, 0x71, 0x00, 0x02, 0x61, 0x61]))),
            read(with_header(&[])),
            read(whole_after(&[0x09, 0xa1, 0x67, b'v', b'e', b'r', b's', b'i', b'o', b'n', 0x01])),
            read(twice()),
            read(then(&[0x00; 16])),
            read(then(&[0x26, 0x01, 0x71])),
        ]
    },
)];

fn base() -> SessionBuilder {
    session("file", 1)
}

fn whole() -> Vec<u8> {
    file(&base(), &[], &[])
}

/// A whole file and bytes after it.
fn then(bytes: &[u8]) -> Vec<u8> {
    [&whole()[..], bytes].concat()
}

/// A section without content after its CID.
fn section(cid: &[u8]) -> Vec<u8> {
    [&[u8::try_from(cid.len()).unwrap()][..], cid].concat()
}

/// The blocks of the whole file after another header.
fn whole_after(header: &[u8]) -> Vec<u8> {
    let mut own = Vec::new();
    write_header(&mut own, &[base().head().entry.cid().cid()]);
    let whole = whole();
    [header, whole.strip_prefix(&own[..]).unwrap()].concat()
}

fn with_header(roots: &[Cid]) -> Vec<u8> {
    let mut header = Vec::new();
    write_header(&mut header, roots);
    whole_after(&header)
}

fn another_digest() -> Vec<u8> {
    let mut bytes = whole();
    *bytes.last_mut().unwrap() ^= 1;
    bytes
}

fn twice() -> Vec<u8> {
    let (mut bytes, head) = (whole(), base());
    let entry = head.head().entry.bytes();
    assert_eq!(EntryCid::of(entry).cid(), Cid::sha256(Codec::DagCbor, entry));
    write_block(&mut bytes, &Cid::sha256(Codec::DagCbor, entry), entry);
    bytes
}

/// What a reader of a session's file says of it.
fn read(bytes: Vec<u8>) -> Outcome {
    let judge = || -> Result<(), Reject> {
        let mut reader = SessionReader::new();
        reader.push(&bytes);
        while let Some(item) = reader.next() {
            item?;
        }
        reader.finish().map(|_| ())
    };
    word(judge()).in_file(bytes)
}
