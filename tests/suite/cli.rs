//! The command line as a process: what goes to which stream, how it ends, and the documents that are made from it.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::json;
use throughline_node::cli::{cli_reference, errors_page};

use crate::support::cli::Cli;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares a document with what the program says; `UPDATE_DOCS=1` writes it.
fn document(path: &str, made: &str) {
    let file = repository().join(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, made).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == made, "{path} is not what the program says; UPDATE_DOCS=1 cargo test writes it");
}

#[test]
fn the_cli_reference_is_what_help_prints() {
    let made = cli_reference();
    assert!(made.contains("## throughline peer add"), "subcommands are listed");
    document("docs/cli-reference.md", &made);
}

#[test]
fn the_list_of_errors_is_the_table_in_the_code() {
    document("docs/errors.md", &errors_page());
}

#[test]
fn help_and_version_need_no_node() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("none"));
    for args in [&["--help"][..], &["help", "move"], &["verify", "--help"], &["--version"]] {
        let run = cli.run(args);
        assert_eq!(run.rc, 0, "{run:?}");
        assert!(run.stdout.contains("throughline"), "{run:?}");
        assert_eq!(run.stderr, "");
    }
    assert_eq!(cli.ok(&["version"])["protocol"], 1);
    assert_eq!(cli.ok(&["--version"]), cli.ok(&["version"]));
    assert!(!cli.home().exists(), "nothing was made");
}

#[test]
fn usage_errors_are_one_object_and_exit_2() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path());
    for (args, hint) in [
        (&["push"][..], "throughline status"),
        (&["pull", "x"], "throughline fetch S"),
        (&["login"], "throughline init"),
        (&["rm", "x"], "throughline unpin S"),
        (&["transfer", "x"], "throughline move S --to P"),
    ] {
        let (rc, object) = cli.json(args);
        assert_eq!((rc, object["error"]["code"].as_str()), (2, Some("E_USAGE")), "{object}");
        assert_eq!(object["error"]["hint"], hint, "{object}");
    }
    for args in
        [&["show"][..], &["list", "--limit", "many"], &["status", "--timeout", "soon"], &["nonsense"], &[]]
    {
        let (rc, object) = cli.json(args);
        assert_eq!((rc, object["kind"].as_str()), (2, Some("error")), "{object}");
    }
}

#[test]
fn a_text_error_says_why_and_what_to_do_on_stderr() {
    let place = tempfile::tempdir().unwrap();
    let run = Cli::new(place.path()).run(&["status"]);
    assert_eq!((run.rc, run.stdout.as_str()), (10, ""));
    assert!(run.stderr.starts_with("error[E_NOT_INITIALISED]: "), "{run:?}");
    assert!(
        run.stderr.contains("\n  why  ") && run.stderr.contains("\n  fix  throughline init\n"),
        "{run:?}"
    );
}

#[test]
fn what_needs_a_node_says_so_where_there_is_none() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path());
    for args in [
        &["status"][..],
        &["id"],
        &["list"],
        &["grants"],
        &["serve"],
        &["key", "show"],
        &["grant", "server-a"],
        &["revoke", "server-a"],
        &["fsck"],
        &["peer", "list"],
        &["log", "k3f7m2xq"],
    ] {
        let (rc, object) = cli.json(args);
        assert_eq!(object["error"]["code"], "E_NOT_INITIALISED", "{args:?}: {object}");
        assert_eq!((rc, object["error"]["hint"].as_str()), (10, Some("throughline init")), "{args:?}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "nothing was made");
}

#[test]
fn codes_and_verdicts_are_explained_offline() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path());
    let fenced = cli.ok(&["explain", "e_fenced"]);
    assert_eq!((fenced["code"].as_str(), fenced["exit"].as_u64()), (Some("E_FENCED"), Some(7)));
    assert_eq!(cli.ok(&["explain", "forked"])["exit"], 5);
    assert_eq!(fenced["reserved"], false);
    assert_eq!(cli.ok(&["explain", "E_SECRET_SUSPECT"])["reserved"], true);
    assert!(cli.run(&["explain", "E_NO_CONTEXT"]).stdout.contains("nothing answers with it"));
    assert!(cli.ok(&["explain"])["codes"].as_array().unwrap().len() > 100);
    let (rc, object) = cli.json(&["explain", "fence"]);
    assert_eq!((rc, object["error"]["hint"].as_str()), (2, Some("throughline explain E_FENCED")));
}

