//! What a command writes: its result on stdout, all else on stderr.
//!
//! With `--json` exactly one object in one line, for success and for failure. Text of others is escaped here, at the
//! one place where text is rendered; colour is added after that and never carries meaning alone.

use std::io::{self, IsTerminal as _, Write};

use serde_json::{Value, json};

use super::escape;
use super::page::{Page, Styles};
use crate::api::error::Problem;
use crate::outcome::{self, Exit};

/// The form of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Text for a reader.
    Text,
    /// One object.
    Json,
    /// One object a line, ended by `{"kind":"end",…}`.
    Lines,
}

/// What a command has to say at its end.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// How it ended.
    pub(crate) exit: Exit,
    /// The JSON object; none when the command wrote its stream itself.
    pub(crate) json: Option<Value>,
    /// The text.
    pub(crate) page: Page,
}

impl Outcome {
    /// A success.
    #[must_use]
    pub(crate) fn done(json: Value, page: Page) -> Self {
        Outcome { exit: Exit::Done, json: Some(json), page }
    }

    /// The end of a command that wrote its result itself.
    #[must_use]
    pub(crate) fn written() -> Self {
        Outcome { exit: Exit::Done, json: None, page: Page::default() }
    }

    /// The same with another exit code.
    #[must_use]
    pub(crate) fn exit(self, exit: Exit) -> Self {
        Outcome { exit, ..self }
    }
}

/// How much goes to stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Loudness {
    /// Errors only.
    Quiet,
    /// Hints and progress too.
    Normal,
    /// Absolute times and full ids too.
    Verbose,
}

/// Both streams of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    shape: Shape,
    loudness: Loudness,
    stdout: Styles,
    stderr: Styles,
}

impl Output {
    /// Writes in this shape; the styles were settled from flags, environment and terminal.
    #[must_use]
    pub(crate) fn new(shape: Shape, loudness: Loudness, stdout: Styles, stderr: Styles) -> Self {
        Output { shape, loudness, stdout, stderr }
    }

    /// The form of the result.
    #[must_use]
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether a person reads the result.
    #[must_use]
    pub(crate) fn is_text(&self) -> bool {
        self.shape == Shape::Text
    }

    /// How much goes to stderr.
    #[must_use]
    pub(crate) fn loudness(&self) -> Loudness {
        self.loudness
    }

    /// Writes the result of a command.
    ///
    /// # Errors
    /// When stdout takes no more; a closed pipe is one of the reasons.
    pub(crate) fn outcome(&self, outcome: &Outcome) -> io::Result<()> {
        match (self.shape, &outcome.json) {
            (Shape::Text, _) => self.page(&outcome.page),
            (Shape::Json | Shape::Lines, Some(json)) => self.object(json),
            (Shape::Json | Shape::Lines, None) => Ok(()),
        }
    }

    /// Writes one object in one line and flushes it.
    ///
    /// # Errors
    /// As [`Output::outcome`].
    pub(crate) fn object(&self, object: &Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", escape::json(&object.to_string()))?;
        out.flush()
    }

    /// Ends a stream of objects, so that a cut one is seen.
    ///
    /// # Errors
    /// As [`Output::outcome`].
    pub(crate) fn end(&self, count: u64, next: &Value) -> io::Result<()> {
        self.object(&json!({"v": 1, "kind": "end", "count": count, "next": next}))
    }

    /// Writes text for a reader.
    ///
    /// # Errors
    /// As [`Output::outcome`].
    pub(crate) fn page(&self, page: &Page) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let text = match self.loudness {
            Loudness::Quiet => page.without_hints().render(self.stdout),
            Loudness::Normal | Loudness::Verbose => page.render(self.stdout),
        };
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// As [`Output::outcome`].
    pub(crate) fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }

    /// Whether stdout is a terminal.
    #[must_use]
    pub(crate) fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Says something beside the result, on stderr. Nobody reading it is no failure.
    pub(crate) fn aside(&self, page: &Page) {
        if self.loudness > Loudness::Quiet {
            let _ = io::stderr().lock().write_all(page.render(self.stderr).as_bytes());
        }
    }

    /// Writes a refusal: the object on stdout, or the text on stderr.
    ///
    /// # Errors
    /// As [`Output::outcome`].
    pub(crate) fn problem(&self, problem: &Problem) -> io::Result<()> {
        match self.shape {
            Shape::Json | Shape::Lines => self.object(&error_object(problem)),
            Shape::Text => {
                let _ = io::stderr().lock().write_all(error_page(problem).render(self.stderr).as_bytes());
                Ok(())
            }
        }
    }
}

