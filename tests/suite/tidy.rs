//! The borders of the code, checked by machine: which crate may depend on what, which versions are too old, and what must
//! not stand in a source file. An exception is listed with its reason, and the lists only shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use throughline_protocol::code::Code;

/// What each of our layers must not reach, by any road, in its normal dependencies.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "throughline-protocol",
        &[
            "axum",
            "clap",
            "futures",
            "hyper",
            "iroh",
            "libp2p",
            "mio",
            "redb",
            "reqwest",
            "rusqlite",
            "socket2",
            "tokio",
            "tracing",
            "rand",
            "getrandom",
        ],
    ),
    ("throughline-store", &["axum", "clap", "futures", "hyper", "iroh", "libp2p", "mio", "reqwest", "tokio"]),
];

/// What a layer must not name itself, although something below it may use it.
const NOT_DIRECT: &[(&str, &[&str])] = &[("throughline-store", &["serde_json"])];

/// Our crates, lowest first: each may depend on those before it only.
const LAYERS: &[&str] = &[
    "throughline-protocol",
    "throughline-store",
    "throughline-examples",
    "throughline-node",
    "throughline-testnet",
    "throughline-tests",
];

/// The oldest version of a crate that is safe, when it is in the graph. Advisories as of 2026-11.
const FLOORS: &[(&str, &str)] = &[
    ("ed25519-dalek", "3.0.0"),
    ("hickory-proto", "0.26.1"),
    ("hickory-resolver", "0.26.1"),
    ("iroh", "1.4.0"),
    ("libp2p", "0.57.0"),
    ("libp2p-gossipsub", "0.50.1"),
    ("quinn-proto", "0.11.15"),
    ("redb", "4.0.0"),
    ("rmcp", "1.4.0"),
    ("rustls", "0.23.46"),
    ("rustls-webpki", "0.103.16"),
    ("tar", "0.4.45"),
    ("tracing-subscriber", "0.3.20"),
    ("yamux", "0.13.10"),
];

/// Crates that are never in the graph: unmaintained, unsafe with hostile input, or two of a kind.
const BANNED: &[&str] =
    &["beetswap", "native-tls", "openssl", "openssl-sys", "serde_cbor", "tokio-tar", "async-std"];

/// Licences that a dependency may have, as one of its alternatives.
const LICENCES: &[&str] = &[
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "Apache-2.0 WITH LLVM-exception",
];

/// Crates under another licence, and why that is no harm.
const OTHER_LICENCES: &[(&str, &str)] = &[
    // Weak copyleft by file; used unchanged, to ask a router for a port.
    ("attohttpc", "MPL-2.0"),
];

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

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The graph of this machine's target, from the lock file alone.
struct Graph {
    packages: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    members: BTreeSet<String>,
}

