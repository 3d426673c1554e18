//! Strict DAG-CBOR: what is read is what is written, and each fault has its code.

use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::codec::{Value, decode, encode, encode_map};
use throughline_protocol::entry::Entry;
use throughline_protocol::id::Cid;
use throughline_protocol::limits::PAYLOAD_DEPTH_MAX;
use throughline_protocol::testing::SessionBuilder;

use super::{Faults, Files, hex, records, text};

pub(super) fn check(files: &Files) {
    check_constructed(files);
    check_fixtures(files);
    for record in records(&files.json("dag-cbor/negative-duplicate-keys.json"), 1) {
        assert_eq!(decode(&hex(record, "hex"), PAYLOAD_DEPTH_MAX).unwrap_err().code, Code::CborDupkey);
    }
}

/// 73 faults and 5 controls, most as bare items. A fault that only a place in a blob makes one is judged there.
fn check_constructed(files: &Files) {
    let mut faults = Faults::default();
    for record in records(&files.json("dag-cbor/negative-constructed.json"), 78) {
        let (id, bytes) = (text(record, "id"), hex(record, "hex"));
        let got = match id {
            "CB71-link-dagpb-codec" => as_prev(&bytes),
            "CB72-key-nfd" => {
                Decoded::<Entry>::decode(bytes.as_slice()).map(|_| ()).map_err(|reject| reject.code)
            }
            _ => match decode(&bytes, PAYLOAD_DEPTH_MAX) {
                Ok((value, _)) => {
                    faults.equal(id, encode(&value), bytes.clone());
                    Ok(())
                }
                Err(reject) => Err(reject.code),
            },
        };
        let expected = match text(record, "expect") {
            "ok" => Ok(()),
            code => Err(code.parse::<Code>().unwrap()),
        };
        faults.equal(id, got, expected);
    }
    faults.assert_none();
}

/// What becomes of an entry whose `prev` is this link.
fn as_prev(link: &[u8]) -> Result<(), Code> {
    let mut session = SessionBuilder::new("vectors");
    let owner = session.owner.clone();
    session.user(&owner, "hello");
    let entry = session.head().entry.value();
    let (link, _) = decode(link, PAYLOAD_DEPTH_MAX).map_err(|reject| reject.code)?;
    assert!(matches!(link, Value::Link(_)), "the link itself is of an allowed form");
    let bytes = encode_map(&entry.to_map(&[0; 64]).with("prev", link));
    Decoded::<Entry>::decode(bytes).map(|_| ()).map_err(|reject| reject.code)
}

/// The fixtures of other implementations. What our profile leaves out — floats, 64-bit integers, other CIDs — is refused
/// with the code of its kind; everything else round-trips to the CID it is known by.
fn check_fixtures(files: &Files) {
    let mut faults = Faults::default();
    let mut refused = 0;
    for record in records(&files.json("dag-cbor/codec-fixtures-positive.json"), 125) {
        let (id, bytes) = (text(record, "id"), hex(record, "hex"));
        match decode(&bytes, PAYLOAD_DEPTH_MAX) {
            Ok((value, _)) => {
                faults.equal(id, encode(&value), bytes.clone());
                let cid: Cid = text(record, "cid").parse().unwrap();
                faults.equal(id, cid.matches(&bytes), true);
            }
            Err(reject) => {
                refused += 1;
                faults.equal(id, outside(id).contains(&reject.code), true);
            }
        }
    }
    faults.equal("refused", refused, REFUSED);
    faults.assert_none();
}

/// How many of the fixtures lie outside our profile.
const REFUSED: usize = 62;

/// The codes that a fixture outside our profile may get, by what it holds.
fn outside(id: &str) -> &'static [Code] {
    const CIDS: &[Code] = &[Code::Cid, Code::CidVersion, Code::CidCodec, Code::CidHash, Code::CidDigestlen];
    match id.split_once('-').map_or(id, |(kind, _)| kind) {
        "float" => &[Code::CborFloat],
        "int" => &[Code::CborIntrange],
        "cid" | "ipns" => CIDS,
        kind if kind.starts_with("dagpb") => CIDS,
        // Made at random: any of them.
        "garbage" => &[Code::CborFloat, Code::CborIntrange, Code::CidHash, Code::CidCodec, Code::CidVersion],
        _ => &[],
    }
}
