//! Text that people give: tickets and the configuration file.

use std::path::Path;
use std::sync::LazyLock;

use throughline_node::config::{Config, Overrides, Source};
use throughline_node::dirs::{Dirs, Environment};
use throughline_protocol::code::Code;
use throughline_protocol::ticket::Ticket;

use super::check_reject;

/// A ticket prints as it was read. The first byte may say to put the check bytes right, or nothing but their rule would be tried.
pub(in crate::fuzz) fn ticket(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for text in [text.to_owned(), checked(text)] {
        match text.parse::<Ticket>() {
            Ok(ticket) => assert_eq!(ticket.to_string(), text),
            Err(reject) => {
                assert_eq!(reject.code, Code::InputFormat);
                check_reject(&reject);
            }
        }
    }
}

/// The same ticket with check bytes that fit.
fn checked(text: &str) -> String {
    let Some((prefix, body)) = text.split_at_checked(4) else { return String::new() };
    let upper = body.to_ascii_uppercase();
    let Ok(mut bytes) = data_encoding::BASE32_NOPAD.decode(upper.as_bytes()) else { return String::new() };
    let Some(cut) = bytes.len().checked_sub(4) else { return String::new() };
    bytes.truncate(cut);
    let check = throughline_protocol::block::sha256(&bytes);
    bytes.extend(&check[..4]);
    format!("{prefix}{}", data_encoding::BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
}

static DIRS: LazyLock<Dirs> = LazyLock::new(|| {
    Dirs::locate(Some(Path::new("/nonexistent/throughline")), &Environment::default())
        .expect("an absolute home")
});

/// A configuration that is taken reads the same from what `config show` prints of it; a refusal says where.
pub(in crate::fuzz) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let overrides = Overrides::default();
    let config = match Config::of_text(&DIRS, text, &overrides) {
        Ok(config) => config,
        Err(error) => {
            assert_eq!(error.code(), Code::Config);
            assert!(error.to_string().contains("expected"), "{error}");
            return;
        }
    };
    let shown = config.show();
    let mut printed = String::new();
    for setting in shown.iter().filter(|setting| setting.source != Source::Default) {
        let (section, leaf) = setting.key.split_once('.').expect("section and key");
        printed.push_str(&format!("[{section}]\n{leaf} = {}\n", setting.value));
    }
    // A section stands once in TOML: gather the keys of one under one head.
    let printed = gathered(&printed);
    let again = Config::of_text(&DIRS, &printed, &overrides)
        .unwrap_or_else(|error| panic!("{error}\nprinted as\n{printed}"));
    let plain = |config: &Config| -> Vec<_> {
        config.show().into_iter().map(|setting| (setting.key, setting.value)).collect()
    };
    assert_eq!(plain(&again), plain(&config));
}

fn gathered(printed: &str) -> String {
    let mut sections: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut lines = printed.lines();
    while let (Some(section), Some(line)) = (lines.next(), lines.next()) {
        match sections.iter_mut().find(|(name, _)| *name == section) {
            Some((_, held)) => held.push(line),
            None => sections.push((section, vec![line])),
        }
    }
    sections.iter().map(|(section, lines)| format!("{section}\n{}\n", lines.join("\n"))).collect()
}
