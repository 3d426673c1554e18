//! The sources of the workspace as text, and the names of all tests in them: what documents and lists are held against.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where the crates are.
const PARTS: &[&str] = &["protocol", "store", "node", "testnet", "tests", "examples"];

/// The module whose macro makes a test of each group of vectors.
const GROUPS: &str = "tests/suite/vectors/mod.rs";

/// The workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// All our Rust files, by their path from the root.
pub(crate) fn sources() -> BTreeMap<String, String> {
    let (root, mut found) = (root(), Vec::new());
    for part in PARTS {
        walk(&root.join(part), &mut found);
    }
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).expect("below the root").to_str().expect("utf-8").to_owned();
            (name, std::fs::read_to_string(path).expect("a source file"))
        })
        .collect()
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() && name != "target" && name != ".git" {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The files that each name of a test stands in.
pub(crate) fn all() -> BTreeMap<String, Vec<String>> {
    let mut tests: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources() {
        let groups = if path == GROUPS { groups_of(&text) } else { Vec::new() };
        for name in tests_of(&text).into_iter().chain(groups) {
            tests.entry(name.to_owned()).or_default().push(path.clone());
        }
    }
    tests
}

/// Functions under `#[test]` or `#[tokio::test]`, also inside `proptest!`.
fn tests_of(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn ")) {
            if let (true, Some((name, _))) = (is_test, rest.split_once('(')) {
                found.push(name);
            }
            is_test = false;
        }
    }
    found
}

/// Lines such as `    dag_cbor => [`.
fn groups_of(text: &str) -> Vec<&str> {
    let names = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(" => ["));
    names.map(|(name, _)| name).filter(|name| !name.contains([' ', '$', '(', '"'])).collect()
}

#[test]
fn tests_are_found_however_they_are_written() {
    let text = "#[test]\n#[should_panic(expected = \"x\")]\nfn one() {}\nfn helper() {}\n    #[tokio::test(flavor = \"multi_thread\")]\n    async fn two() {}\n";
    assert_eq!(tests_of(text), ["one", "two"]);
    assert_eq!(
        groups_of("    dag_cbor => [\n    select => [\"select/cases.json\"];\n"),
        ["dag_cbor", "select"]
    );
    let all = all();
    assert_eq!(all["tests_are_found_however_they_are_written"], ["tests/suite/support/tests.rs"]);
    assert_eq!(all["dag_cbor"], [GROUPS]);
}
