//! What `move` ends with: where the move stands, as a page, and what that means for a script. It decides nothing about the move.

use serde_json::Value;
use throughline_protocol::code::Code;
use throughline_protocol::id::Principal;

use crate::api::error::Problem;
use crate::cli::names::Names;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::{format, verdict, view};
use crate::outcome::{self, Exit};

/// The answer of the command: a move as the API shows it, with names for reading.
pub(super) fn report(answer: Value, names: &Names) -> Outcome {
    let mut page = Page::default();
    let (from, to) = (called(&answer, "/from/peer", names), called(&answer, "/to/peer", names));
    let session = format::short(view::text(&answer, "/session"));
    let epoch = view::number(&answer, "/to/epoch");
    let sent = format!(
        "{}, {}, {}, {} already there",
        format::count(view::number(&answer, "/sent/entries"), "entry", "entries"),
        format::count(view::number(&answer, "/sent/blobs"), "blob", "blobs"),
        format::bytes(view::number(&answer, "/sent/bytes")),
        view::number(&answer, "/sent/alreadyThere"),
    );
    match view::text(&answer, "/state") {
        "done" => {
            page.mark(Mark::Done, format!("moved  {}  epoch {epoch}  {sent}", ends(&answer, names)));
            for cut in view::items(&answer, "/cut") {
                let (seq, cid) = (view::number(cut, "/seq"), format::short(view::text(cut, "/cid")));
                page.mark(Mark::Warning, format!("cut    seq {seq} ({cid}): kept as evidence"));
            }
            if view::text(&answer, "/from/state") == "unheard" {
                let seq = view::number(&answer, "/base/seq");
                page.mark(
                    Mark::Note,
                    format!("seq {seq} is the newest entry that was taken over. {from} was not told: it learns of it from any peer"),
                );
            }
            let next = if from == "self" {
                format!("It is read here as before: throughline log {session}")
            } else {
                // A peer is named in full: a short principal names nobody.
                let named = view::text(&answer, "/from/peer");
                format!("{from} may still write other sessions: throughline revoke {named}")
            };
            verdict::inventory(&mut page, &answer);
            page.plain(format!("{to} holds {session}.  {next}"));
        }
        "waiting" => waiting(&mut page, &answer, names),
        state @ ("aborted" | "rolled-back") => taken_back(&mut page, &answer, state, names),
        "held" => {
            let holder = names.who(view::text(&answer, "/to/peer"));
            page.mark(
                Mark::Same,
                format!("{holder} holds {session} already, in epoch {epoch}: nothing was signed"),
            );
        }
        "planned" | "needs-grant" => unbegun(&mut page, &answer, names),
        state => page.plain(format!("{session}  {}  {state}  {sent}", ends(&answer, names))),
    }
    page.plain(format!("session {}", view::text(&answer, "/session")));
    let exit = exit(&answer);
    Outcome::done(answer, page).exit(exit)
}

/// A move that waits for somebody who is not heard, and how it goes on.
fn waiting(page: &mut Page, answer: &Value, names: &Names) {
    let (from, to) = (called(answer, "/from/peer", names), called(answer, "/to/peer", names));
    let session = format::short(view::text(answer, "/session"));
    if view::text(answer, "/phase") == "rollback" {
        page.mark(
                Mark::Note,
                format!(
                    "waiting: {from} does not answer, and may stand still for this move until it hears that it is off. \
                     Nothing is signed; {from} is still the holder."
                ),
            );
        page.plain(format!(
                "ask again: throughline move --resume {session}   give {from} up: throughline move --abort {session} \
                 --source offline"
            ));
    } else if view::at(answer, "/handoff").is_null() {
        let why = view::text(answer, "/error/detail");
        page.mark(Mark::Note, format!("waiting: {why}. Nothing is signed yet; {from} is still the holder."));
        page.plain(format!(
            "go on: throughline move --resume {session}   roll back: throughline move --abort {session}"
        ));
    } else {
        page.mark(
            Mark::Note,
            format!("sent, no reply from {to}. {from} stays frozen: waiting costs time, never correctness."),
        );
        page.plain(format!(
            "it is asked which epoch it holds, and the move ends: throughline move --resume {session}"
        ));
    }
}

/// Ctrl-C ended the command, not the move, which `goes_on` as these words say.
pub(super) fn left_open(answer: &Value, goes_on: &str) -> Problem {
    let session = view::text(answer, "/session");
    let resume = format!("throughline move --resume {session}");
    let (detail, hint) = if view::at(answer, "/handoff").is_null() {
        (
            format!("the move {goes_on}, and the session stays frozen until the move ends or is taken back"),
            format!("{resume}, or to take it back: throughline move --abort {session}"),
        )
    } else {
        (format!("the handoff is signed, and the move {goes_on}: there is no way back"), resume)
    };
    Problem::new(Code::Interrupted, detail)
        .with("session", session)
        .with("move", answer["move"].clone())
        .hint(hint)
}

