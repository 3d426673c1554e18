//! The stable runner: replays the committed corpus, then runs mutants of it, all decided by a seed.
//!
//! It needs no sanitizer, no coverage and no nightly compiler, so it runs wherever the tests run. It finds what a few thousand blind but
//! well-formed mutants find; for the rest there is libFuzzer.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use throughline_protocol::testing::key;

use super::{TARGETS, Target, heap};
use crate::mutate::tree::Maker;
use crate::mutate::{Rng, bytes};

/// Keys that sign mutants again: those of the fixtures.
const SIGNERS: [&str; 9] =
    ["account", "device", "server1", "server2", "server3", "contributor", "reader", "stranger", "publisher"];

/// What a run does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Only this target.
    pub target: Option<String>,
    /// Mutants of each target, as a percentage of its own number.
    pub mutants_percent: usize,
    /// What decides the mutants.
    pub seed: u64,
    /// Where the corpus is: a directory for each target.
    pub corpus: PathBuf,
    /// Where an input that fails is put.
    pub failures: PathBuf,
}

/// What became of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The target.
    pub target: &'static str,
    /// Inputs of the corpus.
    pub corpus: usize,
    /// Mutants.
    pub mutants: usize,
    /// The most memory that an input took, in bytes for each of its bytes, beyond the fixed part; rounded up.
    pub heap_per_byte: usize,
}

/// An input for which a property does not hold.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{target}: {what}\n  input: {}", input.display())]
pub struct Failure {
    /// The target.
    pub target: &'static str,
    /// What does not hold.
    pub what: String,
    /// The file that holds the input.
    pub input: PathBuf,
}

/// The corpus that is committed.
#[must_use]
pub fn committed_corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

/// Runs a plan on all processors: every target to its end, or to its first failure.
///
/// # Errors
/// The first failure of each target that has one.
pub fn run(plan: &Plan) -> Result<Vec<Outcome>, Vec<Failure>> {
    let wanted = |target: &&Target| plan.target.as_deref().is_none_or(|name| name == target.name);
    let targets: Vec<&'static Target> = TARGETS.iter().filter(wanted).collect();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    quietly(|| {
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = run_target(plan, target);
                        results.lock().unwrap().push(result);
                    }
                });
            }
        });
    });
    let (mut outcomes, mut failures) = (Vec::new(), Vec::new());
    for result in results.into_inner().unwrap() {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(failure) => failures.push(failure),
        }
    }
    outcomes.sort_by_key(|outcome| outcome.target);
    if failures.is_empty() { Ok(outcomes) } else { Err(failures) }
}

/// A panic is a result here: it is told once, with its input, and not on the way.
fn quietly(act: impl FnOnce()) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    act();
    std::panic::set_hook(hook);
}

fn run_target(plan: &Plan, target: &'static Target) -> Result<Outcome, Failure> {
    let corpus = read_corpus(&plan.corpus.join(target.name));
    let mut outcome = Outcome { target: target.name, corpus: corpus.len(), mutants: 0, heap_per_byte: 0 };
    // What is set up once is no part of what an input costs.
    let _ = catch_unwind(AssertUnwindSafe(|| (target.run)(&[0; 8])));
    for input in corpus.values() {
        try_one(plan, target, input, &mut outcome)?;
    }
    let inputs: Vec<Vec<u8>> = corpus.into_values().collect();
    let pool = Pool::new(&inputs);
    let wanted = target.mutants * plan.mutants_percent / 100;
    for number in 0..wanted {
        let mut rng = Rng::seeded(plan.seed ^ (number as u64) << 20 ^ u64::from(target.name.as_bytes()[0]));
        let mutant = pool.mutant(&mut rng, target.bytes_max);
        try_one(plan, target, &mutant, &mut outcome)?;
        outcome.mutants += 1;
    }
    Ok(outcome)
}

/// Runs one input; a panic and too much memory are failures alike.
fn try_one(plan: &Plan, target: &'static Target, input: &[u8], outcome: &mut Outcome) -> Result<(), Failure> {
    let mut ended = Ok(());
    let held = heap::peak_of(|| ended = catch_unwind(AssertUnwindSafe(|| (target.run)(input))));
    let bound = target.heap.bytes(input.len());
    let beyond = held.saturating_sub(target.heap.fixed);
    outcome.heap_per_byte = outcome.heap_per_byte.max(beyond.div_ceil(input.len().max(1)));
    let what = match ended {
        Ok(()) if held <= bound => return Ok(()),
        Ok(()) => {
            format!("{} bytes of input held {held} bytes of memory, at most {bound} are allowed", input.len())
        }
        Err(panic) => said(&*panic),
    };
    Err(Failure { target: target.name, what, input: keep(&plan.failures, target.name, input) })
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Writes an input where it can be found again; gives the file.
fn keep(directory: &Path, target: &str, input: &[u8]) -> PathBuf {
    let file = directory.join(format!("{target}-{}", name_of(input)));
    let _ = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&file, input));
    file
}

/// The name of an input: the first eight bytes of its hash.
#[must_use]
pub fn name_of(input: &[u8]) -> String {
    let hash = throughline_protocol::block::sha256(input);
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The inputs of a directory by name; none when there is none.
#[must_use]
pub fn read_corpus(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(directory) else { return BTreeMap::new() };
    entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// What mutants are made of.
struct Pool<'a> {
    inputs: &'a [Vec<u8>],
    trees: Maker,
    /// Inputs whose tree begins after their first byte, which says what they are.
    prefixed: Vec<u8>,
}

impl<'a> Pool<'a> {
    fn new(inputs: &'a [Vec<u8>]) -> Self {
        let is_tree = |bytes: &&[u8]| crate::mutate::tree::Node::read(bytes).is_some();
        let whole: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).filter(is_tree).collect();
        let prefixed: Vec<&[u8]> = inputs.iter().filter_map(|input| input.get(1..)).filter(is_tree).collect();
        let as_prefixed = prefixed.len() > whole.len();
        let keys = SIGNERS.map(key).into();
        let heads = inputs.iter().filter_map(|input| input.first().copied());
        Pool {
            inputs,
            trees: Maker::new(if as_prefixed { prefixed } else { whole }, keys),
            prefixed: if as_prefixed { heads.collect() } else { Vec::new() },
        }
    }

    fn mutant(&self, rng: &mut Rng, bytes_max: usize) -> Vec<u8> {
        let from_tree = !self.trees.is_empty() && rng.once_in(2);
        let mut mutant = match (from_tree, self.prefixed.is_empty()) {
            (true, true) => self.trees.mutant(rng),
            (true, false) => [&[*rng.pick(&self.prefixed)][..], &self.trees.mutant(rng)].concat(),
            (false, _) if self.inputs.is_empty() => rng.bytes(32),
            (false, _) => {
                let input = rng.pick(self.inputs);
                bytes::mutant(rng, input, self.inputs, bytes_max)
            }
        };
        mutant.truncate(bytes_max);
        mutant
    }
}