impl Graph {
    fn read() -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let run = |arguments: &[&str]| {
            let output = Command::new(&cargo).args(arguments).current_dir(root()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let version = run(&["-vV"]);
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
        let text =
            run(&["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", host]);
        let value: Value = serde_json::from_str(&text).unwrap();
        let by_id = |list: &Value| {
            let list = list.as_array().unwrap().iter();
            list.map(|item| (item["id"].as_str().unwrap().to_owned(), item.clone())).collect()
        };
        let members = value["workspace_members"].as_array().unwrap().iter();
        Graph {
            packages: by_id(&value["packages"]),
            nodes: by_id(&value["resolve"]["nodes"]),
            members: members.map(|id| id.as_str().unwrap().to_owned()).collect(),
        }
    }

    fn name(&self, id: &str) -> &str {
        self.packages[id]["name"].as_str().unwrap()
    }

    fn member(&self, name: &str) -> &str {
        self.members.iter().find(|id| self.name(id) == name).unwrap_or_else(|| panic!("no crate {name}"))
    }

    /// The crates that a crate names as normal dependencies.
    fn direct(&self, id: &str) -> BTreeSet<String> {
        let depends = self.nodes[id]["deps"].as_array().unwrap().iter();
        let normal = depends
            .filter(|on| on["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null()));
        normal.map(|on| on["pkg"].as_str().unwrap().to_owned()).collect()
    }

    /// Names of all crates that are linked into a crate.
    fn reached(&self, name: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut waiting = vec![self.member(name).to_owned()];
        while let Some(id) = waiting.pop() {
            if reached.insert(id.clone()) {
                waiting.extend(self.direct(&id));
            }
        }
        reached
            .into_iter()
            .map(|id| self.packages.get_key_value(&id).unwrap().0.as_str())
            .map(|id| self.name(id))
            .collect()
    }
}

fn numbers(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap();
    release.split('.').map(|part| part.parse().unwrap()).collect()
}

#[test]
fn layers_keep_to_themselves() {
    let graph = Graph::read();
    for (layer, forbidden) in FORBIDDEN {
        let reached = graph.reached(layer);
        for name in *forbidden {
            let prefix = format!("{name}-");
            let found = reached
                .iter()
                .find(|reached| *reached == name || (*name == "libp2p" && reached.starts_with(&prefix)));
            assert_eq!(found, None, "{layer} must not reach {name}");
        }
    }
    for (layer, forbidden) in NOT_DIRECT {
        let direct = graph.direct(graph.member(layer));
        let named: Vec<&str> =
            direct.iter().map(|id| graph.name(id)).filter(|name| forbidden.contains(name)).collect();
        assert!(named.is_empty(), "{layer} must not use {named:?}");
    }
    for id in &graph.members {
        let name = graph.name(id);
        let own =
            LAYERS.iter().position(|layer| *layer == name).unwrap_or_else(|| panic!("{name} has no layer"));
        for on in graph.direct(id).iter().filter(|on| graph.members.contains(*on)) {
            let other = LAYERS.iter().position(|layer| *layer == graph.name(on)).unwrap();
            assert!(other < own, "{name} depends on {}, which is above it", graph.name(on));
        }
    }
}

#[test]
fn no_dependency_is_known_to_be_unsafe() {
    let graph = Graph::read();
    let mut seen = BTreeSet::new();
    for package in graph.packages.values() {
        let (name, version) = (package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
        assert!(!BANNED.contains(&name), "{name} must not be in the graph");
        if let Some((_, floor)) = FLOORS.iter().find(|(floored, _)| *floored == name) {
            assert!(numbers(version) >= numbers(floor), "{name} {version} is older than {floor}");
            seen.insert(name);
        }
    }
    // The floors that matter most are not there by accident.
    for name in ["ed25519-dalek", "libp2p", "libp2p-gossipsub", "quinn-proto", "redb", "rustls", "yamux"] {
        assert!(seen.contains(name), "{name} is gone: take its floor off the list");
    }
}

/// Whether an SPDX expression can be met with the licences of the list. A slash is an old way to write OR.
fn may_be_used(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let clauses = expression.split(" AND ").map(|clause| clause.trim_matches(['(', ')', ' ']));
    clauses.into_iter().all(|clause| {
        clause.split(" OR ").any(|licence| LICENCES.contains(&licence.trim_matches(['(', ')', ' '])))
    })
}

#[test]
fn every_licence_may_be_used() {
    assert!(may_be_used("MIT/Apache-2.0") && may_be_used("ISC AND (GPL-3.0 OR MIT)"));
    assert!(!may_be_used("GPL-3.0") && !may_be_used("MIT AND AGPL-3.0"));
    let graph = Graph::read();
    let mut used = BTreeSet::new();
    for package in graph.packages.values() {
        let (name, licence) =
            (package["name"].as_str().unwrap(), package["license"].as_str().unwrap_or("none"));
        if let Some(other) = OTHER_LICENCES.iter().find(|other| **other == (name, licence)) {
            used.insert(other.0);
        } else {
            assert!(may_be_used(licence), "{name}: {licence}");
        }
    }
    let listed: BTreeSet<&str> = OTHER_LICENCES.iter().map(|(name, _)| *name).collect();
    assert_eq!(used, listed, "take what is gone off the list");
}

/// All our Rust files, by their path from the root.
fn sources() -> BTreeMap<String, String> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && name != ".git" {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    for part in ["protocol", "store", "node", "testnet", "tests", "examples"] {
        walk(&root.join(part), &mut found);
    }
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect()
}

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

#[test]
fn every_defence_names_tests_that_exist() {
    let document = std::fs::read_to_string(root().join("docs/THREAT_MODEL.md")).unwrap();
    let sources = sources();
    let mut named = 0;
    for row in document.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| attack")) {
        let cell = row.trim_end_matches(['|', ' ']).rsplit_once(" | ").unwrap().1;
        let tests: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(tests.is_empty() == cell.starts_with("---"), "no test shows: {row}");
        for test in tests {
            named += 1;
            let declared = [format!("fn {test}("), format!("    {test},"), format!("mod {test};")];
            let found = sources.values().any(|text| declared.iter().any(|line| text.contains(line)));
            assert!(found, "there is no test {test}: {row}");
        }
    }
    assert!(named > 80, "{named} tests are too few to be the whole document");
}
