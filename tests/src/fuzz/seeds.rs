//! Where the corpus begins: what the vectors and fixtures hold, cut to the size that a target takes.
//!
//! What fuzzing finds is added to it by hand; nothing here takes anything away.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use throughline_node::config::{Role as NodeRole, default_toml};
use throughline_protocol::block::Block;
use throughline_protocol::codec::{Map, encode_map};
use throughline_protocol::fork::{Controls, Set};
use throughline_protocol::testing::{SessionBuilder, key, ts};
use throughline_protocol::unixfs::{FileBuilder, Layout};
use throughline_protocol::verify::ChainState;
use throughline_protocol::view;
use throughline_protocol::wire::proof::{self, Ends};

use super::sets::random_script;
use super::smoke::name_of;
use super::{TARGETS, Target};
use crate::mutate::Rng;

/// Inputs of one target that are taken from the vectors.
const PER_TARGET_MAX: usize = 96;
/// Longest seed: long ones make slow mutants.
const SEED_BYTES_MAX: usize = 16_384;

/// Writes the seeds of every target below `corpus`; gives how many were not there before.
///
/// # Errors
/// What the file system refuses.
pub fn write(corpus: &Path) -> io::Result<usize> {
    let mut written = 0;
    for target in TARGETS {
        let directory = corpus.join(target.name);
        std::fs::create_dir_all(&directory)?;
        for seed in chosen(target) {
            let file = directory.join(name_of(&seed));
            if !file.exists() {
                std::fs::write(file, seed)?;
                written += 1;
            }
        }
    }
    Ok(written)
}

/// The seeds of a target, short enough and not too many, spread over all there are.
fn chosen(target: &Target) -> Vec<Vec<u8>> {
    let longest = target.bytes_max.min(SEED_BYTES_MAX);
    let fitting: Vec<Vec<u8>> = of(target.name).into_iter().filter(|seed| seed.len() <= longest).collect();
    let step = fitting.len().div_ceil(PER_TARGET_MAX).max(1);
    fitting.into_iter().step_by(step).collect()
}

/// Everything that the vectors and fixtures have for a target.
#[must_use]
pub fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "codec" => codec(),
        "cid" => cids(),
        "identifier" => identifiers(),
        "entry" => blobs().into_iter().filter(|blob| type_of(blob).starts_with("Session")).collect(),
        "control" => {
            let is_control =
                |blob: &Vec<u8>| matches!(&*type_of(blob), "Capability" | "CapabilityTombstone" | "Ref");
            blobs().into_iter().filter(is_control).collect()
        }
        "seed" => {
            let is_seed =
                |blob: &Vec<u8>| matches!(&*type_of(blob), "Change" | "Comment" | "Contact" | "Profile");
            blobs().into_iter().filter(is_seed).collect()
        }
        "payload" => payloads(),
        "draft" => drafts(),
        "frame_chain" => frames("/throughline/chain/1"),
        "frame_append" => frames("/throughline/append/1"),
        "frame_handoff" => frames("/throughline/handoff/1"),
        "frame_proof" => proofs(),
        "announcement" => hexes(&vectors("session/frames.json")["announcements"], "bytes_hex"),
        "car" => cars().into_iter().chain(session_cars()).collect(),
        "session_car" => session_cars(),
        "unixfs" => unixfs(),
        "ticket" => texts(&vectors("session/frames.json")["tickets"], "ticket"),
        "config" => configs(),
        "claude" => transcripts(),
        "chain_state" => chain_states(),
        "select" => scripts(),
        "api" => requests(),
        other => panic!("no seeds for {other}"),
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn vectors(name: &str) -> Json {
    serde_json::from_slice(&file(&format!("tests/vectors/{name}"))).unwrap()
}

fn hexes(records: &Json, key: &str) -> Vec<Vec<u8>> {
    let records = records.as_array().unwrap().iter();
    records
        .filter_map(|record| record[key].as_str())
        .map(|hex| data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap())
        .collect()
}

fn texts(records: &Json, key: &str) -> Vec<Vec<u8>> {
    let records = records.as_array().unwrap().iter();
    records.filter_map(|record| record[key].as_str()).map(|text| text.as_bytes().to_vec()).collect()
}

