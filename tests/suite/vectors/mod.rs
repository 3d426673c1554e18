//! Test vectors: every file under `tests/vectors`, and what this implementation makes of it.
//!
//! A group is one module with `check`; [`groups`] below names its files. Three things fail the run: a wrong outcome, a file that
//! its group did not open, and a file on disk that no group names. To add vectors, put the files under `tests/vectors`
//! with a line in `SOURCES.md`, write a module, and add a line to [`groups`].

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use throughline_protocol::codec::{decode, encode};
use throughline_protocol::limits::PAYLOAD_DEPTH_MAX;

mod bad_inputs;
mod car;
mod cbor;
mod cid;
mod dag_cbor;
mod dasl;
mod ed25519;
mod forge;
mod http_bodies;
mod multihash;
mod seed;
mod select;
mod select_model;
mod session_blobs;
mod session_chain;
pub(crate) mod session_negative;
mod wire;

macro_rules! groups {
    ($($name:ident => [$($file:literal),+ $(,)?];)+) => {
        const GROUPS: &[(&str, &[&str])] = &[$((stringify!($name), &[$($file),+])),+];

        mod run {
            $(
                #[test]
                fn $name() {
                    let files = super::Files::of(&[$($file),+]);
                    super::$name::check(&files);
                    files.assert_all_opened();
                }
            )+
        }
    };
}

groups! {
    bad_inputs => ["bad-inputs.json", "ed25519/noncanonical-keys.json", "ed25519/speccheck-cases.json"];
    car => [
        "car/gateway-raw-block.car",
        "car/path_gateway_dag_dag-cbor-traversal.car",
        "car/path_gateway_dag_plain-cbor-that-can-be-dag-cbor.car",
        "car/path_gateway_dag_plain-cbor.car",
        "car/path_gateway_tar_inside-root.car",
        "car/path_gateway_tar_outside-root.car",
        "car/path_gateway_unixfs_symlink.car",
        "car/trustless_gateway_car_dir-with-dag-cbor-with-links.car",
        "car/trustless_gateway_car_file-3k-and-3-blocks-missing-block.car",
        "car/trustless_gateway_car_subdir-with-two-single-block-files.car",
        "seed/unixfs.json",
        "session/chain.json",
        "session/session.car",
        "session/session.car.json",
    ];
    cbor => ["cbor/rfc8949-appendix_a.json"];
    cid => [
        "cid/atproto-cid_syntax_invalid.txt",
        "cid/atproto-cid_syntax_valid.txt",
        "cid/atproto-data-model-fixtures.json",
        "cid/atproto-data-model-invalid.json",
    ];
    dag_cbor => [
        "dag-cbor/codec-fixtures-positive.json",
        "dag-cbor/codec-fixtures-refused.json",
        "dag-cbor/negative-constructed.json",
        "dag-cbor/negative-duplicate-keys.json",
    ];
    dasl => [
        "dasl/cid.json",
        "dasl/concat.json",
        "dasl/floats.json",
        "dasl/indefinite.json",
        "dasl/integer_range.json",
        "dasl/map_keys.json",
        "dasl/numeric_reduction.json",
        "dasl/short_form.json",
        "dasl/simple.json",
        "dasl/tags.json",
        "dasl/utf8.json",
    ];
    ed25519 => [
        "ed25519/cctv-ed25519vectors.json",
        "ed25519/expected-verdicts.json",
        "ed25519/noncanonical-keys.json",
        "ed25519/speccheck-cases.json",
        "ed25519/wycheproof-ed25519_test.json",
    ];
    http_bodies => ["session/frames.json"];
    multihash => ["multihash/test_cases.csv"];
    seed => ["seed/negative.json", "seed/positive.json"];
    select => ["select/cases.json"];
    session_blobs => ["session/blobs.json"];
    session_chain => ["session/chain.json", "session/blobs.json", "session/negative.json"];
    session_negative => ["session/negative.json"];
    wire => ["session/frames.json", "session/negative.json"];
}

/// Every input of `bad-inputs.json` that is bytes, as a session's file.
pub(crate) fn bad_input_files() -> Vec<bad_inputs::Input> {
    let (_, named) = GROUPS.iter().find(|(name, _)| *name == "bad_inputs").expect("the group");
    bad_inputs::inputs(&Files::of(named))
}

/// The files of one group. Opening another file, and not opening one of these, fails the group.
pub(crate) struct Files {
    named: BTreeSet<&'static str>,
    opened: RefCell<BTreeSet<&'static str>>,
}

