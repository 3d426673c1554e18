//! The address book: who this node knows by name, kept in the store.
//!
//! An alias stands for one principal and one connection key. It is what a ticket said when the user added it: where to
//! dial and what to call it. It proves nothing; who stands behind a connection is told by a peer proof only.

use libp2p::Multiaddr;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::codec::{self, Map, Value, encode_map};
use throughline_protocol::id::Principal;
use throughline_protocol::limits::{ADDRESS_BYTES_MAX, ADDRESSES_MAX};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::ticket::{PeerTicket, Ticket};
use throughline_store::{Expect, NamedRow, PutFact, Reader};

use crate::api::error::{Answer, Problem};
use crate::core::Node;

/// The space of the store's facts that holds the book.
const SPACE: &str = "peer";
/// Peers that are remembered.
pub const PEERS_MAX: usize = 1_024;
/// What this node and the account that it serves are called.
const TAKEN: [&str; 2] = ["self", "owner"];
/// The longest alias, in bytes.
const ALIAS_BYTES_MAX: usize = 64;

/// A peer that is known by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPeer {
    /// What the user calls it.
    pub alias: String,
    /// The key that signs on that node.
    pub principal: Principal,
    /// The key of its connections, in principal form.
    pub peer: Principal,
    /// Where it listens.
    pub addrs: Vec<Multiaddr>,
}

/// What adding a peer changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is new, or its addresses are.
    Now,
    /// It was known like this.
    Before,
}