fn codec() -> Vec<Vec<u8>> {
    let mut all = hexes(&vectors("dag-cbor/codec-fixtures-positive.json"), "hex");
    all.extend(hexes(&vectors("dag-cbor/negative-constructed.json"), "hex"));
    all
}

/// Every signed blob of the vectors, good and bad.
#[must_use]
pub fn blobs() -> Vec<Vec<u8>> {
    let mut all = hexes(&vectors("session/blobs.json")["vectors"], "bytes_hex");
    let chain = vectors("session/chain.json");
    for part in ["control", "entries", "outside"] {
        all.extend(hexes(&chain[part], "bytes_hex"));
    }
    let negative = vectors("session/negative.json");
    all.extend(hexes(&negative["support"], "bytes_hex"));
    let blobs: Json = negative["vectors"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|record| record["kind"] != "frame")
        .cloned()
        .collect();
    all.extend(hexes(&blobs, "bytes_hex"));
    all.extend(hexes(&vectors("session/frames.json")["blobs"], "bytes_hex"));
    for name in ["seed/positive.json", "seed/negative.json"] {
        all.extend(hexes(&vectors(name)["vectors"], "bytes_hex"));
    }
    all
}

/// The seeds of the keys that signed the blobs of the vectors.
#[must_use]
pub fn signing_seeds() -> Vec<[u8; 32]> {
    let blobs = vectors("session/blobs.json");
    let mut all = hexes(&blobs["keys"], "seed_hex");
    let positive = vectors("seed/positive.json");
    let keys: Json = positive["keys"].as_object().unwrap().values().cloned().collect();
    all.extend(hexes(&keys, "seed_hex"));
    all.into_iter().map(|seed| seed.try_into().unwrap()).collect()
}

/// The `type` of a blob, as far as it can be found.
fn type_of(blob: &[u8]) -> String {
    let Some(at) = blob.windows(5).position(|window| window == b"\x64type") else { return String::new() };
    let length = blob.get(at + 5).map_or(0, |head| usize::from(head & 0x1f));
    let name = blob.get(at + 6..at + 6 + length).unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn cids() -> Vec<Vec<u8>> {
    let mut rng = Rng::seeded(1);
    let mut all: Vec<Vec<u8>> = (0..40).map(|_| crate::mutate::tree::cid(&mut rng)).collect();
    all.extend(texts(&vectors("session/blobs.json")["vectors"], "cid").into_iter().take(8));
    all.push(b"QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG".to_vec());
    all
}

fn identifiers() -> Vec<Vec<u8>> {
    let principal = key("account").principal();
    let mut all: Vec<Vec<u8>> = [
        principal.to_string(),
        format!("hm://{principal}"),
        format!("hm://{principal}/scout/a.b_c~d-e"),
        "/scout/night".to_owned(),
        "/a/../b".to_owned(),
    ]
    .map(String::into_bytes)
    .into();
    all.push(principal.to_bytes().to_vec());
    all.extend(texts(&vectors("session/blobs.json")["sessions"], "genesis"));
    all
}

fn payloads() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for name in ["session/blobs.json", "session/negative.json"] {
        for record in vectors(name)["vectors"].as_array().unwrap() {
            let Some(hex) = record["payload"]["bytes_hex"].as_str() else { continue };
            let bytes = data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap();
            let kind = match record["type"].as_str() {
                Some("SessionUserMessage") => 1,
                Some("SessionModelResponse") => 2,
                Some("SessionToolCall") => 3,
                Some("SessionNote") => 4,
                Some("SessionGenesis") => 0,
                _ => 1,
            };
            // A note's words depend on its kind: five of them.
            let last = if kind == 4 { 8 } else { kind };
            all.extend((kind..=last).map(|kind| [&[kind][..], &bytes].concat()));
        }
    }
    for block in hexes(&vectors("session/blobs.json")["blocks"], "bytes_hex") {
        all.push([&[0][..], &block].concat());
    }
    all
}

