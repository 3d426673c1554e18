//! `import`: a Claude Code transcript or a session CAR. What could not come along is listed, never dropped silently.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::id::AgentIri;

use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::beside::Beside;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::names::Names;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner, Reach};
use crate::cli::page::{Mark, Page};
use crate::cli::throwaway::{self, Throwaway};
use crate::cli::upload::Part;
use crate::cli::{format, offline, refusal, upload, verdict, view};
use crate::keys::OwnerKeyFile;
use crate::outcome::Exit;

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The transcript or CAR, or - for a CAR on stdin. Transcripts of sub-agents that lie beside it (FILE without its ending, then
    /// subagents/agent-*.jsonl) come along
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// What the file is; by default its content tells
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub(crate) format: Format,
    /// The agent that the session belongs to; by default hm://<owner>/<format>
    #[arg(long, value_name = "IRI")]
    pub(crate) agent: Option<AgentIri>,
    /// Who may read it; public is reached by publish only
    #[arg(long, value_name = "CLASS", value_parser = ["internal", "confidential"])]
    pub(crate) class: Option<String>,
    /// Say what would come in, and store nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also write the answer to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// How the owner key is opened, which signs that it has seen the import
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
}

/// Whether the ids in an answer are those that the import has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ids {
    Known,
    /// There are no keys yet that they would follow from.
    NotYet,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// By its content
    Auto,
    /// A Claude Code transcript, one JSON object a line
    ClaudeCode,
    /// A session as CAR
    Car,
}

/// Imports the file.
pub(crate) fn run(ctx: &Context, args: &ImportArgs) -> Answer<Outcome> {
    let mut piped = piped(&args.file)?;
    let format = match (args.format, &mut piped) {
        (Format::Auto, Some(file)) => detect_in(file, &args.file)?,
        (Format::Auto, None) => detect(&args.file)?,
        (known @ (Format::ClaudeCode | Format::Car), _) => known,
    };
    if format == Format::ClaudeCode && piped.is_some() {
        let detail = "expected a CAR on stdin, got a transcript: that is known again by the name of its file, and what its \
                      sub-agents said lies beside it";
        return Err(refusal::usage(detail).hint("throughline import FILE"));
    }
    if let Some(report) = &args.report {
        refusal::writable(report, "--report")?;
    }
    if format == Format::Car && (args.agent.is_some() || args.class.is_some()) {
        let detail =
            "expected --agent and --class with a transcript only: the session in a CAR has both already";
        return Err(refusal::usage(detail).hint("throughline import FILE (without --agent and --class)"));
    }
    let throwaway = match args.dry_run && ctx.api_url().is_none() && !ctx.is_initialised() {
        true => Some(Throwaway::new(ctx)?),
        false => None,
    };
    let api = match &throwaway {
        Some(throwaway) => throwaway.api()?,
        None => ctx.api()?,
    };
    let dry_run = args.dry_run.then_some("1");
    let (answer, page, exit) = if format == Format::Car {
        let path = view::path("/v1/car", &[("dryRun", dry_run)]);
        let part = match piped {
            Some(file) => Part::of(file).map_err(|error| unread(&args.file, error))?,
            None => Part::open(&args.file)?,
        };
        let answer = upload::parts(ctx, &api, "import", vec![part], &path, upload::CAR, &[])?;
        let exit = verdict::exit(&answer);
        let mut page = verdict::page(&answer, &Names::of(ctx, &api).beside(&answer));
        if let Some(of_file) = view::at(&answer, "/fileVerdict").as_str() {
            page.mark(
                Mark::Note,
                format!("the file by itself is {of_file}; with what is held here it is not"),
            );
        }
        (answer, page, exit)
    } else {
        let ids = if throwaway.is_some() { Ids::NotYet } else { Ids::Known };
        transcript(ctx, args, &api, ids)?
    };
    if let Some(report) = &args.report {
        let written = std::fs::write(report, format!("{answer}\n"));
        written.map_err(|error| refusal::write(report, "--report", error))?;
    }
    Ok(Outcome::done(answer, page).exit(exit))
}

