//! `init`: keys, config and data directory. Safe to repeat: it makes what is missing and changes nothing that is there.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::str::FromStr;

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::Role as GrantRole;
use throughline_protocol::id::Principal;

use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::output::Outcome;
use crate::cli::owner::Owner;
use crate::cli::page::{Mark, Page};
use crate::cli::{refusal, view};
use crate::config::{Config, Role, default_toml};
use crate::keys::{KeyOrigin, NodeKeys, OwnerKeyFile, Passphrase, Protection};
use crate::sync::peers;

/// Arguments of `init`.
#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// What kind of machine this is; it only changes defaults. Left out: laptop, and on a node that exists what its config says
    #[arg(long, value_name = "ROLE", value_parser = ["laptop", "desktop", "server"])]
    pub(crate) role: Option<String>,
    /// `new` makes an owner key, `none` makes none, a principal names the owner that this node serves. Left out: a new
    /// one, but none for a server, and on a node that exists what it has
    #[arg(long, value_name = "new|none|PRINCIPAL")]
    pub(crate) owner: Option<OwnerChoice>,
    /// Read the new owner key's passphrase from this file descriptor
    #[arg(long, value_name = "N", conflicts_with = "no_passphrase")]
    pub(crate) passphrase_fd: Option<u32>,
    /// Store the new owner key in the clear: whoever reads the file has the account
    #[arg(long)]
    pub(crate) no_passphrase: bool,
}

/// What `--owner` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerChoice {
    /// Make a key.
    New,
    /// No owner yet.
    None,
    /// Somebody's node.
    Of(Principal),
}

impl FromStr for OwnerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "new" => Ok(OwnerChoice::New),
            "none" => Ok(OwnerChoice::None),
            principal => principal
                .parse()
                .map(OwnerChoice::Of)
                .map_err(|_| "expected new, none or a principal such as z6Mk…".to_owned()),
        }
    }
}

/// What became of a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    /// It was made.
    Made,
    /// It was there, and something in it was set.
    Changed,
    /// It was there as it had to be.
    Found,
}

impl Became {
    fn of_new(is_new: bool) -> Self {
        if is_new { Became::Made } else { Became::Found }
    }

    fn mark(self) -> Mark {
        match self {
            Became::Made | Became::Changed => Mark::Done,
            Became::Found => Mark::Same,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Became::Made => "made",
            Became::Changed => "changed",
            Became::Found => "found",
        }
    }
}

