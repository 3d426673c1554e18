//! Tickets: one line of text that tells a peer or a session and where to find it. `docs/PROTOCOL.md` §Announcements, tickets, files.
//!
//! `tlp1` (peer) or `tls1` (session), then base32 of the body and of four check bytes. A ticket is a hint: it saves
//! typing and proves nothing; what it names is checked like everything else. The check bytes find typing errors only.

use std::{fmt, str::FromStr, sync::Arc};

use data_encoding::BASE32_NOPAD;

use crate::block::sha256;
use crate::code::{Code, Reject};
use crate::codec::{self, Map, Value, encode_map};
use crate::id::{Principal, SessionId};
use crate::limits;
use crate::schema::{self, Fields};
use crate::wire::{addresses, texts};

const PEER_PREFIX: &str = "tlp1";
const SESSION_PREFIX: &str = "tls1";
const CHECK_BYTES: usize = 4;
/// Largest ticket, in characters: a grant and eight addresses of the largest size, and keys.
const TEXT_BYTES_MAX: usize = 24_576;

/// A ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ticket {
    /// `tlp1…`
    Peer(PeerTicket),
    /// `tls1…`
    Session(SessionTicket),
}

/// Tells a peer: give it to the owner who is to grant, or to a peer who is to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTicket {
    /// The key that signs on that node.
    pub principal: Principal,
    /// The key of its connections, in principal form.
    pub peer: Principal,
    /// Where it listens; at most [`limits::ADDRESSES_MAX`].
    pub addresses: Vec<String>,
}

/// Tells a session and a peer that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTicket {
    /// The session's owner.
    pub owner: Principal,
    /// The session.
    pub session: SessionId,
    /// A peer that has it, as its connection key in principal form.
    pub peer: Principal,
    /// Where that peer listens; at most [`limits::ADDRESSES_MAX`].
    pub addresses: Vec<String>,
    /// A capability to read it: whoever is its delegate may.
    pub grant: Option<Arc<[u8]>>,
}

impl PeerTicket {
    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with("principal", self.principal)
            .with("peer", self.peer)
            .with("addrs", texts(&self.addresses))
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::closed(map, "ticket", &["peer", "addrs", "principal"], &[])?;
        Ok(PeerTicket {
            principal: fields.need("principal", schema::principal)?,
            peer: fields.need("peer", schema::principal)?,
            addresses: fields.need("addrs", addresses)?,
        })
    }
}

impl SessionTicket {
    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with("owner", self.owner)
            .with("genesis", self.session)
            .with("peer", self.peer)
            .with("addrs", texts(&self.addresses))
            .with_some("grant", self.grant.as_deref())
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::closed(map, "ticket", &["peer", "addrs", "owner", "genesis"], &["grant"])?;
        let grant = fields.maybe("grant", schema::bytes)?;
        if grant.as_ref().is_some_and(|grant| grant.len() > limits::CONTROL_BYTES_MAX) {
            return Err(Reject::new(Code::TooBig, "the grant is larger than a capability may be"));
        }
        Ok(SessionTicket {
            owner: fields.need("owner", schema::principal)?,
            session: SessionId::of_genesis(fields.need("genesis", schema::entry)?),
            peer: fields.need("peer", schema::principal)?,
            addresses: fields.need("addrs", addresses)?,
            grant: grant.map(Arc::from),
        })
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, map) = match self {
            Ticket::Peer(ticket) => (PEER_PREFIX, ticket.to_map()),
            Ticket::Session(ticket) => (SESSION_PREFIX, ticket.to_map()),
        };
        let mut bytes = encode_map(&map);
        let check = sha256(&bytes);
        bytes.extend(&check[..CHECK_BYTES]);
        write!(f, "{prefix}{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
    }
}

impl FromStr for Ticket {
    type Err = Reject;

