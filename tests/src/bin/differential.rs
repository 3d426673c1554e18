//! Compares this verifier with the one of `verify/`, for as long as wanted. `docs/TESTING.md` §Comparing the verifiers.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use throughline_tests::differ::plan::{Counts, Plan};
use throughline_tests::differ::run;

/// Compares both verifiers on the vectors and on mutants, files and sets that a seed decides.
#[derive(Parser)]
struct Arguments {
    /// Mutants of signed blobs; payloads, CIDs, files and sets are in proportion.
    #[arg(long, default_value_t = Counts::LANDING.blobs)]
    blobs: u64,
    /// What decides the mutants.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where records that differ are put.
    #[arg(long, value_name = "DIR", default_value = "target/differences")]
    differences: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let began = Instant::now();
    let differ = match run::differ() {
        Ok(differ) => differ,
        Err(error) => return failed(&error),
    };
    let plan = Plan::new(arguments.seed, Counts::of_blobs(arguments.blobs), Vec::new());
    let total = plan.len();
    let progress = |run::Progress { compared, differences }| {
        let seconds = began.elapsed().as_secs();
        eprintln!("{compared} of {total}, {differences} differences, {seconds} s");
    };
    let outcome = match run::compare(&plan, &differ, &progress) {
        Ok(outcome) => outcome,
        Err(error) => return failed(&error),
    };
    for difference in &outcome.differences {
        let kept = run::keep(&arguments.differences, difference);
        let place = kept.map_or_else(|error| error.to_string(), |file| file.display().to_string());
        let run::Difference { record, rust, javascript } = difference;
        println!("{:?} {place}\n  rust:       {rust}\n  javascript: {javascript}", record.kind);
    }
    let run::Outcome { compared, taken, difference_count, .. } = outcome;
    let seconds = began.elapsed().as_secs();
    println!("{compared} records in {seconds} s, {taken} taken by both, {difference_count} differences");
    if difference_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(error: &run::RunError) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}
