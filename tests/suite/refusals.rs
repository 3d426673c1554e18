//! What the command line says when it refuses: the fault that it is, and a next step that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use throughline_node::cli::cli_reference;

use crate::support::cli::Cli;
use crate::support::tests::root;

/// The help of every command, by its words after `throughline`.
fn commands() -> BTreeMap<String, String> {
    let reference = cli_reference();
    let sections = reference.split("\n## throughline").skip(1);
    let named = sections.filter_map(|section| section.split_once('\n'));
    named.map(|(name, help)| (name.trim().to_owned(), help.to_owned())).collect()
}

/// What is wrong with a hint; nothing when a command or a flag that it names can be typed.
fn fault(hint: &str, of: &str, commands: &BTreeMap<String, String>) -> Option<String> {
    let flags = |text: &str, command: &str| -> Option<String> {
        let help = &commands[command];
        let mut named = text.split_whitespace().map(|word| word.trim_end_matches([',', '.', ';', ']', ')']));
        let missing = named.find(|word| word.starts_with('-') && word.len() > 1 && !help.contains(*word));
        missing.map(|flag| format!("`{command}` has no {flag}"))
    };
    let Some(rest) = hint.strip_prefix("throughline ") else {
        let names_a_flag = hint.split_whitespace().any(|word| word.starts_with('-'));
        return if names_a_flag { flags(hint, of) } else { Some("no command and no flag".to_owned()) };
    };
    let mut words = rest.split_whitespace().peekable();
    if words.peek() == Some(&"help") {
        let of = words.skip(1).collect::<Vec<_>>().join(" ");
        return (!commands.contains_key(&of)).then(|| format!("there is no `{of}` to explain"));
    }
    let mut command = String::new();
    while let Some(word) = words.peek() {
        let longer = format!("{command} {word}").trim().to_owned();
        if !commands.contains_key(&longer) {
            break;
        }
        command = longer;
        words.next();
    }
    if command.is_empty() {
        return Some("no such command".to_owned());
    }
    flags(&words.collect::<Vec<_>>().join(" "), &command)
}

/// The command that a line calls.
fn called(args: &[&str], commands: &BTreeMap<String, String>) -> String {
    let two = args.get(..2).unwrap_or(args).join(" ");
    if commands.contains_key(&two) { two } else { args[0].to_owned() }
}

/// A node with one session, and the paths that the refusals name.
struct Scene {
    place: tempfile::TempDir,
    cli: Cli,
    session: String,
}

impl Scene {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let cli = Cli::new(place.path().join("a"));
        cli.init_owner();
        let transcript = root().join("examples/sessions/claude-code.jsonl");
        let imported = cli.ok(&["import", transcript.to_str().unwrap()]);
        let session = imported["sources"][0]["session"].as_str().unwrap().to_owned();
        Scene { place, cli, session }
    }

    fn path(&self, below: &str) -> String {
        self.place.path().join(below).display().to_string()
    }
}

