//! The cases of DASL, which say for several profiles what is read, refused and written.
//!
//! Ours is DAG-CBOR without floats and large integers. A case says `roundtrip`, `invalid_in` or `invalid_out` and for
//! which profiles; here each has the one outcome that ours gives. What may not be written is no value of ours at all,
//! which is shown by its bytes being refused.

use super::{Faults, Files, hex, item, text};

/// The files with their numbers of cases, and the code of a case that is refused unless [`EXCEPTIONS`] names it.
const KINDS: &[(&str, usize, &str)] = &[
    ("dasl/cid.json", 12, "E_CID"),
    ("dasl/concat.json", 1, "E_CBOR_TRAILING"),
    ("dasl/floats.json", 23, "E_CBOR_FLOAT"),
    ("dasl/indefinite.json", 4, "E_CBOR_INDEF"),
    ("dasl/integer_range.json", 11, "E_CBOR_INTRANGE"),
    ("dasl/map_keys.json", 6, "E_CBOR_KEYTYPE"),
    ("dasl/numeric_reduction.json", 4, "E_CBOR_FLOAT"),
    ("dasl/short_form.json", 31, "E_CBOR_NONCANON"),
    ("dasl/simple.json", 5, "E_CBOR_SIMPLE"),
    ("dasl/tags.json", 3, "E_CBOR_TAG"),
    ("dasl/utf8.json", 5, "E_CBOR_UTF8"),
];

/// Names of cases with another outcome than their file's code for what is refused, or `ok` for what round-trips.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("long CID tag", "E_CBOR_NONCANON"),
    ("CIDv0", "E_CID_VERSION"),
    ("Big DASL CID", "E_CID_HASH"),
    ("empty CID", "E_CID_DIGESTLEN"),
    ("short hash digest", "E_CID_DIGESTLEN"),
    ("long hash digest", "E_CID_DIGESTLEN"),
    // DASL has two codecs only; a file of ours may be dag-pb.
    ("CIDv1 that isn't raw or cbor", "ok"),
    ("disallowed hash type (SHA-1)", "E_CID_HASH"),
    ("CID with no null byte", "E_CID_PREFIX"),
    // Floats that DAG-CBOR or another profile reads.
    ("float reduction", "E_CBOR_FLOAT"),
    ("64-bit floats only", "E_CBOR_FLOAT"),
    ("short NaN", "E_CBOR_FLOAT"),
    ("zero float64", "E_CBOR_FLOAT"),
    ("zero float16", "E_CBOR_FLOAT"),
    ("64-bit subnormal number", "E_CBOR_FLOAT"),
    ("too small for int reduction, <-(2^63)", "E_CBOR_FLOAT"),
    ("map with equal int and float keys", "E_CBOR_KEYTYPE"),
    // Integers beyond 2^53 − 1, as integers and as bignums.
    ("largest CBOR integer, 2^64-1", "E_CBOR_INTRANGE"),
    ("smallest CBOR integer, -(2^64)", "E_CBOR_INTRANGE"),
    ("2^53+1, unrepresentable in JS", "E_CBOR_INTRANGE"),
    ("-(2^53+1), unrepresentable in JS", "E_CBOR_INTRANGE"),
    ("smallest unsigned bigint", "E_CBOR_TAG"),
    ("highest negative bigint", "E_CBOR_TAG"),
    ("bignum", "E_CBOR_TAG"),
    ("bignum with small value", "E_CBOR_TAG"),
    ("bigint with leading zero bytes", "E_CBOR_TAG"),
    ("map keys in incorrect order", "E_CBOR_KEYORDER"),
    ("duplicate map keys", "E_CBOR_DUPKEY"),
    // Text is not normalised: what was written is what was signed.
    ("text not in Unicode Normalization Form C", "ok"),
];

pub(super) fn check(files: &Files) {
    let mut faults = Faults::default();
    let mut met = vec![0; EXCEPTIONS.len()];
    let (mut cases, mut read) = (0, 0);
    for (file, count, code) in KINDS {
        for record in super::records(&files.json(file), *count) {
            cases += 1;
            let name = text(record, "name");
            let exception = EXCEPTIONS.iter().position(|(excepted, _)| *excepted == name);
            let expected = match (exception, text(record, "type")) {
                (Some(at), _) => {
                    met[at] += 1;
                    EXCEPTIONS[at].1
                }
                (None, "roundtrip") => "ok",
                (None, "invalid_in" | "invalid_out") => code,
                (None, other) => panic!("{name}: an unknown kind of case, {other}"),
            };
            let got = item(&hex(record, "data"));
            read += usize::from(got == "ok");
            faults.equal(&format!("{file}: {name}"), got, expected);
        }
    }
    faults.equal("cases and those read", (cases, read), (105, 17));
    assert!(!met.contains(&0), "an exception that nothing needs: {met:?}");
    faults.assert_none();
}
