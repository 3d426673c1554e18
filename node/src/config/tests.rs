//! Precedence, defaults of each role, and what a wrong file is told.

use std::fs;
use std::path::Path;

use throughline_protocol::code::Code;

use super::*;

fn dirs() -> Dirs {
    Dirs::locate(Some(Path::new("/n")), &Environment::default()).unwrap()
}

fn config(text: &str, overrides: &Overrides) -> Result<Config, ConfigError> {
    Config::settle(&dirs(), file::parse(text, dirs().config_file())?, overrides)
}

fn plain(text: &str) -> Config {
    config(text, &Overrides::default()).unwrap()
}

fn refusal(text: &str) -> String {
    let error = config(text, &Overrides::default()).unwrap_err();
    assert_eq!(error.code(), Code::Config);
    error.to_string()
}

fn source(config: &Config, key: Key) -> Source {
    config.show().into_iter().find(|setting| setting.key == key.name()).unwrap().source
}

fn log_variable(level: &str) -> Overrides {
    let level = level.to_owned();
    let env = Environment::pick(|name| (name == "THROUGHLINE_LOG").then(|| level.clone().into()));
    Overrides::from_environment(&env)
}

#[test]
fn nothing_set_gives_the_defaults_of_a_laptop() {
    let config = plain("");
    assert_eq!(config.node.role, Role::Laptop);
    assert_eq!(config.node.listen.len(), 3);
    assert_eq!(config.node.listen[1].to_string(), "/ip4/0.0.0.0/tcp/0");
    assert!(config.node.mdns && config.sessions.pin_own);
    assert_eq!(config.api.socket, Path::new("/n/run/api.sock"));
    assert_eq!(config.api.http, Some("127.0.0.1:7420".parse().unwrap()));
    assert_eq!(config.api.allowed_hosts, ["localhost", "127.0.0.1", "[::1]"]);
    assert_eq!(config.owner.principal, None);
    assert_eq!(config.sessions.default_class, DefaultClass::Internal);
    assert_eq!(config.limits.store_bytes_max, 50 << 30);
    assert_eq!(config.limits.staging_bytes_max, 2 << 30);
    assert_eq!((config.limits.connections_in_max, config.limits.connections_out_max), (256, 64));
    assert_eq!(config.limits.idle_timeout.as_secs(), 30);
    assert_eq!((config.log.filter.as_str(), config.log.format), ("info", LogFormat::Text));
    assert!(config.show().iter().all(|setting| setting.source == Source::Default));
}

#[test]
fn a_server_differs_in_three_defaults_only() {
    let server = plain("[node]\nrole = \"server\"\n");
    assert_eq!(server.node.listen[0].to_string(), "/ip4/0.0.0.0/udp/4747/quic-v1");
    assert!(!server.node.mdns);
    assert_eq!(server.api.http, None);
    let laptop = plain("");
    let differ = server.show().into_iter().zip(laptop.show()).filter(|(a, b)| a.value != b.value);
    let names: Vec<_> = differ.map(|(setting, _)| setting.key).collect();
    assert_eq!(names, ["node.role", "node.listen", "node.mdns", "api.http"]);
    assert_eq!(source(&server, Key::NodeListen), Source::Default);
}

#[test]
fn what_is_set_goes_before_the_role() {
    let config = plain("node.role = \"server\"\n[api]\nhttp = \"[::1]:0\"\n");
    assert_eq!(config.api.http, Some("[::1]:0".parse().unwrap()));
    assert_eq!(source(&config, Key::ApiHttp), Source::Config { line: 3 });
}

#[test]
fn flag_before_environment_before_file_before_default() {
    let text = "[log]\nlevel = \"warn\"\n";
    assert_eq!(plain(text).log.filter, "warn");
    let env = log_variable("debug");
    let by_env = config(text, &env).unwrap();
    assert_eq!(by_env.log.filter, "debug");
    assert_eq!(source(&by_env, Key::LogLevel), Source::Environment { variable: "THROUGHLINE_LOG" });
    let by_flag = config(text, &env.with_flag(Key::LogLevel, Value::text("trace"))).unwrap();
    assert_eq!(by_flag.log.filter, "trace");
    assert_eq!(source(&by_flag, Key::LogLevel), Source::Flag);
}

#[test]
fn a_flag_can_set_the_role() {
    let config = config("", &Overrides::default().with_flag(Key::NodeRole, Value::text("server"))).unwrap();
    assert_eq!(config.api.http, None);
}

#[test]
fn unknown_keys_name_the_line_and_the_nearest_known_one() {
    for (text, line, nearest) in [
        ("[node]\nmdns = true\nlisten_ = []\n", 3, "node.listen"),
        ("[nodes]\nrole = \"server\"\n", 2, "node.role"),
        ("[limits]\n\nconnection_in = 5\n", 3, "limits.connections_in"),
        ("[node]\nhttp = \"off\"\n", 2, "api.http"),
        ("[logs]\n", 1, "log.level"),
        ("mdns = true\n", 1, "node.mdns"),
        ("node.boostrap = []\n", 1, "node.bootstrap"),
    ] {
        let message = refusal(text);
        assert!(message.starts_with(&format!("/n/config.toml line {line}: ")), "{message}");
        assert!(message.contains(&format!("{nearest:?}")), "{message}");
    }
}

