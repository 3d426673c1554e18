use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tokio::net::UnixListener;

use super::*;
use crate::dirs::Environment;

/// A data directory whose lock this process holds as long as the file lives, and a socket on which it answers.
struct Place {
    home: tempfile::TempDir,
    dirs: Dirs,
    lock: File,
    _listener: UnixListener,
}

fn place() -> Place {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    let mut lock = File::create(dirs.lock_file()).unwrap();
    lock.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    lock.write_all(format!("{}\n17\nthroughline serve\n", std::process::id()).as_bytes()).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let listener = UnixListener::bind(home.path().join("elsewhere.sock")).unwrap();
    let place = Place { home, dirs, lock, _listener: listener };
    write(&place.dirs, &place.socket()).unwrap();
    place
}

impl Place {
    fn socket(&self) -> PathBuf {
        self.home.path().join("elsewhere.sock")
    }

    fn note(&self, text: &str) {
        fs::write(self.dirs.socket_note(), text).unwrap();
    }
}

#[tokio::test]
async fn the_node_that_holds_the_directory_is_found() {
    let place = place();
    let mode = fs::metadata(place.dirs.socket_note()).unwrap().permissions().mode();
    assert_eq!((find(&place.dirs).await, mode & 0o777), (Some(place.socket()), 0o600));
    remove(&place.dirs);
    assert_eq!(find(&place.dirs).await, None);
}

#[tokio::test]
async fn a_note_that_was_left_leads_nowhere() {
    let place = place();
    let own = std::process::id();
    // Of a process that does not hold the lock, and of one that holds it while another answers there.
    place.note(&format!("1\n{}\n", place.socket().display()));
    assert_eq!(find(&place.dirs).await, None);
    fs::write(place.dirs.lock_file(), "1\n17\nthroughline serve\n").unwrap();
    assert!(noted(&place.dirs).is_some(), "the note is that of the holder");
    assert_eq!(find(&place.dirs).await, None, "but this process is another one");
    // Nothing, half a note, a relative path, more than a note.
    fs::write(place.dirs.lock_file(), format!("{own}\n17\nx\n")).unwrap();
    let long = format!("{own}\n/{}\n", "a".repeat(9_000));
    for text in ["", "\n", &format!("{own}"), &format!("{own}\n"), &format!("{own}\nx.sock\n"), &long] {
        place.note(text);
        assert_eq!(find(&place.dirs).await, None, "{text:.40}");
    }
    // Nobody holds the directory.
    place.note(&format!("{own}\n{}\n", place.socket().display()));
    assert!(find(&place.dirs).await.is_some());
    flock(&place.lock, FlockOperation::Unlock).unwrap();
    assert_eq!(find(&place.dirs).await, None);
}

#[tokio::test]
async fn a_note_that_others_may_write_is_not_read() {
    let place = place();
    let note = place.dirs.socket_note();
    fs::set_permissions(&note, fs::Permissions::from_mode(0o620)).unwrap();
    assert_eq!(find(&place.dirs).await, None);
    fs::set_permissions(&note, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(find(&place.dirs).await.is_some());
    let moved = place.home.path().join("note");
    fs::rename(&note, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &note).unwrap();
    assert_eq!(find(&place.dirs).await, None);
}

// The listener of the place needs the runtime.
#[tokio::test]
async fn who_is_locked_out_is_told_by_whom_and_where_it_answers() {
    let place = place();
    let own = std::process::id();
    let hint = |problem: &Problem| problem.fact("hint").unwrap().as_str().unwrap().to_owned();
    let of_a_node = locked(&place.dirs);
    assert!(of_a_node.detail().contains(&format!("process {own} holds")), "{}", of_a_node.detail());
    assert!(of_a_node.detail().contains("throughline serve; its API is at"), "{}", of_a_node.detail());
    let socket = place.socket();
    let asked = format!(
        "throughline --api unix:{} status; if that does not answer either: kill {own}",
        socket.display()
    );
    assert_eq!(hint(&of_a_node), asked);
    remove(&place.dirs);
    let of_a_command = locked(&place.dirs);
    assert_eq!(hint(&of_a_command), format!("wait until it ends, or: kill {own}"));
    assert_eq!(of_a_command.code(), Code::Locked);
}
