//! `init`, `config` and `serve`: what they did, what was there, and what is in the way.

use std::fs;
use std::net::{TcpListener, UdpSocket};

use serde_json::{Value, json};

use crate::support::cli::{Cli, Run};

const OWNER: &str = "z6MkgtMBWPJuCgRbMDc3qK63wXVMtHLHoGmx3zyub1Q1fHdz";

fn home(place: &tempfile::TempDir, name: &str) -> Cli {
    Cli::new(place.path().join(name))
}

#[test]
fn init_says_what_it_made_found_and_changed() {
    let place = tempfile::tempdir().unwrap();
    let cli = home(&place, "s");
    let said = |run: &Run, what: &str| run.stdout.lines().any(|line| line.starts_with(what));
    let made = cli.run(&["init", "--role", "server"]);
    for line in ["✓ node key    made ", "✓ config      made ", "✓ store       made "] {
        assert!(said(&made, line), "{line:?}\n{}", made.stdout);
    }
    assert!(made.stdout.contains("no owner yet"), "{}", made.stdout);
    let set = cli.run(&["init", "--owner", OWNER]);
    assert!(said(&set, "✓ config      changed ") && said(&set, "= store       found "), "{}", set.stdout);
    assert!(set.stdout.contains(&format!("owner.principal set to {OWNER}")), "{}", set.stdout);
    assert!(!set.stdout.contains("nothing changed"), "{}", set.stdout);
    let same = cli.run(&["init", "--owner", OWNER]);
    assert!(said(&same, "= already initialised; nothing changed"), "{}", same.stdout);
    assert!(said(&same, "= config      found ") && !same.stdout.contains('✓'), "{}", same.stdout);
    // The role of a node that exists is its config's, and asking for another one is not passed over.
    let role = cli.run(&["init", "--role", "laptop"]);
    assert!(
        role.stdout.contains("! the role stays server: set node.role = \"laptop\" in "),
        "{}",
        role.stdout
    );
    assert_eq!(cli.ok(&["id"])["role"], "server");
}

#[test]
fn init_tells_a_program_the_same() {
    let place = tempfile::tempdir().unwrap();
    let cli = home(&place, "s");
    let parts =
        |answer: &Value| (answer["created"].clone(), answer["changed"].clone(), answer["existing"].clone());
    let all = json!(["node-key", "config", "store"]);
    assert_eq!(parts(&cli.ok(&["init", "--role", "server"])), (all.clone(), json!([]), json!([])));
    let set = cli.ok(&["init", "--owner", OWNER]);
    assert_eq!(parts(&set), (json!([]), json!(["config"]), json!(["node-key", "store"])));
    let same = cli.ok(&["init"]);
    assert_eq!(parts(&same), (json!([]), json!([]), all));
    assert_eq!(same["owner"]["principal"], OWNER, "the owner that is configured, without being asked for");
}

#[test]
fn a_config_that_is_not_there_is_said_to_be_none() {
    let place = tempfile::tempdir().unwrap();
    let cli = home(&place, "d");
    let path = cli.home().join("config.toml").display().to_string();
    let text = cli.run(&["config", "check"]);
    assert!(text.rc == 0 && text.stdout.contains(&format!("no config file: looked for {path}")), "{text:?}");
    assert!(!text.stdout.contains("can be used") && text.stdout.contains("defaults hold"), "{text:?}");
    assert_eq!(cli.ok(&["config", "check"])["exists"], false);
    fs::create_dir_all(cli.home()).unwrap();
    fs::write(&path, "[node]\nrole = \"desktop\"\n").unwrap();
    assert!(cli.run(&["config", "check"]).stdout.contains(&format!("{path} can be used")));
}

#[test]
fn a_config_that_was_named_has_to_be_there() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("named.toml");
    // Without --home, which goes before what the environment names.
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_throughline-under-test"));
        command.env_clear().env("THROUGHLINE_HOME", place.path().join("d")).env("THROUGHLINE_CONFIG", &file);
        let output = command.args(args).arg("--json").output().unwrap();
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), object)
    };
    for args in [&["config", "check"][..], &["config", "show"], &["list"]] {
        let (rc, object) = run(args);
        assert_eq!((rc, &object["error"]["code"]), (Some(2), &json!("E_CONFIG")), "{args:?} {object}");
        let detail = object["error"]["detail"].as_str().unwrap();
        assert!(detail.contains("THROUGHLINE_CONFIG") && detail.contains("named.toml"), "{detail}");
        assert_eq!(object["error"]["hint"], "throughline init");
    }
    assert_eq!(run(&["init", "--owner", "none"]).0, Some(0), "which makes it");
    assert!(file.is_file());
    assert_eq!(run(&["config", "check"]).1["exists"], true);
}

