//! The graph of packages: which of our crates may reach what, versions that are too old, licences and sources. The same floors,
//! bans and licences stand in `deny.toml`, for `cargo deny` where a database of advisories can be fetched.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::support::tests::root;

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
    ("hickory-net", "0.26.1"),
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

/// The one place that packages come from.
const CRATES_IO: &str = "https://github.com/rust-lang/crates.io-index";

/// Every package that any target could link, from the lock file: the graph of one target has fewer.
fn locked() -> Vec<toml::Table> {
    let text = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let lock: toml::Table = text.parse().unwrap();
    let packages = lock["package"].as_array().unwrap().iter();
    packages.map(|package| package.as_table().unwrap().clone()).collect()
}

fn text<'a>(table: &'a toml::Table, key: &str) -> Option<&'a str> {
    table.get(key).and_then(toml::Value::as_str)
}

/// What is wrong with a package by its name and version.
fn fault(name: &str, version: &str) -> Option<String> {
    if BANNED.contains(&name) {
        return Some(format!("{name} must not be in the graph"));
    }
    let (_, floor) = FLOORS.iter().find(|(floored, _)| *floored == name)?;
    (numbers(version) < numbers(floor)).then(|| format!("{name} {version} is older than {floor}"))
}

#[test]
fn no_dependency_is_known_to_be_unsafe() {
    assert!(fault("yamux", "0.12.1").is_some() && fault("yamux", "0.13.9").is_some());
    assert!(fault("serde_cbor", "0.11.2").is_some() && fault("yamux", "0.13.10").is_none());
    let mut seen = BTreeSet::new();
    for package in locked() {
        let (name, version) = (text(&package, "name").unwrap(), text(&package, "version").unwrap());
        assert_eq!(fault(name, version), None);
        seen.insert(name.to_owned());
    }
    // The floors that matter most are not there by accident.
    for name in ["ed25519-dalek", "libp2p", "libp2p-gossipsub", "quinn-proto", "redb", "rustls", "yamux"] {
        assert!(seen.contains(name), "{name} is gone: take its floor off the list");
    }
    // Its `unpack` follows links out of the directory: whoever takes it reads entries one by one.
    assert!(!seen.contains("tar"), "forbid `unpack` in the sources before `tar` comes in");
}

#[test]
fn packages_come_from_one_registry() {
    let graph = Graph::read();
    let ours: BTreeSet<&str> = graph.members.iter().map(|id| graph.name(id)).collect();
    let registry = format!("registry+{CRATES_IO}");
    let mut own = BTreeSet::new();
    for package in locked() {
        let name = text(&package, "name").unwrap();
        match text(&package, "source") {
            // Of this workspace, by its path.
            None => assert!(own.insert(name.to_owned()) && ours.contains(name), "{name} is not ours"),
            Some(source) => {
                assert_eq!(source, registry, "{name}");
                assert!(
                    text(&package, "checksum").is_some_and(|sum| sum.len() == 64),
                    "{name} has no checksum"
                );
            }
        }
    }
    assert_eq!(own.len(), ours.len());
}

/// The strings, or the strings at `key`, of an array below `table`.
fn strings(table: &toml::Value, name: &str, key: Option<&str>) -> BTreeSet<String> {
    let items = table[name].as_array().unwrap().iter();
    items.map(|item| key.map_or(item, |key| &item[key]).as_str().unwrap().to_owned()).collect()
}

#[test]
fn deny_toml_says_the_same() {
    let file: toml::Table = std::fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap();
    let owned =
        |words: &[&str]| -> BTreeSet<String> { words.iter().map(|word| (*word).to_owned()).collect() };
    assert_eq!(strings(&file["licenses"], "allow", None), owned(LICENCES));
    let exceptions = file["licenses"]["exceptions"].as_array().unwrap().iter();
    let exceptions: BTreeSet<(String, BTreeSet<String>)> = exceptions
        .map(|item| (item["crate"].as_str().unwrap().to_owned(), strings(item, "allow", None)))
        .collect();
    let listed = OTHER_LICENCES.iter().map(|(name, licence)| ((*name).to_owned(), owned(&[licence])));
    assert_eq!(exceptions, listed.collect());
    // A colon begins a range. After an at sign stands one version, and `@<1.2.3` would forbid 1.2.3 alone.
    let floors = FLOORS.iter().map(|(name, floor)| format!("{name}:<{floor}"));
    let banned: BTreeSet<String> = floors.chain(owned(BANNED)).collect();
    assert_eq!(strings(&file["bans"], "deny", Some("crate")), banned);
    let sources = &file["sources"];
    assert_eq!(strings(sources, "allow-registry", None), owned(&[CRATES_IO]));
    for unknown in ["unknown-registry", "unknown-git"] {
        assert_eq!(sources[unknown].as_str(), Some("deny"), "{unknown}");
    }
    assert_eq!(sources.get("allow-git"), None);
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