/// Both servers, each with its name and enough of its key.
fn ends(answer: &Value, names: &Names) -> String {
    let end = |pointer| names.who(view::text(answer, pointer));
    format!("{} -> {}", end("/from/peer"), end("/to/peer"))
}

/// A server within a sentence: its name alone, or the key of one that has none.
fn called(answer: &Value, pointer: &str, names: &Names) -> String {
    let peer = view::text(answer, pointer);
    if peer.parse::<Principal>().is_ok() { names.who(peer) } else { peer.to_owned() }
}

/// A move that was taken back: how the server that was to be left stands, and what went wrong.
fn taken_back(page: &mut Page, answer: &Value, state: &str, names: &Names) {
    let from = called(answer, "/from/peer", names);
    page.mark(Mark::Note, format!("{state}: {}", after_taking_back(answer, &from)));
    let (code, detail) = (view::text(answer, "/error/code"), view::text(answer, "/error/detail"));
    if let Some(losses) = verdict::losses(answer) {
        let (session, to) = (view::text(answer, "/session"), view::text(answer, "/to/peer"));
        verdict::links(page, answer);
        page.plain(format!(
            "nobody gave {to} {losses}: throughline fetch {session} --payloads all --from PEER, or throughline move {session} \
             --to {to} --without-files"
        ));
    }
    if matches!(view::text(answer, "/from/state"), "unheard" | "frozen") {
        let (session, to) = (view::text(answer, "/session"), view::text(answer, "/to/peer"));
        // What failed without it fails the same way as long as nothing else changed.
        let when = if view::text(answer, "/from/state") == "unheard" && !code.is_empty() {
            "once what is said below is mended"
        } else {
            "hand over without it"
        };
        page.plain(format!("{when}: throughline move {session} --to {to} --source offline"));
    }
    if !code.is_empty() {
        page.mark(Mark::Failed, format!("{code}: {detail}"));
    }
}

/// A move that was only tried: what it would do, or what it lacks and the command that helps.
fn unbegun(page: &mut Page, answer: &Value, names: &Names) {
    if view::text(answer, "/state") == "needs-grant" {
        page.mark(Mark::Warning, view::text(answer, "/error/detail"));
        page.plain(format!("fix: {}", view::text(answer, "/error/hint")));
        return;
    }
    let session = format::short(view::text(answer, "/session"));
    let (epoch, seq) = (view::number(answer, "/to/epoch"), view::number(answer, "/base/seq"));
    let ends = ends(answer, names);
    page.plain(format!("{session}  {ends}  would open epoch {epoch} after seq {seq}; nothing was done"));
}

/// How the server that was to be left stands after a move was taken back.
fn after_taking_back(answer: &Value, from: &str) -> String {
    match view::text(answer, "/from/state") {
        "unheard" => format!(
            "{from} did not hear of it. If it stands still for this move it appends nothing until the session is handed over"
        ),
        "frozen" => format!(
            "{from} stands still for another move, and appends nothing until the session is handed over"
        ),
        "retired" => format!("the session was handed over meanwhile, and {from} knows that"),
        "superseded" => {
            "the handoff was signed, and one of a later epoch counts: the session is where that one gave it"
                .to_owned()
        }
        _ => format!("{from} goes on as if nothing had happened"),
    }
}

