//! `status`: who holds what and who has which head. It never says *latest*: it says through which seq, seen when.

use clap::Args;
use serde_json::Value;

use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::names::Names;
use crate::cli::output::{Loudness, Outcome};
use crate::cli::page::{Mark, Page};
use crate::cli::{format, owner, resolve, view};

/// Sessions shown unless all are asked for.
const SHOWN: usize = 20;

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Only this session
    #[arg(value_name = "S")]
    pub(crate) session: Option<String>,
    /// Every session, not only the first twenty
    #[arg(long, conflicts_with = "session")]
    pub(crate) all: bool,
    /// Only sessions with a problem
    #[arg(long, conflicts_with = "session")]
    pub(crate) problems: bool,
}

/// Prints the state of the node and of its sessions.
pub(crate) fn run(ctx: &Context, args: &StatusArgs) -> Answer<Outcome> {
    let api = ctx.api()?;
    let session = args.session.as_deref().map(|text| resolve::session(&api, text)).transpose()?;
    let session = session.map(|session| session.to_string());
    let mut status = api.get(&view::path("/v1/status", &[("session", session.as_deref())]))?;
    if api.is_in_process() {
        status["node"]["state"] = "stopped".into();
    }
    if args.problems
        && let Some(sessions) = status["sessions"].as_array_mut()
    {
        sessions.retain(has_problem);
    }
    let names = Names::of(ctx, &api).beside(&status);
    // What only the owner can sign is of no use here without saying where.
    let mut page = page(ctx, args, &status, &names);
    if view::items(&status, "/sessions").iter().any(waits_for_owner)
        && let Some(elsewhere) = owner::elsewhere(ctx, &api, &names)
    {
        page.mark(
            Mark::Note,
            format!("the owner signs grants and moves, which can't be done here: run them {elsewhere}"),
        );
    }
    Ok(Outcome::done(status, page))
}

/// Whether something is wrong with a session that only its owner can help with.
fn waits_for_owner(session: &Value) -> bool {
    view::items(session, "/problems").iter().any(|problem| view::text(problem, "/by") == "owner")
}

fn has_problem(session: &Value) -> bool {
    !matches!(view::text(session, "/verdict"), "valid" | "sealed")
        || !view::items(session, "/problems").is_empty()
}

/// What other devices of the owner did. Somebody who stole one does it as well.
fn devices(page: &mut Page, status: &Value, names: &Names) {
    for device in view::items(status, "/devices") {
        let acts = view::items(device, "/acts").iter().map(|act| {
            let (count, last) = (view::number(act, "/count"), view::text(act, "/lastAt"));
            format!(
                "{} {count} (last {last}, {})",
                view::text(act, "/act"),
                format::short(view::text(act, "/session"))
            )
        });
        let acts = acts.collect::<Vec<_>>().join(", ");
        page.plain(format!("device {}: {acts}", names.who(view::text(device, "/device"))));
    }
    if view::flag(status, "/devicesCut") {
        page.plain("  older acts of devices are not counted: throughline log S tells of each session");
    }
}

fn page(ctx: &Context, args: &StatusArgs, status: &Value, names: &Names) -> Page {
    let mut page = Page::default();
    let node = view::at(status, "/node");
    page.plain(format!(
        "node {}  {}, store {}, {}",
        format::short(view::text(node, "/principal")),
        view::text(node, "/state"),
        view::text(node, "/store"),
        format::count(view::number(node, "/peers"), "peer", "peers"),
    ));
    for item in view::items(status, "/health") {
        page.mark(
            Mark::Warning,
            format!("{}   fix: {}", view::text(item, "/message"), view::text(item, "/fix")),
        );
    }
    devices(&mut page, status, names);
    for cut in view::items(status, "/cut") {
        page.mark(Mark::Note, cut_line(cut, names));
    }
    let totals = view::at(status, "/totals");
    let (forked, cut) = (view::number(totals, "/forked"), view::number(totals, "/cutTail"));
    if forked + cut > 0 && args.session.is_none() {
        page.mark(
            Mark::Warning,
            format!("{forked} forked or frozen, {cut} with a cut tail: throughline fork S"),
        );
    }
    let sessions = view::items(status, "/sessions");
    // What somebody has to look at comes first; the others keep their order.
    let mut shown: Vec<&Value> = sessions.iter().collect();
    shown.sort_by_key(|session| !has_problem(session));
    let limit = if args.all || args.problems { usize::MAX } else { SHOWN };
    for session in shown.into_iter().take(limit) {
        page.row(row(session, names));
        if args.session.is_none() {
            problems(&mut page, session);
            replicas(&mut page, session, names, ctx.out().loudness());
        }
    }
    if sessions.len() > limit {
        page.plain(format!("… and {} more (--all)", sessions.len() - limit));
    }
    if let ([only], Some(_)) = (sessions, &args.session) {
        details(ctx, &mut page, only, names);
    }
    page
}

