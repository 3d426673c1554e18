//! The sessions under `examples/fixtures`: one for each verdict, made again here byte for byte.
//!
//! Keys, salts and times come from [`throughline_protocol::testing`], so the files change only when the format does.
//! `UPDATE=1 cargo test -p throughline-tests journeys::fixtures` writes them anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::id::EntryCid;
use throughline_protocol::testing::{Built, Reach, SessionBuilder};

/// One fixture and what a verifier must say about it.
pub(crate) struct Fixture {
    /// The file's name without `.car`, and the verdict.
    pub(crate) name: &'static str,
    /// What it holds.
    pub(crate) about: &'static str,
    /// The exit code of `throughline verify`.
    pub(crate) rc: i32,
    /// Of the first entry that is wrong or stands on nothing.
    pub(crate) first_problem: Option<u64>,
    /// Of the first entry that does not count, where a history was cut; of the last common one, where it forked.
    pub(crate) parts_at: Option<u64>,
    /// The last entry that counts.
    pub(crate) valid_through: Option<u64>,
    /// The session.
    pub(crate) session: String,
    /// The file.
    pub(crate) car: Vec<u8>,
}

/// Where the files are.
pub(crate) fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/fixtures")
}

/// Every fixture, in the order of the exit codes.
pub(crate) fn all() -> Vec<Fixture> {
    vec![valid(), sealed(), corrupt(), incomplete(), forked(), revoked_tail(), fenced_tail()]
}

/// The owner asks, the first server answers: genesis, message, response, tool call, response.
fn begin(label: &str) -> SessionBuilder {
    let mut session = SessionBuilder::new(label);
    let (owner, server) = (Arc::clone(&session.owner), Arc::clone(&session.server1));
    session.user(&owner, "Make the login test pass.");
    let asked = session.response(&server, "I will run the tests first.", &["c1"]);
    session.tool(&server, asked, "c1", "\"1 failed: login\"");
    session.response(&server, "The cookie was not set. Fixed.", &[]);
    session
}

fn valid() -> Fixture {
    let mut session = begin("fixture valid");
    let (owner, server) = (Arc::clone(&session.owner), Arc::clone(&session.server1));
    session.user(&owner, "Now the logout test.");
    session.response(&server, "Passed already.", &[]);
    session.reference(&owner, 6, Reach::Anchors);
    Fixture {
        name: "valid",
        about: "an owner, a server, seven entries; anchored at the head by the owner's Ref",
        rc: 0,
        first_problem: None,
        parts_at: None,
        valid_through: Some(6),
        session: session.session().to_string(),
        car: car(&session, session.entries()),
    }
}

fn sealed() -> Fixture {
    let mut session = begin("fixture sealed");
    let server = Arc::clone(&session.server1);
    session.seal(&server);
    Fixture {
        name: "sealed",
        about: "the server sealed it: nothing may follow entry 5",
        rc: 0,
        first_problem: None,
        parts_at: None,
        valid_through: Some(5),
        session: session.session().to_string(),
        car: car(&session, session.entries()),
    }
}

fn corrupt() -> Fixture {
    let mut session = begin("fixture corrupt");
    let server = Arc::clone(&session.server1);
    session.response(&server, "This is not what the server signed.", &[]);
    let (forged, rest) = session.entries().split_last().expect("entries");
    let bytes = with_broken_signature(forged);
    let payload = forged.payload.as_deref();
    let mut out = Vec::new();
    let mut writer = begin_car(&mut out, &session, EntryCid::of(&bytes), &rest[0]);
    rest[1..].iter().for_each(|built| writer.entry(&mut out, &blocks(built)));
    writer.entry(&mut out, &EntryBlocks { entry: &bytes, payload, config: None, files: &[] });
    Fixture {
        name: "corrupt",
        about: "one bit of the signature of entry 5 is flipped, and the file names it by its new CID",
        rc: 3,
        first_problem: Some(5),
        parts_at: None,
        valid_through: Some(4),
        session: session.session().to_string(),
        car: out,
    }
}

/// The entry with the lowest bit of its signature's first byte flipped: a CID that fits, a signature that does not.
fn with_broken_signature(built: &Built) -> Vec<u8> {
    let mut bytes = built.entry.bytes().to_vec();
    // The key "sig", then the head of 64 bytes.
    let key = b"\x63sig\x58\x40";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("a signature");
    bytes[at + key.len()] ^= 1;
    bytes
}

fn incomplete() -> Fixture {
    let mut session = begin("fixture incomplete");
    let owner = Arc::clone(&session.owner);
    session.user(&owner, "What did the tests say?");
    let without_3 = session.entries().iter().enumerate().filter(|(seq, _)| *seq != 3);
    let held: Vec<Built> = without_3.map(|(_, built)| built.clone()).collect();
    Fixture {
        name: "incomplete",
        about: "entry 3 is not in the file: entries 4 and 5 stand on nothing",
        rc: 4,
        first_problem: Some(4),
        parts_at: None,
        valid_through: Some(2),
        session: session.session().to_string(),
        car: car(&session, &held),
    }
}

