//! `fork`: both histories, the evidence that shows them to others, and the way out.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use axum::http::Method;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::evidence::EXHIBIT_BYTES_MAX;
use throughline_protocol::id::{Cid, SessionId};

use super::export;
use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::names::Names;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner};
use crate::cli::page::{Mark, Page};
use crate::cli::{format, refusal, resolve, upload, verdict, view};
use crate::outcome::Exit;

/// Characters of a branch's CID that name it, at least.
const BRANCH_CHARS_MIN: usize = 4;

/// Arguments of `fork`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ForkArgs {
    /// The session
    #[arg(value_name = "S", required = true)]
    pub(crate) session: Option<String>,
    /// Write the evidence that matters most to this file too
    #[arg(long, value_name = "FILE")]
    pub(crate) evidence: Option<PathBuf>,
    /// Go on with this branch: the owner hands the session over on its end
    #[arg(long, value_name = "BRANCH", requires = "to")]
    pub(crate) keep: Option<String>,
    /// Who holds the session from then on
    #[arg(long, value_name = "P", requires = "keep")]
    pub(crate) to: Option<String>,
    /// Enter the words of a tail that a handoff cut off again, on the head that counts
    #[arg(long, conflicts_with_all = ["keep", "evidence"])]
    pub(crate) bring_back: bool,
    /// Show what would come back, and sign nothing
    #[arg(long, requires = "bring_back")]
    pub(crate) dry_run: bool,
    /// How the owner key is opened
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
    /// Evidence as a file
    #[command(subcommand)]
    pub(crate) command: Option<ForkCommand>,
}

/// Evidence as a file.
#[derive(Debug, Subcommand)]
pub(crate) enum ForkCommand {
    /// Write a file of evidence that anybody can verify alone
    Export(ExportArgs),
    /// Check a file of evidence, keep it, and judge what is held again
    Import(ImportArgs),
}

/// Arguments of `fork export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The session
    #[arg(value_name = "S")]
    pub(crate) session: String,
    /// The CAR file to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Which one, as `fork S` lists them; without it the one that matters most
    #[arg(long, value_name = "CID")]
    pub(crate) id: Option<Cid>,
}

/// Arguments of `fork import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Check it and keep nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Shows, writes, takes or settles; the exit code is the verdict's.
pub(crate) fn run(ctx: &Context, args: &ForkArgs) -> Answer<Outcome> {
    match (&args.command, &args.session) {
        (Some(ForkCommand::Export(args)), _) => write(ctx, args),
        (Some(ForkCommand::Import(args)), _) => import(ctx, args),
        (None, Some(session)) => show(ctx, args, session),
        (None, None) => Err(Problem::new(Code::Usage, "expected a session").hint("throughline fork S")),
    }
}

fn show(ctx: &Context, args: &ForkArgs, session: &str) -> Answer<Outcome> {
    if let (Some(branch), Some(to)) = (&args.keep, &args.to) {
        return keep(ctx, args, session, branch, to);
    }
    if args.bring_back {
        return bring_back(ctx, session, args.dry_run);
    }
    let api = ctx.api()?;
    let session = resolve::session(&api, session)?;
    let mut answer = api.get(&format!("/v1/sessions/{session}/fork"))?;
    let mut page = page(&answer, &Names::of(ctx, &api).beside(&answer));
    if let Some(file) = &args.evidence {
        let item = chosen(&answer, None, session)?;
        save(&api, session, item, file)?;
        page.mark(Mark::Done, format!("{}  check it alone: throughline verify {0}", file.display()));
        answer["written"] = file.display().to_string().into();
    }
    let exit = verdict::exit(&answer);
    Ok(Outcome::done(answer, page).exit(exit))
}

/// The owner signs a handoff on the end of a branch. The other branches stay as evidence.
fn keep(ctx: &Context, args: &ForkArgs, session: &str, branch: &str, to: &str) -> Answer<Outcome> {
    // The handoff is told to those who wait for it.
    let api = ctx.api_with_network()?;
    owner::file(ctx)?;
    let session = resolve::session(&api, session)?;
    let shown = api.get(&format!("/v1/sessions/{session}/fork"))?;
    let branch = branch_named(&shown, branch)?;
    let peer = resolve::peer(&api, to)?;
    let grant = grant_of(&api, session, &peer.principal.to_string(), to)?;
    let mut preview = page(&shown, &Names::of(ctx, &api).beside(&shown));
    let (seq, name) = (view::number(branch, "/seq"), format::short(view::text(branch, "/head")));
    preview.plain(format!(
        "{} goes on from {name}, seq {seq}; the other branches stay as evidence",
        peer.shown()
    ));
    ctx.out().aside(&preview);
    if !ctx.confirm("Sign the handoff?")? {
        return Err(Problem::new(Code::Interrupted, "not settled: the answer was no; nothing was signed"));
    }
    let mut facts = branch["base"].clone();
    facts["holder"] = peer.principal.to_string().into();
    facts["grant"] = grant.into();
    let handoff = Owner::unlock(ctx, args.owner)?.handoff(&facts)?;
    let taken = api.post_blob(&format!("/v1/sessions/{session}/entries"), &owner::append_frame(&handoff))?;
    let mut page = Page::default();
    let epoch = view::number(&facts, "/epoch");
    page.mark(Mark::Done, format!("{} holds the session in epoch {epoch}, on {name}", peer.shown()));
    page.plain(format!("session {session}"));
    let answer = json!({
        "v": 1, "kind": "fork-settled", "session": session.to_string(), "kept": branch["head"],
        "handoff": taken["entries"][0], "holder": peer.principal.to_string(), "epoch": epoch,
        "verdict": taken["verdict"],
    });
    Ok(Outcome::done(answer, page))
}