/// What was left out of a list, and when.
fn cut_line(cut: &Value, names: &Names) -> String {
    let left_out = view::number(cut, "/leftOut");
    let named: Vec<String> =
        view::items(cut, "/names").iter().filter_map(Value::as_str).map(|name| names.who(name)).collect();
    let more = left_out.saturating_sub(named.len() as u64);
    let others = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "cut {} ({} since the start): {}: {}{others}",
        format::ago(view::number(cut, "/lastAgeMs")),
        format::count(view::number(cut, "/times"), "time", "times"),
        view::text(cut, "/message"),
        named.join(", "),
    )
}

/// Who holds a session, in a word.
pub(crate) fn holder(session: &Value, names: &Names) -> String {
    let holder = view::at(session, "/holder");
    if holder.is_null() {
        "nobody".to_owned()
    } else if view::flag(holder, "/self") {
        "here".to_owned()
    } else {
        names.who(view::text(holder, "/principal"))
    }
}

/// One session as a row: id, head, holder, verdict, title.
pub(crate) fn row(session: &Value, names: &Names) -> [String; 5] {
    [
        format::short(view::text(session, "/session")),
        reach(session),
        format!("holder {}", holder(session, names)),
        view::text(session, "/verdict").to_owned(),
        view::text(session, "/title").to_owned(),
    ]
}

/// The head, and how many entries stand on it that the holder has not signed upon yet: a copy's head counts both.
fn reach(session: &Value) -> String {
    let head = view::number(session, "/head/seq");
    match view::number(session, "/pending") {
        0 => format!("seq {head}"),
        pending => format!("seq {head} +{pending} pending"),
    }
}

fn details(ctx: &Context, page: &mut Page, session: &Value, names: &Names) {
    let anchored = view::at(session, "/anchoredThrough");
    page.plain(format!(
        "epoch {}, {}, class {}, anchored {}",
        view::number(session, "/epoch"),
        view::text(session, "/state"),
        view::text(session, "/class"),
        anchored.as_u64().map_or("nowhere yet".to_owned(), |seq| format!("through seq {seq}")),
    ));
    replicas(page, session, names, ctx.out().loudness());
    problems(page, session);
    page.plain(format!("session {}", view::text(session, "/session")));
}

/// What is wrong with a session, each with the command that goes on.
fn problems(page: &mut Page, session: &Value) {
    for problem in view::items(session, "/problems") {
        let shown = match problem.as_str() {
            Some(code) => code.to_owned(),
            None => {
                let (code, message) = (view::text(problem, "/code"), view::text(problem, "/message"));
                format!("{code}: {message}   fix: {}", view::text(problem, "/fix"))
            }
        };
        page.mark(Mark::Warning, shown);
    }
}

/// Which head each peer was last seen with: a row each, below the session's own.
fn replicas(page: &mut Page, session: &Value, names: &Names, loudness: Loudness) {
    for replica in view::items(session, "/replicas") {
        let age = view::number(replica, "/seenAgeMs");
        let seen = if loudness == Loudness::Verbose {
            format!("{} ({age} ms)", format::ago(age))
        } else {
            format::ago(age)
        };
        page.row([
            format!("  {}", names.peer(replica)),
            format!("seq {}", view::number(replica, "/head/seq")),
            format!("epoch {}", view::number(replica, "/epoch")),
            view::text(replica, "/relation").to_owned(),
            format!("seen {seen}"),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::page::Styles;

    #[test]
    fn who_has_to_act_is_said_and_not_read_from_the_command() {
        let session = |by: &str, fix: &str| json!({"problems": [{"code": "E_X", "by": by, "fix": fix}]});
        assert!(waits_for_owner(&session("owner", "throughline some-act S")));
        assert!(!waits_for_owner(&session("operator", "throughline move S --to self")));
        assert!(!waits_for_owner(&json!({"problems": []})));
    }

    #[test]
    fn what_was_cut_is_said_with_who_and_when() {
        let cut = json!({
            "what": "providers", "message": "peers were not asked", "times": 2, "leftOut": 10,
            "names": ["nuc", "laptop"], "lastAgeMs": 5_000,
        });
        let shown = cut_line(&cut, &Names::default());
        assert!(
            shown.ends_with("(2 times since the start): peers were not asked: nuc, laptop and 8 more"),
            "{shown}"
        );
    }

    #[test]
    fn who_has_which_head_stands_below_the_session() {
        let session = json!({
            "session": "S", "head": {"seq": 7}, "holder": {"self": true}, "verdict": "valid", "title": "Fix it",
            "replicas": [{"peer": "server-b", "head": {"seq": 5}, "epoch": 0, "relation": "behind", "seenAgeMs": 4_000}],
        });
        let shown = |loudness| {
            let mut page = Page::default();
            page.row(row(&session, &Names::default()));
            replicas(&mut page, &session, &Names::default(), loudness);
            page.render(Styles::plain())
        };
        let text = shown(Loudness::Normal);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("S "), "{text}");
        for word in ["  server-b", "seq 5", "epoch 0", "behind", "seen"] {
            assert!(lines[1].contains(word), "{text}");
        }
        let pending = json!({"head": {"seq": 7}, "pending": 1});
        assert_eq!((reach(&session), reach(&pending)), ("seq 7".to_owned(), "seq 7 +1 pending".to_owned()));
        assert!(!text.contains("4000 ms") && shown(Loudness::Verbose).contains("(4000 ms)"), "{text}");
    }
}
