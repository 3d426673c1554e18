//! `grant` and `grants`.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::id::{AgentIri, Principal};

use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::names::Names;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner};
use crate::cli::page::{Mark, Page};
use crate::cli::resolve::{self, Peer};
use crate::cli::{format, view};
use crate::sync::peers;

/// Arguments of `grant`.
#[derive(Debug, Args)]
pub(crate) struct GrantArgs {
    /// Who may: an alias or a full principal
    #[arg(value_name = "P")]
    pub(crate) peer: String,
    /// For this agent's sessions; without it for all of the owner's
    #[arg(long, value_name = "IRI", conflicts_with = "session")]
    pub(crate) agent: Option<AgentIri>,
    /// What they may do
    #[arg(long, value_name = "ROLE", default_value = "writer")]
    pub(crate) role: RoleWord,
    /// A word for people
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// For this session only
    #[arg(long, value_name = "S")]
    pub(crate) session: Option<String>,
    /// How the owner key is opened
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
}

/// Roles as they are written on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleWord {
    /// Holds sessions and writes their entries
    Writer,
    /// Adds messages; reads
    Contributor,
    /// Reads
    Reader,
    /// Acts as a device of the owner, in all of its sessions
    Device,
}

impl RoleWord {
    fn role(self) -> Role {
        match self {
            RoleWord::Writer => Role::Writer,
            RoleWord::Contributor => Role::Contributor,
            RoleWord::Reader => Role::Reader,
            RoleWord::Device => Role::Agent,
        }
    }
}

/// What a grant is to say.
pub(crate) struct Wanted {
    /// Who may.
    pub(crate) delegate: Principal,
    /// What.
    pub(crate) role: Role,
    /// Where; none is everywhere.
    pub(crate) path: Option<String>,
    /// A word for people.
    pub(crate) label: Option<String>,
}

/// Signs and stores a grant, unless the same one is in force already.
pub(crate) fn run(ctx: &Context, args: &GrantArgs) -> Answer<Outcome> {
    // Whoever can be reached is to hear of it now.
    let api = ctx.api_with_network()?;
    let peer = resolve::peer(&api, &args.peer)?;
    peers::check_key(&peer.principal, Code::Usage)?;
    let account = owner::file(ctx)?.principal();
    let path = match (&args.agent, &args.session) {
        (Some(agent), _) if agent.account() != account => {
            let detail =
                format!("expected an agent of {}, got one of {}", account.short(), agent.account().short());
            return Err(Problem::new(Code::CapIssuer, detail).hint(format!(
                "where the key of {} is: throughline grant {} --agent {agent}; for an agent of this owner: --agent \
                 hm://{account}/…",
                agent.account(),
                peer.principal
            )));
        }
        (Some(agent), _) => agent.path().map(|path| path.as_str().to_owned()),
        (None, Some(session)) => Some(resolve::session(&api, session)?.path()),
        (None, None) => None,
    };
    let wanted = Wanted { delegate: peer.principal, role: args.role.role(), path, label: args.label.clone() };
    if wanted.role == Role::Agent && wanted.path.is_some() {
        let detail =
            "a device acts in all of the owner's sessions: --role device takes neither --agent nor --session";
        return Err(Problem::new(Code::Usage, detail)
            .hint(format!("throughline grant {} --role device", peer.word())));
    }
    let answer = give(&api, account, &wanted, || Owner::unlock(ctx, args.owner))?;
    Ok(report(&peer, &wanted, answer))
}