fn drafts() -> Vec<Vec<u8>> {
    let frames = vectors("session/frames.json");
    let mut all = Vec::new();
    for body in texts(&frames["http_bodies"], "body") {
        let Ok(body) = serde_json::from_slice::<Json>(&body) else { continue };
        let stated = body["entries"].as_array().cloned().unwrap_or_else(|| vec![body["entry"].clone()]);
        all.extend(stated.iter().map(|entry| entry.to_string().into_bytes()));
    }
    // What the node shows of an entry is close to what a client states.
    let session = session("drafts");
    for built in session.entries() {
        let payload = built.payload.clone();
        let payload = payload
            .map(|bytes| throughline_protocol::payload::Payload::check(built.entry.value(), bytes).unwrap());
        let mut shown = view::entry_to_json(&built.entry, payload.as_ref());
        let object = shown.as_object_mut().unwrap();
        for key in [
            "ts",
            "signer",
            "space",
            "capability",
            "genesis",
            "prev",
            "seq",
            "epoch",
            "skip",
            "payload",
            "cid",
        ] {
            object.remove(key);
        }
        all.push(shown.to_string().into_bytes());
    }
    all
}

/// A session with something of everything.
fn session(label: &str) -> SessionBuilder {
    let mut session = SessionBuilder::new(label);
    let (owner, device, first, second) =
        (session.owner.clone(), session.device.clone(), session.server1.clone(), session.server2.clone());
    let contributor = session.contributor.clone();
    session.user(&contributor, "please");
    let response = session.response(&first, "asking", &["c1", "c2"]);
    session.tool(&first, response, "c1", "done");
    session.user(&device, "and then");
    session.note(&first, throughline_protocol::entry::Note::Rewind { to: response });
    session.reference(&owner, 3, throughline_protocol::testing::Reach::Anchors);
    session.handoff(Some(&second));
    session.response(&second, "going on", &[]);
    session.seal(&second);
    session
}

fn frames(stream: &str) -> Vec<Vec<u8>> {
    let file = vectors("session/frames.json");
    let of_stream: Json = file["frames"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|frame| frame["stream"] == stream)
        .cloned()
        .collect();
    let mut all = hexes(&of_stream, "frame_hex");
    all.extend(hexes(&of_stream, "body_hex"));
    all
}

fn proofs() -> Vec<Vec<u8>> {
    let ends = Ends { mine: key("server2").principal(), theirs: key("server1").principal() };
    let mut all: Vec<Vec<u8>> = ["account", "device", "stranger"]
        .iter()
        .map(|name| proof::build(&key(name), ends, ts(0)).unwrap().bytes().to_vec())
        .collect();
    all.extend(blobs().into_iter().filter(|blob| type_of(blob) == "Capability").take(12));
    all
}

fn cars() -> Vec<Vec<u8>> {
    let directory = root().join("tests/vectors/car");
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn session_cars() -> Vec<Vec<u8>> {
    ["corrupt", "fenced-tail", "forked", "incomplete", "revoked-tail", "sealed", "valid"]
        .iter()
        .map(|name| file(&format!("examples/fixtures/{name}.car")))
        .chain([file("tests/vectors/session/session.car")])
        .collect()
}

fn unixfs() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = cars()
        .iter()
        .filter_map(|car| {
            throughline_protocol::car::collect(
                [car.as_slice()],
                throughline_protocol::car::CidForms::V0AndV1,
                throughline_protocol::car::CollectLimits { blocks_max: 64, bytes_max: 1 << 16 },
            )
            .ok()
        })
        .flat_map(|content| content.blocks.into_values().map(|block: Block| block.bytes().to_vec()))
        .collect();
    let mut builder = FileBuilder::new(Layout::KUBO);
    let chunks = builder.push(&vec![7; 600_000]);
    assert_eq!(chunks.len(), 2, "whole chunks so far");
    all.extend(builder.finish().0.iter().map(|block| block.bytes().to_vec()));
    all
}

fn configs() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [NodeRole::Laptop, NodeRole::Desktop, NodeRole::Server]
        .map(|role| default_toml(role).into_bytes())
        .into();
    // With nothing commented out.
    for role in [NodeRole::Laptop, NodeRole::Server] {
        let lines = default_toml(role);
        let lines = lines.lines().filter(|line| !line.starts_with("# "));
        let set: Vec<&str> = lines.map(|line| line.strip_prefix('#').unwrap_or(line)).collect();
        all.push(set.join("\n").into_bytes());
    }
    all
}

