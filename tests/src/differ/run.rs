//! Asking the other verifier: processes that read records from their stdin and answer a line each, in order.

use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use super::answers::Answerer;
use super::plan::Plan;
use super::{Kind, Record};
use crate::fuzz::smoke::name_of;

/// Records that are on their way at a time, for each process.
const WAITING_MAX: usize = 1_024;
/// Differences that are kept; further ones are counted.
const KEPT_MAX: usize = 64;
/// Names another `differ.mjs` than that of this checkout.
pub const DIFFER_VARIABLE: &str = "THROUGHLINE_DIFFER";

/// A record that the two answer differently.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// What was asked.
    pub record: Record,
    /// What this implementation answers.
    pub rust: String,
    /// What the other one answers.
    pub javascript: String,
}

/// How a comparison went.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Records that were compared.
    pub compared: u64,
    /// Records that both took: a run that refuses everything shows nothing.
    pub taken: u64,
    /// Differences, at most 64.
    pub differences: Vec<Difference>,
    /// All differences.
    pub difference_count: u64,
}

/// Why there was no comparison.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no node.
    #[error("expected to run `node`, got: {0}; install Node.js 20 or later, the second verifier is written for it")]
    Node(std::io::Error),
    /// The verifier is not there.
    #[error("expected the second verifier at {}, got no file; set {DIFFER_VARIABLE} to its differ.mjs", .0.display())]
    Missing(PathBuf),
    /// It ended before it had answered everything.
    #[error("expected {expected} answers of the second verifier, got {got}; it said: {said}")]
    Ended {
        /// Records sent.
        expected: u64,
        /// Lines read.
        got: u64,
        /// The end of its stderr.
        said: String,
    },
}

/// Where the other verifier is: [`DIFFER_VARIABLE`], else `verify/bin/differ.mjs` of this checkout.
///
/// # Errors
/// [`RunError::Missing`].
pub fn differ() -> Result<PathBuf, RunError> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verify/bin/differ.mjs");
    let path = std::env::var_os(DIFFER_VARIABLE).map_or(default, PathBuf::from);
    if path.is_file() { Ok(path) } else { Err(RunError::Missing(path)) }
}

/// Asks both everything that the plan holds, with one process a processor. `progress` is called now and then with the number of
/// records compared.
///
/// # Errors
/// When the other verifier cannot be run or does not answer everything.
pub fn compare(plan: &Plan, differ: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<Outcome, RunError> {
    let jobs = std::thread::available_parallelism().map_or(1, |jobs| jobs.get() as u64);
    let done = AtomicU64::new(0);
    let results: Vec<Result<Outcome, RunError>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..jobs)
            .map(|job| {
                let done = &done;
                scope.spawn(move || {
                    let numbers = (job..plan.len()).step_by(usize::try_from(jobs).unwrap_or(1));
                    one_process(plan, numbers, differ, &|| {
                        let count = done.fetch_add(1, Ordering::Relaxed) + 1;
                        if count.is_multiple_of(10_000) {
                            progress(count);
                        }
                    })
                })
            })
            .collect();
        running.into_iter().map(|job| job.join().expect("a job that ends")).collect()
    });
    let mut outcome = Outcome::default();
    for result in results {
        let part = result?;
        outcome.compared += part.compared;
        outcome.taken += part.taken;
        outcome.difference_count += part.difference_count;
        outcome.differences.extend(part.differences);
    }
    outcome.differences.sort();
    Ok(outcome)
}

/// What was asked and what this implementation answers, on its way to be compared.
type Asked = (Record, String);

fn one_process(
    plan: &Plan,
    numbers: impl Iterator<Item = u64> + Send,
    differ: &Path,
    done: &(dyn Fn() + Sync),
) -> Result<Outcome, RunError> {
    let mut child = Command::new("node")
        .arg(differ)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(RunError::Node)?;
    let stdin = child.stdin.take().expect("a pipe");
    let (sender, receiver) = sync_channel::<Asked>(WAITING_MAX);
    std::thread::scope(|scope| {
        let asking = scope.spawn(move || {
            let (mut stdin, mut answerer, mut sent) = (BufWriter::new(stdin), Answerer::default(), 0);
            for number in numbers {
                let record = plan.record(number);
                let answer = answerer.answer(&record);
                // A process that has ended is told by its missing answers.
                if stdin.write_all(&record.frame()).is_err() || sender.send((record, answer)).is_err() {
                    break;
                }
                sent += 1;
                // What waits for an answer must not wait in the buffer.
                if sent % 64 == 0 && stdin.flush().is_err() {
                    break;
                }
            }
            let _ = stdin.flush();
            sent
        });
        let outcome = read_answers(&mut child, receiver, done);
        let sent: u64 = asking.join().expect("a thread that ends");
        let said = said(&mut child);
        let ended = child.wait().is_ok_and(|status| status.success());
        if ended && outcome.compared == sent {
            return Ok(outcome);
        }
        Err(RunError::Ended { expected: sent, got: outcome.compared, said })
    })
}

fn read_answers(child: &mut Child, asked: Receiver<Asked>, done: &(dyn Fn() + Sync)) -> Outcome {
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut outcome = Outcome::default();
    for (record, rust) in asked {
        let Some(Ok(javascript)) = lines.next() else { break };
        outcome.compared += 1;
        outcome.taken += u64::from(is_taken(record.kind, &rust));
        if javascript != rust {
            outcome.difference_count += 1;
            if outcome.differences.len() < KEPT_MAX {
                outcome.differences.push(Difference { record, rust, javascript });
            }
        }
        done();
    }
    outcome
}

fn is_taken(kind: Kind, answer: &str) -> bool {
    match kind {
        Kind::Blob | Kind::Payload | Kind::Cid => answer.starts_with("ok "),
        Kind::Set => !answer.contains("\"head\":null"),
        Kind::Car => !answer.starts_with("corrupt"),
    }
}

/// The end of what a process wrote to stderr.
fn said(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(4_096).read_to_string(&mut text);
    }
    text
}

/// Keeps a difference as a file of its record: `node verify/bin/differ.mjs < FILE` asks it again. Gives the file.
///
/// # Errors
/// What the file system refuses.
pub fn keep(directory: &Path, difference: &Difference) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(directory)?;
    let frame = difference.record.frame();
    let file = directory.join(format!("{}-{}", char::from(difference.record.kind.byte()), name_of(&frame)));
    std::fs::write(&file, frame)?;
    Ok(file)
}
