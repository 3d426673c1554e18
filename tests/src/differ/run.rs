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
/// How often the other verifier may die before the run ends.
const DEATHS_MAX: usize = 32;
/// The oldest Node.js that the other verifier is written for.
const NODE_MAJOR_MIN: u32 = 20;
/// Set to anything, it makes a comparison that cannot be run a failure: the tests of a landing say so, where those of a fresh machine
/// only tell that they did not compare.
pub const REQUIRE_VARIABLE: &str = "THROUGHLINE_REQUIRE_NODE";
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

/// How far a comparison is: what a run that is broken off has shown.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Records that were compared.
    pub compared: u64,
    /// Differences among them.
    pub differences: u64,
    /// The record before which all were compared: a run that is broken off goes on with it.
    pub next: u64,
    /// The difference that was just found, if it is one of those that are kept.
    pub found: Option<&'a Difference>,
}

/// Why there was no comparison.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no node.
    #[error("expected to run `node`, got: {0}; install Node.js 20 or later, then run `npm ci` in verify/")]
    Node(std::io::Error),
    /// There is an older node, or another program of that name.
    #[error("expected Node.js 20 or later, got {0:?}; install it, then run `npm ci` in verify/")]
    NodeVersion(String),
    /// What it imports is not there.
    #[error("expected the packages of the second verifier in {}, got none; run `npm ci` in verify/", .0.display())]
    Packages(PathBuf),
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

/// Where the other verifier is: [`DIFFER_VARIABLE`], else `verify/bin/differ.mjs` of this checkout. Whatever it needs is there too.
///
/// # Errors
/// [`RunError::Missing`]; [`RunError::Node`], [`RunError::NodeVersion`] and [`RunError::Packages`] when it could not run.
pub fn differ() -> Result<PathBuf, RunError> {
    check_node()?;
    let named = std::env::var_os(DIFFER_VARIABLE).map(PathBuf::from);
    let verify = Path::new(env!("CARGO_MANIFEST_DIR")).join("../verify");
    let packages = verify.join("node_modules");
    if named.is_none() && !packages.join("@noble/curves").is_dir() {
        return Err(RunError::Packages(packages));
    }
    let path = named.unwrap_or_else(|| verify.join("bin/differ.mjs"));
    if path.is_file() { Ok(path) } else { Err(RunError::Missing(path)) }
}

fn check_node() -> Result<(), RunError> {
    let told = Command::new("node").arg("--version").stdin(Stdio::null()).output().map_err(RunError::Node)?;
    let version = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    let major = version.strip_prefix('v').and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match major {
        Some(major) if major >= NODE_MAJOR_MIN => Ok(()),
        _ => Err(RunError::NodeVersion(version)),
    }
}

/// Asks both everything that the plan holds from record `from` on, with one process a processor. `progress` is called at each
/// difference and every 10,000 records. A record on which the other verifier dies is a difference; the next ones are asked of a new
/// process.
///
/// # Errors
/// When the other verifier cannot be run, or dies again and again.
pub fn compare(
    plan: &Plan,
    differ: &Path,
    from: u64,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> Result<Outcome, RunError> {
    let jobs = std::thread::available_parallelism().map_or(1, |jobs| jobs.get() as u64);
    let differing = AtomicU64::new(0);
    let done: Vec<AtomicU64> = (0..jobs).map(|_| AtomicU64::new(0)).collect();
    let next = |job: u64, done: &AtomicU64| from + job + done.load(Ordering::Relaxed) * jobs;
    let count = |of_job: &AtomicU64, noted: Noted<'_>| {
        of_job.fetch_add(1, Ordering::Relaxed);
        let compared: u64 = done.iter().map(|done| done.load(Ordering::Relaxed)).sum();
        let (more, found) = match noted {
            Noted::Alike => (0, None),
            Noted::Difference(found) => (1, found),
        };
        let differences = differing.fetch_add(more, Ordering::Relaxed) + more;
        if more > 0 || compared.is_multiple_of(10_000) {
            let next = (0..).zip(&done).map(|(job, done)| next(job, done)).min().unwrap_or(from);
            progress(Progress { compared, differences, next, found });
        }
    };
    let results: Vec<Result<Outcome, RunError>> = std::thread::scope(|scope| {
        let (count, done) = (&count, &done);
        let running: Vec<_> = (0..jobs)
            .zip(done)
            .map(|(first, of_job)| {
                scope.spawn(move || {
                    let done = |noted: Noted<'_>| count(of_job, noted);
                    Share { plan, differ, jobs, done: &done }.ask(from + first)
                })
            })
            .collect();
        running.into_iter().map(|job| job.join().expect("a job that ends")).collect()
    });
    let mut outcome = Outcome::default();
    for part in results {
        outcome.add(part?);
    }
    outcome.differences.sort();
    Ok(outcome)
}

impl Outcome {
    fn add(&mut self, other: Outcome) {
        self.compared += other.compared;
        self.taken += other.taken;
        self.difference_count += other.difference_count;
        self.differences.extend(other.differences);
    }