/// Gives the grant. The same role, path and label in force already is left as it is, and the key stays closed.
pub(crate) fn give(
    api: &Api<'_>,
    account: Principal,
    wanted: &Wanted,
    unlock: impl FnOnce() -> Answer<Owner>,
) -> Answer<Value> {
    let held = api.get(&view::path("/v1/control", &[("owner", Some(&account.to_string()))]))?;
    let same = |item: &&Value| {
        view::text(item, "/state") == "active"
            && view::text(item, "/delegate") == wanted.delegate.to_string()
            && view::text(item, "/role") == wanted.role.word()
            && view::at(item, "/path").as_str() == wanted.path.as_deref()
            && view::at(item, "/label").as_str() == wanted.label.as_deref()
    };
    if let Some(found) = view::items(&held, "/capabilities").iter().find(same) {
        return Ok(json!({"cid": found["cid"], "unchanged": true, "told": {"peers": 0, "pending": 0}}));
    }
    let owner = unlock()?;
    let bytes = owner.capability(wanted.delegate, wanted.role, wanted.path.clone(), wanted.label.clone())?;
    api.post_blob("/v1/capabilities", &bytes)
}

fn report(peer: &Peer, wanted: &Wanted, answer: Value) -> Outcome {
    let unchanged = view::flag(&answer, "/unchanged");
    let cid = view::text(&answer, "/cid").to_owned();
    let mut page = Page::default();
    let mark = if unchanged { Mark::Same } else { Mark::Done };
    let reach = wanted.path.clone().unwrap_or_else(|| "all sessions".to_owned());
    page.mark(mark, format!("{}  {}  {reach}", peer.shown(), wanted.role.word()));
    page.plain(format!("capability {cid}"));
    if !unchanged {
        let (told, pending) = (view::number(&answer, "/told/peers"), view::number(&answer, "/told/pending"));
        page.plain(format!("told {}, pending {pending}", format::count(told, "peer", "peers")));
        if pending > 0 {
            page.plain("  who was not reached hears of it from this node while it serves, or with the next move: throughline serve");
        }
    }
    let json = json!({
        "v": 1, "kind": "grant", "cid": cid, "delegate": wanted.delegate.to_string(), "alias": peer.alias,
        "role": wanted.role.word(), "path": wanted.path, "label": wanted.label, "unchanged": unchanged,
        "told": answer.get("told"),
    });
    Outcome::done(json, page)
}

/// Arguments of `grants`.
#[derive(Debug, Args)]
pub(crate) struct GrantsArgs {
    /// Only those of this peer
    #[arg(long, value_name = "P")]
    pub(crate) peer: Option<String>,
    /// Only those in this state
    #[arg(long, value_name = "STATE", value_parser = ["active", "revoked"])]
    pub(crate) state: Option<String>,
}

/// Lists grants.
pub(crate) fn list(ctx: &Context, args: &GrantsArgs) -> Answer<Outcome> {
    let api = ctx.api()?;
    let peer = args.peer.as_deref().map(|text| resolve::peer(&api, text)).transpose()?;
    let delegate = peer.map(|peer| peer.principal.to_string());
    let query = [("delegate", delegate.as_deref()), ("state", args.state.as_deref())];
    let answer = api.get(&view::path("/v1/capabilities", &query))?;
    let mut page = Page::default();
    let names = Names::of(ctx, &api).beside(&answer);
    let node = api.get("/v1/node")?;
    let own = view::text(&node, "/owner");
    let is_others = |item: &&Value| view::text(item, "/owner") != own;
    // One's own first; whose the others are is said.
    let (others, owned): (Vec<_>, Vec<_>) = view::items(&answer, "/items").iter().partition(is_others);
    for item in owned.into_iter().chain(others) {
        let by = if is_others(&item) {
            format!("by {}", names.who(view::text(item, "/owner")))
        } else {
            String::new()
        };
        page.row([
            format::short(view::text(item, "/cid")),
            names.who(view::text(item, "/delegate")),
            view::text(item, "/role").to_owned(),
            view::at(item, "/path").as_str().unwrap_or("all sessions").to_owned(),
            view::text(item, "/state").to_owned(),
            by,
            view::text(item, "/label").to_owned(),
        ]);
    }
    if view::items(&answer, "/items").is_empty() {
        page.plain("no grants");
    }
    Ok(Outcome::done(answer, page))
}