/// Ctrl-C ends the command. A node that has the whole file takes it in to its last line all the same.
fn left_to_the_node(problem: Problem) -> Problem {
    if problem.code() != Code::Interrupted {
        return problem;
    }
    let detail = "interrupted: once the node has the whole file it takes it in to its last line; before that nothing came in";
    Problem::new(Code::Interrupted, detail)
        .hint("throughline list shows what came in; to have all of it, import the same file again: nothing comes in twice")
}

/// What a file is: a CAR begins with a varint and a CBOR map that has `roots`; a transcript with a JSON object.
///
/// # Errors
/// `E_INPUT_NOT_FOUND`, `E_INPUT_FORMAT`.
pub(crate) fn detect(path: &Path) -> Answer<Format> {
    detect_in(&mut File::open(path).map_err(|error| unread(path, error))?, path)
}

/// What stdin holds, where `-` stands for it.
fn piped(path: &Path) -> Answer<Option<File>> {
    if path != Path::new("-") {
        return Ok(None);
    }
    offline::spooled(std::io::stdin().lock()).map(Some).map_err(|error| unread(path, error))
}

/// As [`detect`], of an open file, which is left at its beginning.
fn detect_in(file: &mut File, path: &Path) -> Answer<Format> {
    let mut head = Vec::new();
    let read = file.take(512).read_to_end(&mut head).and_then(|_| file.rewind());
    read.map_err(|error| unread(path, error))?;
    if head.windows(6).take(16).any(|window| window == b"\x65roots") {
        return Ok(Format::Car);
    }
    // Some editors put a byte order mark first; the importer passes it over.
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head);
    let text = text.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    if text == Some(b'{') {
        return Ok(Format::ClaudeCode);
    }
    let detail =
        format!("expected a transcript (JSON lines) or a session CAR, got neither in {}", path.display());
    Err(Problem::new(Code::InputFormat, detail).hint("throughline import FILE --format claude-code|car"))
}

fn unread(path: &Path, error: std::io::Error) -> Problem {
    refusal::input(path, error)
        .hint("throughline import FILE (transcripts of Claude Code lie below ~/.claude/projects)")
}

fn transcript(ctx: &Context, args: &ImportArgs, api: &Api<'_>, ids: Ids) -> Answer<(Value, Page, Exit)> {
    // Before anything is stored: a passphrase that does not fit changes nothing.
    let owner = match owner::file(ctx) {
        Ok(file) if !args.dry_run && can_open(ctx, args, &file) => Some(Owner::unlock(ctx, args.owner)?),
        Ok(_) | Err(_) => None,
    };
    let source = std::path::absolute(&args.file).map_err(|error| refusal::input(&args.file, error))?;
    let beside = Beside::of(&source).map_err(|error| refusal::input(&source, error))?;
    let list = beside.list();
    let (source, agent) = (source.display().to_string(), args.agent.as_ref().map(ToString::to_string));
    let query = [
        ("format", Some("claude-code")),
        ("path", Some(source.as_str())),
        ("agent", agent.as_deref()),
        ("class", args.class.as_deref()),
        ("dryRun", args.dry_run.then_some("1")),
        ("subAgents", Some(list.as_str()).filter(|list| !list.is_empty())),
    ];
    let path = view::path("/v1/import", &query);
    let Beside { agents, left_out, tool_results } = beside;
    // The sub-agents first: their lengths tell where the transcript begins.
    let parts = agents.into_iter().map(|(_, part)| part).chain([Part::open(&args.file)?]).collect();
    let mut answer = upload::parts(ctx, api, "import", parts, &path, "application/jsonl", &[])
        .map_err(|problem| if api.is_in_process() { problem } else { left_to_the_node(problem) })?;
    tell_left_out(&mut answer, &left_out, tool_results);
    if ids == Ids::NotYet {
        throwaway::forget_ids(&mut answer);
    }
    let mut page = Page::default();
    for source in view::items(&answer, "/sources") {
        describe(&mut page, source);
        kept_class(&mut page, source, args.class.as_deref());
    }
    if !args.dry_run {
        let names = Names::of(ctx, api);
        let elsewhere = if owner.is_some() { None } else { owner::elsewhere(ctx, api, &names) };
        anchor(owner.as_ref(), elsewhere, api, &mut answer, &mut page)?;
    } else {
        page.mark(Mark::Note, "a dry run: nothing was stored");
        if ids == Ids::NotYet {
            page.plain("there are no keys here yet, so no ids: throughline init, then import it");
        }
    }
    describe_lost(&mut page, &answer);
    let sources = view::items(&answer, "/sources");
    let lost = sources.iter().any(|source| !view::items(source, "/skipped").is_empty())
        || !view::items(&answer, "/lost").is_empty();
    if lost {
        page.plain("done, with losses (exit 11); lines are kept raw. All of it as JSON: --report FILE");
    }
    let first = sources.first().map(|source| format::short(view::text(source, "/session")));
    if let Some(session) = first.filter(|_| !args.dry_run) {
        page.hint(format!("read it: throughline log {session}"));
    }
    Ok((answer, page, if lost { Exit::Losses } else { Exit::Done }))
}

