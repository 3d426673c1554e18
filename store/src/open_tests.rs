use std::fs;
use std::os::unix::fs::PermissionsExt;

use throughline_protocol::code::Code;

use crate::fixture::*;
use crate::*;

#[test]
fn a_second_open_names_the_holder() {
    let home = Home::new();
    let options = OpenOptions::new(now(), "throughline run\n--evil");
    let store = Store::open(&home.path(), options).unwrap();
    match Store::open(&home.path(), options_of("other")).err() {
        Some(error @ OpenError::Locked { .. }) => {
            assert_eq!(error.code(), Code::Locked);
            let OpenError::Locked { pid, started_ms, command } = error else { unreachable!() };
            assert_eq!((pid, started_ms), (std::process::id(), now().get()));
            assert_eq!(command, "throughline run--evil");
        }
        other => panic!("{other:?}"),
    }
    drop(store);
    home.open();
}

fn options_of(command: &str) -> OpenOptions {
    OpenOptions::new(now(), command)
}

#[test]
fn a_database_that_was_put_aside_is_made_anew_and_trusts_no_signature() {
    let home = Home::new();
    drop(home.open());
    let path = home.path().join("store.redb");
    fs::write(&path, "no database").unwrap();
    let refused = Store::open(&home.path(), options()).err().expect("it is no database");
    assert_eq!(refused.code(), Code::StoreCorrupt, "{refused}");
    fs::rename(&path, home.path().join("store.redb.damaged")).unwrap();
    let store = home.open();
    assert!(store.fsck().unwrap().is_clean());
    assert!(!store.reader().unwrap().is_guard_trusted().unwrap());
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let home = Home::new();
    drop(home.open());
    fs::write(home.path().join("VERSION"), format!("{}\nthroughline 9.1.0\n", FORMAT + 1)).unwrap();
    let before = fs::read(home.path().join("store.redb")).unwrap();
    match Store::open(&home.path(), options()).err() {
        Some(OpenError::Version { found, known: FORMAT, written_by }) => {
            assert_eq!(found, FORMAT + 1);
            assert_eq!(written_by, "throughline 9.1.0");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(home.path().join("store.redb")).unwrap(), before);
    fs::write(home.path().join("VERSION"), "junk").unwrap();
    assert_eq!(
        Store::open(&home.path(), options()).err().map(|error| error.code()),
        Some(Code::StoreVersion)
    );
}

#[test]
fn a_damaged_database_is_told_apart_from_an_empty_one() {
    let home = Home::new();
    let builder = session("damaged", 2);
    home.open().adopt(whole(&builder), at()).unwrap();
    let path = home.path().join("store.redb");
    let mut bytes = fs::read(&path).unwrap();
    bytes[..64].fill(0xa5);
    fs::write(&path, bytes).unwrap();
    let code = Store::open(&home.path(), options()).err().map(|error| error.code());
    assert!(matches!(code, Some(Code::StoreCorrupt | Code::StoreIo)), "{code:?}");
}

#[test]
fn every_file_is_for_this_user_only() {
    fn walk(dir: &std::path::Path) {
        for entry in fs::read_dir(dir).unwrap() {
            let (path, metadata) = {
                let entry = entry.unwrap();
                (entry.path(), entry.metadata().unwrap())
            };
            let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(metadata.permissions().mode() & 0o777, expected, "{}", path.display());
            if metadata.is_dir() {
                walk(&path);
            }
        }
    }
    let home = Home::new();
    let mut builder = session("modes", 0);
    push(&mut builder, &"large ".repeat(4_000));
    home.open().adopt(whole(&builder), at()).unwrap();
    walk(&home.path());
}

#[test]
fn files_left_half_written_go_at_the_next_open() {
    let home = Home::new();
    drop(home.open());
    let stale = home.path().join("staging/1-0.tmp");
    fs::write(&stale, b"half").unwrap();
    drop(home.open());
    assert!(!stale.exists());
}

#[test]
fn opens_are_counted() {
    let home = Home::new();
    for expected in 1..=3 {
        let store = home.open();
        assert_eq!(store.reader().unwrap().stats().unwrap().opens, expected);
        assert!(store.reader().unwrap().is_guard_trusted().unwrap());
    }
}

#[test]
fn the_lock_is_held_until_the_writer_has_ended() {
    let home = Home::new();
    let store = home.open();
    let (path, (told, outcome)) = (home.path(), std::sync::mpsc::channel());
    let release = hold(&store);
    let last = store.clone();
    let note = PutNote { at: now(), topic: "last".to_owned(), data: Vec::new() };
    // The writer cannot end before this answer is given.
    let reply = move |_| {
        drop(last);
        told.send(Store::open(&path, options()).err().map(|error| error.code())).unwrap();
    };
    store.submit(note, reply).unwrap();
    drop(store);
    drop(release);
    assert_eq!(outcome.recv().unwrap(), Some(Code::Locked));
}
