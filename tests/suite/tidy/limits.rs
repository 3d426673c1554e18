//! `docs/LIMITS.md` and the constants of the code say the same: each bound is there, with its value and what happens beyond it.

use std::collections::BTreeSet;

use throughline_protocol::code::Code;

use super::is_test;
use crate::support::tests::{root, sources};

/// A bound: the file it stands in, its name, its value as it is written there.
type Bound = (String, String, String);

/// Not of the product: what measures and shows it.
const ASIDE: &[&str] = &["node/src/bench/", "node/src/demo/"];

fn is_of_the_product(path: &str) -> bool {
    let crates = ["protocol/src/", "store/src/", "node/src/"];
    let is_testing =
        is_test(path) || path.contains("testing") || path.contains("testbench") || path.contains("/tests");
    crates.iter().any(|part| path.starts_with(part))
        && !is_testing
        && !ASIDE.iter().any(|part| path.starts_with(part))
}

/// `const …_MAX: T = value;`, on however many lines.
fn of_code(path: &str, text: &str) -> Vec<Bound> {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines: Vec<&str> = product.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let text = lines.join("\n");
    let after = text.split("const ").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once(':')?;
        let is_bound = name.ends_with("_MAX")
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        let (_, value) =
            rest.split_once(';').map(|(whole, _)| whole).filter(|_| is_bound)?.split_once('=')?;
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        Some((path.to_owned(), name.to_owned(), value))
    });
    after.collect()
}

/// The rows below each heading that names a file.
fn of_page(text: &str) -> Vec<(Bound, String)> {
    let mut rows = Vec::new();
    for section in text.split("\n### `").skip(1) {
        let Some((path, rest)) = section.split_once('`') else { continue };
        for row in rest.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.trim_matches('|').splitn(3, " | ").map(str::trim).collect();
            let [name, value, beyond] = cells[..] else { panic!("three cells: {row}") };
            let plain = |cell: &str| cell.trim_matches('`').to_owned();
            rows.push(((path.to_owned(), plain(name), plain(value)), beyond.to_owned()));
        }
    }
    rows
}

#[test]
fn every_bound_stands_in_the_table_of_limits() {
    let page = std::fs::read_to_string(root().join("docs/LIMITS.md")).unwrap();
    let rows = of_page(&page);
    let told: BTreeSet<Bound> = rows.iter().map(|(bound, _)| bound.clone()).collect();
    let files = sources().into_iter().filter(|(path, _)| is_of_the_product(path));
    let held: BTreeSet<Bound> = files.flat_map(|(path, text)| of_code(&path, &text)).collect();
    let missing: Vec<_> = held.difference(&told).collect();
    let gone: Vec<_> = told.difference(&held).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not in docs/LIMITS.md: {missing:#?}\nnot in the code: {gone:#?}"
    );
    assert!(rows.iter().all(|(_, beyond)| !beyond.is_empty()), "each says what happens beyond it");
    assert!(held.len() > 150, "{}", held.len());
}

#[test]
fn the_table_of_limits_names_codes_that_there_are() {
    let page = std::fs::read_to_string(root().join("docs/LIMITS.md")).unwrap();
    let words = page.split('`').skip(1).step_by(2);
    let codes: Vec<&str> = words.filter(|word| word.starts_with("E_") || word.starts_with("W_")).collect();
    for code in &codes {
        assert!(Code::ALL.iter().any(|known| known.name() == *code), "{code}");
    }
    assert!(codes.len() > 30);
}
