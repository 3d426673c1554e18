//! The answer of `verify`, `fetch`, `audit` and `import` of a CAR, as a reader sees it.

use serde_json::Value;
use throughline_protocol::clock;

use super::names::Names;
use super::page::{Mark, Page};
use super::{format, view};
use crate::outcome::Exit;

/// The five checks, in their order.
const CHECKS: [&str; 5] = ["hash", "chain", "signature", "authority", "head"];

/// How a command ends that answers with a verdict. Losses count only beside a success.
#[must_use]
pub(crate) fn exit(answer: &Value) -> Exit {
    with_losses(Exit::of_verdict(view::text(answer, "/verdict")), answer)
}

/// What a command that did what it was to do ends with, if words or files that were asked for are missing. The same on every road.
#[must_use]
pub(crate) fn with_losses(exit: Exit, answer: &Value) -> Exit {
    if exit == Exit::Done && losses(answer).is_some() { Exit::Losses } else { exit }
}

/// What was asked for and is missing, in words.
#[must_use]
pub(crate) fn losses(answer: &Value) -> Option<String> {
    let missing = |of: &str, one: &str, many: &str| {
        let counts = view::at(answer, of);
        let count = view::number(counts, "/missing");
        (view::flag(counts, "/asked") && count > 0).then(|| format::count(count, one, many))
    };
    let payloads = missing("/payloads", "payload", "payloads");
    let files = missing("/files", "file", "files");
    let missing: Vec<String> = payloads.into_iter().chain(files).collect();
    (!missing.is_empty()).then(|| missing.join(" and "))
}

/// What is here of the words and files, and how what is missing comes here.
pub(crate) fn inventory(page: &mut Page, answer: &Value) {
    links(page, answer);
    if let Some(losses) = losses(answer) {
        let session = match view::text(answer, "/session") {
            "" => "S",
            session => session,
        };
        page.mark(Mark::Warning, format!("done, with losses (exit 11): {losses} missing"));
        page.plain(format!(
            "  from anyone who has them: throughline fetch {session} --payloads all --from PEER"
        ));
    }
}

/// The counts alone.
pub(crate) fn links(page: &mut Page, answer: &Value) {
    for which in ["payloads", "files"] {
        let Some(counts) = answer.get(which).filter(|counts| counts.is_object()) else { continue };
        let count = |what: &str| view::number(counts, &format!("/{what}"));
        let missing = if view::flag(counts, "/asked") { "missing" } else { "not here and not asked for" };
        page.plain(format!(
            "  {which:<10} {} linked, {} here, {} {missing}, {} withdrawn",
            count("linked"),
            count("here"),
            count("missing"),
            count("withdrawn"),
        ));
    }
}

/// The report.
#[must_use]
pub(crate) fn page(answer: &Value, names: &Names) -> Page {
    let mut page = Page::default();
    for name in CHECKS {
        check(&mut page, name, view::at(answer, &format!("/checks/{name}")), names);
    }
    inventory(&mut page, answer);
    page.bold(summary(answer));
    evidence(&mut page, view::at(answer, "/evidence"));
    tail(&mut page, view::at(answer, "/tail"), names);
    fork(&mut page, view::at(answer, "/fork"), names);
    ahead(&mut page, view::at(answer, "/ahead"));
    let problem = view::at(answer, "/firstProblem");
    if !problem.is_null() {
        let at = view::at(problem, "/seq").as_u64().map_or(String::new(), |seq| format!(" at seq {seq}"));
        let (code, detail) = (view::text(problem, "/code"), view::text(problem, "/detail"));
        page.mark(Mark::Failed, format!("{code}{at}: {detail}"));
        page.plain(format!("  why: throughline explain {code}"));
    }
    freshness(&mut page, view::at(answer, "/freshness"), names);
    page.plain("This says who signed what and in which order. It does not say that nothing came later.");
    page.plain(format!("session {}", view::text(answer, "/session")));
    page
}