/// The words of a cut tail as new entries; what can't come back is told, with exit code 11.
fn bring_back(ctx: &Context, session: &str, dry_run: bool) -> Answer<Outcome> {
    // The holder may be another node.
    let api = ctx.api_with_network()?;
    let session = resolve::session(&api, session)?;
    let path = format!("/v1/sessions/{session}/fork/return");
    let path = view::path(&path, &[("dryRun", dry_run.then_some("1"))]);
    let answer = api.ask(Call::post(&path, &json!({})))?;
    let mut page = Page::default();
    let entries = view::items(&answer, "/entries");
    for item in entries {
        let (kind, was) = (view::text(item, "/type"), view::number(item, "/ofSeq"));
        match view::at(item, "/entry/seq").as_u64() {
            Some(seq) => page.mark(Mark::Done, format!("seq {seq}  {kind}, which was cut at seq {was}")),
            None => page.mark(Mark::Note, format!("{kind}, cut at seq {was}, would come back")),
        };
    }
    for item in view::items(&answer, "/left") {
        let (was, why) = (view::number(item, "/ofSeq"), view::text(item, "/why"));
        page.mark(Mark::Note, format!("cut at seq {was}, stays where it is: {why}"));
    }
    let (before, pending) = (view::number(&answer, "/returnedBefore"), view::number(&answer, "/pending"));
    if before > 0 {
        page.mark(Mark::Same, format!("{} came back before", format::count(before, "entry", "entries")));
    }
    if entries.is_empty() && before == 0 {
        page.plain("nothing of this session was cut off by a handoff");
    }
    if pending > 0 && !dry_run {
        page.hint(format!(
            "{} to come back, the session moved meanwhile: throughline fork {} --bring-back",
            format::count(pending, "entry is", "entries are"),
            session.short()
        ));
    }
    page.plain(format!("session {session}"));
    let lost = !view::items(&answer, "/left").is_empty() || (pending > 0 && !dry_run);
    let outcome = Outcome::done(answer, page);
    Ok(if lost { outcome.exit(Exit::Losses) } else { outcome })
}

/// The branch whose end, or the beginning of it after `bafyrei`, is given.
fn branch_named<'a>(shown: &'a Value, name: &str) -> Answer<&'a Value> {
    let wanted = name.strip_prefix("bafyrei").unwrap_or(name);
    let fits = |branch: &&Value| {
        let head = view::text(branch, "/head");
        wanted.len() >= BRANCH_CHARS_MIN
            && head.strip_prefix("bafyrei").is_some_and(|head| head.starts_with(wanted))
    };
    let undecided: Vec<&Value> = view::items(shown, "/branches")
        .iter()
        .filter(|branch| view::text(branch, "/rank") == "undecided")
        .collect();
    if undecided.is_empty() {
        let detail = "expected a session in dispute; nothing is to be decided here";
        return Err(Problem::new(Code::Usage, detail));
    }
    match undecided.into_iter().filter(fits).collect::<Vec<_>>()[..] {
        [branch] => Ok(branch),
        _ => {
            let heads: Vec<&str> =
                view::items(shown, "/branches").iter().map(|branch| view::text(branch, "/head")).collect();
            let detail = format!("expected one of the branches {}, got {name}", heads.join(", "));
            Err(Problem::new(Code::Usage, detail))
        }
    }
}

/// A live writer grant of the next holder, by the session's owner and for this session.
fn grant_of(api: &Api<'_>, session: SessionId, principal: &str, name: &str) -> Answer<String> {
    let id = session.to_string();
    let query = [("delegate", Some(principal)), ("session", Some(id.as_str())), ("state", Some("active"))];
    let granted = api.get(&view::path("/v1/capabilities", &query))?;
    let is_writer = |item: &&Value| view::text(item, "/role") == "agent-session-writer";
    let found = view::items(&granted, "/items").iter().find(is_writer);
    found.map(|item| view::text(item, "/cid").to_owned()).ok_or_else(|| {
        Problem::new(
            Code::CapMissing,
            format!("expected a writer grant of {name} that covers {}, found none", session.short()),
        )
        .hint(format!("throughline grant {name}"))
    })
}