impl KnownPeer {
    /// The peer that a ticket tells of.
    ///
    /// # Errors
    /// `E_USAGE` for an alias that could be mistaken for something else, `E_INPUT_FORMAT` for a ticket with an unusable address
    /// or key, or for a session's.
    pub fn of_ticket(alias: &str, ticket: &str) -> Answer<Self> {
        check_alias(alias)?;
        match ticket.parse::<Ticket>()? {
            Ticket::Peer(PeerTicket { principal, peer, addresses }) => {
                check_key(&principal, Code::InputFormat)?;
                check_key(&peer, Code::InputFormat)?;
                Ok(KnownPeer { alias: alias.to_owned(), principal, peer, addrs: read_addrs(&addresses)? })
            }
            Ticket::Session(_) => {
                Err(Problem::new(Code::InputFormat, "expected a peer's ticket (tlp1…), got a session's"))
            }
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let addrs: Vec<Value<'_>> = self.addrs.iter().map(|addr| Value::from(addr.to_string())).collect();
        let map = Map::new().with("principal", self.principal).with("peer", self.peer).with("addrs", addrs);
        encode_map(&map)
    }

    fn from_row(row: &NamedRow) -> Result<Self, Reject> {
        let bad = |what: &str| Reject::new(Code::StoreCorrupt, format!("a row of the address book: {what}"));
        let (value, _) = codec::decode(&row.value, 4)?;
        let map = value.as_map().ok_or_else(|| bad("expected a map"))?;
        let key = |name: &str| {
            let bytes = map.get(name).and_then(Value::as_bytes).ok_or_else(|| bad("expected a key"))?;
            Principal::from_bytes(bytes)
        };
        let addrs = map.get("addrs").and_then(Value::as_list).ok_or_else(|| bad("expected addresses"))?;
        let addrs = addrs.iter().filter_map(|addr| addr.as_text()?.parse().ok()).collect();
        let alias = String::from_utf8(row.key.clone()).map_err(|_| bad("expected an alias"))?;
        Ok(KnownPeer { alias, principal: key("principal")?, peer: key("peer")?, addrs })
    }
}

/// Refuses a key that somebody typed and that nobody can sign with. A principal has no check bytes, but of 32 bytes
/// that are not made as a key about one in sixteen is usable: half are no point of the curve, seven of eight points have torsion.
///
/// # Errors
/// `code`, by where the key was typed (`docs/decisions/0028`), with what is wrong with it in words.
pub fn check_key(principal: &Principal, code: Code) -> Answer<()> {
    VerifyingKeys::default().check(principal).map_err(|reject| {
        let what = format!(
            "expected a key that can sign, got {principal}, {} ({}): it is probably mistyped, copy it whole",
            reject.code.title(),
            reject.code
        );
        Problem::new(code, what).hint("throughline id, on the machine whose key it is")
    })
}

/// All known peers, ascending by alias. A row that does not read is told and passed over: the others are known all the same.
///
/// # Errors
/// When the store cannot be read.
pub fn list(reader: &Reader) -> Answer<Vec<KnownPeer>> {
    let mut known = Vec::new();
    for row in reader.facts(SPACE)? {
        let read = row.map_err(|damaged| damaged.to_string());
        match read.and_then(|row| KnownPeer::from_row(&row).map_err(|reject| reject.to_string())) {
            Ok(peer) => known.push(peer),
            Err(problem) => tracing::warn!("a peer of the address book is passed over: {problem}"),
        }
    }
    Ok(known)
}

/// The peer that a name or a full principal stands for.
///
/// # Errors
/// `E_PEER_UNKNOWN`.
pub fn resolve(reader: &Reader, who: &str) -> Answer<KnownPeer> {
    let principal = who.parse::<Principal>().ok();
    let fits = |peer: &KnownPeer| peer.alias == who || principal == Some(peer.principal);
    list(reader)?.into_iter().find(fits).ok_or_else(|| unknown(who))
}

/// Remembers a peer. Adding it again with other addresses replaces them.
///
/// # Errors
/// `E_USAGE` for this node itself, `E_AMBIGUOUS` when the alias stands for another principal, `E_QUOTA` when the book is full.
pub fn add(node: &Node, peer: &KnownPeer) -> Answer<Added> {
    check_alias(&peer.alias)?;
    if peer.principal == node.principal() {
        let what = "expected the ticket of another node, got this node's own; this node is called self, and is no peer of its own";
        return Err(Problem::new(Code::Usage, what).hint("throughline id --ticket, on the other node"));
    }
    let reader = node.reader()?;
    let known = list(&reader)?;
    let held = known.iter().find(|held| held.alias == peer.alias);
    match held {
        Some(held) if held == peer => return Ok(Added::Before),
        Some(held) if held.principal != peer.principal => {
            let what = format!(
                "expected a name that no other peer has, got `{}`, which stands for {} already",
                peer.alias, held.principal
            );
            return Err(
                Problem::new(Code::Ambiguous, what).hint(format!("throughline peer remove {}", peer.alias))
            );
        }
        Some(_) => {}
        None if known.len() >= PEERS_MAX => {
            return Err(Problem::new(
                Code::Quota,
                format!("the address book holds {PEERS_MAX} peers already"),
            ));
        }
        None => {}
    }
    put(node, &peer.alias, Some(peer.to_bytes()))?;
    Ok(Added::Now)
}

/// Forgets a peer; returns what it was.
///
/// # Errors
/// `E_PEER_UNKNOWN`.
pub fn remove(node: &Node, who: &str) -> Answer<KnownPeer> {
    let peer = resolve(&node.reader()?, who)?;
    put(node, &peer.alias, None)?;
    Ok(peer)
}

fn put(node: &Node, alias: &str, value: Option<Vec<u8>>) -> Answer<()> {
    let (space, key) = (SPACE.to_owned(), alias.as_bytes().to_vec());
    Ok(node.store().run(PutFact { space, key, expect: Expect::Anything, value })?)
}

/// The refusal of a name that stands for nobody.
pub(super) fn unknown(who: &str) -> Problem {
    let shown: String = who.chars().filter(|c| !c.is_control()).take(ALIAS_BYTES_MAX).collect();
    Problem::new(Code::PeerUnknown, format!("expected an alias or a full principal, got `{shown}`"))
        .hint("throughline peer list")
}

/// Addresses as a ticket or an offer spells them.
pub(super) fn read_addrs(texts: &[String]) -> Answer<Vec<Multiaddr>> {
    let fits = |text: &&String| text.len() <= ADDRESS_BYTES_MAX;
    texts
        .iter()
        .filter(fits)
        .take(ADDRESSES_MAX)
        .map(|text| {
            text.parse().map_err(|_| Problem::new(Code::InputFormat, "expected multiaddresses in the ticket"))
        })
        .collect()
}

/// An alias is short, plain, and cannot be taken for a key, a CID or a ticket.
fn check_alias(alias: &str) -> Answer<()> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    let taken = ["z6Mk", "tlp1", "tls1", "bafy"].iter().any(|prefix| alias.starts_with(prefix))
        || TAKEN.contains(&alias);
    if !alias.is_empty() && alias.len() <= ALIAS_BYTES_MAX && alias.bytes().all(plain) && !taken {
        return Ok(());
    }
    let what = format!(
        "expected an alias of 1 to {ALIAS_BYTES_MAX} characters of a-z, 0-9, `-`, `_` and `.` that is not `self` or `owner` and \
         looks like no key, CID or ticket"
    );
    Err(Problem::new(Code::Usage, what))
}