/// Runs lines that must be refused with these codes, and holds each hint against what there is.
fn hold(scene: &Scene, cases: &[(&[&str], &str)]) {
    let commands = commands();
    let mut faults = Vec::new();
    for (args, code) in cases {
        let (rc, object) = scene.cli.json(args);
        let error = &object["error"];
        assert_ne!(rc, 0, "{args:?}");
        if error["code"] != *code {
            faults.push(format!("{args:?}: expected {code}, got {error}"));
        }
        let hint = error["hint"].as_str().unwrap_or_default();
        let wrong = fault(hint, &called(args, &commands), &commands);
        faults.extend(wrong.map(|wrong| format!("{args:?}: {hint:?}: {wrong}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A session that is held nowhere here.
const STRANGER: &str = "bafyreifvvi5bg4mviejvzqrzxvhyddq3t3miussavkkndabs5q43jjtuhe";

#[test]
fn every_refusal_of_a_word_names_a_step_that_exists() {
    let scene = Scene::new();
    let s = scene.session.as_str();
    let (past, before) = (format!("{s}:99"), format!("{s}:-99"));
    hold(
        &scene,
        &[
            (&["nonsense"], "E_USAGE"),
            (&["push"], "E_USAGE"),
            (&["show"], "E_USAGE"),
            (&["show", "nosuch"], "E_NOT_FOUND_YET"),
            (&["show", STRANGER], "E_NOT_FOUND_YET"),
            (&["show", &past], "E_NOT_FOUND_YET"),
            (&["show", &past, "--dag-json"], "E_NOT_FOUND_YET"),
            (&["show", &before], "E_NOT_FOUND_YET"),
            (&["log", "nosuch"], "E_NOT_FOUND_YET"),
            (&["log", STRANGER], "E_NOT_FOUND_YET"),
            (&["log", s, "--from", "x"], "E_USAGE"),
            (&["status", "nosuch"], "E_NOT_FOUND_YET"),
            (&["list", "--state", "nosuch"], "E_USAGE"),
            (&["list", "--agent", "nosuch"], "E_USAGE"),
            (&["list", "--owner", "nosuch"], "E_USAGE"),
            (&["append", s], "E_USAGE"),
            (&["export", s, "-o", "-"], "E_USAGE"),
            (&["verify", STRANGER], "E_NOT_FOUND_YET"),
            (&["grant", "nosuch"], "E_PEER_UNKNOWN"),
            (&["revoke", "nosuch"], "E_PEER_UNKNOWN"),
            (&["move", s, "--to", "nosuch"], "E_PEER_UNKNOWN"),
            (&["move", "nosuch", "--to", "self"], "E_NOT_FOUND_YET"),
            (&["publish", s], "E_PROMPT"),
            (&["publish", "nosuch", "--yes"], "E_NOT_FOUND_YET"),
            (&["anchor", "nosuch"], "E_NOT_FOUND_YET"),
            (&["pin", "nosuch"], "E_NOT_FOUND_YET"),
            (&["fetch", "nosuch"], "E_NOT_FOUND_YET"),
            (&["fetch", STRANGER], "E_NOT_FOUND_YET"),
            (&["peer", "add", "b", "nosuch"], "E_INPUT_FORMAT"),
            (&["config", "show", "nosuch"], "E_USAGE"),
            (&["explain", "nosuch"], "E_USAGE"),
            (&["bench", "append", "--payload-bytes", "9"], "E_USAGE"),
            (&["bench", "fetch", "--long"], "E_USAGE"),
            (&["id", "--ticket"], "E_UNREACHABLE"),
        ],
    );
    // Where the session is held, nobody is sent to look for it elsewhere.
    let (_, object) = scene.cli.json(&["show", &past]);
    let hint = object["error"]["hint"].as_str().unwrap();
    assert!(hint.starts_with("throughline show ") && hint.ends_with(":head"), "{hint}");
    assert_eq!(scene.cli.run(&hint.split(' ').skip(1).collect::<Vec<_>>()).rc, 0, "{hint} works");
}

#[test]
fn every_refusal_of_a_file_names_a_step_that_exists() {
    let scene = Scene::new();
    let s = scene.session.as_str();
    let (dir, nosuch, under) = (scene.path(""), scene.path("nosuch"), scene.path("no/such.car"));
    let (junk, half) = (scene.path("junk"), scene.path("half"));
    fs::write(&junk, [0xff; 64]).unwrap();
    fs::write(&half, "{").unwrap();
    let fixture = root().join("examples/fixtures/valid.car").display().to_string();
    hold(
        &scene,
        &[
            (&["append", s, &nosuch], "E_INPUT_NOT_FOUND"),
            (&["append", s, &dir], "E_INPUT_FORMAT"),
            (&["append", s, &junk], "E_INPUT_FORMAT"),
            (&["append", s, &half], "E_JSON"),
            (&["export", "nosuch", "-o", &junk], "E_NOT_FOUND_YET"),
            (&["export", s, "-o", &dir], "E_USAGE"),
            (&["export", s, "-o", &under], "E_USAGE"),
            (&["verify", &nosuch], "E_INPUT_NOT_FOUND"),
            (&["verify", &dir], "E_INPUT_FORMAT"),
            (&["import", &nosuch], "E_INPUT_NOT_FOUND"),
            (&["import", &dir], "E_INPUT_FORMAT"),
            (&["import", &dir, "--format", "car"], "E_INPUT_FORMAT"),
            (&["import", &dir, "--format", "claude-code"], "E_INPUT_FORMAT"),
            (&["import", &junk], "E_INPUT_FORMAT"),
            (&["import", &fixture, "--report", &under], "E_USAGE"),
            (&["import", &fixture, "--report", &dir], "E_USAGE"),
            (&["import", &fixture, "--class", "public"], "E_USAGE"),
            (&["attach", &nosuch], "E_INPUT_NOT_FOUND"),
            (&["attach", &dir], "E_INPUT_FORMAT"),
            (&["fork", "import", &fixture], "E_CAR_ROOT"),
            (&["fork", "import", &dir], "E_INPUT_FORMAT"),
            (&["fork", "export", s, "-o", &junk], "E_NOT_FOUND_YET"),
            (&["key", "export", "-o", &junk], "E_USAGE"),
            (&["key", "import", &nosuch], "E_INPUT_NOT_FOUND"),
            (&["demo", &nosuch], "E_INPUT_NOT_FOUND"),
            (&["demo", &dir], "E_INPUT_FORMAT"),
        ],
    );
    // Nothing was taken in by what was refused over its report.
    let items = scene.cli.ok(&["list"])["items"].clone();
    assert!(items.as_array().unwrap().iter().all(|item| item["session"] != STRANGER), "{items}");
}

#[test]
fn a_hint_that_cannot_be_typed_is_a_fault() {
    let commands = commands();
    for good in [
        "throughline list",
        "throughline api token --scope write",
        "pass --yes",
        "throughline help key import",
    ] {
        assert_eq!(fault(good, "publish", &commands), None, "{good}");
    }
    for bad in [
        "Check the disk.",
        "throughline nosuch",
        "throughline list --nosuch",
        "pass --nosuch",
        "throughline help no",
    ] {
        assert!(fault(bad, "publish", &commands).is_some(), "{bad}");
    }
}

#[test]
fn a_list_is_narrowed_by_what_there_is() {
    let scene = Scene::new();
    let listed = |args: &[&str]| {
        let items = scene.cli.ok(&[&["list"], args].concat())["items"].clone();
        items.as_array().unwrap().iter().map(|item| item["session"].clone()).collect::<Vec<_>>()
    };
    let all = listed(&[]);
    assert!(all.contains(&scene.session.as_str().into()), "{all:?}");
    let shown = scene.cli.ok(&["show", &scene.session]);
    let (agent, owner) = (shown["agent"].as_str().unwrap(), shown["owner"].as_str().unwrap());
    assert_eq!(listed(&["--state", shown["state"].as_str().unwrap()]), all);
    assert_eq!(listed(&["--agent", agent, "--owner", owner]), all);
    let states = ["active", "frozen", "retired", "sealed", "suspended"];
    let found: Vec<usize> = states.iter().map(|state| listed(&["--state", state]).len()).collect();
    assert_eq!(found.iter().sum::<usize>(), all.len(), "each session is in one state: {found:?}");
    assert!(listed(&["--agent", "hm://z6MkgtMBWPJuCgRbMDc3qK63wXVMtHLHoGmx3zyub1Q1fHdz/none"]).is_empty());
}

#[test]
#[cfg(unix)]
fn what_may_not_be_read_or_written_is_not_called_a_broken_disk() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = Scene::new();
    let (file, dir) = (scene.path("closed.jsonl"), scene.path("closed"));
    fs::write(&file, "{}").unwrap();
    fs::create_dir(&dir).unwrap();
    for path in [&file, &dir] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let car = format!("{dir}/a.car");
    let codes: BTreeSet<String> = [
        &["import", file.as_str()][..],
        &["append", &scene.session, &file],
        &["export", &scene.session, "-o", &car],
    ]
    .iter()
    .map(|args| scene.cli.json(args).1["error"]["code"].as_str().unwrap_or("done").to_owned())
    .collect();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    // root reads and writes everything: then other things are wrong, or nothing is.
    assert!(!codes.contains("E_STORE_IO"), "{codes:?}");
}

/// A typo on the line is the line's fault (exit 2), whatever kind of id it was meant to be; never a corrupt session's (3), which
/// would have a script throw a good session away.
#[test]
fn a_mistyped_id_is_a_fault_of_the_line() {
    let scene = Scene::new();
    let s = scene.session.as_str();
    let (long, upper, seq) = (format!("{s}a"), s.to_uppercase(), format!("{s}:3x"));
    let file = "bafkreifvvi5bg4mviejvzqrzxvhyddq3t3miussavkkndabs5q43jjtuhe";
    let mut faults = Vec::new();
    let mut hold = |args: &[&str], codes: &[&str]| {
        let (rc, object) = scene.cli.json(args);
        let code = object["error"]["code"].as_str().unwrap_or("none");
        if rc != 2 || !codes.contains(&code) {
            faults.push(format!("{args:?}: exit {rc}, {object}"));
        }
    };
    for word in ["no!id", &long, &upper, &seq, "hm://x/session-zz", "ipfs://no!id", "baf", ""] {
        for args in [
            &["show", word][..],
            &["log", word],
            &["status", word],
            &["verify", word, "--payloads", "all"],
            &["fork", word],
            &["export", word, "-o", "never.car"],
            &["pin", word],
            &["anchor", word],
            &["publish", word, "--yes"],
            &["move", word, "--to", "self"],
            &["fetch", word],
            &["audit", word],
            &["grant", "self", "--session", word],
        ] {
            // `hm://x/…` is a path to a file for verify, and so is nothing else here.
            hold(args, &["E_USAGE"]);
        }
    }
    for (args, code) in [
        // A file's CID is an id, but no session's.
        (&["log", file][..], "E_USAGE"),
        (&["verify", s, "--head", "no!id"], "E_USAGE"),
        (&["append", s, "--base", "no!id"], "E_USAGE"),
        (&["fork", s, "--keep", "no!id", "--to", "self"], "E_USAGE"),
        (&["fork", "export", s, "-o", "never.car", "--id", "no!id"], "E_USAGE"),
        (&["init", "--owner", "no!id"], "E_USAGE"),
        (&["list", "--owner", "no!id"], "E_USAGE"),
        (&["list", "--agent", "hm://no!id"], "E_USAGE"),
        (&["grants", "--peer", "no!id"], "E_PEER_UNKNOWN"),
        (&["grant", "no!id"], "E_PEER_UNKNOWN"),
        (&["revoke", "bafyreino!id"], "E_PEER_UNKNOWN"),
        (&["move", s, "--to", "no!id"], "E_PEER_UNKNOWN"),
        (&["fetch", STRANGER, "--from", "no!id"], "E_PEER_UNKNOWN"),
        (&["fetch", STRANGER, "--from", "tlp1abc"], "E_INPUT_FORMAT"),
        (&["log", "tls1abc"], "E_INPUT_FORMAT"),
        (&["grant", "tlp1abc"], "E_INPUT_FORMAT"),
        (&["peer", "add", "b", "tlp1abc"], "E_INPUT_FORMAT"),
        (&["peer", "remove", "no!id"], "E_PEER_UNKNOWN"),
    ] {
        hold(args, &[code]);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // The same bytes in a file are the file's fault.
    let broken = scene.path("broken.car");
    let mut bytes = fs::read(root().join("examples/fixtures/valid.car")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&broken, bytes).unwrap();
    assert_eq!(scene.cli.run(&["verify", &broken]).rc, 3);
}

#[test]
fn whatever_is_held_is_shown_by_the_beginning_of_its_cid() {
    let scene = Scene::new();
    let file = scene.path("notes.bin");
    fs::write(&file, [0xff, 0xfe, 0x01, 0x02]).unwrap();
    let blob = scene.cli.ok(&["attach", &file])["cid"].as_str().unwrap().to_owned();
    let entry = scene.cli.ok(&["show", &format!("{}:2", scene.session)])["cid"].as_str().unwrap().to_owned();
    let grant = scene.cli.ok(&["grants"])["items"][0]["cid"].as_str().unwrap().to_owned();
    assert!(blob.starts_with("bafkrei"), "{blob}");
    for (cid, kind) in [(&blob, "block"), (&entry, "entry"), (&grant, "block")] {
        for short in [&cid[7..15], &cid[..15]] {
            let shown = scene.cli.ok(&["show", short]);
            assert_eq!((&shown["cid"], &shown["kind"]), (&cid.as_str().into(), &kind.into()), "{short}");
        }
    }
    let raw = scene.cli.command(["show", &blob[..15], "--raw"]).output().unwrap();
    assert_eq!((raw.status.code(), raw.stdout.as_slice()), (Some(0), &[0xff, 0xfe, 0x01, 0x02][..]));
    let (rc, object) = scene.cli.json(&["show", "bafkreiaaaaaaaa"]);
    assert_eq!((rc, object["error"]["code"].as_str()), (4, Some("E_NOT_FOUND_YET")), "{object}");
}