fn write(ctx: &Context, args: &ExportArgs) -> Answer<Outcome> {
    let api = ctx.api()?;
    let session = resolve::session(&api, &args.session)?;
    let answer = api.get(&format!("/v1/sessions/{session}/evidence"))?;
    let item = chosen(&answer, args.id, session)?;
    save(&api, session, item, &args.output)?;
    let path = args.output.display().to_string();
    let mut page = Page::default();
    page.mark(Mark::Done, format!("{path}  {}, {}", view::text(item, "/shows"), size_of(item)));
    page.hint(format!("anybody can check it alone: throughline verify {path}"));
    let mut written = item.clone();
    written["path"] = path.into();
    Ok(Outcome::done(written, page))
}

/// The piece of evidence that is named, else the first: kinds stand in the order of how much they stop.
fn chosen(answer: &Value, id: Option<Cid>, session: SessionId) -> Answer<&Value> {
    let items = match view::items(answer, "/items") {
        [] => view::items(answer, "/evidence"),
        items => items,
    };
    let found = items.iter().find(|item| id.is_none_or(|id| view::text(item, "/id") == id.to_string()));
    found.ok_or_else(|| {
        let detail = match id {
            None => format!("no evidence is held of {}", session.short()),
            Some(id) => format!("no evidence {id} of {}", session.short()),
        };
        Problem::new(Code::NotFoundYet, detail).hint(format!("throughline fork {}", session.short()))
    })
}

/// Writes the file in one step: it is whole or not there.
fn save(api: &Api<'_>, session: SessionId, item: &Value, path: &Path) -> Answer<()> {
    let id = view::text(item, "/id");
    let from = format!("/v1/sessions/{session}/evidence/{id}");
    let bytes = api.bytes(Call::get(&from).header("accept", upload::CAR))?;
    let mut file = export::beside(path)?;
    let written = file
        .write_all(&bytes)
        .and_then(|()| file.as_file().sync_all())
        .and_then(|()| file.persist(path).map_err(|error| error.error).map(|_| ()));
    written.map_err(|error| refusal::write(path, "-o", error))
}

fn import(ctx: &Context, args: &ImportArgs) -> Answer<Outcome> {
    let api = ctx.api()?;
    let failed = |error: std::io::Error| refusal::input(&args.file, error);
    let size = std::fs::metadata(&args.file).map_err(failed)?.len();
    if size > EXHIBIT_BYTES_MAX as u64 {
        let detail = format!("expected at most {EXHIBIT_BYTES_MAX} bytes of evidence, got {size}");
        return Err(Problem::new(Code::TooBig, detail));
    }
    let bytes = std::fs::read(&args.file).map_err(failed)?;
    let path = view::path("/v1/evidence", &[("dryRun", args.dry_run.then_some("1"))]);
    let answer = api.ask(Call::body(Method::POST, &path, upload::CAR, bytes))?;
    let mut page = Page::default();
    let mark = match (args.dry_run, view::flag(&answer, "/unchanged")) {
        (true, _) => Mark::Note,
        (false, true) => Mark::Same,
        (false, false) => Mark::Done,
    };
    page.mark(mark, line(&answer, &Names::of(ctx, &api).beside(&answer)));
    page.plain(became(&answer));
    if let Some(detail) = view::at(&answer, "/waits/detail").as_str() {
        page.mark(Mark::Note, format!("its entries wait: {detail}"));
    }
    page.plain(format!("session {}", view::text(&answer, "/session")));
    Ok(Outcome::done(answer, page))
}

/// What a file of evidence changed.
fn became(answer: &Value) -> String {
    let (from, to) = (view::text(answer, "/from"), view::text(answer, "/verdict"));
    match (from, to) {
        _ if view::flag(answer, "/void") => {
            format!("nothing that is held is cut as it says, so it is not kept; verdict {to}")
        }
        ("", _) if view::flag(answer, "/stored") => {
            "the session is not held here; its evidence is kept until it comes".to_owned()
        }
        ("", _) => "the session is not held here; nothing was kept".to_owned(),
        (from, to) if from == to => format!("verdict {to}, as before"),
        (from, to) => format!("verdict {from} before, {to} now"),
    }
}

