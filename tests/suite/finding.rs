//! How a command finds the running node where the environment leads somewhere else, and where there can be no socket at all.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::cli::Cli;

/// A command in the XDG layout, with its own run directory.
fn xdg(home: &Path, run: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throughline-under-test"));
    command.env_clear().env("HOME", home).env("XDG_RUNTIME_DIR", home.join(run));
    command.args(args).args(["--no-input", "--json"]).stdin(Stdio::null());
    command
}

fn answer(home: &Path, run: &str, args: &[&str]) -> (Option<i32>, Value) {
    let output = xdg(home, run, args).output().unwrap();
    let object = serde_json::from_slice(&output.stdout);
    (output.status.code(), object.unwrap_or_else(|_| panic!("{args:?}: {output:?}")))
}

/// A node that serves; it ends with the test, however that ends.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node that serves, once it is ready.
fn serve(home: &Path, run: &str) -> Node {
    let words = ["serve", "--listen", "/ip4/127.0.0.1/tcp/0", "--http", "off"];
    let mut node = Node(xdg(home, run, &words).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(node.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["kind"], "ready", "{ready}");
    node
}

#[test]
fn the_running_node_is_found_from_a_shell_with_another_run_directory() {
    let place = tempfile::tempdir().unwrap();
    let home = place.path();
    assert_eq!(answer(home, "one", &["init", "--owner", "none"]).0, Some(0));
    let config = home.join(".config/throughline/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("#mdns = true", "mdns = false")).unwrap();
    let mut node = serve(home, "one");
    let note = home.join(".local/share/throughline/SOCKET");
    let written = fs::read(&note).unwrap();
    let (rc, status) = answer(home, "two", &["status"]);
    assert_eq!((rc, &status["node"]["state"]), (Some(0), &json!("running")), "{status}");
    let socket = home.join("one/throughline/api.sock").display().to_string();
    assert_eq!(answer(home, "two", &["api", "path"]).1["socket"], socket);
    // Where the note is gone, nothing is claimed that is not known.
    fs::remove_file(&note).unwrap();
    let (rc, stopped) = answer(home, "two", &["stop", "--timeout", "1s"]);
    assert_eq!((rc, &stopped["error"]["code"]), (Some(10), &json!("E_LOCKED")), "{stopped}");
    let hint = stopped["error"]["hint"].as_str().unwrap();
    assert_eq!(hint, format!("wait until it ends, or: kill {}", node.0.id()));
    fs::write(&note, written).unwrap();
    let (rc, stopped) = answer(home, "two", &["stop"]);
    assert_eq!((rc, &stopped["wasRunning"]), (Some(0), &json!(true)), "{stopped}");
    assert_eq!(node.0.wait().unwrap().code(), Some(0));
    assert!(!note.exists());
    assert_eq!(answer(home, "two", &["stop"]).1["wasRunning"], false);
}

#[test]
fn a_note_that_a_crash_left_does_no_harm() {
    let place = tempfile::tempdir().unwrap();
    let (cli, other) = (Cli::new(place.path().join("d")), Cli::new(place.path().join("o")));
    cli.init_owner();
    other.init_owner();
    let serving = cli.serve(&[]);
    let note = cli.home().join("data/SOCKET");
    let left = fs::read_to_string(&note).unwrap();
    serving.kill();
    assert_eq!(fs::read_to_string(&note).unwrap(), left);
    assert_eq!(cli.ok(&["status"])["node"]["state"], "stopped");
    assert_eq!(cli.ok(&["stop"])["wasRunning"], false);
    // Another node answers now where the note says, even of the process that it names.
    let serving = other.serve(&[]);
    let theirs = fs::read_to_string(other.home().join("data/SOCKET")).unwrap();
    fs::write(&note, theirs).unwrap();
    assert_eq!(cli.ok(&["status"])["node"]["state"], "stopped");
    assert_eq!(cli.ok(&["stop"])["wasRunning"], false);
    assert_eq!(other.ok(&["status"])["node"]["state"], "running");
    assert_eq!(serving.stop(), 0);
}

#[test]
fn a_node_whose_socket_has_no_room_is_not_made() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d".repeat(120)));
    let (rc, refused) = cli.json(&["init", "--owner", "none"]);
    assert_eq!((rc, &refused["error"]["code"]), (2, &json!("E_CONFIG")), "{refused}");
    let said = |object: &Value, key: &str| object["error"][key].as_str().unwrap().to_owned();
    assert!(said(&refused, "detail").contains("run/api.sock: expected at most 10"), "{refused}");
    assert!(said(&refused, "hint").contains("--home"), "{refused}");
    assert!(!cli.home().exists(), "nothing was made");
    // A config that names another place was written first, and later names one again that has none.
    fs::create_dir_all(cli.home()).unwrap();
    let config = cli.home().join("config.toml");
    let socket = place.path().join("api.sock").display().to_string();
    fs::write(&config, format!("[api]\nsocket = {socket:?}\n")).unwrap();
    cli.ok(&["init", "--owner", "none"]);
    fs::write(&config, "").unwrap();
    let (rc, refused) = cli.json(&["serve", "--listen", "/ip4/127.0.0.1/tcp/0", "--http", "off"]);
    assert_eq!((rc, &refused["error"]["code"]), (2, &json!("E_CONFIG")), "{refused}");
    assert!(said(&refused, "detail").contains("expected at most 10"), "{refused}");
    assert!(said(&refused, "hint").contains("api.socket"), "{refused}");
}