/// What the state of a move means for a script.
fn exit(answer: &Value) -> Exit {
    match view::text(answer, "/state") {
        "done" => verdict::with_losses(Exit::Done, answer),
        "held" | "planned" | "running" | "needs-confirmation" | "needs-handoff" => Exit::Done,
        "waiting" => Exit::Unreachable,
        "aborted" if view::at(answer, "/supersededBy").is_null() => Exit::Done,
        _ => {
            let code = view::text(answer, "/error/code").parse::<Code>();
            code.map_or(Exit::Conflict, |code| outcome::of(code).0)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::page::Styles;

    #[test]
    fn a_lost_reply_is_no_failure_and_no_success() {
        for (answer, expected) in [
            (json!({"state": "done"}), Exit::Done),
            (json!({"state": "done", "files": {"missing": 1, "asked": true}}), Exit::Losses),
            (json!({"state": "held"}), Exit::Done),
            (json!({"state": "waiting"}), Exit::Unreachable),
            (json!({"state": "rolled-back", "error": {"code": "E_TIMEOUT"}}), Exit::Unreachable),
            (json!({"state": "rolled-back", "error": {"code": "E_REFUSED"}}), Exit::Refused),
            (json!({"state": "rolled-back"}), Exit::Conflict),
            (json!({"state": "aborted"}), Exit::Done),
            (json!({"state": "aborted", "supersededBy": {"epoch": 2}}), Exit::Conflict),
            (json!({"state": "elsewhere"}), Exit::Conflict),
        ] {
            assert_eq!(exit(&answer), expected, "{answer}");
        }
    }

    #[test]
    fn a_move_off_this_node_does_not_advise_to_revoke_it() {
        let mut answer =
            json!({"state": "done", "session": "S", "from": {"peer": "self"}, "to": {"peer": "server-b"}});
        let shown = report(answer.clone(), &Names::default()).page.render(Styles::plain());
        assert!(shown.contains("throughline log S") && !shown.contains("revoke"), "{shown}");
        answer["from"]["peer"] = "server-a".into();
        let shown = report(answer, &Names::default()).page.render(Styles::plain());
        assert!(shown.contains("throughline revoke server-a"), "{shown}");
    }

    #[test]
    fn ctrl_c_leaves_a_move_behind_and_says_how_it_ends() {
        let mut answer = json!({"state": "running", "session": "S", "move": "M", "handoff": null});
        let told = left_open(&answer, "goes on in the node");
        assert_eq!((told.code(), told.fact("move")), (Code::Interrupted, Some(&"M".into())));
        assert!(told.detail().contains("goes on in the node, and the session stays frozen"), "{told}");
        let hint = told.fact("hint").and_then(Value::as_str).unwrap_or_default();
        assert!(hint.contains("--resume S") && hint.contains("--abort S"), "{hint}");
        // Once the handoff is signed nothing takes it back.
        answer["handoff"] = json!({"seq": 4});
        let told = left_open(&answer, "stands as it is");
        let hint = told.fact("hint").and_then(Value::as_str).unwrap_or_default();
        assert!(hint.contains("--resume S") && !hint.contains("--abort"), "{hint}");
    }

    #[test]
    fn a_move_to_the_holder_says_so_and_advises_to_revoke_nobody() {
        let answer = json!({
            "state": "held", "session": "S", "from": {"peer": "b"}, "to": {"peer": "b", "epoch": 2},
        });
        let shown = report(answer, &Names::default()).page.render(Styles::plain());
        assert!(shown.starts_with("= b holds S already, in epoch 2"), "{shown}");
        assert!(!shown.contains("revoke"), "{shown}");
    }

    #[test]
    fn a_server_that_was_left_is_said_to_know_nothing_of_it() {
        let answer = json!({
            "state": "done", "session": "S", "from": {"peer": "a", "state": "unheard"}, "to": {"peer": "b"}, "base": {"seq": 7},
        });
        let shown = report(answer, &Names::default()).page.render(Styles::plain());
        assert!(shown.contains("seq 7 is the newest entry that was taken over. a was not told"), "{shown}");
    }

    #[test]
    fn a_dry_run_ends_with_what_would_be_or_what_helps() {
        let mut answer = json!({
            "state": "planned", "session": "S", "from": {"peer": "a"}, "to": {"peer": "b", "epoch": 1}, "base": {"seq": 7},
        });
        let text = |answer: &Value| report(answer.clone(), &Names::default()).page.render(Styles::plain());
        let shown = text(&answer);
        assert!(
            shown.contains("a -> b  would open epoch 1 after seq 7") && !shown.contains("0 B"),
            "{shown}"
        );
        answer["state"] = "needs-grant".into();
        answer["error"] =
            json!({"code": "E_CAP_MISSING", "detail": "b may not", "hint": "throughline grant b"});
        let shown = text(&answer);
        assert!(shown.contains("b may not") && shown.contains("fix: throughline grant b"), "{shown}");
    }

    #[test]
    fn a_move_that_waits_for_a_dead_server_says_how_it_ends() {
        let mut answer =
            json!({"state": "waiting", "phase": "rollback", "session": "S", "from": {"peer": "server-a"}});
        let text = |answer: &Value| report(answer.clone(), &Names::default()).page.render(Styles::plain());
        let shown = text(&answer);
        assert!(shown.contains("throughline move --abort S --source offline"), "{shown}");
        answer["state"] = "aborted".into();
        answer["from"]["state"] = "unheard".into();
        answer["to"]["peer"] = "server-b".into();
        let shown = text(&answer);
        assert!(shown.contains("throughline move S --to server-b --source offline"), "{shown}");
        assert!(!shown.contains("as if nothing had happened"), "{shown}");
        answer["from"]["state"] = "active".into();
        assert!(text(&answer).contains("as if nothing had happened"));
        // Somebody else moved it meanwhile: then nothing goes on there.
        answer["from"]["state"] = "retired".into();
        let shown = text(&answer);
        assert!(shown.contains("handed over meanwhile, and server-a knows that"), "{shown}");
    }
}
