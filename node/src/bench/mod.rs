//! `throughline bench`: what this machine takes for the acts that a node is made of, each against a named baseline.
//!
//! A figure means something only beside another from the same run: every round measures the baseline and the act in
//! turn, and what is told is the median of the rounds' ratios with its spread. Nothing here is ever a verdict: a bench
//! never fails because something was slow. It works in temporary directories with keys of its own, and touches neither
//! the user's node nor the network beyond loopback. `docs/PERFORMANCE.md` holds results and what they mean.
//!
//! ```text
//! verify ── chain (a file of signed entries) ── against bare verify_strict
//! append ── home (a throwaway node)          ── against a bare log with fdatasync
//! fetch  ── two homes over loopback          ── against one raw stream of the same bytes
//! status ── home with many sessions, and processes of this program
//! ```

pub mod append;
mod chain;
mod fetch;
mod home;
mod machine;
mod report;
mod status;
mod verify;
mod words;

use crate::api::error::Answer;

pub use report::{Figure, Ratio, Report, Samples};

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Full verification of a chain.
    Verify,
    /// A cold fetch between two nodes.
    Fetch,
    /// Durable appends of concurrent writers.
    Append,
    /// Status, start of the program, size and memory.
    Status,
}

impl Subject {
    /// The word of the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Subject::Verify => "verify",
            Subject::Fetch => "fetch",
            Subject::Append => "append",
            Subject::Status => "status",
        }
    }
}

/// How far a bench goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Done in a minute or so.
    Usual,
    /// With a million entries where memory is watched; minutes, and half a gigabyte of temporary file.
    Long,
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Entries, or sessions for [`Subject::Status`]; none is what `docs/PERFORMANCE.md` states.
    pub count: Option<u64>,
    /// Rounds, at least one.
    pub rounds: u32,
    /// Text of each message in bytes, for [`Subject::Fetch`]; none is the four sizes of `docs/PERFORMANCE.md`.
    pub payload_bytes: Option<usize>,
    /// How far it goes.
    pub length: Length,
}

/// Measures, outside of any runtime.
///
/// # Errors
/// When the work itself is refused: a full disk, a port, a bug. Never because it was slow.
pub fn run(subject: Subject, plan: Plan) -> Answer<Report> {
    let before = machine::load();
    let plan = Plan { rounds: plan.rounds.max(1), ..plan };
    let mut report = match subject {
        Subject::Verify => verify::run(plan)?,
        Subject::Fetch => fetch::run(plan)?,
        Subject::Append => append::run(plan)?,
        Subject::Status => status::run(plan)?,
    };
    report.ran_on(before, machine::load());
    Ok(report)
}
