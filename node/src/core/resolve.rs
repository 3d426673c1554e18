//! References as people write them: a CID, a short id, a ticket, an IRI.
//!
//! What is refused here was typed, so it is the asker's mistake and never a corrupt session's.

use std::collections::BTreeSet;

use serde_json::json;
use throughline_protocol::code::Code;
use throughline_protocol::codec::{self, Value};
use throughline_protocol::id::{Cid, Codec, HashKind, SessionId};
use throughline_protocol::ticket::Ticket;
use throughline_protocol::{limits, unixfs};
use throughline_store::Reader;

use super::Node;
use crate::api::error::{Answer, Problem};

/// Characters of a short id, at least.
const SHORT_MIN: usize = 4;
/// Characters of a CID after its prefix: with as many it is no short id any more.
const TAIL_LENGTH: usize = 52;
/// What every session CID begins with.
const COMMON_PREFIX: &str = "bafyrei";
/// What CIDs of sha2-256 begin with, by what they name.
const PREFIXES: [(&str, Codec); 3] =
    [(COMMON_PREFIX, Codec::DagCbor), ("bafkrei", Codec::Raw), ("bafybei", Codec::DagPb)];
/// Matches that a refusal lists.
const MATCHES_MAX: usize = 5;

impl Node {
    /// The session that a reference names. A full CID, a ticket or an IRI need not be held; a short id is looked up here.
    ///
    /// # Errors
    /// `E_AMBIGUOUS` with the matches, `E_NOT_FOUND_YET`, `E_INPUT_FORMAT` for a damaged ticket, or `E_API_QUERY` for something
    /// that is no reference.
    pub fn resolve(&self, text: &str) -> Answer<SessionId> {
        let text = text.strip_prefix("ipfs://").unwrap_or(text);
        if text.starts_with("hm://") {
            let cid = text.rsplit_once("/session-").map(|(_, cid)| cid).unwrap_or_default();
            return cid.parse().map_err(|_| no_reference("expected hm://…/session-<cid>", text));
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
        if let Ok(cid) = text.parse::<Cid>() {
            let detail = format!(
                "expected the CID of a session, which begins with {COMMON_PREFIX}, got that of a file: {cid}"
            );
            return Err(Problem::new(Code::ApiQuery, detail).hint(format!("throughline show {cid}")));
        }
        let tail = short_tail(text.strip_prefix(COMMON_PREFIX).unwrap_or(text), text)?;
        let matches = self.reader()?.sessions_by_prefix(tail, MATCHES_MAX)?;
        one_of(&matches, tail, "session")
    }

    /// What a short id names here: a session, else an entry, a payload, a file, or a control blob.
    ///
    /// # Errors
    /// As [`Node::resolve`].
    pub fn resolve_any(&self, text: &str) -> Answer<Cid> {
        match self.resolve(text) {
            Ok(session) => return Ok(session.genesis().cid()),
            Err(problem) if problem.code() == Code::NotFoundYet => {}
            // A prefix of another kind names no session.
            Err(_) if PREFIXES[1..].iter().any(|(prefix, _)| text.starts_with(prefix)) => {}
            Err(problem) => return Err(problem),
        }
        let kind = PREFIXES.iter().find_map(|(prefix, codec)| Some((text.strip_prefix(prefix)?, *codec)));
        let tail = short_tail(kind.map_or(text, |(tail, _)| tail), text)?;
        let reader = self.reader()?;
        let mut found = BTreeSet::new();
        for digest in reader.digests_by_prefix(tail, MATCHES_MAX)? {
            let codec = match kind {
                Some((_, codec)) => codec,
                None => codec_of(&reader, digest)?,
            };
            found.insert(Cid::from_parts(codec, HashKind::Sha256, digest));
        }
        one_of(&found.into_iter().collect::<Vec<_>>(), tail, "session, entry or block")
    }
}

/// The characters of a short id, when it can be one.
fn short_tail<'a>(tail: &'a str, text: &str) -> Answer<&'a str> {
    let is_plain = tail.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b));
    if is_plain && (SHORT_MIN..TAIL_LENGTH).contains(&tail.len()) {
        return Ok(tail);
    }
    let expected =
        format!("expected a session CID or at least {SHORT_MIN} characters of one after {COMMON_PREFIX}");
    Err(no_reference(&expected, text))
}

fn no_reference(expected: &str, text: &str) -> Problem {
    let shown: String = text.chars().filter(|c| !c.is_control()).take(70).collect();
    Problem::new(Code::ApiQuery, format!("{expected}, got {shown:?}")).hint("throughline list")
}

fn one_of<T: Copy + ToString>(matches: &[T], tail: &str, what: &str) -> Answer<T> {
    match matches {
        [one] => Ok(*one),
        [] => Err(Problem::new(Code::NotFoundYet, format!("no {what} here begins with {tail}"))
            .hint("throughline list")),
        several => Err(Problem::new(Code::Ambiguous, format!("{tail} fits several: write more of it"))
            .with("matches", json!(several.iter().map(ToString::to_string).collect::<Vec<_>>()))),
    }
}

/// The kind of a block that only its digest is known of: eight characters of a CID do not tell it, its bytes do.
fn codec_of(reader: &Reader, digest: [u8; 32]) -> Answer<Codec> {
    // The digest alone decides what is read.
    let bytes = reader.block(&Cid::from_parts(Codec::DagCbor, HashKind::Sha256, digest))?.unwrap_or_default();
    Ok(match codec::decode(&bytes, limits::PAYLOAD_DEPTH_MAX) {
        Ok((Value::Map(_), _)) => Codec::DagCbor,
        _ if unixfs::links(&bytes).is_ok_and(|links| !links.is_empty()) => Codec::DagPb,
        _ => Codec::Raw,
    })
}
