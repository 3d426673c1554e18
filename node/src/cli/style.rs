//! Whether this process may use colour and which marks it draws.

use std::io::{self, IsTerminal as _};

use super::args::{Global, When};
use super::output::Output;
use super::page::{Colour, Glyphs, Styles};

/// Both streams, as flags, environment and terminal ask for them.
#[must_use]
pub(crate) fn output(global: &Global) -> Output {
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let styles = |terminal| Styles::new(colour(global.color, terminal, &env), glyphs(&env));
    let (stdout, stderr) = (styles(io::stdout().is_terminal()), styles(io::stderr().is_terminal()));
    Output::new(global.shape(), global.loudness(), stdout, stderr)
}

/// The flag, else `CLICOLOR_FORCE`, else a terminal that is not dumb and no `NO_COLOR`.
fn colour(when: When, terminal: bool, env: &impl Fn(&str) -> Option<String>) -> Colour {
    let wanted = match when {
        When::Always => true,
        When::Never => false,
        When::Auto => match env("CLICOLOR_FORCE").as_deref() {
            Some(force) if force != "0" => true,
            _ => terminal && env("NO_COLOR").is_none() && env("TERM").as_deref() != Some("dumb"),
        },
    };
    if wanted { Colour::On } else { Colour::Off }
}

/// Marks beyond ASCII only where the locale says UTF-8.
fn glyphs(env: &impl Fn(&str) -> Option<String>) -> Glyphs {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| env(name)).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    if locale.contains("utf-8") || locale.contains("utf8") { Glyphs::Unicode } else { Glyphs::Ascii }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(vars: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| vars.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn colour_follows_flag_then_environment_then_terminal() {
        assert_eq!(colour(When::Auto, true, &env(&[])), Colour::On);
        assert_eq!(colour(When::Auto, false, &env(&[])), Colour::Off);
        assert_eq!(colour(When::Auto, true, &env(&[("NO_COLOR", "1")])), Colour::Off);
        assert_eq!(colour(When::Auto, true, &env(&[("TERM", "dumb")])), Colour::Off);
        assert_eq!(
            colour(When::Auto, false, &env(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")])),
            Colour::On
        );
        assert_eq!(colour(When::Never, true, &env(&[("CLICOLOR_FORCE", "1")])), Colour::Off);
        assert_eq!(colour(When::Always, false, &env(&[("NO_COLOR", "1")])), Colour::On);
    }

    #[test]
    fn marks_follow_the_locale() {
        assert_eq!(glyphs(&env(&[("LANG", "en_US.UTF-8")])), Glyphs::Unicode);
        assert_eq!(glyphs(&env(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")])), Glyphs::Ascii);
        assert_eq!(glyphs(&env(&[])), Glyphs::Ascii);
    }
}
