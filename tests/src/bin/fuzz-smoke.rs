//! Replays the corpus of the fuzz targets and runs mutants of it. `docs/TESTING.md` §Fuzzing.
#![allow(clippy::expect_used, reason = "a run that cannot begin has failed")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use throughline_tests::fuzz::{self, heap, seeds, smoke};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

/// Replays the committed corpus of every fuzz target, then runs mutants of it; the same seed gives the same mutants.
#[derive(Parser)]
struct Arguments {
    /// Only this target.
    #[arg(long)]
    target: Option<String>,
    /// Mutants, as a percentage of what a smoke run does.
    #[arg(long, default_value_t = 100, value_name = "PERCENT")]
    mutants: usize,
    /// What decides the mutants.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Another corpus: a directory for each target.
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// Where inputs that fail are put.
    #[arg(long, value_name = "DIR", default_value = "target/fuzz-failures")]
    failures: PathBuf,
    /// Runs this one file through --target, with the panic as it comes.
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// Adds what the vectors and fixtures hold to the corpus.
    #[arg(long, conflicts_with = "input")]
    write_seeds: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(name) = arguments.target.as_deref().filter(|name| fuzz::named(name).is_none()) {
        let names: Vec<&str> = fuzz::TARGETS.iter().map(|target| target.name).collect();
        eprintln!("expected one of {}, got {name}", names.join(", "));
        return ExitCode::from(2);
    }
    if let (Some(file), Some(target)) = (&arguments.input, &arguments.target) {
        let input = std::fs::read(file).expect("the input to be readable");
        let held = heap::peak_of(|| fuzz::run(target, &input));
        println!("{target}: holds for {} bytes, which took {held} bytes of memory", input.len());
        return ExitCode::SUCCESS;
    }
    let corpus = arguments.corpus.unwrap_or_else(smoke::committed_corpus);
    if arguments.write_seeds {
        let written = seeds::write(&corpus).expect("the corpus to be writable");
        println!("{written} inputs added to {}", corpus.display());
        return ExitCode::SUCCESS;
    }
    let plan = smoke::Plan {
        target: arguments.target,
        mutants_percent: arguments.mutants,
        seed: arguments.seed,
        corpus,
        failures: arguments.failures,
    };
    match smoke::run(&plan) {
        Ok(outcomes) => {
            println!("{:<16} {:>8} {:>8} {:>14}", "target", "corpus", "mutants", "memory/byte");
            for outcome in &outcomes {
                let smoke::Outcome { target, corpus, mutants, heap_per_byte } = outcome;
                println!("{target:<16} {corpus:>8} {mutants:>8} {heap_per_byte:>14}");
            }
            ExitCode::SUCCESS
        }
        Err(failures) => {
            for failure in failures {
                eprintln!("{failure}");
                let (target, input) = (failure.target, failure.input.display());
                eprintln!(
                    "  again: cargo run -p throughline-tests --bin fuzz-smoke -- --target {target} --input {input}\n"
                );
            }
            ExitCode::FAILURE
        }
    }
}
