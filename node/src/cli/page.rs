//! Text for a reader, built line by line and rendered once: escaped first, then coloured.

use super::escape;

/// What a line tells at its beginning. A word or a shape, never a colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It was done, or a check passed.
    Done,
    /// It failed.
    Failed,
    /// Something the reader should look at.
    Warning,
    /// It came out differently than asked, and that is told.
    Note,
    /// It was so already.
    Same,
}

/// Whether and how text is decorated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Styles {
    colour: Colour,
    glyphs: Glyphs,
}

/// Whether colour is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Which characters the marks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Glyphs {
    /// `✓ ✗`
    Unicode,
    /// `ok x`
    Ascii,
}

impl Styles {
    /// These.
    #[must_use]
    pub(crate) fn new(colour: Colour, glyphs: Glyphs) -> Self {
        Styles { colour, glyphs }
    }

    /// Neither colour nor anything beyond the text itself.
    #[must_use]
    pub(crate) fn plain() -> Self {
        Styles { colour: Colour::Off, glyphs: Glyphs::Unicode }
    }

    fn mark(self, mark: Mark) -> String {
        let (unicode, ascii, colour) = match mark {
            Mark::Done => ("✓", "ok", "32"),
            Mark::Failed => ("✗", "x", "31"),
            Mark::Warning => ("!", "!", "33"),
            Mark::Note => ("~", "~", "33"),
            Mark::Same => ("=", "=", "2"),
        };
        self.paint(colour, if self.glyphs == Glyphs::Unicode { unicode } else { ascii })
    }

    fn paint(self, sgr: &str, text: &str) -> String {
        match self.colour {
            Colour::On => format!("\x1b[{sgr}m{text}\x1b[0m"),
            Colour::Off => text.to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
enum Line {
    Plain(String),
    Hint(String),
    Bold(String),
    Marked(Mark, String),
    Error(&'static str, String),
    Block { indent: usize, text: String },
    Row(Vec<String>),
}

/// Lines of text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page(Vec<Line>);

impl Page {
    /// One line, as a page.
    pub(crate) fn of(text: impl Into<String>) -> Self {
        let mut page = Page::default();
        page.plain(text);
        page
    }

    /// One line.
    pub(crate) fn plain(&mut self, text: impl Into<String>) {
        self.0.push(Line::Plain(text.into()));
    }

    /// One line that says what may be done next; `--quiet` leaves it out.
    pub(crate) fn hint(&mut self, text: impl Into<String>) {
        self.0.push(Line::Hint(text.into()));
    }

    /// The page without its hints.
    #[must_use]
    pub(crate) fn without_hints(&self) -> Page {
        Page(self.0.iter().filter(|line| !matches!(line, Line::Hint(_))).cloned().collect())
    }

    /// One line that stands out.
    pub(crate) fn bold(&mut self, text: impl Into<String>) {
        self.0.push(Line::Bold(text.into()));
    }

    /// One line with a mark.
    pub(crate) fn mark(&mut self, mark: Mark, text: impl Into<String>) {
        self.0.push(Line::Marked(mark, text.into()));
    }

    /// The first line of an error.
    pub(crate) fn error(&mut self, code: &'static str, text: impl Into<String>) {
        self.0.push(Line::Error(code, text.into()));
    }

    /// Text of several lines, each moved in by `indent`.
    pub(crate) fn block(&mut self, indent: usize, text: impl Into<String>) {
        self.0.push(Line::Block { indent, text: text.into() });
    }

    /// One row of a table; rows that follow each other have aligned columns.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.0.push(Line::Row(cells.into()));
    }

    /// All lines of another page.
    pub(crate) fn append(&mut self, other: Page) {
        self.0.extend(other.0);
    }

    /// The text. Everything that came in is escaped; what is added here are colour, marks and spaces.
    #[must_use]
    pub(crate) fn render(&self, styles: Styles) -> String {
        let mut out = String::new();
        let mut at = 0;
        while let Some(line) = self.0.get(at) {
            at += 1;
            match line {
                Line::Plain(text) | Line::Hint(text) => out.push_str(&escape::line(text)),
                Line::Bold(text) => out.push_str(&styles.paint("1", &escape::line(text))),
                Line::Marked(mark, text) => {
                    out.push_str(&format!("{} {}", styles.mark(*mark), escape::line(text)));
                }
                Line::Error(code, text) => {
                    let head = styles.paint("1;31", &format!("error[{code}]"));
                    out.push_str(&format!("{head}: {}", escape::line(text)));
                }
                Line::Block { indent, text } => {
                    let space = " ".repeat(*indent);
                    let lines: Vec<String> =
                        escape::block(text).lines().map(|line| format!("{space}{line}")).collect();
                    out.push_str(&lines.join("\n"));
                }
                Line::Row(_) => {
                    let rows: Vec<&Vec<String>> = self.0[at - 1..]
                        .iter()
                        .map_while(|line| if let Line::Row(cells) = line { Some(cells) } else { None })
                        .collect();
                    at += rows.len() - 1;
                    out.push_str(&table(&rows));
                }
            }
            out.push('\n');
        }
        out
    }
}

/// Rows with each column as wide as its widest cell; the last column is not filled up.
fn table(rows: &[&Vec<String>]) -> String {
    let escaped: Vec<Vec<String>> =
        rows.iter().map(|cells| cells.iter().map(|cell| escape::line(cell).into_owned()).collect()).collect();
    let columns = escaped.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        escaped
            .iter()
            .filter_map(|cells| cells.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let lines = escaped.iter().map(|cells| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Page {
        let mut page = Page::default();
        page.mark(Mark::Done, "owner key\x1b[31m");
        page.row(["a".to_owned(), "long cell".to_owned(), "x".to_owned()]);
        page.row(["bbb".to_owned(), "c".to_owned(), String::new()]);
        page.block(2, "one\ntwo");
        page
    }

    #[test]
    fn columns_are_aligned_and_text_is_escaped() {
        let text = sample().render(Styles::plain());
        assert_eq!(text, "✓ owner key\\u{1b}[31m\na    long cell  x\nbbb  c\n  one\n  two\n");
    }

    #[test]
    fn a_hint_is_a_line_that_can_be_left_out() {
        let mut page = sample();
        page.hint("Next: serve");
        let text = page.render(Styles::plain());
        assert_eq!(text, format!("{}Next: serve\n", sample().render(Styles::plain())));
        assert_eq!(page.without_hints().render(Styles::plain()), sample().render(Styles::plain()));
    }

    #[test]
    fn colour_comes_with_a_mark() {
        let text = sample().render(Styles::new(Colour::On, Glyphs::Ascii));
        assert!(text.starts_with("\x1b[32mok\x1b[0m owner key\\u{1b}"), "{text:?}");
    }
}