fn page(answer: &Value, names: &Names) -> Page {
    let mut page = Page::default();
    let short = format::short(view::text(answer, "/session"));
    let branches = view::items(answer, "/branches");
    let verdict = view::text(answer, "/verdict");
    if branches.is_empty() {
        page.plain(format!("{short}  {verdict}: one history is known"));
    } else {
        let at = view::number(answer, "/at/seq");
        page.bold(format!("{short}  {verdict}: {} histories after seq {at}", branches.len()));
    }
    for branch in branches {
        let from = view::number(branch, "/first/seq");
        page.row([
            format!("  {}", format::short(view::text(branch, "/head"))),
            format!("seq {from}..{}", view::number(branch, "/seq")),
            format!("by {}", names.who(view::text(branch, "/signer"))),
            view::text(branch, "/claimedTs").to_owned(),
            view::text(branch, "/rank").to_owned(),
        ]);
        page.plain(format!("    {}", words(branch)));
    }
    for item in view::items(answer, "/evidence") {
        page.mark(Mark::Note, line(item, names));
        if let Some(path) = view::at(item, "/path").as_str() {
            page.plain(format!("    {path}"));
        }
    }
    if let Some(fix) = view::at(answer, "/fix").as_str() {
        page.plain(format!("neither is accepted until the owner decides: {fix}"));
        page.plain("or, from where they part: throughline move S --to PEER --source offline");
    }
    page.plain(format!("session {}", view::text(answer, "/session")));
    page
}

/// What a branch says from the first word on that the others do not say.
fn words(branch: &Value) -> String {
    let more = if view::flag(branch, "/differs/more") { " …" } else { "" };
    match (view::number(branch, "/differs/sameWords"), view::text(branch, "/differs/text")) {
        (_, "") => "no other words are held".to_owned(),
        (0, text) => format!("{text:?}{more}"),
        (same, text) => {
            format!("… after {} that all say: {text:?}{more}", format::count(same, "word", "words"))
        }
    }
}

/// A piece of evidence in a line.
fn line(item: &Value, names: &Names) -> String {
    let seqs: Vec<String> = view::items(item, "/entries")
        .iter()
        .map(|entry| format!("{}", view::number(entry, "/seq")))
        .collect();
    format!(
        "evidence of {} by {} in epoch {}, seq {}: {}, {}",
        view::text(item, "/shows"),
        names.who(view::text(item, "/signer")),
        view::number(item, "/epoch"),
        seqs.join(" and "),
        size_of(item),
        view::text(item, "/id"),
    )
}

fn size_of(item: &Value) -> String {
    format::bytes(view::number(item, "/sizeBytes"))
}

#[cfg(test)]
mod tests {
    use super::super::super::page::Styles;
    use super::*;

    fn forked() -> Value {
        json!({
            "session": "bafyreiw5cn4htr", "verdict": "forked", "at": {"seq": 30},
            "branches": [
                {"head": "bafyreiaaaa", "seq": 34, "first": {"seq": 31}, "signer": "x", "signerAlias": "server-a",
                 "rank": "undecided", "differs": {"sameWords": 0, "text": "delete it\u{1b}[2J", "more": false}},
                {"head": "bafyreiaabb", "seq": 33, "first": {"seq": 31}, "signer": "x", "signerAlias": "server-a",
                 "rank": "undecided", "differs": {"sameWords": 2, "text": "list it", "more": true}},
            ],
            "evidence": [], "fix": "throughline fork w5cn4htr --keep BRANCH --to PEER",
        })
    }

    #[test]
    fn both_sides_are_shown_and_no_word_acts_on_a_terminal() {
        let text = page(&forked(), &Names::default()).render(Styles::plain());
        for part in ["2 histories after seq 30", "delete it", "after 2 words that all say", "--keep BRANCH"] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn what_evidence_changed_is_told_as_it_is() {
        for (answer, told) in [
            (json!({"from": null, "verdict": null, "stored": true}), "kept until it comes"),
            (json!({"from": null, "verdict": null, "stored": false}), "nothing was kept"),
            (
                json!({"from": "valid", "verdict": "valid", "stored": false, "void": true}),
                "so it is not kept",
            ),
            (json!({"from": "valid", "verdict": "valid", "stored": true}), "verdict valid, as before"),
            (json!({"from": "valid", "verdict": "forked", "stored": true}), "valid before, forked now"),
        ] {
            assert!(became(&answer).contains(told), "{}", became(&answer));
        }
    }

    #[test]
    fn a_branch_is_named_by_enough_of_its_end_and_by_one_only() {
        let shown = forked();
        assert_eq!(branch_named(&shown, "aaaa").unwrap()["seq"], 34);
        assert_eq!(branch_named(&shown, "bafyreiaabb").unwrap()["seq"], 33);
        for name in ["aa", "aaaz", "", "bafyrei"] {
            assert_eq!(branch_named(&shown, name).unwrap_err().code(), Code::Usage, "{name}");
        }
        let mut settled = shown;
        settled["branches"][0]["rank"] = "kept".into();
        settled["branches"][1]["rank"] = "rejected".into();
        assert_eq!(branch_named(&settled, "aaaa").unwrap_err().code(), Code::Usage);
    }
}