    /// Reads a ticket.
    ///
    /// # Errors
    /// `E_INPUT_FORMAT`, with what is wrong: another prefix, a character or check bytes that do not fit (then it was
    /// not copied whole), or a body that is not a ticket's.
    fn from_str(text: &str) -> Result<Self, Reject> {
        let bad = |what: &str| Reject::new(Code::InputFormat, format!("not a ticket: {what}"));
        let (is_peer, encoded) = match (text.strip_prefix(PEER_PREFIX), text.strip_prefix(SESSION_PREFIX)) {
            (Some(encoded), _) => (true, encoded),
            (_, Some(encoded)) => (false, encoded),
            (None, None) => return Err(bad("expected tlp1… or tls1…")),
        };
        if text.len() > TEXT_BYTES_MAX {
            return Err(bad("it is longer than any ticket"));
        }
        if encoded.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(bad("expected lower case"));
        }
        let bytes = BASE32_NOPAD
            .decode(encoded.to_ascii_uppercase().as_bytes())
            .map_err(|_| bad("a character is wrong or missing"))?;
        let Some((body, check)) = bytes.split_last_chunk::<CHECK_BYTES>() else {
            return Err(bad("it is cut short"));
        };
        if sha256(body)[..CHECK_BYTES] != check[..] {
            return Err(bad("its check bytes do not fit; it was not copied whole"));
        }
        let read = |map: &Map<'_>| {
            if is_peer {
                PeerTicket::from_map(map).map(Ticket::Peer)
            } else {
                SessionTicket::from_map(map).map(Ticket::Session)
            }
        };
        match codec::decode(body, limits::ENTRY_DEPTH_MAX) {
            Ok((Value::Map(map), _)) => read(&map).map_err(|reject| bad(&reject.to_string())),
            Ok(_) => Err(bad("its body is no map")),
            Err(reject) => Err(bad(&reject.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::EntryCid;

    fn tickets() -> Vec<Ticket> {
        let principal = Principal::from_key([1; 32]);
        let peer = Principal::from_key([2; 32]);
        let addresses = vec!["/ip4/192.0.2.1/udp/4001/quic-v1".to_owned(); limits::ADDRESSES_MAX];
        let session = SessionId::of_genesis(EntryCid::of(b"genesis"));
        let grant = Some(Arc::from(vec![7; limits::CONTROL_BYTES_MAX]));
        let of_session = |grant| {
            Ticket::Session(SessionTicket {
                owner: principal,
                session,
                peer,
                addresses: addresses.clone(),
                grant,
            })
        };
        vec![
            Ticket::Peer(PeerTicket { principal, peer, addresses: addresses.clone() }),
            Ticket::Peer(PeerTicket { principal, peer, addresses: Vec::new() }),
            of_session(None),
            of_session(grant),
        ]
    }

    #[test]
    fn tickets_round_trip() {
        for ticket in tickets() {
            assert_eq!(ticket.to_string().parse::<Ticket>().as_ref(), Ok(&ticket));
        }
    }

    #[test]
    fn any_changed_character_is_found() {
        let text = tickets()[0].to_string();
        for at in 4..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'a' { b'b' } else { b'a' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(changed.parse::<Ticket>().unwrap_err().code, Code::InputFormat, "{at}");
        }
        for cut in 0..text.len() {
            assert!(text[..cut].parse::<Ticket>().is_err(), "{cut}");
        }
        assert!(text.to_uppercase().parse::<Ticket>().is_err());
    }

    #[test]
    fn a_body_with_right_check_bytes_is_still_judged() {
        let encode = |map: &Map<'_>| {
            let mut bytes = encode_map(map);
            let check = sha256(&bytes);
            bytes.extend(&check[..CHECK_BYTES]);
            format!("tlp1{}", BASE32_NOPAD.encode(&bytes).to_ascii_lowercase())
        };
        let Ticket::Peer(ticket) = &tickets()[0] else { unreachable!() };
        let nine = vec![Value::from("/x"); limits::ADDRESSES_MAX + 1];
        for map in [
            ticket.to_map().with("extra", true),
            ticket.to_map().with("addrs", nine),
            ticket.to_map().with("addrs", vec![Value::from("a\u{1b}[31m")]),
            ticket.to_map().with("peer", vec![1_u8; 34]),
        ] {
            assert_eq!(encode(&map).parse::<Ticket>().unwrap_err().code, Code::InputFormat);
        }
    }
}
