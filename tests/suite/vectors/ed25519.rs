//! The one Ed25519 predicate, against 1,077 edge cases and 38 keys that are never accepted.

use serde_json::Value as Json;
use throughline_protocol::code::Code;
use throughline_protocol::id::Principal;
use throughline_protocol::sign::VerifyingKeys;

use super::{Faults, Files, hex, hex_array, records, text};

pub(super) fn check(files: &Files) {
    let verdicts = files.json("ed25519/expected-verdicts.json");
    let cctv = files.json("ed25519/cctv-ed25519vectors.json");
    let cctv = records(&cctv, 914).iter().map(|record| Case {
        key: hex_array(record, "key"),
        message: text(record, "msg").as_bytes().to_vec(),
        signature: hex(record, "sig"),
    });
    check_set(("cctv", 914), &verdicts, cctv);
    let spec = files.json("ed25519/speccheck-cases.json");
    let spec = records(&spec, 12).iter().map(|record| Case {
        key: hex_array(record, "pub_key"),
        message: hex(record, "message"),
        signature: hex(record, "signature"),
    });
    check_set(("spec", 12), &verdicts, spec);
    let wycheproof = files.json("ed25519/wycheproof-ed25519_test.json");
    let groups = wycheproof["testGroups"].as_array().unwrap().iter();
    let wycheproof =
        groups.flat_map(|group| group["tests"].as_array().unwrap().iter().map(move |test| (group, test)));
    check_set(
        ("wyc", 151),
        &verdicts,
        wycheproof.map(|(group, test)| Case {
            key: hex_array(&group["publicKey"], "pk"),
            message: hex(test, "msg"),
            signature: hex(test, "sig"),
        }),
    );
    check_keys(files);
}

struct Case {
    key: [u8; 32],
    message: Vec<u8>,
    signature: Vec<u8>,
}

/// Verdicts stand in the order of their cases.
fn check_set((set, count): (&str, usize), verdicts: &Json, cases: impl Iterator<Item = Case>) {
    let cases: Vec<Case> = cases.collect();
    assert_eq!(cases.len(), count, "{set}");
    let verdicts = records(&verdicts[set], count);
    let mut faults = Faults::default();
    for (case, verdict) in cases.iter().zip(verdicts) {
        let expected = match text(verdict, "code") {
            "OK" => Ok(()),
            code => Err(code.parse::<Code>().unwrap()),
        };
        let name = format!("{set} {}", text(verdict, "id"));
        faults.equal(&name, expected.is_ok(), verdict["required"].as_bool().unwrap());
        faults.equal(&name, verify(case), expected);
    }
    faults.assert_none();
}

fn verify(case: &Case) -> Result<(), Code> {
    // A signature field of another length never reaches the predicate: the schema refuses it.
    let signature = <[u8; 64]>::try_from(&case.signature[..]).map_err(|_| Code::SchemaLen)?;
    let by = |mut keys: VerifyingKeys| {
        let verdict = keys.verify(&Principal::from_key(case.key), &case.message, &signature);
        verdict.map_err(|reject| reject.code)
    };
    let verdict = by(VerifyingKeys::default());
    assert_eq!(by(VerifyingKeys::with_tables()), verdict, "tables of {:02x?} say something else", case.key);
    verdict
}

fn check_keys(files: &Files) {
    for record in records(&files.json("ed25519/noncanonical-keys.json"), 38) {
        let case = Case { key: hex_array(record, "key"), message: Vec::new(), signature: vec![0; 64] };
        let code = verify(&case).unwrap_err();
        assert!(
            text(record, "expect").split(" or ").any(|allowed| allowed == code.name()),
            "{record}: {code}"
        );
    }
}