/// What there was, what was made and what was set.
#[derive(Debug, Default)]
struct Done(Vec<(&'static str, Became)>);

impl Done {
    fn note(&mut self, what: &'static str, became: Became) {
        self.0.push((what, became));
    }

    fn those(&self, became: Became) -> Vec<&'static str> {
        self.0.iter().filter(|(_, is)| *is == became).map(|(what, _)| *what).collect()
    }

    fn of(&self, what: &str) -> Became {
        self.0.iter().find(|(is, _)| *is == what).map_or(Became::Found, |(_, became)| *became)
    }
}

/// Makes what is missing, where a node can be served from.
pub(crate) fn run(ctx: &Context, args: &InitArgs) -> Answer<Outcome> {
    if !ctx.is_initialised() {
        let config = Config::before_init(ctx.dirs(), &ctx.overrides()).map_err(refusal::config)?;
        crate::runtime::expect_socket_path(&config.api.socket)?;
    }
    make(ctx, args)
}

/// Makes what is missing.
pub(crate) fn make(ctx: &Context, args: &InitArgs) -> Answer<Outcome> {
    let had_node = ctx.is_initialised();
    let owner_file = if had_node { existing_owner(ctx)? } else { None };
    // Not the context's configuration: that is read once, and the file may be written below.
    let before = Config::before_init(ctx.dirs(), &ctx.overrides()).map_err(refusal::config)?;
    let configured = before.owner.principal;
    let asked_role = args.role.as_deref().map(Role::from_str).transpose();
    let asked_role = asked_role.map_err(|error| refusal::usage(error.to_string()))?;
    let role = asked_role.unwrap_or(before.node.role);
    if let Some(OwnerChoice::Of(asked)) = args.owner {
        peers::check_key(&asked, Code::Usage)?;
    }
    let choice = match settle(args.owner, role, had_node, owner_file.as_ref(), configured) {
        Err(problem) => instead(ctx, args.owner, owner_file.as_ref(), configured, problem)?,
        Ok(choice) => choice,
    };
    // Whatever can be refused or has to be asked comes before anything is made.
    let passphrase = match (choice, &owner_file) {
        (OwnerChoice::New, None) => new_passphrase(ctx, args)?,
        _ => None,
    };
    let mut done = Done::default();
    let keys = NodeKeys::load_or_create(ctx.dirs()).map_err(refusal::key)?;
    done.note("node-key", Became::of_new(keys.origin() == KeyOrigin::Created));
    let owner_file = match (choice, owner_file) {
        (OwnerChoice::New, None) => {
            let protection = passphrase.as_ref().map_or(Protection::Plain, Protection::Passphrase);
            let file = OwnerKeyFile::create(ctx.dirs(), protection).map_err(refusal::key)?;
            done.note("owner-key", Became::Made);
            Some(file)
        }
        (_, Some(file)) => {
            done.note("owner-key", Became::Found);
            Some(file)
        }
        (_, None) => None,
    };
    let principal = match choice {
        OwnerChoice::Of(principal) => Some(principal),
        OwnerChoice::New | OwnerChoice::None => owner_file.as_ref().map(OwnerKeyFile::principal),
    };
    let replaced =
        configured.filter(|has| owner_file.is_none() && principal.is_some_and(|want| want != *has));
    let to_set = principal.filter(|_| configured.is_none() || replaced.is_some());
    done.note("config", write_config(ctx.dirs().config_file(), role, to_set)?);
    let had_store = ctx.dirs().store_file().exists();
    let api = ctx.api()?;
    done.note("store", Became::of_new(!had_store));
    let grants = match &owner_file {
        Some(file) => grant_self(ctx, args, &api, file, passphrase.as_ref(), keys.principal())?,
        None => Vec::new(),
    };
    let node = api.get("/v1/node")?;
    // What the config says from now on: it may name an owner that the line did not.
    let serves = principal.or(configured);
    // A file that was there keeps its role, and is not to be taken for one that heard of another.
    let kept_role =
        asked_role.filter(|asked| *asked != before.node.role && done.of("config") != Became::Made);
    let kept_role = kept_role.map(|asked| (asked, before.node.role));
    let mut outcome = report(ctx, &done, owner_file.as_ref(), serves, &node, grants);
    if let Some((asked, has)) = kept_role {
        let file = ctx.dirs().config_file().display();
        let said = format!("the role stays {}: set node.role = {:?} in {file}", has.word(), asked.word());
        outcome.page.mark(Mark::Warning, said);
    }
    if let Some(before) = replaced {
        let said = format!("the owner was {before}; a node that runs serves it until it is started again");
        outcome.page.mark(Mark::Warning, said);
    }
    Ok(outcome)
}

/// Another owner than the one that the config names, where nothing would be left without one: no owner key is here, no session, and
/// no grant or revocation that the owner signed. So a name that was mistyped can be set right.
fn instead(
    ctx: &Context,
    asked: Option<OwnerChoice>,
    file: Option<&OwnerKeyFile>,
    configured: Option<Principal>,
    refused: Problem,
) -> Answer<OwnerChoice> {
    let (Some(choice @ OwnerChoice::Of(_)), None, Some(has)) = (asked, file, configured) else {
        return Err(refused);
    };
    if !ctx.is_initialised() {
        // The config was written by hand, and there is nothing yet that it could be the owner of.
        return Ok(choice);
    }
    let api = ctx.api()?;
    let sessions = api.get("/v1/sessions?limit=1")?;
    let signed = api.get(&view::path("/v1/control", &[("owner", Some(&has.to_string()))]))?;
    let is_empty = |answer: &Value, list: &str| view::items(answer, list).is_empty();
    if is_empty(&sessions, "/items") && is_empty(&signed, "/capabilities") && is_empty(&signed, "/tombstones")
    {
        return Ok(choice);
    }
    Err(refused)
}

fn existing_owner(ctx: &Context) -> Answer<Option<OwnerKeyFile>> {
    match OwnerKeyFile::inspect(ctx.dirs()) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.code() == Code::KeyfileMissing => Ok(None),
        Err(error) => Err(refusal::key(error)),
    }
}

/// What `--owner` means here; refuses to change the owner of a node that has one.
fn settle(
    asked: Option<OwnerChoice>,
    role: Role,
    had_node: bool,
    file: Option<&OwnerKeyFile>,
    configured: Option<Principal>,
) -> Answer<OwnerChoice> {
    let has = file.map(OwnerKeyFile::principal).or(configured);
    let other = |want: &str, has: Principal| {
        let detail = format!(
            "expected the owner that this node serves, {has}, got {want}: what is held here of that owner would be without one"
        );
        Problem::new(Code::OwnerKey, detail).hint("use another --home for another owner")
    };
    match (asked, has) {
        (Some(OwnerChoice::Of(want)), Some(has)) if want != has => Err(other(&want.to_string(), has)),
        (Some(OwnerChoice::New), Some(has)) if file.is_none() => Err(other("a new one", has)),
        (Some(choice), _) => Ok(choice),
        (None, Some(has)) => Ok(if file.is_some() { OwnerChoice::New } else { OwnerChoice::Of(has) }),
        (None, None) if had_node || role == Role::Server => Ok(OwnerChoice::None),
        (None, None) => Ok(OwnerChoice::New),
    }
}

