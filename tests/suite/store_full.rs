//! A real file system without room: the store still reads, verifies and takes a revocation, also after a restart, and goes on
//! by itself when there is room.
//!
//! The child is this very test binary in a mount namespace of its own with a small tmpfs. Where that is not allowed the test
//! says so and does nothing; the same is tested on a model of a disk in the store's own tests.

use std::path::Path;
use std::process::{Command, Stdio};

use throughline_protocol::code::Code;
use throughline_protocol::fork::Controls;
use throughline_protocol::id::UnixMillis;
use throughline_protocol::testing::{SessionBuilder, ts};
use throughline_protocol::verify::Verifier;
use throughline_store::{Adopt, AdoptOptions, GuardUse, KeyOrigin, OpenOptions, PutControls, Store};

/// Names the small file system to the child.
const DIR: &str = "THROUGHLINE_TEST_FULL_DIR";
/// Bytes that the file system has.
const SIZE: &str = "24m";
/// Bytes of each entry's payload: it lies in the database.
const WORDS: usize = 12_000;
/// Entries that do not fit by far.
const ENTRIES: usize = 4_000;

fn open(dir: &Path) -> Store {
    let options = OpenOptions {
        key_origin: KeyOrigin::MadeWithStore,
        reserve_bytes: 2 << 20,
        ..OpenOptions::new(ts(0), "full")
    };
    Store::open(&dir.join("data"), options).unwrap()
}

fn at() -> UnixMillis {
    ts(1_000_000)
}

/// Not a test of its own: what the child does.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = Path::new(&dir);
    std::fs::write(dir.join("ballast"), vec![1; 4 << 20]).unwrap();
    let store = open(dir);
    let mut builder = SessionBuilder::new("full");
    let mut controls = Controls::new();
    builder.controls().iter().for_each(|control| {
        controls.insert(control);
    });
    let mut verifier = Verifier::begin(controls);
    let server = builder.server1.clone();
    let mut append = |store: &Store, builder: &mut SessionBuilder, number: usize| {
        if number > 0 {
            builder.user(&server, &format!("{number} {}", "x".repeat(WORDS)));
        }
        let built = builder.head();
        verifier.push(std::sync::Arc::clone(built.entry.bytes()), built.payload.clone()).unwrap();
        let segment = verifier.take_segment().unwrap().unwrap();
        let guard = if number == 0 { GuardUse::Activated } else { GuardUse::Signed(server.key.principal()) };
        let controls = if number == 0 { builder.controls().to_vec() } else { Vec::new() };
        store.run(Adopt { segment, options: AdoptOptions { guard, controls, ..AdoptOptions::at(at()) } })
    };
    let mut refused = None;
    let mut held = 0;
    for number in 0..ENTRIES {
        match append(&store, &mut builder, number) {
            Ok(_) => held = number,
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    assert_eq!(refused.expect("the disk is full").code(), Code::StoreReadOnly);
    let why = store.read_only_reason().expect("it takes no writes").why;
    assert!(why.contains("the disk is full"), "{why}");
    let is_whole = |store: &Store| {
        let tip = store.reader().unwrap().session(builder.session()).unwrap().unwrap().tip;
        assert_eq!(tip.seq.get(), u64::try_from(held).unwrap());
        let found = store.fsck().unwrap();
        assert!(found.is_clean(), "{:?}", found.problems);
    };
    is_whole(&store);
    let grant = builder.controls()[0].clone();
    let tombstone = builder.clone().tombstone(&grant, Vec::new());
    store.run(PutControls { controls: vec![tombstone.clone()], at: at() }).unwrap();
    drop(store);
    let store = open(dir);
    is_whole(&store);
    assert!(store.reader().unwrap().control_by_hash(&tombstone.hash()).unwrap().is_some());
    // Another program fills what is left, whatever the restart gave back.
    let _ = std::fs::write(dir.join("more"), vec![1; 8 << 20]);
    std::fs::remove_file(dir.join("ballast")).unwrap();
    let _ = std::fs::remove_file(dir.join("more"));
    assert_eq!(store.read_only_reason(), None, "there is room");
    store.run(PutControls { controls: builder.controls().to_vec(), at: at() }).unwrap();
    assert!(store.fsck().unwrap().is_clean());
    println!("full: {held} entries, then a revocation, a restart, and room");
}

#[test]
fn a_full_file_system_reads_and_takes_a_revocation() {
    let home = tempfile::tempdir().unwrap();
    let script = format!("mount -t tmpfs -o size={SIZE} none \"$1\" || exit 77; shift; exec \"$@\"");
    let ran = Command::new("unshare")
        .args(["-rm", "sh", "-c", &script, "sh"])
        .arg(home.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "store_full::child", "--nocapture", "--test-threads=1"])
        .env(DIR, home.path())
        .stdin(Stdio::null())
        .output();
    match ran {
        Ok(ran) if ran.status.success() => {
            assert!(String::from_utf8_lossy(&ran.stdout).contains("full: "), "the child did nothing");
        }
        Ok(ran) if ran.status.code() == Some(77) || !ran.status.success() && ran.stdout.is_empty() => {
            println!("not tested: no mount namespace here ({})", String::from_utf8_lossy(&ran.stderr).trim());
        }
        Ok(ran) => panic!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr)),
        Err(error) => println!("not tested: unshare: {error}"),
    }
}
