//! Key files against a real directory: what is refused, what is kept, what comes back.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use tempfile::TempDir;
use throughline_protocol::code::Code;
use zeroize::Zeroizing;

use super::seal::KdfParams;
use super::*;
use crate::dirs::{Dirs, Environment};

/// Cheap enough for a test; a file with it is read like any other.
const QUICK: KdfParams = KdfParams { memory_kib: 32, passes: 1, lanes: 1 };

fn place() -> (TempDir, Dirs) {
    let place = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(place.path()), &Environment::default()).unwrap();
    (place, dirs)
}

fn passphrase(text: &str) -> Passphrase {
    Passphrase::new(Zeroizing::new(text.to_owned())).unwrap()
}

fn quick_owner(dirs: &Dirs, seed: &Seed, words: &str) -> OwnerKeyFile {
    OwnerKeyFile::create_from(dirs, seed, Protection::Passphrase(&passphrase(words)), QUICK).unwrap()
}

fn key_file(dirs: &Dirs, kind: KeyKind) -> PathBuf {
    dirs.keys().join(kind.file_name())
}

fn load_code(dirs: &Dirs) -> Code {
    NodeKeys::load(dirs).unwrap_err().code()
}

#[test]
fn a_seed_gives_the_key_of_rfc_8032() {
    let seed: [u8; 32] = [
        0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4, 0x44,
        0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60,
    ];
    let principal = Seed::from_bytes(Zeroizing::new(seed)).principal();
    assert_eq!(principal.key()[..4], [0xd7, 0x5a, 0x98, 0x01]);
}

#[test]
fn node_keys_are_made_once() {
    let (_place, dirs) = place();
    let first = NodeKeys::load_or_create(&dirs).unwrap();
    assert_eq!(first.origin(), KeyOrigin::Created);
    assert_ne!(first.node().bytes(), first.peer().bytes());
    let again = NodeKeys::load_or_create(&dirs).unwrap();
    assert_eq!(again.origin(), KeyOrigin::Existing);
    assert_eq!(again.principal(), first.principal());
    assert_eq!(NodeKeys::load(&dirs).unwrap().peer().bytes(), first.peer().bytes());
    for kind in [KeyKind::Node, KeyKind::Peer] {
        assert_eq!(fs::metadata(key_file(&dirs, kind)).unwrap().permissions().mode() & 0o7777, 0o600);
    }
    let mut left: Vec<String> = fs::read_dir(dirs.keys())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, [FRESH_MARK, "node.key", "peer.key"]);
}

#[test]
fn only_a_key_that_is_made_before_any_store_is_marked_as_fresh() {
    let (_place, dirs) = place();
    dirs.create().unwrap();
    fs::write(dirs.store_file(), "another key's").unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    assert!(!dirs.keys().join(FRESH_MARK).exists());
}

#[test]
fn missing_keys_and_a_missing_directory_say_so() {
    let (_place, dirs) = place();
    assert_eq!(load_code(&dirs), Code::KeyfileMissing);
    assert_eq!(OwnerKeyFile::inspect(&dirs).unwrap_err().code(), Code::KeyfileMissing);
    NodeKeys::load_or_create(&dirs).unwrap();
    fs::remove_file(key_file(&dirs, KeyKind::Peer)).unwrap();
    assert_eq!(load_code(&dirs), Code::KeyfileMissing);
}

#[test]
fn a_looser_mode_is_refused_with_the_command_that_fixes_it() {
    let (_place, dirs) = place();
    NodeKeys::load_or_create(&dirs).unwrap();
    let path = key_file(&dirs, KeyKind::Node);
    for mode in [0o644, 0o640, 0o602, 0o700] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = NodeKeys::load(&dirs).unwrap_err();
        assert_eq!(error.code(), Code::KeyfileMode, "{mode:o}");
        assert!(error.to_string().ends_with(&format!("chmod 600 {}", path.display())), "{error}");
        assert_eq!(NodeKeys::load_or_create(&dirs).unwrap_err().code(), Code::KeyfileMode);
    }
    for mode in [0o600, 0o400] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        NodeKeys::load(&dirs).unwrap();
    }
}

#[test]
fn an_open_keys_directory_is_refused() {
    let (_place, dirs) = place();
    NodeKeys::load_or_create(&dirs).unwrap();
    fs::set_permissions(dirs.keys(), Permissions::from_mode(0o750)).unwrap();
    let error = NodeKeys::load(&dirs).unwrap_err();
    assert_eq!(error.code(), Code::KeyfileMode);
    assert!(error.to_string().ends_with(&format!("chmod 700 {}", dirs.keys().display())), "{error}");
}

