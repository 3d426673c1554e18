//! `bench`: what this machine takes for verifying, fetching, appending and asking.

use clap::{Args, ValueEnum};

use crate::api::error::{Answer, Problem};
use crate::bench::{self, Length, Plan, Subject};
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::Page;
use crate::cli::refusal;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_name = "WHAT")]
    pub(crate) what: What,
    /// Entries to verify or fetch, entries of each writer, or sessions held
    #[arg(long, value_name = "N")]
    pub(crate) entries: Option<u64>,
    /// Rounds; the median and the spread of all are told
    #[arg(long, value_name = "R", default_value = "5")]
    pub(crate) rounds: u32,
    /// For fetch: text of each message in bytes, instead of several sizes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) payload_bytes: Option<u32>,
    /// For verify: watch memory up to a million entries, which takes minutes
    #[arg(long)]
    pub(crate) long: bool,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// Full verification against bare verify_strict, and its memory
    Verify,
    /// A cold fetch over loopback against one raw stream
    Fetch,
    /// Durable appends of 8 writers against a bare log
    Append,
    /// status with 1,000 sessions, --help, size and idle memory
    Status,
}

/// Measures in temporary directories; the node of this home is not touched.
pub(crate) fn run(ctx: &Context, args: &BenchArgs) -> Answer<Outcome> {
    if args.payload_bytes.is_some() && args.what != What::Fetch {
        return Err(only_for("--payload-bytes N", What::Fetch, args.what));
    }
    if args.long && args.what != What::Verify {
        return Err(only_for("--long", What::Verify, args.what));
    }
    let subject = match args.what {
        What::Verify => Subject::Verify,
        What::Fetch => Subject::Fetch,
        What::Append => Subject::Append,
        What::Status => Subject::Status,
    };
    let length = if args.long { Length::Long } else { Length::Usual };
    let report = {
        let _progress = ctx.progress("bench");
        let payload_bytes = args.payload_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        bench::run(subject, Plan { count: args.entries, rounds: args.rounds, payload_bytes, length })?
    };
    let mut page = Page::default();
    for line in report.lines() {
        page.plain(line);
    }
    Ok(Outcome::done(report.to_json(), page))
}

/// An option that changes nothing there is a mistake about what is measured.
fn only_for(option: &str, what: What, got: What) -> Problem {
    let word =
        |what: What| what.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let detail = format!("expected {option} with `bench {}` only, got `bench {}`", word(what), word(got));
    refusal::usage(detail).hint(format!("throughline bench {} {option}", word(what)))
}
