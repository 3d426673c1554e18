//! `show`: one session, one entry, or the bytes of one block.

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Cid, SessionId};
use throughline_protocol::{clock, codec, limits};

use super::status;
use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::dag_json;
use crate::cli::link::Api;
use crate::cli::names::Names;
use crate::cli::output::Outcome;
use crate::cli::page::Page;
use crate::cli::resolve::{self, Target};
use crate::cli::{format, refusal, view};

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A session, an entry (S:31, S:head, S:-1) or any CID
    #[arg(value_name = "REF")]
    pub(crate) reference: String,
    /// Write the exact bytes; not to a terminal
    #[arg(long, conflicts_with_all = ["dag_json", "json"])]
    pub(crate) raw: bool,
    /// Write the block as DAG-JSON, the text form of its bytes
    #[arg(long)]
    pub(crate) dag_json: bool,
}

/// What a reference was found to name.
enum Found {
    Session(SessionId),
    Entry(SessionId, String),
    Block(Cid, Vec<u8>),
}

/// Shows it.
pub(crate) fn run(ctx: &Context, args: &ShowArgs) -> Answer<Outcome> {
    let api = ctx.api()?;
    let found = find(&api, &args.reference)?;
    if args.raw || args.dag_json {
        let bytes = bytes(&api, found)?;
        return if args.raw { raw(ctx, &bytes) } else { as_dag_json(&bytes) };
    }
    match found {
        Found::Session(session) => {
            let answer = api.get(&format!("/v1/sessions/{session}"))?;
            let page = session_page(&answer, &Names::of(ctx, &api).beside(&answer));
            Ok(Outcome::done(answer, page))
        }
        Found::Entry(session, part) => {
            let answer = api.get(&format!("/v1/sessions/{session}/entries/{part}"));
            let answer = answer.map_err(|problem| no_entry(problem, session))?;
            let page = entry_page(&answer, &Names::of(ctx, &api).beside(&answer));
            Ok(Outcome::done(answer, page))
        }
        Found::Block(cid, bytes) => {
            let size = bytes.len();
            let json = json!({"v": 1, "kind": "block", "cid": cid.to_string(), "sizeBytes": size});
            let shown = format!("{cid}  {}  (--raw for its bytes)", format::bytes(size as u64));
            Ok(Outcome::done(json, Page::of(shown)))
        }
    }
}

/// A bare CID may be a session, an entry of one, or any block.
fn find(api: &Api<'_>, reference: &str) -> Answer<Found> {
    let text = match resolve::target(reference) {
        Target::Entry(session, at) => {
            let session = resolve::session(api, &session)?;
            return Ok(Found::Entry(session, resolve::entry_part(api, session, &at)?));
        }
        Target::Plain(text) => text,
    };
    let is_short = !["hm://", "tls1", "ipfs://"].iter().any(|prefix| text.starts_with(prefix));
    let cid = match text.parse::<Cid>() {
        Ok(cid) => cid,
        Err(_) if is_short => resolve::any(api, &text)?,
        Err(_) => return Ok(Found::Session(resolve::session(api, &text)?)),
    };
    if let Ok(session) = cid.to_string().parse::<SessionId>() {
        match api.get(&format!("/v1/sessions/{session}")) {
            Ok(_) => return Ok(Found::Session(session)),
            Err(problem) if problem.code() != Code::NotFoundYet => return Err(problem),
            Err(_) => {}
        }
    }
    let bytes = api.bytes(Call::get(&format!("/v1/blobs/{cid}")))?.to_vec();
    match Decoded::<Entry>::decode(bytes.clone()) {
        Ok(entry) => Ok(Found::Entry(entry.value().session(entry.cid()), cid.to_string())),
        Err(_) => Ok(Found::Block(cid, bytes)),
    }
}

