//! Session references as people write them: a CID, a short id, a ticket, an IRI.

use serde_json::json;
use throughline_protocol::code::Code;
use throughline_protocol::id::SessionId;
use throughline_protocol::ticket::Ticket;

use super::Node;
use crate::api::error::{Answer, Problem};

/// Characters of a short id, at least.
const SHORT_MIN: usize = 4;
/// What every session CID begins with.
const COMMON_PREFIX: &str = "bafyrei";

impl Node {
    /// The session that a reference names. A full CID, a ticket or an IRI need not be held; a short id is looked up here.
    ///
    /// # Errors
    /// `E_AMBIGUOUS` with the matches, `E_NOT_FOUND_YET`, or `E_CID` for something that is no reference.
    pub fn resolve(&self, text: &str) -> Answer<SessionId> {
        let text = text.strip_prefix("ipfs://").unwrap_or(text);
        if text.starts_with("hm://") {
            let cid = text.rsplit_once("/session-").map(|(_, cid)| cid).unwrap_or_default();
            return Ok(cid.parse()?);
        }
        if text.starts_with("tls1") {
            return match text.parse::<Ticket>()? {
                Ticket::Session(ticket) => Ok(ticket.session),
                Ticket::Peer(_) => {
                    Err(Problem::new(Code::InputFormat, "expected a session ticket, got a peer's"))
                }
            };
        }
        if let Ok(session) = text.parse::<SessionId>() {
            return Ok(session);
        }
        self.by_short_id(text)
    }

    fn by_short_id(&self, text: &str) -> Answer<SessionId> {
        let tail = text.strip_prefix(COMMON_PREFIX).unwrap_or(text);
        let plain = tail.len() >= SHORT_MIN
            && tail.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b));
        if !plain {
            return Err(Problem::new(
                Code::Cid,
                format!(
                    "expected a session CID or at least {SHORT_MIN} characters of one after {COMMON_PREFIX}"
                ),
            )
            .hint("throughline list"));
        }
        let matches = self.reader()?.sessions_by_prefix(&format!("{COMMON_PREFIX}{tail}"), 5)?;
        match matches.as_slice() {
            [session] => Ok(*session),
            [] => Err(Problem::new(Code::NotFoundYet, format!("no session here begins with {tail}"))
                .hint("throughline list")),
            several => Err(Problem::new(Code::Ambiguous, format!("{tail} fits several sessions"))
                .with("matches", json!(several.iter().map(ToString::to_string).collect::<Vec<_>>()))),
        }
    }
}
