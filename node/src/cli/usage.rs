//! A line that is not understood: mistakes that people will type are caught by name.

use std::ffi::OsString;
use std::io::{self, Write as _};

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use throughline_protocol::code::Code;

use super::args::Cli;
use super::commands::about;
use super::escape;
use super::output::{error_object, error_page};
use super::page::Styles;
use crate::api::error::Problem;
use crate::outcome::Exit;

/// Words of other programs, what to know instead, and the command that does it.
const WRONG_WORDS: [(&[&str], &str, &str); 6] = [
    (&["push", "sync"], "sessions are announced by themselves; nothing has to be sent", "throughline status"),
    (&["pull", "clone"], "`fetch` brings a session here", "throughline fetch S"),
    (
        &["rm", "remove", "delete"],
        "`unpin` lets a session go; a signed log can't be edited",
        "throughline unpin S",
    ),
    (&["login", "signup", "register"], "there is no account; `init` makes your key", "throughline init"),
    (&["transfer", "handoff"], "the command is `move`", "throughline move S --to P"),
    (&["cat", "read"], "`log` is the transcript", "throughline log S"),
];

/// Answers a line that clap refused, or its `--help` and `--version`.
pub(crate) fn refuse(error: &clap::Error, words: &[OsString]) -> Exit {
    let asked = |flag: &str| words.iter().take_while(|word| *word != "--").any(|word| word == flag);
    let as_json = asked("--json") || asked("--jsonl");
    if error.kind() == ErrorKind::DisplayVersion && as_json {
        let _ = writeln!(io::stdout().lock(), "{}", about::version_json());
        return Exit::Done;
    }
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nobody reading the help is no failure.
        let _ = error.print();
        return Exit::Done;
    }
    let problem = problem(error, words);
    if as_json {
        let _ = writeln!(io::stdout().lock(), "{}", escape::json(&error_object(&problem).to_string()));
    } else if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = write!(io::stderr().lock(), "{}", error.render());
    } else {
        let _ = io::stderr().lock().write_all(error_page(&problem).render(Styles::plain()).as_bytes());
    }
    Exit::Usage
}

fn problem(error: &clap::Error, words: &[OsString]) -> Problem {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((instead, command)) = wrong_word(word)
    {
        return Problem::new(Code::Usage, format!("there is no `{word}`: {instead}")).hint(command);
    }
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let mut detail = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    let usage = lines.clone().find_map(|line| line.strip_prefix("Usage: "));
    // What is missing stands below the first line.
    for line in lines.take_while(|line| !line.starts_with("Usage: ") && !line.starts_with("For more")) {
        detail.push(' ');
        detail.push_str(line);
    }
    match usage {
        // The file of this program may have another name; and what fits every command helps with none.
        Some(usage) if !usage.ends_with("<COMMAND>") => {
            let rest = usage.split_once(' ').map_or("help", |(_, rest)| rest);
            Problem::new(Code::Usage, detail).hint(format!("throughline {rest}"))
        }
        _ => Problem::new(Code::Usage, detail).hint(help(words)),
    }
}

/// The same refusal; where only the line itself can be at fault, with the command that explains the one that was asked for.
pub(super) fn with_help(problem: Problem, words: &[OsString]) -> Problem {
    let of_the_line = [Code::Usage, Code::Json, Code::InputNotFound, Code::InputFormat, Code::TooBig];
    if problem.fact("hint").is_some() || !of_the_line.contains(&problem.code()) {
        return problem;
    }
    problem.hint(help(words))
}

/// The command that prints the help of the command that `words` call.
fn help(words: &[OsString]) -> String {
    let root = Cli::command();
    let (mut command, mut called) = (&root, "throughline help".to_owned());
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        match command.find_subcommand(word) {
            Some(found) => {
                called.push(' ');
                called.push_str(found.get_name());
                command = found;
            }
            // Flags of every command may stand before it.
            None if std::ptr::eq(command, &root) => {}
            None => break,
        }
    }
    called
}

fn wrong_word(word: &str) -> Option<(&'static str, &'static str)> {
    WRONG_WORDS
        .iter()
        .find(|(words, _, _)| words.contains(&word))
        .map(|(_, instead, command)| (*instead, *command))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::args::Cli;
    use super::*;

    fn refused(words: &[&str]) -> Problem {
        let words: Vec<OsString> =
            std::iter::once("throughline").chain(words.iter().copied()).map(Into::into).collect();
        problem(&Cli::try_parse_from(&words).unwrap_err(), &words)
    }

    #[test]
    fn a_value_that_is_not_usable_leads_to_the_help_of_its_command() {
        let hint = |words: &[&str]| refused(words).fact("hint").cloned().unwrap();
        assert_eq!(hint(&["--home", "x", "list", "--state", "nosuch"]), "throughline help list");
        assert_eq!(hint(&["ls", "--agent", "nosuch"]), "throughline help list");
        assert_eq!(hint(&["api", "token", "--scope", "all"]), "throughline help api token");
        assert_eq!(hint(&["nonsense"]), "throughline help");
        assert_eq!(hint(&["key", "nonsense"]), "throughline help key");
        assert!(refused(&["list", "--state", "nosuch"]).detail().contains("suspended"));
    }

    #[test]
    fn a_hint_of_whoever_refused_stays() {
        let words = ["throughline", "append", "S"].map(OsString::from);
        let hint = |problem: Problem| with_help(problem, &words).fact("hint").cloned();
        assert_eq!(hint(Code::Json.into()).unwrap(), "throughline help append");
        assert_eq!(hint(Problem::from(Code::Json).hint("throughline log S")).unwrap(), "throughline log S");
        assert_eq!(hint(Code::Fenced.into()), None);
    }

    #[test]
    fn words_of_other_programs_name_the_command() {
        for (word, command) in [
            ("push", "throughline status"),
            ("pull", "throughline fetch S"),
            ("sync", "throughline status"),
            ("rm", "throughline unpin S"),
            ("login", "throughline init"),
            ("transfer", "throughline move S --to P"),
        ] {
            let problem = refused(&[word, "x"]);
            assert_eq!(problem.code(), Code::Usage);
            assert_eq!(problem.fact("hint").unwrap(), command, "{word}");
        }
    }

    #[test]
    fn no_wrong_word_is_a_command() {
        use clap::CommandFactory as _;
        for (words, _, _) in WRONG_WORDS {
            for word in words {
                assert!(Cli::command().find_subcommand(word).is_none(), "{word}");
            }
        }
    }

    #[test]
    fn a_missing_argument_is_named() {
        let problem = refused(&["show"]);
        assert!(problem.detail().contains("<REF>"), "{problem}");
        assert!(problem.fact("hint").unwrap().as_str().unwrap().starts_with("throughline show"), "{problem}");
    }
}
