//! `bad-inputs.json`: inputs that are described in words, each with the code or verdict it must give. Here those of blobs, chains,
//! authority, Refs, handoffs, appends and classes; every row of these layers is either made and judged, or listed with where it
//! is asserted instead and why.
//!
//! A row that describes several inputs gives one outcome for each.

mod authority;
mod blobs;
mod chain;
mod make;
mod refs;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use super::{Faults, Files, records, text};

/// Layers that are judged here.
const LAYERS: &[&str] = &["sig", "schema", "chain", "cap", "ref", "handoff", "append", "class"];

/// Layers whose inputs are no blobs: tests of their parts assert them.
const OTHER_LAYERS: &[&str] = &["net", "api", "viewer", "import", "storage", "cli"];

/// Rows of our layers that are not made here, and why.
const NOT_HERE: &[(&str, &str)] = &[
    ("CH10", "the holder that refuses is the node's (core::append_signed); nothing shows W_FUTURE yet"),
    ("CA16", "no quota of control blobs per owner exists yet"),
    ("RF07", "the message id is gossipsub's, over topic and content: net::gossip"),
    ("RF08", "the age of a head is shown by the status of the node, which reads a clock"),
    ("MV06", "the target of a move: handoff::target, an_epoch_that_is_not_newer_is_refused"),
    (
        "MV08",
        "every crash of every party: handoff, every_schedule_keeps_one_holder_and_ends; kill -9: suite store",
    ),
    ("OW01", "the holder that answers is the node's: sync, appends_go_to_the_holder_and_conflicts_come_back"),
    ("OW02", "the key of a client's message is the node's: core::append_signed"),
    ("PL01", "a writer salts each payload by itself, so it never names one twice; a verifier does not look"),
    ("EN08", "there is no secret scan yet"),
];

/// One row, and what this implementation makes of its inputs.
struct Row {
    id: &'static str,
    /// One word: every input gives it. Several: the inputs give these, in order.
    expect: &'static [&'static str],
    made: fn(&Files) -> Vec<String>,
}

const fn row(id: &'static str, expect: &'static [&'static str], made: fn(&Files) -> Vec<String>) -> Row {
    Row { id, expect, made }
}

pub(super) fn check(files: &Files) {
    let data = files.json("bad-inputs.json");
    let rows: BTreeMap<&str, &Json> = records(&data, 151).iter().map(|row| (text(row, "id"), row)).collect();
    assert_eq!(rows.len(), 151, "an id stands twice");
    let all = || [blobs::ROWS, chain::ROWS, authority::ROWS, refs::ROWS].into_iter().flatten();
    check_all_are_met(&rows, all().map(|row| row.id));
    let mut faults = Faults::default();
    for row in all() {
        let given = text(rows[row.id], "expected");
        for word in row.expect {
            assert!(words(given).contains(word), "{}: `{word}` is not what the row expects: {given}", row.id);
        }
        let outcomes = (row.made)(files);
        assert!(!outcomes.is_empty(), "{}: nothing was made", row.id);
        let expected: Vec<String> = match row.expect {
            [one] => vec![(*one).to_owned(); outcomes.len()],
            several => several.iter().map(|word| (*word).to_owned()).collect(),
        };
        faults.equal(row.id, outcomes, expected);
    }
    faults.assert_none();
}

/// Every row of our layers is made once or listed once; no other row is.
fn check_all_are_met<'r>(rows: &BTreeMap<&str, &Json>, made: impl Iterator<Item = &'r str>) {
    let mut met = BTreeSet::new();
    for id in made.chain(NOT_HERE.iter().map(|(id, _)| *id)) {
        assert!(met.insert(id), "{id} is met twice");
    }
    for (id, row) in rows {
        let layer = text(row, "layer");
        assert!(LAYERS.contains(&layer) || OTHER_LAYERS.contains(&layer), "{id}: an unknown layer, {layer}");
        assert_eq!(met.remove(id), LAYERS.contains(&layer), "{id}, of layer {layer}");
    }
    assert!(met.is_empty(), "no such rows: {met:?}");
}

fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))).collect()
}
