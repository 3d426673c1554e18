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
    /// Mutants of signed blobs; payloads and CIDs are in proportion.
    #[arg(long, default_value_t = Counts::LANDING.blobs)]
    blobs: u64,
    /// Random sets for selection; session files are in proportion. As many as blobs ask for, at most 50,000.
    #[arg(long)]
    sets: Option<u64>,
    /// Sessions that say something else, signed again. As many as blobs ask for, at most 100,000.
    #[arg(long)]
    meanings: Option<u64>,
    /// The first record that is asked. A run that was broken off goes on with the one that it told last.
    #[arg(long, default_value_t = 0, value_name = "RECORD")]
    from: u64,
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
    let counts = Counts::of_blobs(arguments.blobs);
    let counts = arguments.sets.map_or(counts, |sets| counts.with_sets(sets));
    let counts = Counts { meanings: arguments.meanings.unwrap_or(counts.meanings), ..counts };
    let plan = Plan::new(arguments.seed, counts, Vec::new());
    let total = plan.len().saturating_sub(arguments.from);
    // A run of hours may be broken off: what it finds is kept as it is found.
    let progress = |run::Progress { compared, differences, next, found }: run::Progress<'_>| {
        let seconds = began.elapsed().as_secs();
        eprintln!("{compared} of {total}, {differences} differences, {seconds} s, --from {next}");
        let Some(difference) = found else { return };
        let kept = run::keep(&arguments.differences, difference);
        let place = kept.map_or_else(|error| error.to_string(), |file| file.display().to_string());
        let run::Difference { record, rust, javascript } = difference;
        println!("{:?} {place}\n  rust:       {rust}\n  javascript: {javascript}", record.kind);
    };
    let outcome = match run::compare(&plan, &differ, arguments.from, &progress) {
        Ok(outcome) => outcome,
        Err(error) => return failed(&error),
    };
    let run::Outcome { compared, taken, difference_count, .. } = outcome;
    let seconds = began.elapsed().as_secs();
    println!("{compared} records in {seconds} s, {taken} taken by both, {difference_count} differences");
    if difference_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(error: &run::RunError) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}