#[test]
fn the_config_is_shown_with_where_each_value_came_from() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path());
    fs::write(place.path().join("config.toml"), "[node]\nrole = \"server\"\n").unwrap();
    let shown = cli.ok(&["config", "show"]);
    let setting = |key: &str| {
        let settings = shown["settings"].as_array().unwrap();
        settings.iter().find(|setting| setting["key"] == key).unwrap().clone()
    };
    assert_eq!(setting("node.role")["source"], "config");
    assert_eq!(setting("api.http")["value"], "off");
    fs::write(place.path().join("config.toml"), "[node]\nrolle = \"server\"\n").unwrap();
    let (rc, object) = cli.json(&["config", "check"]);
    assert_eq!((rc, object["error"]["code"].as_str()), (2, Some("E_CONFIG")), "{object}");
    assert!(object["error"]["detail"].as_str().unwrap().contains("node.role"), "{object}");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path());
    let mut child = cli.command(["explain"]).spawn().unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn completions_are_made_for_every_shell() {
    let place = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let run = Cli::new(place.path()).run(&["completions", shell]);
        assert_eq!(run.rc, 0, "{run:?}");
        assert!(run.stdout.contains("audit"), "{shell}");
    }
}

#[test]
fn a_file_that_is_not_there_and_one_that_is_no_car() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path());
    let (rc, object) = cli.json(&["verify", "nosuch.car"]);
    assert_eq!((rc, object["error"]["code"].as_str()), (2, Some("E_INPUT_NOT_FOUND")), "{object}");
    let file = place.path().join("junk.car");
    fs::write(&file, [0xff; 64]).unwrap();
    let (rc, object) = cli.json(&["verify", file.to_str().unwrap()]);
    assert_eq!((rc, object["kind"].as_str()), (3, Some("error")), "{object}");
    assert!(object["error"]["code"].as_str().unwrap().starts_with("E_CAR_"), "{object}");
    let run = cli.run_with_stdin(&["verify", "-", "--json"], b"");
    assert_eq!((run.rc, run.error_code().as_str()), (3, "E_CAR_TRUNCATED"), "{run:?}");
}

