//! The fuzz targets as they run everywhere: committed corpus and seeded mutants, in a process of its own that counts memory.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use throughline_tests::fuzz::{TARGETS, smoke};

/// Bytes of corpus that are committed in all.
const CORPUS_BYTES_MAX: u64 = 2 << 20;

/// The one command for the fuzz smoke run.
#[test]
fn every_target_holds_for_its_corpus_and_mutants_of_it() {
    let failures = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_fuzz-smoke"))
        .args(["--failures", failures.path().to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let kept: Vec<String> = smoke::read_corpus(failures.path())
        .into_iter()
        .map(|(name, input)| format!("{name}: {}", data_encoding::HEXLOWER.encode(&input)))
        .collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{}", kept.join("\n"));
    let lines: Vec<&str> = said.lines().skip(1).collect();
    assert_eq!(lines.len(), TARGETS.len(), "{said}");
    for line in lines {
        let numbers: Vec<usize> =
            line.split_whitespace().skip(1).map(|number| number.parse().unwrap()).collect();
        assert!(numbers[0] > 0 && numbers[1] > 0, "a target without corpus or mutants: {line}");
    }
}

/// A target that the runner has and libFuzzer has not, or the other way round, is half a target.
#[test]
fn every_target_has_a_binary_and_a_corpus() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let names: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names.len(), TARGETS.len(), "a name stands twice");
    let listed = |directory: &str| -> BTreeSet<String> {
        let entries = std::fs::read_dir(fuzz.join(directory)).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed("fuzz_targets"), names);
    assert_eq!(listed("corpus"), names);
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for name in &names {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in the manifest");
        let source = std::fs::read_to_string(fuzz.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(source.contains(&format!("\"{name}\"")), "{name} runs another target");
    }
}

#[test]
fn the_corpus_is_small_and_named_by_its_bytes() {
    let mut bytes = 0;
    for target in TARGETS {
        for (name, input) in smoke::read_corpus(&smoke::committed_corpus().join(target.name)) {
            assert_eq!(name, smoke::name_of(&input), "{}: rename it", target.name);
            bytes += input.len() as u64;
        }
    }
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} bytes of corpus");
}
