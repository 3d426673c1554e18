//! The borders of the code, checked by machine: what must not stand in a source file; in [`dependencies`] which crate may
//! depend on what and which versions are too old; in [`limits`] that every bound is documented; in [`sections`]
//! that every section that is named exists; in [`threats`]
//! that every defence has a test. An exception is listed
//! with its reason, and the lists only shrink.

mod dependencies;
mod limits;
mod sections;
mod threats;

use std::collections::BTreeSet;

use throughline_protocol::code::Code;

use crate::support::tests::{root, sources};

/// Longest source file, in lines.
const LINES_MAX: usize = 700;

/// Source files that are longer. Nothing is added here, and a number only goes down.
const LONGER: &[(&str, usize)] = &[];

/// Where bytes count as signed without a check: read back from the store, which took only checked ones, or made for a set
/// that is thrown away. Whoever reads bytes of others verifies them.
const ASSUME_SIGNED: &[&str] = &[
    "node/src/core/car.rs",
    "node/src/core/controls.rs",
    "node/src/core/preview.rs",
    "node/src/core/scene.rs",
    "node/src/core/shape.rs",
    "node/src/moves/facts.rs",
    "node/src/moves/wires.rs",
    "node/src/sync/fetch/blobs.rs",
    "protocol/src/block.rs",
];

/// What the protocol crate must not know: a pure function has no clock, no disk, no network, no order by accident.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "std::env",
    "SystemTime",
    "Instant::now",
    "HashMap",
    "HashSet",
    "async fn",
];

fn is_test(path: &str) -> bool {
    path.starts_with("tests/")
        || path.ends_with("_tests.rs")
        || path.ends_with("/tests.rs")
        || path.contains("/tests/")
}

/// Lines with code: not comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.starts_with("//"))
}

#[test]
fn the_protocol_is_pure() {
    let sources = sources();
    let protocol = sources.iter().filter(|(path, _)| path.starts_with("protocol/src/"));
    let mut looked_at = 0;
    for (path, text) in protocol.filter(|(path, _)| !is_test(path)) {
        looked_at += 1;
        for (at, line) in code(text) {
            let found = IMPURE.iter().find(|word| line.contains(*word));
            assert_eq!(found, None, "{path}:{at}: {line}");
        }
    }
    assert!(looked_at > 50, "{looked_at} files are not the protocol crate");
}

#[test]
fn no_file_is_too_long() {
    let sources = sources();
    for (path, text) in &sources {
        let lines = text.lines().count();
        let allowed = LONGER.iter().find(|(listed, _)| listed == path).map_or(LINES_MAX, |(_, lines)| *lines);
        assert!(lines <= allowed, "{path} has {lines} lines, at most {allowed} are wanted: split it");
    }
    for (path, allowed) in LONGER {
        let lines = sources.get(*path).map_or(0, |text| text.lines().count());
        assert!(lines > LINES_MAX, "{path} is short now: take it off the list");
        assert_eq!(lines, *allowed, "{path} is shorter now: lower its number");
    }
}

#[test]
fn tests_wait_for_events_and_all_run() {
    for (path, text) in sources().iter().filter(|(path, _)| is_test(path) && !path.ends_with("tidy.rs")) {
        // A clock that is stopped moves by the sleep itself.
        let moves_the_clock = text.contains("start_paused");
        for (at, line) in code(text) {
            assert!(!line.contains("thread::sleep("), "{path}:{at}: {line}");
            assert!(moves_the_clock || !line.contains("time::sleep("), "{path}:{at}: {line}");
            assert!(!line.starts_with("#[ignore"), "{path}:{at}: a test that never runs shows nothing");
        }
    }
}

#[test]
fn only_these_take_bytes_as_signed() {
    let callers: BTreeSet<String> = sources()
        .into_iter()
        .filter(|(path, text)| !is_test(path) && code(text).any(|(_, line)| line.contains("assume_signed(")))
        .map(|(path, _)| path)
        .collect();
    let listed: BTreeSet<String> = ASSUME_SIGNED.iter().map(|path| (*path).to_owned()).collect();
    assert_eq!(callers, listed);
}

#[test]
fn a_code_is_reserved_when_nothing_answers_with_it() {
    // The tables themselves name every code.
    let tables = ["protocol/src/code.rs", "node/src/outcome.rs"];
    let mut named = BTreeSet::new();
    for (path, text) in sources() {
        if is_test(&path) || tables.contains(&path.as_str()) {
            continue;
        }
        let text = text.split("#[cfg(test)]").next().unwrap_or_default().to_owned();
        for (_, line) in code(&text) {
            let paths = line.split("::").skip(1);
            named.extend(
                paths.filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next()).map(str::to_owned),
            );
        }
    }
    for code in Code::ALL {
        assert_ne!(named.contains(&format!("{code:?}")), code.is_reserved(), "{code}");
    }
}

#[test]
fn every_code_is_explained() {
    let errors = std::fs::read_to_string(root().join("docs/errors.md")).unwrap();
    let explained: BTreeSet<&str> = errors
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(code, _)| code))
        .filter(|code| code.contains('_'))
        .collect();
    let known: BTreeSet<&str> = Code::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(explained, known);
}