/// Who was asked about the head. Known peers are named; strangers are a number of keys, and never counted with them.
fn freshness(page: &mut Page, freshness: &Value, names: &Names) {
    let Some(ms) = view::at(freshness, "/headSeenAgeMs").as_u64() else { return };
    let count = |what: &str| view::number(freshness, what);
    let (agree, asked) = (count("/peersAgree"), count("/peersAsked"));
    page.plain(format!("head seen {}; {agree} of {asked} known peers agree", format::ago(ms)));
    for silent in view::items(freshness, "/silent") {
        page.plain(format!("  {} did not answer", names.peer(silent)));
    }
    let strangers = count("/strangers/asked");
    if strangers > 0 {
        let keys = format::count(strangers, "key of strangers was", "keys of strangers were");
        let agree = count("/strangers/agree");
        page.plain(format!(
            "  {keys} asked too: {agree} told this head; keys cost nothing, so this says nothing"
        ));
    }
    let (strange, known): (Vec<&Value>, Vec<&Value>) =
        view::items(freshness, "/unshown").iter().partition(|claim| view::flag(claim, "/stranger"));
    for claim in known {
        let at = view::number(claim, "/head/seq");
        page.mark(Mark::Warning, format!("{} told of seq {at} and did not show it", names.peer(claim)));
    }
    if let Some(highest) = strange.iter().map(|claim| view::number(claim, "/head/seq")).max() {
        let keys = format::count(strange.len() as u64, "key", "keys");
        page.mark(
            Mark::Note,
            format!("{keys} of strangers told of heads up to seq {highest} and did not show them"),
        );
    }
    if count("/notAsked") > 0 {
        page.plain(format!("  {} more are known and were not asked", count("/notAsked")));
    }
}

fn check(page: &mut Page, name: &str, check: &Value, names: &Names) {
    let mark = match view::text(check, "/result") {
        "pass" => Mark::Done,
        "fail" => Mark::Failed,
        _ => Mark::Note,
    };
    let facts: Vec<String> = check
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != "result")
        .filter_map(|(key, value)| match value {
            Value::Number(number) => Some(format!("{number} {key}")),
            Value::String(text) => Some(format!("{key} {}", names.who(&format::short_cid(text)))),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        })
        .collect();
    let result = match view::text(check, "/result") {
        "" => "unchecked",
        result => result,
    };
    page.mark(mark, format!("{name:<10} {result}  {}", facts.join(", ")).trim_end().to_owned());
}

/// The verdict and how far it reaches. Never *complete*, never *latest*.
fn summary(answer: &Value) -> String {
    let verdict = view::text(answer, "/verdict").to_uppercase();
    let through = view::at(answer, "/validThrough/seq").as_u64();
    let anchored = view::at(answer, "/anchoredThrough/seq").as_u64();
    let reach = match (through, anchored) {
        (Some(through), Some(anchored)) => {
            format!(", valid through seq {through}, anchored through seq {anchored}")
        }
        (Some(through), None) => format!(", valid through seq {through}, not anchored"),
        (None, _) => String::new(),
    };
    format!("{verdict}{reach}")
}

fn tail(page: &mut Page, tail: &Value, names: &Names) {
    if tail.is_null() {
        return;
    }
    page.mark(
        Mark::Warning,
        format!(
            "cut tail ({}): seq {}..{} by {}",
            view::text(tail, "/kind"),
            view::number(tail, "/from/seq"),
            view::number(tail, "/to/seq"),
            names.who(view::text(tail, "/signer")),
        ),
    );
}

/// A time that is ahead says nothing about the verdict, and something about the signer's clock.
fn ahead(page: &mut Page, ahead: &Value) {
    if ahead.is_null() {
        return;
    }
    let (seq, by) = (view::number(ahead, "/seq"), clock::length(view::number(ahead, "/aheadMs")));
    let when = view::text(ahead, "/claimedTs");
    page.mark(
        Mark::Warning,
        format!("seq {seq} claims {when}: its signer's clock was {by} ahead of this machine's"),
    );
}

/// What a file of evidence shows, and what it does not.
fn evidence(page: &mut Page, evidence: &Value) {
    if evidence.is_null() {
        return;
    }
    let shows = view::text(evidence, "/shows");
    page.plain(format!("this file is evidence of {shows}, not the session: {}", view::text(evidence, "/id")));
    if shows == "revoked-tail" {
        page.plain(
            "it shows the revocation; an anchor that is not in the file may keep the entry all the same",
        );
    }
}

