//! References on the command line: sessions, entries and peers. `docs/cli-reference.md` says what each may be.
//!
//! A short session id is looked up among the sessions held here. A peer is an alias or a full principal, never a short
//! one: eight characters can be ground, and grants go to peers.

use throughline_protocol::code::Code;
use throughline_protocol::id::{Cid, Principal, SessionId};
use throughline_protocol::ticket::Ticket;

use super::link::Api;
use super::view;
use crate::api::error::{Answer, Problem};

/// The session that `text` names.
///
/// # Errors
/// `E_AMBIGUOUS`, `E_NOT_FOUND_YET`, `E_INPUT_FORMAT` for a damaged ticket, or `E_USAGE` for text that can be no reference.
pub(crate) fn session(api: &Api<'_>, text: &str) -> Answer<SessionId> {
    if let Ok(session) = text.parse::<SessionId>() {
        return Ok(session);
    }
    let answer = api.get(&view::path("/v1/resolve", &[("s", Some(text))])).map_err(of_the_line)?;
    view::text(&answer, "/session").parse().map_err(Problem::from)
}

/// Whatever `text` names here by its CID or the beginning of it: a session, an entry, a payload, a file, a control blob.
///
/// # Errors
/// As [`session`].
pub(crate) fn any(api: &Api<'_>, text: &str) -> Answer<Cid> {
    let query = [("s", Some(text)), ("any", Some("1"))];
    let answer = api.get(&view::path("/v1/resolve", &query)).map_err(of_the_line)?;
    view::text(&answer, "/cid").parse().map_err(Problem::from)
}

/// What the API calls a query was a word on the line.
fn of_the_line(problem: Problem) -> Problem {
    if problem.code() != Code::ApiQuery {
        return problem;
    }
    let hint = problem.fact("hint").and_then(serde_json::Value::as_str).map(str::to_owned);
    let told = Problem::new(Code::Usage, problem.detail());
    match hint {
        Some(hint) => told.hint(hint),
        None => told,
    }
}

/// Where an entry is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EntryAt {
    /// By its number.
    Seq(u64),
    /// The newest.
    Head,
    /// So many before the head.
    FromHead(u64),
}

/// What a reference to a session or an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A session, or anything that is named by a CID alone.
    Plain(String),
    /// An entry of a session.
    Entry(String, EntryAt),
}

/// Reads `S`, `S:31`, `S:head` or `S:-1`.
#[must_use]
pub(crate) fn target(text: &str) -> Target {
    let plain = || Target::Plain(text.to_owned());
    let Some((session, place)) = text.rsplit_once(':') else { return plain() };
    let at = match place.strip_prefix('-') {
        _ if place == "head" => EntryAt::Head,
        Some(back) => match back.parse::<u64>() {
            // `S:-1` is the newest entry, as in a list that is counted from its end.
            Ok(back) if back > 0 => EntryAt::FromHead(back - 1),
            _ => return plain(),
        },
        None => match place.parse::<u64>() {
            Ok(seq) => EntryAt::Seq(seq),
            Err(_) => return plain(),
        },
    };
    if session.is_empty() { plain() } else { Target::Entry(session.to_owned(), at) }
}

/// The last part of an entry's path in the API.
///
/// # Errors
/// `E_NOT_FOUND_YET` for a place before the genesis.
pub(crate) fn entry_part(api: &Api<'_>, session: SessionId, at: &EntryAt) -> Answer<String> {
    match at {
        EntryAt::Seq(seq) => Ok(seq.to_string()),
        EntryAt::Head => Ok("head".to_owned()),
        EntryAt::FromHead(back) => {
            let answer = api.get(&format!("/v1/sessions/{session}"))?;
            let head = view::number(&answer, "/head/seq");
            let seq = head.checked_sub(*back).ok_or_else(|| {
                Problem::new(
                    Code::NotFoundYet,
                    format!("expected an entry {back} before seq {head}, got none"),
                )
                .hint(format!("throughline show {}:0", session.short()))
            })?;
            Ok(seq.to_string())
        }
    }
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its principal.
    pub(crate) principal: Principal,
    /// What it is called here.
    pub(crate) alias: Option<String>,
}

impl Peer {
    /// The alias and enough of the key to tell it from another; a key without an alias in full, since something is done to it.
    #[must_use]
    pub(crate) fn shown(&self) -> String {
        match self.alias.as_deref() {
            Some("self") => "self".to_owned(),
            Some(alias) => format!("{alias} ({})", self.principal.short()),
            None => self.principal.to_string(),
        }
    }

    /// What the next command would call it.
    #[must_use]
    pub(crate) fn word(&self) -> String {
        self.alias.clone().unwrap_or_else(|| self.principal.to_string())
    }
}

/// The peer that `text` names: `self`, an alias, a full principal or a peer's ticket.
///
/// # Errors
/// `E_PEER_UNKNOWN`.
pub(crate) fn peer(api: &Api<'_>, text: &str) -> Answer<Peer> {
    let given = text.parse::<Principal>().ok();
    if text == "self" {
        let node = api.get("/v1/node")?;
        let principal = view::text(&node, "/principal").parse().map_err(Problem::from)?;
        return Ok(Peer { principal, alias: Some("self".to_owned()) });
    }
    if text.starts_with("tlp1") {
        // The ticket of a peer that was not added holds all that a grant needs: its full principal.
        return match text.parse::<Ticket>().map_err(Problem::from)? {
            Ticket::Peer(ticket) => Ok(Peer { principal: ticket.principal, alias: None }),
            Ticket::Session(_) => Err(unknown_peer(text)),
        };
    }
    let peers = api.get("/v1/peers")?;
    for item in view::items(&peers, "/items") {
        let alias = view::text(item, "/alias");
        let Ok(principal) = view::text(item, "/principal").parse::<Principal>() else { continue };
        if given == Some(principal) || (given.is_none() && alias == text) {
            return Ok(Peer { principal, alias: (!alias.is_empty()).then(|| alias.to_owned()) });
        }
    }
    match given {
        Some(principal) => Ok(Peer { principal, alias: None }),
        None => Err(unknown_peer(text)),
    }
}

fn unknown_peer(text: &str) -> Problem {
    let shape = if text.parse::<Cid>().is_ok() { "a CID" } else { "neither" };
    let detail = format!("expected a known alias or a full principal (z6Mk…), got {shape}: {text:?}");
    Problem::new(Code::PeerUnknown, detail).hint("throughline peer list")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_from_names() {
        let entry = |session: &str, at| Target::Entry(session.to_owned(), at);
        assert_eq!(target("k3f7m2xq:31"), entry("k3f7m2xq", EntryAt::Seq(31)));
        assert_eq!(target("k3f7m2xq:head"), entry("k3f7m2xq", EntryAt::Head));
        assert_eq!(target("k3f7m2xq:-1"), entry("k3f7m2xq", EntryAt::FromHead(0)));
        assert_eq!(target("hm://z6Mk/session-b:3"), entry("hm://z6Mk/session-b", EntryAt::Seq(3)));
        for plain in ["k3f7m2xq", "hm://z6Mk/session-b", "ipfs://b", ":3", "a:-0", "a:b", "a:", "a:-x"] {
            assert_eq!(target(plain), Target::Plain(plain.to_owned()));
        }
    }
}