/// The error object of all commands.
#[must_use]
pub(crate) fn error_object(problem: &Problem) -> Value {
    json!({"v": 1, "kind": "error", "error": problem.to_json()})
}

/// An error as a person reads it: what, where, why, and the command that goes on from here.
#[must_use]
pub(crate) fn error_page(problem: &Problem) -> Page {
    let mut page = Page::default();
    let code = problem.code();
    page.error(code.name(), problem.detail());
    if let Some(place) = place(problem) {
        page.plain(format!("  at   {place}"));
    }
    if problem.detail() != code.title() {
        page.plain(format!("  why  {}", code.title()));
    }
    match problem.fact("hint").and_then(Value::as_str) {
        Some(hint) => page.plain(format!("  fix  {hint}")),
        None => {
            let (advice, next) = (code.advice(), outcome::next(code));
            page.plain(format!("  fix  {advice}"));
            if !advice.contains(&next) {
                page.plain(format!("  next {next}"));
            }
        }
    }
    page
}

fn place(problem: &Problem) -> Option<String> {
    let session = super::format::short(problem.fact("session")?.as_str()?);
    let at = problem.fact("at").and_then(|at| {
        let cid = super::format::short(at.get("cid")?.as_str()?);
        Some(format!(" seq {} (entry {cid})", at.get("seq")?.as_u64()?))
    });
    Some(format!("session {session}{}", at.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use throughline_protocol::code::Code;

    use super::*;

    #[test]
    fn an_error_says_what_where_why_and_what_next() {
        let cid = throughline_protocol::id::EntryCid::of(b"e");
        let problem = Problem::new(Code::Fenced, "epoch 1 began at seq 58\x1b[2J")
            .with("session", cid.to_string())
            .with("at", json!({"seq": 58, "cid": cid.to_string()}))
            .hint("throughline status k3f7m2xq");
        let text = error_page(&problem).render(Styles::plain());
        let expected = format!(
            "error[E_FENCED]: epoch 1 began at seq 58\\u{{1b}}[2J\n  at   session {0} seq 58 (entry {0})\n  why  {1}\n  \
             fix  throughline status k3f7m2xq\n",
            cid.short(),
            Code::Fenced.title(),
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn the_error_object_is_the_api_s() {
        let object = error_object(&Problem::from(Code::NotInitialised));
        assert_eq!(object["kind"], "error");
        assert_eq!(object["error"]["code"], "E_NOT_INITIALISED");
        assert_eq!(object["error"]["hint"], "throughline init");
        assert_eq!(object["error"]["advice"], Code::NotInitialised.advice());
    }

    #[test]
    fn a_refusal_without_a_hint_has_the_advice_of_its_code_and_a_command() {
        let text = error_page(&Problem::from(Code::CarTruncated)).render(Styles::plain());
        assert!(text.contains(&format!("\n  fix  {}\n", Code::CarTruncated.advice())), "{text}");
        assert!(text.ends_with("\n  next throughline explain E_CAR_TRUNCATED\n"), "{text}");
        let text = error_page(&Problem::from(Code::NotInitialised)).render(Styles::plain());
        assert!(text.ends_with("\n  fix  Run throughline init.\n"), "{text}");
    }

    #[test]
    fn a_general_hint_does_not_stand_in_the_way_of_a_closer_one() {
        let told = Problem::from(Code::NotFoundYet);
        let heard = Problem::from_json(&told.to_json()).expect("a problem");
        assert_eq!(heard.fact("hint"), None);
        let told = told.hint("throughline list");
        let heard = Problem::from_json(&told.to_json()).expect("a problem");
        assert_eq!(heard.fact("hint"), Some(&json!("throughline list")));
    }
}