#[test]
fn links_directories_and_pipes_are_refused() {
    let (place, dirs) = place();
    NodeKeys::load_or_create(&dirs).unwrap();
    let path = key_file(&dirs, KeyKind::Node);
    let moved = place.path().join("elsewhere");
    fs::rename(&path, &moved).unwrap();
    symlink(&moved, &path).unwrap();
    assert_eq!(load_code(&dirs), Code::KeyfileType);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(load_code(&dirs), Code::KeyfileType);
    fs::remove_dir(&path).unwrap();
    // A pipe without a writer: the check must not wait for one.
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(load_code(&dirs), Code::KeyfileType);
}

#[test]
fn a_linked_keys_directory_is_refused() {
    let (place, dirs) = place();
    NodeKeys::load_or_create(&dirs).unwrap();
    let moved = place.path().join("elsewhere");
    fs::rename(dirs.keys(), &moved).unwrap();
    symlink(&moved, dirs.keys()).unwrap();
    assert_eq!(load_code(&dirs), Code::KeyfileType);
}

#[test]
fn a_file_of_another_user_is_refused() {
    let (_place, dirs) = place();
    NodeKeys::load_or_create(&dirs).unwrap();
    // Only root can give a file away; elsewhere there is nothing to test.
    if std::os::unix::fs::chown(key_file(&dirs, KeyKind::Node), Some(12_345), None).is_ok() {
        assert_eq!(load_code(&dirs), Code::KeyfileOwner);
    }
}

#[test]
fn every_truncation_and_every_changed_byte_is_refused() {
    let (_place, dirs) = place();
    NodeKeys::load_or_create(&dirs).unwrap();
    let path = key_file(&dirs, KeyKind::Node);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(load_code(&dirs), Code::KeyfileFormat, "{length}");
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert_eq!(load_code(&dirs), Code::KeyfileFormat, "{at}");
    }
    for odd in [b"".to_vec(), vec![0xff; 100], vec![b'a'; 5000], [whole.as_slice(), b"\n"].concat()] {
        fs::write(&path, &odd).unwrap();
        assert_eq!(load_code(&dirs), Code::KeyfileFormat);
    }
}

#[test]
fn one_kind_of_key_is_not_taken_for_another() {
    let (_place, dirs) = place();
    NodeKeys::load_or_create(&dirs).unwrap();
    fs::copy(key_file(&dirs, KeyKind::Peer), key_file(&dirs, KeyKind::Node)).unwrap();
    assert_eq!(load_code(&dirs), Code::KeyfileFormat);
}

#[test]
fn an_owner_key_opens_with_its_passphrase_only() {
    let (_place, dirs) = place();
    let seed = Seed::generate().unwrap();
    quick_owner(&dirs, &seed, "correct horse");
    let file = OwnerKeyFile::inspect(&dirs).unwrap();
    assert!(file.is_encrypted());
    assert_eq!(file.principal(), seed.principal());
    assert_eq!(file.unlock(Some(&passphrase("correct horse"))).unwrap().bytes(), seed.bytes());
    assert_eq!(file.unlock(Some(&passphrase("wrong horse"))).unwrap_err().code(), Code::Passphrase);
    assert_eq!(file.unlock(None).unwrap_err().code(), Code::OwnerKey);
    let text = fs::read_to_string(key_file(&dirs, KeyKind::Owner)).unwrap();
    assert!(!text.contains("seed"), "{text}");
}

#[test]
fn an_owner_key_without_passphrase_is_marked() {
    let (_place, dirs) = place();
    let made = OwnerKeyFile::create(&dirs, Protection::Plain).unwrap();
    let file = OwnerKeyFile::inspect(&dirs).unwrap();
    assert!(!file.is_encrypted());
    assert_eq!(file.unlock(None).unwrap().principal(), made.principal());
}

#[test]
fn an_owner_key_is_never_overwritten() {
    let (_place, dirs) = place();
    let first = OwnerKeyFile::create(&dirs, Protection::Plain).unwrap();
    let error = OwnerKeyFile::create(&dirs, Protection::Plain).unwrap_err();
    assert!(matches!(error, KeyError::Exists { .. }), "{error}");
    assert_eq!(OwnerKeyFile::inspect(&dirs).unwrap().principal(), first.principal());
    assert_eq!(fs::read_dir(dirs.keys()).unwrap().count(), 1);
}