fn forked() -> Fixture {
    let mut one = begin("fixture forked");
    let server = Arc::clone(&one.server1);
    let mut other = one.clone().branch("other");
    one.response(&server, "Delete the staging bucket.", &[]);
    one.response(&server, "Deleted.", &[]);
    other.response(&server, "List the staging bucket.", &[]);
    other.response(&server, "It is empty.", &[]);
    let mut held = one.entries().to_vec();
    held.extend_from_slice(&other.entries()[5..]);
    Fixture {
        name: "forked",
        about: "the server signed two histories after entry 4",
        rc: 5,
        first_problem: None,
        parts_at: Some(4),
        valid_through: Some(4),
        session: one.session().to_string(),
        car: car(&one, &held),
    }
}

fn revoked_tail() -> Fixture {
    let mut session = begin("fixture revoked tail");
    let (owner, server) = (Arc::clone(&session.owner), Arc::clone(&session.server1));
    session.reference(&owner, 4, Reach::Anchors);
    let granted = server.capability.clone().expect("a grant");
    session.tombstone(&granted, Vec::new());
    session.response(&server, "I go on.", &[]);
    session.response(&server, "And on.", &[]);
    Fixture {
        name: "revoked-tail",
        about: "the owner anchored entry 4 and revoked the server, which signed two more",
        rc: 6,
        first_problem: None,
        parts_at: Some(5),
        valid_through: Some(4),
        session: session.session().to_string(),
        car: car(&session, session.entries()),
    }
}

fn fenced_tail() -> Fixture {
    let mut session = begin("fixture fenced tail");
    let (first, second) = (Arc::clone(&session.server1), Arc::clone(&session.server2));
    let mut stale = session.clone().branch("stale");
    session.handoff(Some(&second));
    session.response(&second, "Carrying on.", &[]);
    stale.response(&first, "I missed the handoff.", &[]);
    let mut held = session.entries().to_vec();
    held.push(stale.head().clone());
    Fixture {
        name: "fenced-tail",
        about: "entry 5 hands the session over; the first server signed another entry 5",
        rc: 6,
        first_problem: None,
        parts_at: Some(5),
        valid_through: Some(6),
        session: session.session().to_string(),
        car: car(&session, &held),
    }
}

/// The file of a session: entries by seq, those of one seq by CID; the root is the builder's head.
pub(crate) fn car(session: &SessionBuilder, held: &[Built]) -> Vec<u8> {
    let root = session.head().entry.cid();
    let mut later: Vec<&Built> = held[1..].iter().collect();
    later.sort_by_key(|built| (built.entry.value().seq(), built.entry.cid()));
    let mut out = Vec::new();
    let mut writer = begin_car(&mut out, session, root, &held[0]);
    later.into_iter().for_each(|built| writer.entry(&mut out, &blocks(built)));
    out
}

fn begin_car(out: &mut Vec<u8>, session: &SessionBuilder, root: EntryCid, genesis: &Built) -> SessionWriter {
    let controls = session.controls().iter().map(|control| (control.value(), &control.bytes()[..]));
    SessionWriter::begin(out, root, &blocks(genesis), controls)
}

fn blocks(built: &Built) -> EntryBlocks<'_> {
    EntryBlocks { entry: built.entry.bytes(), payload: built.payload.as_deref(), config: None, files: &[] }
}

/// What `fixtures.json` says: the expectations, for programs in any language.
fn index(fixtures: &[Fixture]) -> String {
    let entries = fixtures.iter().map(|fixture| {
        let seq = |seq: Option<u64>| seq.map_or(Value::Null, |seq| json!({"seq": seq}));
        let facts = json!({
            "about": fixture.about, "rc": fixture.rc, "verdict": fixture.name, "session": fixture.session,
            "validThrough": seq(fixture.valid_through), "firstProblem": seq(fixture.first_problem),
            "tail": if fixture.rc == 6 { json!({"from": seq(fixture.parts_at)}) } else { Value::Null },
            "fork": if fixture.rc == 5 { json!({"at": seq(fixture.parts_at)}) } else { Value::Null },
        });
        (format!("{}.car", fixture.name), facts)
    });
    let entries: BTreeMap<String, Value> = entries.collect();
    serde_json::to_string_pretty(&entries).expect("JSON") + "\n"
}

#[test]
fn the_committed_files_are_what_this_code_makes() {
    let fixtures = all();
    let mut files = vec![("fixtures.json".to_owned(), index(&fixtures).into_bytes())];
    files.extend(fixtures.into_iter().map(|fixture| (format!("{}.car", fixture.name), fixture.car)));
    let update = std::env::var_os("UPDATE").is_some();
    if update {
        fs::create_dir_all(dir()).expect("a directory");
    }
    for (name, made) in &files {
        let path = dir().join(name);
        if update {
            fs::write(&path, made).expect("a fixture is written");
        }
        let committed = fs::read(&path).unwrap_or_default();
        assert!(committed == *made, "{name} differs from what the code makes: UPDATE=1 writes it anew");
    }
    let known: Vec<String> = files.into_iter().map(|(name, _)| name).collect();
    for file in fs::read_dir(dir()).expect("the fixtures").flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        assert!(known.contains(&name), "{name} is made by nothing");
    }
}

#[test]
fn a_forged_signature_is_the_only_difference() {
    let session = begin("fixture corrupt");
    let built = session.head();
    let bytes = with_broken_signature(built);
    let differing = bytes.iter().zip(built.entry.bytes().iter()).filter(|(a, b)| a != b).count();
    assert_eq!((bytes.len(), differing), (built.entry.bytes().len(), 1));
}
