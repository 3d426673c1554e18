//! Strict DAG-CBOR: what is read is what is written, and each fault has its code.

use std::collections::BTreeMap;

use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::codec::{Value, decode, encode_map};
use throughline_protocol::entry::Entry;
use throughline_protocol::id::Cid;
use throughline_protocol::limits::PAYLOAD_DEPTH_MAX;
use throughline_protocol::testing::SessionBuilder;

use super::{Faults, Files, hex, item, records, text};

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
    let mut controls = 0;
    for record in records(&files.json("dag-cbor/negative-constructed.json"), 78) {
        let (id, bytes) = (text(record, "id"), hex(record, "hex"));
        let got = match id {
            "CB71-link-dagpb-codec" => as_prev(&bytes),
            "CB72-key-nfd" => as_entry(&bytes),
            _ => item(&bytes),
        };
        match text(record, "expect") {
            "ok" => controls += 1,
            code => assert!(code.parse::<Code>().is_ok(), "{id}: {code} is no code"),
        }
        faults.equal(id, got, text(record, "expect"));
    }
    faults.equal("controls", controls, 5);
    faults.assert_none();
}

/// What becomes of an entry whose `prev` is this link.
fn as_prev(link: &[u8]) -> &'static str {
    let mut session = SessionBuilder::new("vectors");
    let owner = session.owner.clone();
    session.user(&owner, "hello");
    let entry = session.head().entry.value();
    let (link, _) = decode(link, PAYLOAD_DEPTH_MAX).unwrap();
    assert!(matches!(link, Value::Link(_)), "the link itself is of an allowed form");
    as_entry(&encode_map(&entry.to_map(&[0; 64]).with("prev", link)))
}

fn as_entry(bytes: &[u8]) -> &'static str {
    Decoded::<Entry>::decode(bytes).map_or_else(|reject| reject.code.name(), |_| "ok")
}

/// The fixtures of other implementations. What our profile leaves out — floats, 64-bit integers, other CIDs — is refused
/// with the code of what it holds, which stands beside them; everything else round-trips to the CID it is known by.
fn check_fixtures(files: &Files) {
    let refused = files.json("dag-cbor/codec-fixtures-refused.json");
    let refused: BTreeMap<&str, &str> =
        records(&refused, 62).iter().map(|record| (text(record, "id"), text(record, "expect"))).collect();
    let mut faults = Faults::default();
    let (mut read, mut turned_away) = (0, 0);
    for record in records(&files.json("dag-cbor/codec-fixtures-positive.json"), 125) {
        let (id, bytes) = (text(record, "id"), hex(record, "hex"));
        let expected = refused.get(id).copied().unwrap_or("ok");
        faults.equal(id, item(&bytes), expected);
        if expected == "ok" {
            read += 1;
            let cid: Cid = text(record, "cid").parse().unwrap();
            faults.equal(id, cid.matches(&bytes), true);
        } else {
            turned_away += 1;
        }
    }
    faults.equal("read and refused", (read, turned_away), (63, 62));
    faults.assert_none();
}
