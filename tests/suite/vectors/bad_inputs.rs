//! `bad-inputs.json`: inputs that are described in words, each with the code or verdict it must give.
//!
//! Rows about bytes, chains, authority, Refs, handoffs, appends, schemas and classes are made here and judged. Those
//! whose input is no blob — a stream, a request, a disk — name the tests that make it. What nothing shows yet is
//! listed with the reason; that list only shrinks. A row that describes several inputs gives one outcome for each.

mod authority;
mod blobs;
mod chain;
mod elsewhere;
mod files;
mod make;
mod nodes;
mod refs;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use self::make::Outcome;
use super::{Faults, Files, records, text};

/// Layers whose rows are made here unless [`elsewhere`] says why not.
const LAYERS: &[&str] = &["sig", "schema", "chain", "cap", "ref", "handoff", "append", "class"];

/// Layers whose inputs are mostly no blobs.
const OTHER_LAYERS: &[&str] = &["net", "api", "viewer", "import", "storage", "cli"];

/// Rows of the file.
const ROWS: usize = 151;

/// One row, and what this implementation makes of its inputs.
struct Row {
    id: &'static str,
    /// One word: every input gives it. Several: the inputs give these, in order.
    expect: &'static [&'static str],
    made: fn(&Files) -> Vec<Outcome>,
}

const fn row(id: &'static str, expect: &'static [&'static str], made: fn(&Files) -> Vec<Outcome>) -> Row {
    Row { id, expect, made }
}

impl Row {
    /// The word that the input at `at` has to give.
    fn expected(&self, at: usize) -> &'static str {
        if let [one] = self.expect { one } else { self.expect[at] }
    }
}

fn all() -> impl Iterator<Item = &'static Row> {
    [blobs::ROWS, chain::ROWS, authority::ROWS, refs::ROWS, nodes::ROWS, files::ROWS].into_iter().flatten()
}

/// An input that is bytes: a session's file, and the word that a verifier of it has to give.
pub(crate) struct Input {
    /// The row, and which of its inputs.
    pub(crate) name: String,
    /// A code or a verdict.
    pub(crate) expected: &'static str,
    /// The file.
    pub(crate) file: Vec<u8>,
}

/// Every input of every row that is bytes.
pub(crate) fn inputs(files: &Files) -> Vec<Input> {
    let mut inputs = Vec::new();
    for row in all() {
        for (at, outcome) in (row.made)(files).into_iter().enumerate() {
            let (name, expected) = (format!("{}.{at}", row.id), row.expected(at));
            inputs.extend(outcome.file.map(|file| Input { name, expected, file }));
        }
    }
    inputs
}

pub(super) fn check(files: &Files) {
    let data = files.json("bad-inputs.json");
    let rows: BTreeMap<&str, &Json> = records(&data, ROWS).iter().map(|row| (text(row, "id"), row)).collect();
    assert_eq!(rows.len(), ROWS, "an id stands twice");
    check_all_are_met(&rows);
    let mut faults = Faults::default();
    for row in all() {
        let given = text(rows[row.id], "expected");
        for word in row.expect {
            assert!(
                words(given).any(|part| part == *word || (part.ends_with('_') && word.starts_with(part))),
                "{}: `{word}` is not what the row expects: {given}",
                row.id
            );
        }
        let outcomes: Vec<String> = (row.made)(files).into_iter().map(|outcome| outcome.word).collect();
        assert!(!outcomes.is_empty(), "{}: nothing was made", row.id);
        assert!(row.expect.len() == 1 || row.expect.len() == outcomes.len(), "{}: {outcomes:?}", row.id);
        let expected: Vec<String> = (0..outcomes.len()).map(|at| row.expected(at).to_owned()).collect();
        faults.equal(row.id, outcomes, expected);
    }
    faults.assert_none();
}

/// Every row is met once: made here, shown by tests that exist, or not shown yet.
fn check_all_are_met(rows: &BTreeMap<&str, &Json>) {
    let mut met = BTreeSet::new();
    let made = all().map(|row| row.id);
    let shown = elsewhere::SHOWN.iter().map(|(id, _)| *id);
    let not_yet = elsewhere::NOT_YET.iter().map(|(id, _)| *id);
    for id in made.chain(shown).chain(not_yet) {
        assert!(rows.contains_key(id), "there is no row {id}");
        assert!(met.insert(id), "{id} is met twice");
    }
    for (id, row) in rows {
        let layer = text(row, "layer");
        assert!(LAYERS.contains(&layer) || OTHER_LAYERS.contains(&layer), "{id}: an unknown layer, {layer}");
        assert!(met.contains(id), "{id}, of layer {layer}, is not met");
    }
    assert_eq!(elsewhere::NOT_YET.len(), elsewhere::NOT_YET_COUNT, "the list only shrinks: lower its number");
    let tests = crate::support::tests::all();
    for (id, names) in elsewhere::SHOWN {
        assert!(!names.is_empty(), "{id}: no test");
        names.iter().for_each(|name| assert!(tests.contains_key(*name), "{id}: there is no test {name}"));
    }
}

/// Words of a row's expectation; a code that ends in `_*` is any code that begins so.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')))
}
