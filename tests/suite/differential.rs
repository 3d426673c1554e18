//! The two verifiers answer alike: everything of the vectors, and mutants, files and random sets.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use throughline_tests::differ::plan::{Counts, Plan};
use throughline_tests::differ::run::{self, Outcome};

use crate::vectors;

/// The one command for the differential run; `docs/TESTING.md` §Comparing the verifiers says how to make it long.
#[test]
fn both_verifiers_give_the_same_answers() {
    let Some(differ) = second_verifier() else { return };
    let counts = Counts::LANDING;
    let plan = Plan::new(1, counts, vectors::sets_of_cases());
    let outcome = run::compare(&plan, &differ, 0, &|_| {}).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.compared, plan.len());
    assert!(outcome.compared >= counts.blobs + counts.sets + counts.meanings);
    // If everything were refused, agreeing would be easy.
    assert!(outcome.taken * 8 > outcome.compared, "{} of {} were taken", outcome.taken, outcome.compared);
    let told = told(&outcome);
    assert!(told.is_empty(), "{} differences\n{}", outcome.difference_count, told.join("\n"));
}

/// The other verifier. It needs Node.js, which the README does not ask for: without it there is no comparison, and that is said past the
/// test runner, which keeps what a passing test prints. Every landing sets the variable under which this is a failure.
pub(crate) fn second_verifier() -> Option<PathBuf> {
    let error = match run::differ() {
        Ok(differ) => return Some(differ),
        Err(error) => error,
    };
    let required = std::env::var_os(run::REQUIRE_VARIABLE).is_some();
    assert!(!required, "{error}");
    let what = format!("\nNOT RUN: the comparison with the second verifier: {error}\n");
    std::io::stderr().write_all(what.as_bytes()).expect("a stderr to write to");
    None
}

/// Every difference: its file, its record in hex, both answers.
fn told(outcome: &Outcome) -> Vec<String> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("differences");
    let tell = |difference: &run::Difference| {
        let file = run::keep(&directory, difference)
            .map_or_else(|error| error.to_string(), |file| file.display().to_string());
        let hex = data_encoding::HEXLOWER.encode(&difference.record.bytes);
        let run::Difference { record, rust, javascript } = difference;
        format!("{file}\n  {:?} {hex}\n  rust:       {rust}\n  javascript: {javascript}", record.kind)
    };
    outcome.differences.iter().map(tell).collect()
}