fn transcripts() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for name in
        ["c01_dangling_parallel_tool_use", "c02_orphan_result_after_compaction", "c04_one_message_many_lines"]
    {
        all.push(file(&format!("tests/cases/{name}.claude.jsonl")));
    }
    for name in ["c05_broken_parent_chain", "c07_reasoning_model_switch"] {
        all.push(file(&format!("tests/cases/{name}.claude.jsonl")));
    }
    for name in ["claude_edge_cases", "claude_representative_messages", "claude_todowrite_examples"] {
        all.push(file(&format!("tests/cases/public/{name}.jsonl")));
    }
    all.push(file("examples/sessions/half-line.jsonl"));
    let long = file("examples/sessions/claude-code.jsonl");
    let lines: Vec<&[u8]> = long.split_inclusive(|byte| *byte == b'\n').collect();
    all.extend(lines.chunks(12).map(<[_]>::concat));
    all
}

fn chain_states() -> Vec<Vec<u8>> {
    let mut session = session("states");
    let grant = session.contributor.capability.clone().unwrap();
    session.tombstone(&grant, Vec::new());
    let mut controls = Controls::new();
    let mut set = Set::new(session.session());
    for control in session.controls() {
        controls.insert(control);
        set.insert_control(control);
    }
    session.entries().iter().for_each(|built| {
        set.insert_entry(&built.entry);
    });
    let judged = set.judge();
    let states =
        session.entries().iter().filter_map(|built| ChainState::at(&judged, &controls, built.entry.cid()));
    states.map(|state| state.to_bytes()).collect()
}

fn scripts() -> Vec<Vec<u8>> {
    (0..48)
        .map(|seed| {
            let mut rng = Rng::seeded(seed);
            let acts = 1 + rng.below(40);
            random_script(&mut rng, acts)
        })
        .collect()
}

fn requests() -> Vec<Vec<u8>> {
    let with = |route: u8, kind: u8, body: &[u8]| [&[route, kind][..], body].concat();
    let frames = vectors("session/frames.json");
    let mut all: Vec<Vec<u8>> =
        texts(&frames["http_bodies"], "body").iter().map(|body| with(1, 0, body)).collect();
    all.extend(drafts().iter().map(|draft| {
        let entry = [b"{\"entry\":", draft.as_slice(), b"}"].concat();
        with(1, 0, &entry)
    }));
    all.extend(drafts().iter().take(2).map(|draft| {
        let body =
            [b"{\"title\":\"T\",\"class\":\"internal\",\"firstEntry\":", draft.as_slice(), b"}"].concat();
        with(0, 0, &body)
    }));
    let append = encode_map(&Map::new().with("op", "append"));
    all.push(with(2, 1, &append));
    for (route, blob) in
        [3, 4, 5, 6].into_iter().zip(blobs().into_iter().filter(|blob| type_of(blob) == "Ref"))
    {
        all.push(with(route, 1, &blob));
    }
    let session = "bafyreicbynj3udcjhjrmyvtz45sm4gaao6x5zev3nrpr6sadtx7ab53bty";
    let ticket = frames["tickets"][0]["ticket"].as_str().unwrap().to_owned();
    for (route, body) in [
        (7, format!("{{\"alias\":\"peer\",\"ticket\":\"{ticket}\"}}")),
        (
            8,
            format!(
                "{{\"session\":\"{session}\",\"from\":[\"peer\"],\"payloads\":\"none\",\"timeoutMs\":5}}"
            ),
        ),
        (12, "{\"to\":\"peer\"}".to_owned()),
        (13, format!("{{\"head\":\"{session}\"}}")),
        (14, "{\"depth\":\"full\"}".to_owned()),
        (15, "limit=5&state=active".to_owned()),
        (16, "after=0&limit=1&types=UserMessage&reverse=1".to_owned()),
        (17, "head".to_owned()),
        (17, "-1".to_owned()),
        (18, session.to_owned()),
        (19, session.to_owned()),
        (20, "id=bafy".to_owned()),
        (21, "state=active".to_owned()),
        (22, "status".to_owned()),
        (23, session.to_owned()),
    ] {
        all.push(with(route, 0, body.as_bytes()));
    }
    all.push(with(9, 4, &file("examples/sessions/half-line.jsonl")));
    all.push(with(10, 2, &file("examples/fixtures/valid.car")));
    all.push(with(11, 2, &file("examples/fixtures/forked.car")));
    all
}