#[test]
fn init_makes_an_owner_once_and_the_node_works_with_and_without_serve() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    let first = cli.init_owner();
    assert_eq!(first["created"], serde_json::json!(["node-key", "owner-key", "config", "store"]), "{first}");
    let roles: Vec<&str> =
        first["grants"].as_array().unwrap().iter().map(|it| it["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["AGENT", "agent-session-writer"]);
    let config = fs::read_to_string(cli.home().join("config.toml")).unwrap();
    let quiet =
        Cli::new(place.path().join("q")).run(&["init", "--owner", "new", "--no-passphrase", "--quiet"]);
    assert!(quiet.rc == 0 && quiet.stdout.contains("node key"), "{quiet:?}");
    assert!(!quiet.stdout.contains("Next:") && !quiet.stdout.contains("Keep a copy"), "a hint: {quiet:?}");
    let again = cli.ok(&["init"]);
    assert_eq!(again["created"], serde_json::json!([]), "{again}");
    assert_eq!((&again["owner"], &again["node"]), (&first["owner"], &first["node"]));
    assert_eq!(fs::read_to_string(cli.home().join("config.toml")).unwrap(), config);
    let stopped = cli.ok(&["status"]);
    assert_eq!(stopped["node"]["state"], "stopped");
    assert_eq!(cli.ok(&["grants"])["items"].as_array().unwrap().len(), 2);

    let node = cli.serve(&[]);
    assert_eq!(node.ready()["principal"], first["node"]["principal"]);
    assert_eq!(node.ready()["pid"], node.pid());
    assert_eq!(cli.ok(&["status"])["node"]["state"], "running");
    assert!(cli.ok(&["id"])["ticket"].as_str().unwrap().starts_with("tlp1"));
    let (rc, locked) = cli.json(&["serve"]);
    assert_eq!((rc, locked["error"]["code"].as_str()), (10, Some("E_LOCKED")), "{locked}");
    assert_eq!(node.stop(), 0);
    assert_eq!(cli.ok(&["stop"])["wasRunning"], false);
    cli.serve(&[]).kill();
    assert_eq!(cli.ok(&["status"])["node"]["state"], "stopped", "a socket of a dead node is no node");
}

#[test]
fn another_owner_is_refused_and_a_passphrase_is_needed() {
    let place = tempfile::tempdir().unwrap();
    let (one, two) = (Cli::new(place.path().join("one")), Cli::new(place.path().join("two")));
    let made =
        one.run_with_stdin(&["init", "--owner", "new", "--passphrase-fd", "0", "--json"], b"open sesame\n");
    assert_eq!(made.rc, 0, "{made:?}");
    let owner = made.object()["owner"]["principal"].as_str().unwrap().to_owned();
    two.init_owner();
    let (rc, refused) = two.json(&["init", "--owner", &owner]);
    assert_eq!((rc, refused["error"]["code"].as_str()), (8, Some("E_OWNER_KEY")), "{refused}");

    let peer = two.ok(&["id"])["principal"].as_str().unwrap().to_owned();
    let grant = ["grant", &peer, "--json"];
    assert_eq!(one.run(&grant).error_code(), "E_PROMPT");
    let grant = ["grant", &peer, "--passphrase-fd", "0", "--json"];
    let wrong = one.run_with_stdin(&grant, b"open says me\n");
    assert_eq!((wrong.rc, wrong.error_code().as_str()), (8, "E_PASSPHRASE"));
    assert_eq!(one.run_with_stdin(&grant, b"open sesame\n").object()["unchanged"], false);
    assert_eq!(
        one.run(&["grant", &peer, "--json"]).object()["unchanged"],
        true,
        "nothing to sign, nothing to open"
    );
}

#[test]
fn a_wrong_passphrase_imports_nothing() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    let init = ["init", "--owner", "new", "--passphrase-fd", "0", "--json"];
    assert_eq!(cli.run_with_stdin(&init, b"open sesame\n").rc, 0);
    let transcript = repository().join("examples/sessions/claude-code.jsonl").display().to_string();
    let import = ["import", &transcript, "--passphrase-fd", "0", "--json"];
    let wrong = cli.run_with_stdin(&import, b"open says me\n");
    assert_eq!((wrong.rc, wrong.error_code().as_str()), (8, "E_PASSPHRASE"));
    assert_eq!(cli.ok(&["list"])["items"], serde_json::json!([]));
    assert_eq!(cli.run_with_stdin(&import, b"open sesame\n").object()["anchored"], true);
}

#[test]
fn a_repeated_request_names_its_base() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    cli.init_owner();
    let refused = cli.run_with_stdin(&["append", "any", "--idempotency-key", "k", "--json"], b"{}");
    assert_eq!((refused.rc, refused.error_code().as_str()), (2, "E_USAGE"));
    let read = refused.object();
    assert!(read["error"]["detail"].as_str().unwrap().contains("--base CID"), "{read}");
}

#[test]
fn a_demo_of_something_else_is_no_bug() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    let readme = repository().join("README.md").display().to_string();
    let (rc, refused) = cli.json(&["demo", &readme]);
    assert_eq!((rc, refused["error"]["code"].as_str()), (2, Some("E_INPUT_FORMAT")), "{refused}");
}

/// This text with one letter changed: no key that anybody could sign with.
fn mistyped(principal: &str) -> String {
    let mut keys = throughline_protocol::sign::VerifyingKeys::default();
    let (head, last) = principal.split_at(principal.len() - 1);
    let others = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz".chars();
    let others = others.filter(|letter| !last.starts_with(*letter)).map(|letter| format!("{head}{letter}"));
    let mut unusable = others.filter(|text| text.parse().is_ok_and(|key| keys.check(&key).is_err()));
    unusable.next().expect("one letter of 57 makes no key")
}