fn fork(page: &mut Page, fork: &Value, names: &Names) {
    if fork.is_null() {
        return;
    }
    page.mark(Mark::Failed, format!("two histories after seq {}", view::number(fork, "/at/seq")));
    for branch in view::items(fork, "/branches") {
        page.row([
            format!("    {}", format::short(view::text(branch, "/head"))),
            format!("through seq {}", view::number(branch, "/seq")),
            format!("by {}", names.who(view::text(branch, "/signer"))),
            view::text(branch, "/rank").to_owned(),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::page::Styles;
    use super::*;

    fn forked() -> Value {
        json!({
            "v": 1, "kind": "verify", "session": "s", "verdict": "forked",
            "checks": {"hash": {"result": "pass", "blobs": 71}, "chain": {"result": "fail"}},
            "validThrough": {"seq": 30}, "anchoredThrough": null,
            "fork": {"at": {"seq": 30}, "branches": [{"head": "a", "seq": 34, "signer": "x", "rank": "undecided"}]},
            "firstProblem": {"code": "EV_EQUIVOCATION", "seq": 31, "detail": "two entries follow"},
            "payloads": {"linked": 9},
        })
    }

    #[test]
    fn known_peers_and_strangers_are_never_one_number() {
        let claim = |alias: Option<&str>, seq: u64| json!({"peer": "k", "alias": alias, "stranger": alias.is_none(), "epoch": 0, "head": {"cid": "c", "seq": seq}});
        let mut report = forked();
        report["freshness"] = json!({
            "source": "peers", "headSeenAgeMs": 0, "peersAsked": 3, "peersAnswered": 2, "peersAgree": 1,
            "silent": [{"peer": "k", "alias": "laptop", "stranger": false}],
            "strangers": {"asked": 16, "answered": 16, "agree": 14},
            "unshown": [claim(Some("nuc"), 40), claim(None, 90), claim(None, 99)], "notAsked": 5,
        });
        let text = page(&report, &Names::default()).render(Styles::plain());
        for line in [
            "head seen just now; 1 of 3 known peers agree",
            "  laptop did not answer",
            "  16 keys of strangers were asked too: 14 told this head; keys cost nothing, so this says nothing",
            "! nuc told of seq 40 and did not show it",
            "~ 2 keys of strangers told of heads up to seq 99 and did not show them",
            "  5 more are known and were not asked",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} in\n{text}");
        }
    }

    #[test]
    fn the_report_names_the_verdict_and_both_branches() {
        let text = page(&forked(), &Names::default()).render(Styles::plain());
        for line in [
            "✓ hash       pass  71 blobs",
            "✗ chain      fail",
            "~ head       unchecked",
            "FORKED, valid through seq 30, not anchored",
            "    a  through seq 34  by x  undecided",
            "✗ EV_EQUIVOCATION at seq 31: two entries follow",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} in\n{text}");
        }
        assert_eq!(exit(&forked()), Exit::Forked);
    }

    #[test]
    fn what_was_asked_for_and_is_missing_is_a_loss_and_nothing_else_is() {
        let counts = |missing: u64, asked: bool| json!({"linked": missing + 2, "here": 1, "missing": missing, "withdrawn": 1, "asked": asked});
        let answer = |payloads, files| json!({"verdict": "valid", "session": "S", "payloads": payloads, "files": files});
        for (answer, expected) in [
            (answer(counts(0, true), counts(0, true)), Exit::Done),
            (answer(counts(3, false), counts(1, false)), Exit::Done),
            (answer(counts(0, true), counts(1, true)), Exit::Losses),
            (answer(counts(1, true), counts(1, false)), Exit::Losses),
            (
                json!({"verdict": "forked", "payloads": counts(1, true), "files": counts(0, true)}),
                Exit::Forked,
            ),
        ] {
            assert_eq!(exit(&answer), expected, "{answer}");
        }
        let text = page(&answer(counts(2, true), counts(1, true)), &Names::default()).render(Styles::plain());
        for line in [
            "  payloads   4 linked, 1 here, 2 missing, 1 withdrawn",
            "! done, with losses (exit 11): 2 payloads and 1 file missing",
            "  from anyone who has them: throughline fetch S --payloads all --from PEER",
        ] {
            assert!(text.lines().any(|found| found == line), "{line:?} in\n{text}");
        }
    }

    #[test]
    fn it_never_claims_more_than_is_known() {
        let text =
            page(&json!({"verdict": "valid"}), &Names::default()).render(Styles::plain()).to_lowercase();
        for word in ["latest", "complete", "up to date"] {
            assert!(!text.contains(word), "{word}");
        }
    }
}
