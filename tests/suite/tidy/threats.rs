//! `docs/THREAT_MODEL.md`: every attack of the design has a row, and every row the tests that show its defence, or says why not yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::tests::{all, root};

const DOCUMENT: &str = "docs/THREAT_MODEL.md";

/// What the attack cells of the design's own list begin with. A row may say more; none may go.
const ATTACKS: &[&str] = &[
    "a revoked server backdates",
    "two servers continue one session",
    "equivocation",
    "an old head is announced as new",
    "a provider leaves out revocations",
    "a stolen device",
    "heads withheld",
    "a Ref or entry replayed in another session, path or type",
    "one content, two CIDs",
    "verifiers that disagree",
    "weak or truncated hashes, identity CIDs",
    "endless chain, wide DAG, CBOR bombs",
    "want-list, gossip, stream and topic floods",
    "slowloris",
    "sybil sessions",
    "side channels on private data",
    "XSS from a transcript",
    "terminal escapes",
    "prompt injection",
    "DNS rebinding, CSRF on the local API",
    "path traversal, links, bombs in tar and CAR",
    "secrets published for ever",
    "GC races, disk full, torn writes",
    "clock jumps",
];

/// Attacks of that list that no test shows yet. Only ever fewer.
const NOT_YET: &[&str] = &["XSS from a transcript", "prompt injection", "secrets published for ever"];

/// The heading above the list of tests, which is made from the rows.
const INDEX: &str = "## Where the tests are";

/// One row of a table.
struct Row<'a> {
    attack: &'a str,
    assets: Vec<&'a str>,
    attackers: Vec<&'a str>,
    shown_by: &'a str,
}

impl<'a> Row<'a> {
    fn tests(&self) -> impl Iterator<Item = &'a str> {
        self.shown_by.split('`').skip(1).step_by(2)
    }
}

fn rows(document: &str) -> Vec<Row<'_>> {
    let tables = document.lines().filter(|line| line.starts_with("| "));
    tables
        .filter(|line| !line.starts_with("| attack |") && !line.starts_with("| ---"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
            let [attack, assets, attackers, _, shown_by] = cells[..] else {
                panic!("expected attack, asset, attacker, defence and tests, got: {line}")
            };
            let (assets, attackers) = (assets.split(", ").collect(), attackers.split(", ").collect());
            Row { attack, assets, attackers, shown_by }
        })
        .collect()
}

/// Words in bold at the start of the items below a heading.
fn words<'a>(document: &'a str, heading: &str) -> BTreeSet<&'a str> {
    let (_, after) = document.split_once(heading).expect("the heading");
    let items = after.lines().skip(1).take_while(|line| !line.starts_with("## "));
    items.filter_map(|line| line.strip_prefix("- **")?.split_once("**:").map(|(word, _)| word)).collect()
}

#[test]
fn every_defence_names_tests_that_exist() {
    let document = std::fs::read_to_string(root().join(DOCUMENT)).unwrap();
    let (assets, attackers) = (words(&document, "## Assets"), words(&document, "## Attackers"));
    let tests = all();
    let mut named = 0;
    for row in rows(&document) {
        let attack = row.attack;
        assert!(row.assets.iter().all(|word| assets.contains(word)), "{attack}: {:?}", row.assets);
        assert!(row.attackers.iter().all(|word| attackers.contains(word)), "{attack}: {:?}", row.attackers);
        let is_shown = row.tests().count() > 0;
        let reason = row.shown_by.strip_prefix("not yet: ").unwrap_or_default();
        assert!(is_shown != (reason.len() > 10), "expected tests, or why there are none: {attack}");
        for test in row.tests() {
            named += 1;
            assert!(tests.contains_key(test), "{attack}: there is no test {test}");
        }
    }
    assert!(named > 100, "{named} tests are too few to be the whole document");
}

#[test]
fn every_attack_of_the_design_has_a_row() {
    let document = std::fs::read_to_string(root().join(DOCUMENT)).unwrap();
    let rows = rows(&document);
    let mut not_yet = Vec::new();
    for attack in ATTACKS {
        let found: Vec<&Row<'_>> = rows.iter().filter(|row| row.attack.starts_with(attack)).collect();
        assert_eq!(found.len(), 1, "expected one row about: {attack}");
        if found[0].tests().count() == 0 {
            not_yet.push(*attack);
        }
    }
    assert_eq!(not_yet, NOT_YET, "take what is shown now off the list");
}

#[test]
fn the_document_says_where_its_tests_are() {
    let document = std::fs::read_to_string(root().join(DOCUMENT)).unwrap();
    let (before, _) = document.split_once(INDEX).unwrap_or((&document, ""));
    let tests = all();
    let mut places: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for test in rows(before).iter().flat_map(Row::tests) {
        for path in &tests[test] {
            places.entry(path).or_default().insert(test);
        }
    }
    let lines = places.iter().map(|(path, names)| {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        format!("- {path}: {}\n", names.join(", "))
    });
    let note =
        "Made from the rows above; `UPDATE_DOCS=1 cargo test -p throughline-tests tidy::threats` writes it.";
    let made = format!("{before}{INDEX}\n\n{note}\n\n{}", lines.collect::<String>());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(root().join(DOCUMENT), &made).unwrap();
        return;
    }
    assert!(document == made, "{DOCUMENT}: the list of places is old; UPDATE_DOCS=1 cargo test writes it");
}