/// The refusal of `serve` with these words.
fn refused(cli: &Cli, words: &[&str]) -> (String, String) {
    let (rc, object) = cli.json(&[&["serve"], words].concat());
    assert_eq!((rc, &object["error"]["code"]), (2, &json!("E_CONFIG")), "{object}");
    let text = |key: &str| object["error"][key].as_str().unwrap().to_owned();
    (text("detail"), text("hint"))
}

#[test]
fn serve_says_which_port_is_taken_by_whom_and_what_helps() {
    let place = tempfile::tempdir().unwrap();
    let cli = home(&place, "d");
    cli.init_owner();
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let (tcp, udp) = ((tcp.local_addr().unwrap().port(), tcp), (udp.local_addr().unwrap().port(), udp));
    // Which one is not asserted: another test may be starting a process, which has all files of this one for a moment.
    let by = if cfg!(target_os = "linux") { "in use by process " } else { "in use by another process" };
    for addr in [format!("/ip4/127.0.0.1/tcp/{}", tcp.0), format!("/ip4/127.0.0.1/udp/{}/quic-v1", udp.0)] {
        let (detail, hint) = refused(&cli, &["--listen", &addr, "--http", "off"]);
        assert!(detail.contains(&addr) && detail.contains(by), "{detail}");
        assert!(hint.contains("--listen") && hint.contains("node.listen"), "{hint}");
    }
    let http = format!("127.0.0.1:{}", tcp.0);
    let (detail, hint) = refused(&cli, &["--listen", "/ip4/127.0.0.1/tcp/0", "--http", &http]);
    assert!(detail.contains(&http) && detail.contains("api.http") && detail.contains(by), "{detail}");
    assert!(hint.contains("--http off") && hint.contains("api.http"), "{hint}");
    let (detail, _) = refused(&cli, &["--listen", "/ip4/192.0.2.1/tcp/4747", "--http", "off"]);
    assert!(detail.contains("no interface of this machine has this address"), "{detail}");
}

/// What a server listens on unless it is told otherwise: one port, of both families.
#[test]
fn serve_listens_on_one_port_of_both_families() {
    let place = tempfile::tempdir().unwrap();
    let cli = home(&place, "d");
    cli.init_owner();
    let free = (0..64).find_map(|_| {
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        let port = udp.local_addr().unwrap().port();
        TcpListener::bind(("0.0.0.0", port)).is_ok().then_some(port)
    });
    let free = free.expect("a port that is free for both");
    let mut listen = vec![format!("/ip4/0.0.0.0/udp/{free}/quic-v1"), format!("/ip4/0.0.0.0/tcp/{free}")];
    // Not every machine has IPv6.
    if UdpSocket::bind("[::1]:0").is_ok() {
        listen.extend([format!("/ip6/::/udp/{free}/quic-v1"), format!("/ip6/::/tcp/{free}")]);
    }
    let words: Vec<&str> = listen.iter().flat_map(|addr| ["--listen", addr]).collect();
    let serving = cli.serve(&words);
    let status = cli.ok(&["status"]);
    assert_eq!(status["node"]["state"], "running", "{status}");
    assert_eq!(serving.stop(), 0);
}

#[test]
fn serve_takes_no_socket_away_from_another_node() {
    let place = tempfile::tempdir().unwrap();
    let (one, two) = (home(&place, "one"), home(&place, "two"));
    one.init_owner();
    two.init_owner();
    let serving = one.serve(&[]);
    let socket = one.home().join("run/api.sock");
    let words = ["--listen", "/ip4/127.0.0.1/tcp/0", "--http", "off"];
    let config = two.home().join("config.toml");
    let point_at = |path: &std::path::Path| {
        fs::write(&config, format!("[api]\nsocket = {:?}\n", path.display().to_string())).unwrap();
    };
    point_at(&socket);
    let (detail, hint) = refused(&two, &words);
    assert!(detail.contains(&socket.display().to_string()) && detail.contains("api.socket"), "{detail}");
    assert!(detail.contains(&format!("in use by process {}", serving.pid())), "{detail}");
    assert!(hint.contains("api.socket"), "{hint}");
    assert_eq!(one.ok(&["status"])["node"]["state"], "running", "it still answers");
    assert_eq!(serving.stop(), 0);
    // What is no socket is not removed to make room for one.
    let file = place.path().join("notes.txt");
    fs::write(&file, "mine").unwrap();
    point_at(&file);
    assert!(refused(&two, &words).0.contains("no socket"), "{:?}", refused(&two, &words));
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    point_at(&place.path().join("no/such/dir/api.sock"));
    assert!(refused(&two, &words).0.contains("directory does not exist"));
}