fn new_passphrase(ctx: &Context, args: &InitArgs) -> Answer<Option<Passphrase>> {
    if args.no_passphrase {
        return Ok(None);
    }
    let source = ctx.passphrase_source(OwnerArgs { passphrase_fd: args.passphrase_fd });
    let asked = ctx.while_asking(|| source.new_key("Passphrase for your new owner key: "));
    asked.map(Some).map_err(refusal::passphrase)
}

/// Writes the default config, or puts the owner into one that names none.
fn write_config(path: &Path, role: Role, owner: Option<Principal>) -> Answer<Became> {
    let (text, is_new) = match fs::read_to_string(path) {
        Ok(text) => (text, false),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (default_toml(role), true),
        Err(error) => return Err(refusal::input(path, error)),
    };
    let with_owner = match owner {
        Some(owner) => with_owner(&text, owner),
        None => text.clone(),
    };
    let became = match is_new {
        true => Became::Made,
        false if with_owner != text => Became::Changed,
        false => Became::Found,
    };
    if became != Became::Found {
        replace(path, &with_owner).map_err(|error| refusal::write(path, "--home", error))?;
    }
    Ok(became)
}

/// The text with `owner.principal` set: in place of the empty or commented-out line, else at the section's head.
fn with_owner(text: &str, owner: Principal) -> String {
    let setting = format!("principal = \"{owner}\"");
    let mut out: Vec<&str> = Vec::new();
    let (mut in_section, mut set) = (false, false);
    for line in text.lines() {
        let bare = line.trim_start_matches('#').trim();
        if bare.starts_with('[') && !line.starts_with('#') {
            in_section = bare == "[owner]";
        }
        if in_section && !set && bare.starts_with("principal") {
            out.push(&setting);
            set = true;
        } else {
            out.push(line);
        }
    }
    if !set {
        match out.iter().position(|line| line.trim() == "[owner]") {
            Some(at) => out.insert(at + 1, &setting),
            None => out.extend(["", "[owner]", &setting]),
        }
    }
    out.join("\n") + "\n"
}

/// Replaces the file in one step, readable by its owner only.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut fresh = tempfile::NamedTempFile::new_in(dir)?;
    fresh.write_all(text.as_bytes())?;
    fresh.as_file().sync_all()?;
    fresh.persist(path).map(|_| ()).map_err(|error| error.error)
}

/// Grants this machine's key what an owner's own machine may do: act as device and write sessions. What is there
/// already is not granted again.
fn grant_self(
    ctx: &Context,
    args: &InitArgs,
    api: &Api<'_>,
    file: &OwnerKeyFile,
    passphrase: Option<&Passphrase>,
    node: Principal,
) -> Answer<Vec<Value>> {
    let held = api.get(&view::path("/v1/control", &[("owner", Some(&file.principal().to_string()))]))?;
    let mut grants = Vec::new();
    let mut owner = None;
    for (role, label) in [(GrantRole::Agent, Some("device")), (GrantRole::Writer, None)] {
        let found = view::items(&held, "/capabilities").iter().find(|item| {
            view::text(item, "/state") == "active"
                && view::text(item, "/delegate") == node.to_string()
                && view::text(item, "/role") == role.word()
                && view::at(item, "/path").is_null()
        });
        let cid = match found {
            Some(item) => view::text(item, "/cid").to_owned(),
            None => {
                let owner = match &mut owner {
                    Some(owner) => owner,
                    slot @ None => slot.insert(unlock(ctx, args, file, passphrase)?),
                };
                let bytes = owner.capability(node, role, None, label.map(str::to_owned))?;
                view::text(&api.post_blob("/v1/capabilities", &bytes)?, "/cid").to_owned()
            }
        };
        grants.push(json!({
            "cid": cid, "delegate": node.to_string(), "role": role.word(), "new": found.is_none(),
        }));
    }
    Ok(grants)
}

fn unlock(
    ctx: &Context,
    args: &InitArgs,
    file: &OwnerKeyFile,
    passphrase: Option<&Passphrase>,
) -> Answer<Owner> {
    match passphrase {
        Some(passphrase) => {
            let seed = file.unlock(Some(passphrase)).map_err(refusal::key)?;
            Ok(Owner::new(seed.signing_key()))
        }
        None => Owner::unlock(ctx, OwnerArgs { passphrase_fd: args.passphrase_fd }),
    }
}