#[test]
fn a_mistyped_key_is_refused_and_a_wrong_owner_can_be_set_right() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| Cli::new(place.path().join(name));
    let (one, other, server) = (at("one"), at("other"), at("server"));
    let owner_of = |cli: &Cli| cli.init_owner()["owner"]["principal"].as_str().unwrap().to_owned();
    let (owner, another) = (owner_of(&one), owner_of(&other));
    let typo = mistyped(&owner);
    for refused in [one.json(&["grant", &typo]), server.json(&["init", "--role", "server", "--owner", &typo])]
    {
        let (rc, refused) = refused;
        assert_eq!((rc, &refused["error"]["code"]), (2, &json!("E_USAGE")), "{refused}");
        let detail = refused["error"]["detail"].as_str().unwrap();
        assert!(["E_KEY_", "mistyped", &typo].iter().all(|said| detail.contains(said)), "{detail}");
    }
    assert!(!server.home().join("config.toml").exists(), "nothing was made");

    // Somebody else's key is a key: it is set right as long as nothing depends on it.
    server.ok(&["init", "--role", "server", "--owner", &another]);
    let changed = server.ok(&["init", "--owner", &owner]);
    assert_eq!(
        (&changed["owner"]["principal"], &changed["changed"]),
        (&owner.as_str().into(), &serde_json::json!(["config"]))
    );
    assert_eq!(server.ok(&["id"])["owner"], owner.as_str());
    server.ok(&["import", &repository().join("examples/fixtures/valid.car").display().to_string()]);
    let (rc, refused) = server.json(&["init", "--owner", &another]);
    assert_eq!((rc, refused["error"]["code"].as_str()), (8, Some("E_OWNER_KEY")), "{refused}");
    assert_eq!(server.ok(&["id"])["owner"], owner.as_str());
}

/// Each is a process with connections of its own, and a peer has two of them at a time.
#[test]
fn commands_in_a_row_leave_no_connection_behind() {
    let place = tempfile::tempdir().unwrap();
    let (holder, reader) = (Cli::new(place.path().join("a")), Cli::new(place.path().join("b")));
    holder.init_owner();
    let transcript = repository().join("examples/sessions/claude-code.jsonl").display().to_string();
    let imported = holder.ok(&["import", &transcript]);
    let session = imported.pointer("/sources/0/session").and_then(|id| id.as_str()).unwrap().to_owned();
    holder.ok(&["publish", &session, "--yes"]);
    // Over QUIC: the system closes a TCP connection of a process that ends, and nobody closes this one.
    let serving = holder.serve_on("/ip4/127.0.0.1/udp/0/quic-v1");
    let ticket = holder.ok(&["id"])["ticket"].as_str().unwrap().to_owned();
    reader.ok(&["init", "--owner", "none"]);
    for nth in 0..5 {
        let (rc, answer) = reader.json(&["audit", &session, "--from", &ticket]);
        assert_eq!(rc, 0, "audit {nth}: {answer}");
    }
    assert_eq!(serving.stop(), 0);
}

#[test]
fn lists_are_one_object_or_one_a_line() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    cli.init_owner();
    assert_eq!(cli.ok(&["list"])["items"], serde_json::json!([]));
    let lines = cli.run(&["list", "--jsonl"]);
    assert_eq!((lines.rc, lines.objects().len()), (0, 0), "{lines:?}");
    let text = cli.run(&["list"]);
    assert_eq!((text.rc, text.stdout.as_str()), (0, "no sessions here\n"));
}

#[test]
fn the_owner_key_leaves_in_a_private_file_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = tempfile::tempdir().unwrap();
    let (one, two) = (Cli::new(place.path().join("one")), Cli::new(place.path().join("two")));
    one.init_owner();
    let refused = one.run(&["key", "export"]);
    assert_eq!((refused.rc, refused.stdout.as_str()), (2, ""), "a key in the clear is not printed");
    let file = place.path().join("owner.hmkey.json");
    let path = file.to_str().unwrap();
    let exported = one.ok(&["key", "export", "-o", path]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(one.json(&["key", "export", "-o", path]).0, 2, "an existing file stays");
    two.ok(&["init", "--owner", "none"]);
    assert_eq!(two.ok(&["key", "import", path])["principal"], exported["principal"]);
    assert_eq!(two.ok(&["key", "import", path])["created"], false);
    assert_eq!(two.ok(&["init"])["owner"]["principal"], exported["principal"]);
    assert_eq!(
        two.ok(&["grants"])["items"].as_array().unwrap().len(),
        2,
        "init grants the machine what it lacks"
    );
}