fn bytes(api: &Api<'_>, found: Found) -> Answer<Vec<u8>> {
    let (session, path) = match found {
        Found::Session(session) => (session, format!("/v1/sessions/{session}/entries/{session}")),
        Found::Entry(session, part) => (session, format!("/v1/sessions/{session}/entries/{part}")),
        Found::Block(_, bytes) => return Ok(bytes),
    };
    let bytes = api.bytes(Call::get(&path).header("accept", "application/vnd.ipld.dag-cbor"));
    Ok(bytes.map_err(|problem| no_entry(problem, session))?.to_vec())
}

/// The session is held here, so an entry that is not there is one after its head, or of another session.
fn no_entry(problem: Problem, session: SessionId) -> Problem {
    if problem.code() == Code::NotFoundYet {
        return problem.hint(format!("throughline show {}:head", session.short()));
    }
    problem
}

fn raw(ctx: &Context, bytes: &[u8]) -> Answer<Outcome> {
    if ctx.out().is_terminal() {
        let detail = "expected --raw to go to a file or a pipe: its bytes may do anything to a terminal";
        return Err(Problem::new(Code::Usage, detail).hint("throughline show REF --dag-json"));
    }
    ctx.out().raw(bytes).map_err(refusal::stdout)?;
    Ok(Outcome::written())
}

fn as_dag_json(bytes: &[u8]) -> Answer<Outcome> {
    let (value, _) = codec::decode(bytes, limits::PAYLOAD_DEPTH_MAX).map_err(Problem::from)?;
    let value = dag_json::of(&value);
    let page = Page::of(value.to_string());
    Ok(Outcome::done(json!({"v": 1, "kind": "dag-json", "block": value}), page))
}

fn session_page(answer: &Value, names: &Names) -> Page {
    let mut page = Page::default();
    let text = |pointer| view::text(answer, pointer).to_owned();
    page.bold(match text("/title") {
        title if title.is_empty() => format::short(&text("/session")),
        title => format!("{}  {title}", format::short(&text("/session"))),
    });
    page.row(["agent".to_owned(), text("/agent")]);
    page.row(["owner".to_owned(), names.full(&text("/owner"))]);
    let holder_name = status::holder(answer, names);
    page.row(["holder".to_owned(), format!("{holder_name}, epoch {}", view::number(answer, "/epoch"))]);
    page.row(["state".to_owned(), format!("{}, {}, {}", text("/state"), text("/class"), text("/verdict"))]);
    page.row([
        "head".to_owned(),
        format!("seq {}  {}", view::number(answer, "/head/seq"), text("/head/cid")),
    ]);
    let pinned = if view::flag(answer, "/pinned") { "yes" } else { "no, it goes when space is needed" };
    page.row(["pinned".to_owned(), pinned.to_owned()]);
    for signer in view::items(answer, "/participants") {
        page.row(["signer".to_owned(), names.full(signer.as_str().unwrap_or_default())]);
    }
    page.plain(format!("session {}", text("/session")));
    page
}

fn entry_page(answer: &Value, names: &Names) -> Page {
    let mut page = Page::default();
    let text = |pointer| view::text(answer, pointer).to_owned();
    let title = format!("seq {}  {}  {}", view::number(answer, "/seq"), text("/type"), text("/status"));
    page.bold(title);
    let signer = names.who(view::text(answer, "/signer"));
    page.row([
        "signer".to_owned(),
        format!("{signer} as {}, epoch {}", text("/role"), view::number(answer, "/epoch")),
    ]);
    page.row(["claimed".to_owned(), text("/claimedTs")]);
    if let Some(ms) = view::at(answer, "/aheadMs").as_u64() {
        page.row(["clock".to_owned(), format!("{} ahead of this one", clock::length(ms))]);
    }
    page.row(["summary".to_owned(), text("/summary")]);
    for link in view::items(answer, "/links") {
        let state = if view::flag(link, "/present") { "here" } else { "not here" };
        let size = format::bytes(view::number(link, "/sizeBytes"));
        page.row(["link".to_owned(), format!("{}  {size}, {state}", view::text(link, "/cid"))]);
    }
    if let Ok(entry) = serde_json::to_string_pretty(view::at(answer, "/entry")) {
        page.block(2, entry);
    }
    page.plain(format!("entry {}", text("/cid")));
    page
}