/// Files beside the transcript that the API was not given are lost too, and are told with those that it refused.
fn tell_left_out(answer: &mut Value, left_out: &[(PathBuf, String)], tool_results: usize) {
    if let Some(lost) = answer["lost"].as_array_mut() {
        lost.extend(left_out.iter().map(|(path, why)| {
            json!({"path": path.display().to_string(), "code": Code::InputFormat.name(), "detail": why})
        }));
    }
    answer["toolResults"] = tool_results.into();
}

fn describe_lost(page: &mut Page, answer: &Value) {
    for file in view::items(answer, "/lost") {
        let (path, detail) = (view::text(file, "/path"), view::text(file, "/detail"));
        page.mark(Mark::Warning, format!("{path}   not imported: {detail}"));
    }
    let tool_results = view::number(answer, "/toolResults");
    if tool_results > 0 {
        let files = format::count(tool_results, "long output", "long outputs");
        page.mark(
            Mark::Note,
            format!("{files} of tools beside the transcript: the preview in it is kept, not the file"),
        );
    }
}

/// A session that goes on keeps its class: asking for another one is not passed over in silence.
fn kept_class(page: &mut Page, source: &Value, asked: Option<&str>) {
    let class = view::text(source, "/class");
    let is_kept = !view::flag(source, "/created") && !class.is_empty();
    if let Some(asked) = asked.filter(|asked| is_kept && *asked != class) {
        page.mark(
            Mark::Warning,
            format!("it stays {class}, not {asked}: --class counts when a session begins"),
        );
    }
}

fn describe(page: &mut Page, source: &Value) {
    let session = match view::text(source, "/session") {
        "" => "a session".to_owned(),
        session => format::short(session),
    };
    let session = match view::text(source, "/agent") {
        "" => session,
        agent => format!("{session}  sub-agent {agent}"),
    };
    let entries = view::at(source, "/entries").as_object().cloned().unwrap_or_default();
    let total: u64 = entries.values().filter_map(Value::as_u64).sum();
    if total == 0 {
        page.mark(
            Mark::Same,
            format!("{session}  no new lines since seq {}", view::number(source, "/head/seq")),
        );
    } else {
        let kinds: Vec<String> = entries.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let files = format::count(view::number(source, "/attachments"), "attachment", "attachments");
        let entries = format::count(total, "entry", "entries");
        page.mark(Mark::Done, format!("{session}  {entries}: {}   {files}", kinds.join(", ")));
    }
    for earlier in view::items(source, "/elsewhere").iter().filter_map(Value::as_str) {
        page.mark(
            Mark::Note,
            format!(
                "this data directory is a copy, was restored or is younger than its key: if the file was imported before, it is \
                 {0} elsewhere (throughline fetch {0}); here it begins a session of its own",
                format::short(earlier)
            ),
        );
    }
    for line in view::items(source, "/skipped") {
        let kept = format::short(view::text(line, "/rawCid"));
        let (number, detail) = (view::number(line, "/line"), view::text(line, "/detail"));
        page.mark(
            Mark::Warning,
            format!("line {number}   {detail}: kept as raw blob {kept}, not as an entry"),
        );
    }
    for line in view::items(source, "/repaired") {
        page.mark(
            Mark::Note,
            format!("line {}   {}", view::number(line, "/line"), view::text(line, "/what")),
        );
    }
    for item in view::items(source, "/notCarried") {
        let (count, what) = (view::number(item, "/count"), view::text(item, "/what"));
        page.mark(Mark::Note, format!("{count} × {what}: kept {}", view::text(item, "/kept")));
    }
}