/// A key alone tells a reader nothing, and two of them can be made to look alike.
#[test]
fn a_peer_is_called_by_its_name_wherever_its_key_is_shown() {
    let place = tempfile::tempdir().unwrap();
    let (desktop, server) = (Cli::new(place.path().join("d")), Cli::new(place.path().join("s")));
    let owner = desktop.init_owner()["owner"]["principal"].as_str().unwrap().to_owned();
    server.ok(&["init", "--role", "server", "--owner", &owner]);
    let serving = server.serve(&[]);
    let node = server.ok(&["id"]);
    let (ticket, key) = (node["ticket"].as_str().unwrap(), node["principal"].as_str().unwrap());
    desktop.ok(&["peer", "add", "server-b", ticket]);
    let granted = desktop.ok(&["grant", "server-b"]);
    // Whether this command has met the server by then is a matter of time: it is told now, or waits to be.
    let told = |what: &str| granted["told"][what].as_u64().unwrap();
    assert_eq!(told("peers") + told("pending"), 1, "{granted}");
    let again = desktop.ok(&["grant", "server-b"]);
    assert_eq!((&again["unchanged"], &again["told"]["peers"]), (&json!(true), &json!(0)), "{again}");
    let transcript = repository().join("examples/sessions/claude-code.jsonl").display().to_string();
    let imported = desktop.ok(&["import", &transcript]);
    let session = imported["sources"][0]["session"].as_str().unwrap().to_owned();
    let moved = desktop.ok(&["move", &session, "--to", "server-b"]);
    let children = &imported["sources"][0]["subSessions"];
    assert_eq!((&moved["subSessions"], children.as_array().map(Vec::len)), (children, Some(1)), "{moved}");
    let held = desktop.run(&["move", &session, "--to", "server-b"]);
    assert!(held.rc == 0 && held.stdout.starts_with("= server-b ("), "{held:?}");
    let short = format!("{}…{}", &key[..10], &key[key.len() - 4..]);
    let named = format!("server-b ({short})");
    for args in [
        &["list"][..],
        &["status"],
        &["status", &session],
        &["show", &session],
        &["grants"],
        &["move", "--status", &session],
        &["audit", &session, "--from", "server-b"],
    ] {
        let run = desktop.run(args);
        assert_eq!(run.rc, 0, "{run:?}");
        assert!(run.stdout.contains("server-b ("), "{args:?}\n{}", run.stdout);
        let alone = run.stdout.replace(&named, "").replace(&format!("server-b ({key})"), "");
        assert!(!alone.contains(&short) && !alone.contains(key), "{args:?}\n{}", run.stdout);
        let told = desktop.ok(args).to_string();
        assert!(!told.contains(&short), "{args:?}: JSON has full keys\n{told}");
    }
    let owned = format!("owner ({}…{})", &owner[..10], &owner[owner.len() - 4..]);
    for args in [&["log", &session][..], &["show", &format!("{session}:head")]] {
        let text = desktop.run(args).stdout;
        assert!(text.contains(&owned), "{args:?}: the owner signed the handoff\n{text}");
        assert!(!text.contains(&format!(" {} ", &owned[7..owned.len() - 1])), "{text}");
    }
    let refused = desktop.json(&["peer", "add", "self", ticket]);
    assert_eq!((refused.0, refused.1["error"]["code"].as_str()), (2, Some("E_USAGE")), "the word is taken");
    let refused = server.json(&["peer", "add", "me", ticket]);
    assert_eq!((refused.0, refused.1["error"]["code"].as_str()), (2, Some("E_USAGE")), "{}", refused.1);
    assert_eq!(server.ok(&["peer", "list"])["items"], json!([]), "no node is a peer of its own");
    assert_eq!(serving.stop(), 0);
}
