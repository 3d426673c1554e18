//! Sections of our documents that source files name: each exists under that name.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::tests::{root, sources};

/// The headings of the documents that were asked for.
#[derive(Default)]
struct Documents(BTreeMap<String, BTreeSet<String>>);

impl Documents {
    /// Whether a document has a heading with which `words` begin. Their case does not matter: in code they may stand in a sentence.
    fn have(&mut self, document: &str, words: &str) -> bool {
        let headings = self.0.entry(document.to_owned()).or_insert_with(|| headings(document));
        let words = words.to_lowercase();
        headings.iter().any(|heading| {
            let rest = words.strip_prefix(heading.as_str());
            rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        })
    }
}

fn headings(document: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("docs").join(document)).unwrap_or_default();
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| line.trim_start_matches('#').trim().to_lowercase()).collect()
}

/// The comments of a file as one text, so that a name may stand on two lines.
fn comments(text: &str) -> String {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
    lines.map(|line| line.trim_start_matches(['/', '!']).trim()).collect::<Vec<_>>().join(" ")
}

/// Every section that a file names, as document and the words after the mark. A document is named in quotes; the sections after
/// it, up to the end of the sentence or the next document, are its own.
fn named(text: &str) -> Vec<(String, String)> {
    let comments = comments(text);
    let mut found = Vec::new();
    for after in comments.split("`docs/").skip(1) {
        let Some((document, rest)) = after.split_once('`') else { continue };
        let sentence = rest.split(". ").next().unwrap_or_default();
        found.extend(sentence.split('§').skip(1).map(|words| (document.to_owned(), words.to_owned())));
    }
    found
}

/// A filter that fits nothing runs nothing, and passes.
#[test]
fn every_command_of_the_tests_names_a_module_of_this_suite() {
    let text = std::fs::read_to_string(root().join("docs/TESTING.md")).unwrap();
    let suite = include_str!("../main.rs");
    let mut seen = 0;
    for command in text.lines().filter_map(|line| line.split_once("--test suite ")).map(|(_, rest)| rest) {
        for word in command.split(['`', '#']).next().unwrap_or_default().split_whitespace() {
            let Some(module) = word.strip_suffix("::") else { continue };
            assert!(suite.contains(&format!("mod {module};")), "the suite has no module {module}");
            seen += 1;
        }
    }
    assert!(seen >= 7, "only {seen} commands name a module");
}

#[test]
fn every_section_that_is_named_exists() {
    let (mut documents, mut seen) = (Documents::default(), 0);
    for (path, text) in sources() {
        for (document, words) in named(&text) {
            seen += 1;
            assert!(documents.have(&document, &words), "{path}: docs/{document} has no §{words}");
        }
    }
    assert!(seen > 60, "{seen} sections are not all that code names");
}

#[test]
fn names_are_found_wherever_they_stand() {
    let text = "//! One. `docs/PROTOCOL.md`\n//! §Handing over, §Streams. §Not.\nlet a = \"`docs/X.md` §Y\";\n    /// `docs/A.md` §B and\n";
    let found = [("PROTOCOL.md", "Handing over, "), ("PROTOCOL.md", "Streams"), ("A.md", "B and")];
    assert_eq!(named(text), found.map(|(document, words)| (document.to_owned(), words.to_owned())));
    let mut documents = Documents::default();
    assert!(documents.have("PROTOCOL.md", "Announcements, tickets, files;"));
    assert!(!documents.have("PROTOCOL.md", "Announcement") && !documents.have("PROTOCOL.md", "Stream"));
    assert!(!documents.have("PROTOCOL.md", "Streamsand") && !documents.have("NONE.md", "Streams"));
}
