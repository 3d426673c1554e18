//! Multihashes of four functions at full and cut length, as the hash of a CID: one length of one function is allowed.

use throughline_protocol::id::Cid;

use super::{Faults, Files};

pub(super) fn check(files: &Files) {
    let table = files.text("multihash/test_cases.csv");
    let mut lines = table.lines();
    assert_eq!(lines.next(), Some("algorithm,bits,input,multihash"));
    let mut faults = Faults::default();
    let mut met = [0; 3];
    for line in lines {
        let [algorithm, bits, input, multihash] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("not four columns: {line}")
        };
        let multihash = data_encoding::HEXLOWER.decode(multihash.as_bytes()).unwrap();
        // CID version 1 of raw bytes under this hash.
        let got = Cid::from_bytes(&[&[0x01, 0x55][..], &multihash].concat());
        let (kind, expected) = match (algorithm, bits) {
            ("sha2-256", "256") => (0, "ok"),
            ("sha2-256", _) => (1, "E_CID_DIGESTLEN"),
            _ => (2, "E_CID_HASH"),
        };
        met[kind] += 1;
        if let Ok(cid) = &got {
            faults.equal(line, cid.matches(input.as_bytes()), true);
            faults.equal(line, &cid.to_bytes()[2..], &multihash[..]);
        }
        faults.equal(line, got.map_or_else(|reject| reject.code.name(), |_| "ok"), expected);
    }
    faults.equal("allowed, cut, other functions", met, [20, 40, 200]);
    faults.assert_none();
}