#[cfg(test)]
mod tests {
    use throughline_protocol::testing;

    use super::*;

    fn peer(alias: &str) -> KnownPeer {
        KnownPeer {
            alias: alias.to_owned(),
            principal: testing::key("server-a").principal(),
            peer: testing::key("server-a's connections").principal(),
            addrs: vec!["/ip4/127.0.0.1/tcp/4747".parse().unwrap()],
        }
    }

    /// A key that nobody can sign with.
    fn unusable() -> Principal {
        let mut keys = VerifyingKeys::default();
        let made = (0..=u8::MAX).map(|byte| Principal::from_key([byte; 32]));
        made.into_iter().find(|key| keys.check(key).is_err()).unwrap()
    }

    #[test]
    fn a_ticket_names_keys_that_can_sign() {
        let good = throughline_protocol::testing::key("peer").principal();
        let of = |principal, peer| {
            let addresses = vec!["/ip4/127.0.0.1/tcp/4747".to_owned()];
            let ticket = Ticket::Peer(PeerTicket { principal, peer, addresses });
            KnownPeer::of_ticket("server-a", &ticket.to_string())
        };
        assert_eq!(of(good, good).unwrap().principal, good);
        for refused in [of(unusable(), good), of(good, unusable())] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), Code::InputFormat);
            assert!(
                refused.detail().contains("E_KEY_") && refused.detail().contains("mistyped"),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_row_reads_back() {
        let peer = peer("server-a");
        let row = NamedRow { key: b"server-a".to_vec(), value: peer.to_bytes() };
        assert_eq!(KnownPeer::from_row(&row).unwrap(), peer);
        let damaged = NamedRow { value: vec![0xa0], ..row };
        assert_eq!(KnownPeer::from_row(&damaged).unwrap_err().code, Code::StoreCorrupt);
    }

    #[test]
    fn an_alias_is_nothing_else() {
        for good in ["a", "server-a", "desktop.home_2"] {
            check_alias(good).unwrap();
        }
        for bad in [
            "",
            "Server",
            "a b",
            "z6MkhaXg",
            "tlp1abc",
            "tls1abc",
            "bafyreik3",
            "self",
            "owner",
            "ä",
            &"a".repeat(65),
        ] {
            assert_eq!(check_alias(bad).unwrap_err().code(), Code::Usage, "{bad}");
        }
    }

    #[test]
    fn a_ticket_becomes_a_peer() {
        let peer = peer("server-a");
        let ticket = Ticket::Peer(PeerTicket {
            principal: peer.principal,
            peer: peer.peer,
            addresses: vec!["/ip4/127.0.0.1/tcp/4747".to_owned()],
        });
        assert_eq!(KnownPeer::of_ticket("server-a", &ticket.to_string()).unwrap(), peer);
        assert_eq!(KnownPeer::of_ticket("server-a", "tlp1x").unwrap_err().code(), Code::InputFormat);
    }
}