#[test]
fn what_the_key_derivation_costs_is_bounded_and_authentic() {
    let (_place, dirs) = place();
    quick_owner(&dirs, &Seed::generate().unwrap(), "a");
    let path = key_file(&dirs, KeyKind::Owner);
    let text = fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("memory-kib: 32", "memory-kib: 1048577"),
        ("memory-kib: 32", "memory-kib: 4294967295"),
        ("memory-kib: 32", "memory-kib: 1"),
        ("memory-kib: 32", "memory-kib: 032"),
        ("passes: 1", "passes: 17"),
        ("passes: 1", "passes: 0"),
        ("lanes: 1", "lanes: 17"),
        ("lanes: 1", "lanes: 0"),
    ] {
        fs::write(&path, text.replace(from, to)).unwrap();
        assert_eq!(OwnerKeyFile::inspect(&dirs).unwrap_err().code(), Code::KeyfileFormat, "{to}");
    }
    fs::write(&path, text.replace("passes: 1", "passes: 2")).unwrap();
    let changed = OwnerKeyFile::inspect(&dirs).unwrap();
    assert_eq!(changed.unlock(Some(&passphrase("a"))).unwrap_err().code(), Code::Passphrase);
}

#[test]
fn the_principal_of_an_encrypted_key_cannot_be_exchanged() {
    let (_place, dirs) = place();
    let made = quick_owner(&dirs, &Seed::generate().unwrap(), "a");
    let other = Seed::generate().unwrap().principal();
    let text = made.export().replace(&made.principal().to_string(), &other.to_string());
    let changed = OwnerKeyFile::parse(&text).unwrap();
    assert_eq!(changed.unlock(Some(&passphrase("a"))).unwrap_err().code(), Code::Passphrase);
}

#[test]
fn what_new_keys_are_made_with_is_strong_enough() {
    let kdf = KdfParams::RECOMMENDED;
    assert!(kdf.memory_kib >= 64 * 1024 && kdf.passes >= 3);
    kdf.check().unwrap();
    // The one test that pays the real price.
    let (_place, dirs) = place();
    let words = passphrase("a");
    let made = OwnerKeyFile::create(&dirs, Protection::Passphrase(&words)).unwrap();
    let text = fs::read_to_string(key_file(&dirs, KeyKind::Owner)).unwrap();
    assert!(text.contains("\nmemory-kib: 65536\npasses: 3\n"), "{text}");
    assert_eq!(
        OwnerKeyFile::inspect(&dirs).unwrap().unlock(Some(&words)).unwrap().principal(),
        made.principal()
    );
}

#[test]
fn an_export_is_imported_elsewhere() {
    let (_place, here) = place();
    let (_other_place, there) = place();
    let seed = Seed::generate().unwrap();
    let text = quick_owner(&here, &seed, "a").export();
    let mailed = format!("\n  {}\r\n", text.trim().replace('\n', "\r\n"));
    let file = OwnerKeyFile::parse(&mailed).unwrap();
    assert_eq!(file.import(&there, None).unwrap_err().code(), Code::OwnerKey);
    assert_eq!(file.import(&there, Some(&passphrase("b"))).unwrap_err().code(), Code::Passphrase);
    assert_eq!(OwnerKeyFile::inspect(&there).unwrap_err().code(), Code::KeyfileMissing);
    assert_eq!(file.import(&there, Some(&passphrase("a"))).unwrap(), KeyOrigin::Created);
    assert_eq!(file.import(&there, Some(&passphrase("a"))).unwrap(), KeyOrigin::Existing);
    let stored = fs::read_to_string(key_file(&there, KeyKind::Owner)).unwrap();
    assert_eq!(stored, *text);
}

#[test]
fn an_import_does_not_replace_another_owner() {
    let (_place, here) = place();
    let (_other_place, there) = place();
    let mine = OwnerKeyFile::create(&here, Protection::Plain).unwrap();
    let theirs = OwnerKeyFile::create(&there, Protection::Plain).unwrap();
    let error = OwnerKeyFile::parse(&mine.export()).unwrap().import(&there, None).unwrap_err();
    assert_eq!(error.code(), Code::OwnerKey);
    let message = error.to_string();
    assert!(message.contains(&mine.principal().to_string()), "{message}");
    assert!(message.contains(&theirs.principal().to_string()), "{message}");
    assert_eq!(OwnerKeyFile::inspect(&there).unwrap().principal(), theirs.principal());
}

#[test]
fn odd_texts_are_no_owner_key() {
    for text in ["", "z6Mk", &"a\n".repeat(4000), "throughline-key 2\nkind: owner\n"] {
        assert_eq!(OwnerKeyFile::parse(text).unwrap_err().code(), Code::KeyfileFormat);
    }
}

#[test]
fn debug_output_shows_no_secret() {
    let (_place, dirs) = place();
    let keys = NodeKeys::load_or_create(&dirs).unwrap();
    let owner = OwnerKeyFile::create(&dirs, Protection::Plain).unwrap();
    let shown = format!("{keys:?} {owner:?} {:?}", passphrase("hidden"));
    let text = fs::read_to_string(key_file(&dirs, KeyKind::Node)).unwrap();
    let seed = text.lines().find_map(|line| line.strip_prefix("seed: ")).unwrap();
    assert!(!shown.contains(seed) && !shown.contains("hidden"), "{shown}");
}