    /// Compares one pair of answers.
    fn note(&mut self, record: Record, rust: String, javascript: String) -> Noted<'_> {
        self.compared += 1;
        self.taken += u64::from(is_taken(record.kind, &rust));
        if javascript == rust {
            return Noted::Alike;
        }
        self.difference_count += 1;
        if self.differences.len() >= KEPT_MAX {
            return Noted::Difference(None);
        }
        self.differences.push(Difference { record, rust, javascript });
        Noted::Difference(self.differences.last())
    }
}

/// What a pair of answers is.
#[derive(Clone, Copy, Debug)]
enum Noted<'a> {
    Alike,
    /// With the difference, if it is kept.
    Difference(Option<&'a Difference>),
}

/// What one process is asked: every `jobs`th record.
#[derive(Clone, Copy)]
struct Share<'a> {
    plan: &'a Plan,
    differ: &'a Path,
    jobs: u64,
    done: &'a (dyn Fn(Noted<'_>) + Sync),
}

/// What was asked and what this implementation answers, on its way to be compared.
type Asked = (Record, String);

impl Share<'_> {
    fn ask(self, first: u64) -> Result<Outcome, RunError> {
        let (mut outcome, mut next) = (Outcome::default(), first);
        for _ in 0..=DEATHS_MAX {
            let (part, ended) = self.streamed(next)?;
            next += part.compared * self.jobs;
            outcome.add(part);
            if ended.is_none() {
                return Ok(outcome);
            }
            // It died on one of the records that were on their way: which one, shows when they are asked one by one.
            let (part, ended) = self.one_by_one(next)?;
            next += part.compared * self.jobs;
            outcome.add(part);
            let Some(said) = ended else { continue };
            let record = self.plan.record(next);
            let rust = Answerer::default().answer(&record);
            let last = said.lines().next().unwrap_or_default();
            (self.done)(outcome.note(record, rust, format!("no answer, it ended with {last:?}")));
            next += self.jobs;
        }
        let (got, said) = (outcome.compared, format!("died {DEATHS_MAX} times"));
        Err(RunError::Ended { expected: self.plan.len() / self.jobs, got, said })
    }

    fn numbers(self, from: u64) -> impl Iterator<Item = u64> {
        (from..self.plan.len()).step_by(usize::try_from(self.jobs).unwrap_or(1))
    }

    /// Asks without waiting for answers, to the end or until the process ends; then with what it said.
    fn streamed(self, from: u64) -> Result<(Outcome, Option<String>), RunError> {
        let mut child = spawn(self.differ)?;
        let stdin = child.stdin.take().expect("a pipe");
        let (sender, receiver) = sync_channel::<Asked>(WAITING_MAX);
        std::thread::scope(|scope| {
            let asking = scope.spawn(move || {
                let (mut stdin, mut answerer, mut sent) = (BufWriter::new(stdin), Answerer::default(), 0_u64);
                for number in self.numbers(from) {
                    let record = self.plan.record(number);
                    let answer = answerer.answer(&record);
                    sent += 1;
                    // A process that has ended is told by its missing answers.
                    let written = stdin.write_all(&record.frame()).is_ok();
                    if sender.send((record, answer)).is_err() || !written {
                        break;
                    }
                    // What waits for an answer must not wait in the buffer.
                    if sent.is_multiple_of(64) && stdin.flush().is_err() {
                        break;
                    }
                }
                let _ = stdin.flush();
                sent
            });
            let outcome = self.read_answers(&mut child, receiver);
            let sent = asking.join().expect("a thread that ends");
            let all = outcome.compared == sent;
            let said = ended(child);
            Ok((outcome, (!all).then_some(said)))
        })
    }

    /// Asks some records one by one, until the process ends; then with what it said.
    fn one_by_one(self, from: u64) -> Result<(Outcome, Option<String>), RunError> {
        let mut child = spawn(self.differ)?;
        let mut stdin = child.stdin.take().expect("a pipe");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (mut outcome, mut answerer) = (Outcome::default(), Answerer::default());
        for number in self.numbers(from).take(8 * WAITING_MAX) {
            let record = self.plan.record(number);
            let _ = stdin.write_all(&record.frame()).and_then(|()| stdin.flush());
            let Some(Ok(javascript)) = lines.next() else {
                return Ok((outcome, Some(ended(child))));
            };
            let rust = answerer.answer(&record);
            (self.done)(outcome.note(record, rust, javascript));
        }
        drop(stdin);
        let _ = ended(child);
        Ok((outcome, None))
    }

    fn read_answers(self, child: &mut Child, asked: Receiver<Asked>) -> Outcome {
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut outcome = Outcome::default();
        for (record, rust) in asked {
            let Some(Ok(javascript)) = lines.next() else { break };
            (self.done)(outcome.note(record, rust, javascript));
        }
        outcome
    }
}

fn spawn(differ: &Path) -> Result<Child, RunError> {
    Command::new("node")
        .arg(differ)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(RunError::Node)
}

/// Waits for a process; gives the beginning of what it wrote to stderr.
fn ended(mut child: Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(4_096).read_to_string(&mut text);
    }
    let _ = child.wait();
    text
}

fn is_taken(kind: Kind, answer: &str) -> bool {
    match kind {
        Kind::Blob | Kind::Payload | Kind::Cid => answer.starts_with("ok "),
        Kind::Set => !answer.contains("\"head\":null"),
        Kind::Car => !answer.starts_with("corrupt"),
    }
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
