//! The documents that are made from this code: `docs/cli-reference.md` and `docs/errors.md`. Tests hold the files to it.

use clap::CommandFactory as _;
use throughline_protocol::code::Code;

use super::args::Cli;
use super::commands::explain::VERDICTS;
use crate::outcome::{self, Exit};

/// The help of every command, as `docs/cli-reference.md`.
#[must_use]
pub fn cli_reference() -> String {
    let mut out = String::from(
        "# Command line reference\n\nMade from the program by a test; the same text is printed by `throughline help COMMAND`.\n",
    );
    let mut root = Cli::command().term_width(100).disable_help_flag(false);
    root.build();
    section(&mut out, &mut root, "throughline");
    out
}

fn section(out: &mut String, command: &mut clap::Command, name: &str) {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    out.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .filter(|name| name != "help")
        .collect();
    for sub in names {
        if let Some(command) = command.find_subcommand_mut(&sub) {
            section(out, command, &format!("{name} {sub}"));
        }
    }
}

/// Every code and verdict, as `docs/errors.md`.
#[must_use]
pub fn errors_page() -> String {
    let mut out = String::from(
        "# Errors and verdicts\n\nMade from the program by a test; `throughline explain CODE` prints one without a \
         network.\n\n## Verdicts\n\n| verdict | exit | meaning |\n| --- | --- | --- |\n",
    );
    for (word, meaning) in VERDICTS {
        out.push_str(&format!("| `{word}` | {} | {meaning} |\n", Exit::of_verdict(word).number()));
    }
    out.push_str(
        "\n## Codes\n\n*Fault* is whose: the peer that handed bytes over, the author that signed them, this machine \
         (local), or nobody's yet (none). *Reserved*: kept for an act that this version does not have; nothing \
         answers with it.\n\n| code | what happened | fault | exit | HTTP | retry | what to do |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for code in Code::ALL {
        let (exit, status, retry) = outcome::of(*code);
        out.push_str(&format!(
            "| `{code}` | {}{} | {} | {} | {status} | {} | {} |\n",
            code.title(),
            if code.is_reserved() { " *(reserved)*" } else { "" },
            code.fault(),
            exit.number(),
            retry.word(),
            code.advice().replace('|', "\\|"),
        ));
    }
    out
}