/// Signs that the owner has seen the import, where the owner key can be opened. Without it the import stands all the
/// same and says that nobody vouches for it yet.
fn anchor(
    owner: Option<&Owner>,
    elsewhere: Option<String>,
    api: &Api<'_>,
    answer: &mut Value,
    page: &mut Page,
) -> Answer<()> {
    let facts = answer.get("anchor").filter(|facts| facts.is_object()).cloned();
    if let Some(facts) = facts {
        match owner {
            Some(owner) => {
                api.post_blob("/v1/refs", &owner.anchor(&facts, Reach::Private)?)?;
                for session in sub_sessions(answer) {
                    let facts = api.get(&format!("/v1/sessions/{session}/anchor"))?;
                    api.post_blob("/v1/refs", &owner.anchor(&facts, Reach::Private)?)?;
                }
                let seq = view::number(&facts, "/head/seq");
                page.mark(Mark::Done, format!("anchored by your owner key at seq {seq}"));
                answer["anchored"] = json!(true);
                answer["anchoredBy"] = json!(owner.principal().to_string());
            }
            None if view::flag(answer, "/anchored") => {}
            None => {
                let session = format::short(view::text(&facts, "/session"));
                let place = elsewhere.map_or_else(String::new, |place| format!(", {place}"));
                page.mark(
                    Mark::Warning,
                    format!("not anchored by the owner yet: throughline anchor {session}{place}"),
                );
            }
        }
    }
    let signer = format::short(view::text(answer, "/signedBy"));
    page.plain(format!(
        "  signed by this node ({signer}) as an import: it proves what was imported, not who wrote it then"
    ));
    Ok(())
}

/// The sessions of sub-agents that the transcript holds beside its own.
fn sub_sessions(answer: &Value) -> Vec<String> {
    let sources = view::items(answer, "/sources").iter();
    let sessions = sources.flat_map(|source| view::items(source, "/subSessions"));
    sessions.filter_map(|session| session.as_str().map(str::to_owned)).collect()
}

fn can_open(ctx: &Context, args: &ImportArgs, file: &OwnerKeyFile) -> bool {
    !file.is_encrypted() || args.owner.passphrase_fd.is_some() || ctx.can_ask()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn ctrl_c_does_not_end_what_the_node_has_whole() {
        let told = left_to_the_node(Problem::from(Code::Interrupted));
        assert!(told.detail().contains("takes it in to its last line"), "{told}");
        assert!(told.fact("hint").is_some_and(|hint| hint.to_string().contains("the same file again")));
        assert_eq!(left_to_the_node(Problem::from(Code::Quota)).code(), Code::Quota);
    }

    fn detected(bytes: &[u8]) -> Result<Format, Code> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        detect(file.path()).map_err(|problem| problem.code())
    }

    #[test]
    fn the_content_tells_what_a_file_is() {
        assert_eq!(detected(b"\x3a\xa2\x65roots\x81"), Ok(Format::Car));
        assert_eq!(detected(b"  \n{\"type\":\"user\"}\n"), Ok(Format::ClaudeCode));
        assert_eq!(detected(b"\xef\xbb\xbf{\"type\":\"user\"}\n"), Ok(Format::ClaudeCode));
        assert_eq!(detected(b""), Err(Code::InputFormat));
        assert_eq!(detected(b"PK\x03\x04"), Err(Code::InputFormat));
        assert_eq!(detect(Path::new("/no/such.jsonl")).unwrap_err().code(), Code::InputNotFound);
    }
}
