//! `config`: where it is, what it says, and whether it can be used.

use clap::Subcommand;
use serde_json::{Value as Json, json};

use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::config::Value;

/// Commands of `config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print where the file is
    Path,
    /// Print every value and where it came from
    Show,
    /// Check the whole file; unknown keys are refused with the nearest known one
    Check,
}

/// Runs one.
pub(crate) fn run(ctx: &Context, command: &ConfigCommand) -> Answer<Outcome> {
    let file = ctx.dirs().config_file();
    let path = file.display().to_string();
    match command {
        ConfigCommand::Path => {
            let json = json!({"v": 1, "kind": "config-path", "path": path, "exists": file.exists()});
            if !file.exists() {
                ctx.out().aside(&none_there(&path));
            }
            Ok(Outcome::done(json, Page::of(path)))
        }
        ConfigCommand::Show => {
            let mut page = Page::default();
            let mut settings = Vec::new();
            for setting in ctx.config()?.show() {
                page.row([format!("{} = {}", setting.key, setting.value), format!("# {}", setting.source)]);
                let (value, source) = (json_value(&setting.value), setting.source.word());
                settings.push(json!({"key": setting.key, "value": value, "source": source}));
            }
            if !file.exists() {
                ctx.out().aside(&none_there(&path));
            }
            Ok(Outcome::done(json!({"v": 1, "kind": "config", "path": path, "settings": settings}), page))
        }
        ConfigCommand::Check => {
            ctx.config()?;
            let page = match file.exists() {
                true => {
                    let mut page = Page::default();
                    page.mark(Mark::Done, format!("{path} can be used"));
                    page
                }
                false => none_there(&path),
            };
            let json = json!({"v": 1, "kind": "config-check", "path": path, "exists": file.exists(), "problems": []});
            Ok(Outcome::done(json, page))
        }
    }
}

/// There is nothing to check or to show but defaults, and where a file would be read from.
fn none_there(path: &str) -> Page {
    let mut page = Page::default();
    page.mark(
        Mark::Note,
        format!("no config file: looked for {path}; the defaults hold (throughline config show)"),
    );
    page.plain("`throughline init` writes one there; THROUGHLINE_CONFIG names another place");
    page
}

fn json_value(value: &Value) -> Json {
    match value {
        Value::Text(text) => text.as_str().into(),
        Value::List(items) => items.as_slice().into(),
        Value::Flag(flag) => (*flag).into(),
        Value::Number(number) => (*number).into(),
    }
}