fn report(
    ctx: &Context,
    done: &Done,
    file: Option<&OwnerKeyFile>,
    owner: Option<Principal>,
    node: &Value,
    grants: Vec<Value>,
) -> Outcome {
    let home = ctx.dirs().data().display().to_string();
    let mut page = Page::default();
    let granted = grants.iter().any(|grant| view::flag(grant, "/new"));
    let (made, changed) = (done.those(Became::Made), done.those(Became::Changed));
    let is_same = made.is_empty() && changed.is_empty() && !granted;
    if is_same {
        page.mark(Mark::Same, "already initialised; nothing changed (throughline id shows the keys)");
    }
    let mut row = |what: &'static str, name: &str, value: &str| {
        let became = done.of(what);
        page.mark(became.mark(), format!("{name:<11} {:<8} {value}", became.word()));
    };
    if let Some(file) = file {
        let kept = if file.is_encrypted() { "encrypted" } else { "in the clear" };
        row("owner-key", "owner key", &format!("{}   {kept}", file.principal()));
    }
    row("node-key", "node key", &format!("{}   this machine", view::text(node, "/principal")));
    row("config", "config", &config_line(ctx, done.of("config"), owner));
    row("store", "store", &home);
    if granted {
        page.mark(Mark::Done, "granted     this machine may write sessions of your agents");
    }
    if made.contains(&"owner-key") {
        page.hint("Keep a copy of the owner key elsewhere: throughline key export -o owner.hmkey.json");
        page.hint("Next: throughline import FILE   or   throughline serve");
    } else if file.is_none() && !is_same {
        page.hint(
            "No owner key here. Start the node, then hand the owner the line of: throughline id --ticket",
        );
    }
    let json = json!({
        "v": 1, "kind": "init", "home": home, "created": made, "changed": changed,
        "existing": done.those(Became::Found),
        "owner": {
            "principal": owner.map(|owner| owner.to_string()),
            "keyPresent": file.is_some(),
            "passphrase": file.is_some_and(OwnerKeyFile::is_encrypted),
        },
        "node": {"principal": node["principal"], "peerId": node["peerId"]},
        "grants": grants,
    });
    Outcome::done(json, page)
}

/// The config file, and what was set in it.
fn config_line(ctx: &Context, became: Became, owner: Option<Principal>) -> String {
    let path = ctx.dirs().config_file().display();
    match owner {
        Some(owner) if became == Became::Changed => format!("{path}   owner.principal set to {owner}"),
        Some(owner) => format!("{path}   owner {owner}"),
        None => format!("{path}   no owner yet"),
    }
}

#[cfg(test)]
mod tests {
    use throughline_protocol::sign::SigningKey;

    use super::*;

    fn principal(seed: u8) -> Principal {
        SigningKey::from_seed(&[seed; 32]).principal()
    }

    #[test]
    fn the_owner_is_put_into_the_default_config_once() {
        let text = with_owner(&default_toml(Role::Laptop), principal(1));
        let line = format!("principal = \"{}\"", principal(1));
        assert_eq!(text.matches(&line).count(), 1);
        assert!(!text.contains("#principal"));
        assert_eq!(with_owner(&text, principal(1)), text);
    }

    #[test]
    fn the_owner_goes_into_its_section_only() {
        let line = format!("principal = \"{}\"", principal(1));
        assert_eq!(
            with_owner("[node]\nrole = \"laptop\"\n", principal(1)),
            format!("[node]\nrole = \"laptop\"\n\n[owner]\n{line}\n")
        );
        assert_eq!(with_owner("[owner]\n[log]\n", principal(1)), format!("[owner]\n{line}\n[log]\n"));
    }

    #[test]
    fn a_node_keeps_its_owner() {
        let (one, two) = (principal(1), principal(2));
        let choose = |asked, role, had_node, configured| settle(asked, role, had_node, None, configured);
        assert_eq!(choose(None, Role::Laptop, false, None).unwrap(), OwnerChoice::New);
        assert_eq!(choose(None, Role::Server, false, None).unwrap(), OwnerChoice::None);
        assert_eq!(choose(None, Role::Laptop, true, None).unwrap(), OwnerChoice::None);
        assert_eq!(choose(None, Role::Laptop, true, Some(one)).unwrap(), OwnerChoice::Of(one));
        for asked in [OwnerChoice::Of(two), OwnerChoice::New] {
            assert_eq!(
                choose(Some(asked), Role::Server, true, Some(one)).unwrap_err().code(),
                Code::OwnerKey
            );
        }
        assert_eq!(
            choose(Some(OwnerChoice::Of(one)), Role::Server, true, Some(one)).unwrap(),
            OwnerChoice::Of(one)
        );
    }
}