impl Files {
    fn of(named: &[&'static str]) -> Self {
        Files { named: named.iter().copied().collect(), opened: RefCell::default() }
    }

    /// The bytes of a file of the group.
    pub(crate) fn bytes(&self, name: &'static str) -> Vec<u8> {
        assert!(self.named.contains(name), "{name} is not among the group's files");
        self.opened.borrow_mut().insert(name);
        std::fs::read(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A JSON file of the group.
    pub(crate) fn json(&self, name: &'static str) -> Json {
        serde_json::from_slice(&self.bytes(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// A text file of the group.
    pub(crate) fn text(&self, name: &'static str) -> String {
        String::from_utf8(self.bytes(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn assert_all_opened(&self) {
        let opened = self.opened.borrow();
        let missed: Vec<_> = self.named.difference(&opened).collect();
        assert!(missed.is_empty(), "not opened: {missed:?}");
    }
}

/// Named from the workspace, so that any member can run a group.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors")
}

#[test]
#[should_panic(expected = "not opened: [\"select/cases.json\"]")]
fn a_group_that_leaves_a_file_unread_fails() {
    let files = Files::of(&["select/cases.json", "ed25519/noncanonical-keys.json"]);
    files.bytes("ed25519/noncanonical-keys.json");
    files.assert_all_opened();
}

#[test]
fn every_file_belongs_to_a_group() {
    let named: BTreeSet<String> =
        GROUPS.iter().flat_map(|(_, files)| files.iter()).map(|file| (*file).to_owned()).collect();
    let mut on_disk = BTreeSet::new();
    gather(&root(), &mut on_disk);
    assert_eq!(on_disk, named);
}

/// The sets of `select/cases.json` and those of random sessions, as records for the second verifier.
pub(crate) fn sets_of_cases() -> Vec<throughline_tests::differ::Record> {
    let files = Files::of(&["select/cases.json"]);
    let mut records = select::set_records(&files);
    records.extend(select_model::set_records(1_000));
    records
}

/// All files below a directory but the notes on them, relative to `tests/vectors`.
fn gather(directory: &Path, files: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            gather(&path, files);
        } else if path.extension().is_none_or(|extension| extension != "md") {
            let relative = path.strip_prefix(root()).unwrap();
            files.insert(
                relative
                    .components()
                    .map(|part| part.as_os_str().to_str().unwrap())
                    .collect::<Vec<_>>()
                    .join("/"),
            );
        }
    }
}

/// The text at `key`.
pub(crate) fn text<'a>(record: &'a Json, key: &str) -> &'a str {
    record[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {record}"))
}

/// The bytes that the text at `key` is the hex of.
pub(crate) fn hex(record: &Json, key: &str) -> Vec<u8> {
    data_encoding::HEXLOWER.decode(text(record, key).as_bytes()).unwrap()
}

/// The bytes at `key`, of a known length.
pub(crate) fn hex_array<const N: usize>(record: &Json, key: &str) -> [u8; N] {
    hex(record, key).try_into().unwrap_or_else(|bytes: Vec<u8>| panic!("`{key}` has {} bytes", bytes.len()))
}

/// The records of an array, of which there are exactly `count`.
pub(crate) fn records(list: &Json, count: usize) -> &[Json] {
    let records = list.as_array().unwrap();
    assert_eq!(records.len(), count, "records");
    records
}

/// What becomes of one item by itself: `ok` when it is read and written back to the same bytes, else its code.
pub(crate) fn item(bytes: &[u8]) -> &'static str {
    match decode(bytes, PAYLOAD_DEPTH_MAX) {
        Ok((value, _)) => {
            assert_eq!(encode(&value), bytes, "what was read is not what is written");
            "ok"
        }
        Err(reject) => reject.code.name(),
    }
}

/// Collects what went wrong, so that one run shows all of it.
#[derive(Default)]
pub(crate) struct Faults(Vec<String>);

impl Faults {
    /// Notes a fault unless both are equal.
    pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(&mut self, name: &str, got: T, expected: T) {
        if got != expected {
            self.0.push(format!("{name}: expected {expected:?}, got {got:?}"));
        }
    }

    /// Fails when there was one.
    pub(crate) fn assert_none(self) {
        assert!(self.0.is_empty(), "{} faults:\n{}", self.0.len(), self.0.join("\n"));
    }
}