#[test]
fn wrong_values_name_the_line_and_what_was_expected() {
    for (text, line, expected) in [
        ("[node]\nrole = \"phone\"\n", 2, "laptop"),
        ("[node]\nlisten = \"/ip4/0.0.0.0/tcp/0\"\n", 2, "list"),
        ("[node]\nlisten = [\n  \"0.0.0.0:1\",\n]\n", 2, "multiaddresses"),
        ("[node]\nlisten = [1]\n", 2, "text"),
        ("[node]\nbootstrap = [\"/ip4/1.2.3.4/tcp/1\"]\n", 2, "/p2p/"),
        ("[node]\nmdns = \"yes\"\n", 2, "true or false"),
        ("[api]\nhttp = \"0.0.0.0:7420\"\n", 2, "loopback"),
        ("[api]\nhttp = \"localhost\"\n", 2, "loopback"),
        ("[api]\nsocket = \"api.sock\"\n", 2, "absolute"),
        ("[api]\nallowed_hosts = [\"Localhost:80\"]\n", 2, "lower case"),
        ("[owner]\nprincipal = \"ada\"\n", 2, "principal"),
        ("[sessions]\ndefault_class = \"public\"\n", 2, "publish"),
        ("[limits]\nstore_max = 50\n", 2, "50 GiB"),
        ("[limits]\nstaging_max = \"2 GB\"\n", 2, "50 GiB"),
        ("[limits]\nconnections_in = 0\n", 2, "whole number"),
        ("[limits]\nconnections_in = -1\n", 2, "whole number"),
        ("[limits]\nconnections_out = 1.5\n", 2, "whole number"),
        ("[limits]\nidle_timeout = \"soon\"\n", 2, "30s"),
        ("[log]\nlevel = \"verbose\"\n", 2, "debug"),
        ("[log]\nformat = \"xml\"\n", 2, "json"),
        ("[log.format]\nx = 1\n", 1, "text"),
    ] {
        let message = refusal(text);
        assert!(message.starts_with(&format!("/n/config.toml line {line}: ")), "{text:?} {message}");
        assert!(message.contains(expected), "{text:?} {message}");
    }
}

#[test]
fn a_wrong_override_says_where_it_came_from() {
    let error = config("", &log_variable("loud")).unwrap_err();
    assert!(error.to_string().starts_with("THROUGHLINE_LOG: "), "{error}");
    let flag = Overrides::default().with_flag(Key::ApiHttp, Value::text("8080"));
    assert!(config("", &flag).unwrap_err().to_string().starts_with("command line: "));
}

#[test]
fn what_is_no_toml_names_its_line() {
    let message = refusal("[node]\nmdns = \n");
    assert!(message.starts_with("/n/config.toml line 2: expected toml"), "{message}");
    assert!(refusal("[node]\nmdns = true\nmdns = false\n").contains("line 3"));
}

#[test]
fn log_directives_are_taken() {
    let config = config("", &log_variable("info,throughline_node::sync=debug")).unwrap();
    assert_eq!(config.log.filter, "info,throughline_node::sync=debug");
    assert!(config_is_refused("sync=loud") && config_is_refused("infos,a=debug"));
}

fn config_is_refused(level: &str) -> bool {
    config("", &log_variable(level)).is_err()
}

#[test]
fn the_default_file_is_the_defaults() {
    for role in [Role::Laptop, Role::Desktop, Role::Server] {
        let text = default_toml(role);
        let as_written = plain(&text);
        let set = as_written.show().into_iter().filter(|setting| setting.source != Source::Default);
        assert_eq!(set.map(|setting| setting.key).collect::<Vec<_>>(), ["node.role"]);
        let uncommented: String = text
            .lines()
            .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
            .flat_map(|line| [line, "\n"])
            .collect();
        let all_set = plain(&uncommented);
        for (a, b) in as_written.show().into_iter().zip(all_set.show()) {
            assert_eq!(a.value, b.value, "{}", a.key);
            assert!(matches!(b.source, Source::Config { .. }), "{}", b.key);
        }
        assert!(text.lines().all(|line| line.len() <= 140), "{text}");
    }
}

#[test]
fn a_missing_file_says_nothing_and_an_unreadable_one_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(place.path()), &Environment::default()).unwrap();
    assert_eq!(Config::load(&dirs, &Overrides::default()).unwrap().node.role, Role::Laptop);
    fs::write(dirs.config_file(), "[node]\nrole = \"desktop\"\n").unwrap();
    assert_eq!(Config::load(&dirs, &Overrides::default()).unwrap().node.role, Role::Desktop);
    fs::write(dirs.config_file(), [0xff]).unwrap();
    assert_eq!(Config::load(&dirs, &Overrides::default()).unwrap_err().code(), Code::Config);
    fs::write(dirs.config_file(), " ".repeat(300 * 1024)).unwrap();
    assert!(matches!(Config::load(&dirs, &Overrides::default()), Err(ConfigError::TooBig { .. })));
}

#[test]
fn every_key_is_listed_once_and_found_by_its_name() {
    for key in Key::ALL {
        assert_eq!(Key::of_name(key.name()), Some(key));
        assert_eq!(Key::nearest(key.name()), key);
    }
    let mut names: Vec<_> = Key::ALL.iter().map(|key| key.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Key::ALL.len());
}
