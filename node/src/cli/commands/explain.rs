//! `explain`: every code and verdict, without a node and without a network.

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::code::Code;

use crate::api::error::{Answer, Problem};
use crate::cli::output::Outcome;
use crate::cli::page::Page;
use crate::outcome::{self, Exit};

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A code such as E_FENCED or a verdict such as forked; without it all of them
    pub(crate) code: Option<String>,
}

/// The words that `verify` and `audit` answer with, and what each means.
pub(in crate::cli) const VERDICTS: [(&str, &str); 8] = [
    ("valid", "All five checks pass through the head. Nobody can say that nothing came later."),
    ("sealed", "Valid, and the session has ended: nothing may follow the seal."),
    ("incomplete", "Something that decides is missing. Fetch it: throughline fetch S."),
    (
        "forked",
        "The holder signed two histories. Neither is accepted until the owner hands the session over again: throughline move S --to P.",
    ),
    (
        "frozen",
        "The owner signed two handoffs, or anchored two histories. A handoff of a higher epoch ends it: throughline move S --to P.",
    ),
    (
        "revoked-tail",
        "Valid through the last anchor; entries after it were signed by a revoked key and are kept as evidence.",
    ),
    (
        "fenced-tail",
        "Valid; a server that had handed the session over went on signing, and those entries are cut off.",
    ),
    (
        "corrupt",
        "Bytes, links, a signature or authority do not hold. Fetch it from another peer: the CIDs decide what is right.",
    ),
];

/// Explains one code, or lists all.
pub(crate) fn run(args: &ExplainArgs) -> Answer<Outcome> {
    let Some(word) = &args.code else { return Ok(all()) };
    if let Some((verdict, meaning)) = VERDICTS.iter().find(|(verdict, _)| verdict.eq_ignore_ascii_case(word))
    {
        let exit = Exit::of_verdict(verdict).number();
        let mut page = Page::default();
        page.bold(format!("{verdict}  a verdict"));
        page.plain(format!("  means  {meaning}"));
        page.plain(format!("  exit   {exit}"));
        let json = json!({"v": 1, "kind": "explain", "verdict": verdict, "advice": meaning, "exit": exit});
        return Ok(Outcome::done(json, page));
    }
    let code: Code = word.parse().map_err(|_| unknown(word))?;
    let (exit, status, retry) = outcome::of(code);
    let mut page = Page::default();
    page.bold(format!("{code}  {}", code.title()));
    page.plain(format!("  fault  {}", code.fault()));
    page.plain(format!("  next   {}", code.advice()));
    if code.is_reserved() {
        page.plain("  kept   for an act that this version does not have: nothing answers with it");
    }
    page.plain(format!("  exit   {}   HTTP {status}   retry {}", exit.number(), retry.word()));
    let mut json = row(code);
    json["v"] = 1.into();
    json["kind"] = "explain".into();
    Ok(Outcome::done(json, page))
}

fn all() -> Outcome {
    let mut page = Page::default();
    for code in Code::ALL {
        let reserved = if code.is_reserved() { " (reserved)" } else { "" };
        let title = format!("{}{reserved}", code.title());
        page.row([code.name().to_owned(), code.fault().to_string(), title]);
    }
    page.plain("");
    for (verdict, _) in VERDICTS {
        page.row([
            verdict.to_owned(),
            "verdict".to_owned(),
            format!("exit {}", Exit::of_verdict(verdict).number()),
        ]);
    }
    let codes: Vec<Value> = Code::ALL.iter().map(|code| row(*code)).collect();
    let verdicts: Vec<Value> =
        VERDICTS.iter().map(|(word, meaning)| json!({"verdict": word, "advice": meaning, "exit": Exit::of_verdict(word).number()})).collect();
    Outcome::done(json!({"v": 1, "kind": "explain", "codes": codes, "verdicts": verdicts}), page)
}

fn row(code: Code) -> Value {
    let (exit, status, retry) = outcome::of(code);
    json!({
        "code": code.name(), "title": code.title(), "fault": code.fault().word(), "advice": code.advice(),
        "exit": exit.number(), "status": status, "retry": retry.word(), "reserved": code.is_reserved(),
    })
}

fn unknown(word: &str) -> Problem {
    let upper = word.to_ascii_uppercase();
    let bare = upper.trim_start_matches("E_");
    let near = Code::ALL.iter().find(|code| code.name().contains(bare) && bare.len() >= 3);
    let problem = Problem::new(Code::Usage, format!("expected a code such as E_FENCED, got {word:?}"));
    match near {
        Some(code) => problem.hint(format!("throughline explain {code}")),
        None => problem.hint("throughline explain"),
    }
}
