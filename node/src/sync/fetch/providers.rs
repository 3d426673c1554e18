//! Who is asked: named peers, tickets, or those who are known, and who that is where there are more than can be asked. And what they
//! told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::{Multiaddr, PeerId};
use throughline_protocol::code::Code;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_protocol::sync::choice::{self, Candidate, Line, Rank};
use throughline_protocol::sync::range::Charged;
use throughline_protocol::ticket::{PeerTicket, SessionTicket, Ticket};
use throughline_protocol::wire::Credentials;
use throughline_protocol::wire::chain::{ChainAsk, HeadState, OwnerState};
use tokio::time::timeout;

use super::super::fault::PeerFault;
use super::super::peers;
use super::super::shared::Shared;
use crate::api::error::{Answer, Problem};
use crate::core::Cut;
use crate::net::{Transport, network_of, peer_of};

/// Peers that are asked for one session. Of these, [`super::super::shared::SyncLimits::peers_max`] may be strangers.
const ASKED_MAX: usize = 64;

/// Somebody who may have the session.
#[derive(Clone, Debug)]
pub(in crate::sync) struct Provider {
    pub(in crate::sync) peer: PeerId,
    /// Its connection key in principal form.
    pub(in crate::sync) key: Principal,
    /// What the user calls it.
    pub(in crate::sync) alias: Option<String>,
    /// The principal, as far as the address book or a proof says.
    pub(in crate::sync) principal: Option<Principal>,
    /// A grant that a ticket brought along.
    pub(in crate::sync) grant: Option<Arc<[u8]>>,
    /// How well it is known.
    pub(super) rank: Rank,
    /// Whether there is a connection to it.
    line: Line,
    addrs: Vec<Multiaddr>,
}

impl Provider {
    /// A connected peer.
    pub(in crate::sync) fn connected(peer: PeerId, key: Principal) -> Self {
        let (rank, line, addrs) = (Rank::Stranger, Line::Open, Vec::new());
        Provider { peer, key, alias: None, principal: None, grant: None, rank, line, addrs }
    }

    /// Who it is to this node: the principal, as far as known, else its connection key.
    pub(super) fn identity(&self) -> Principal {
        self.principal.unwrap_or(self.key)
    }

    /// What to call it in an answer.
    pub(in crate::sync) fn name(&self) -> String {
        self.alias.clone().unwrap_or_else(|| self.identity().to_string())
    }

    fn candidate(&self) -> Candidate {
        Candidate {
            key: self.key,
            principal: self.identity(),
            rank: self.rank,
            line: self.line,
            network: self.addrs.first().and_then(network_of),
        }
    }
}

/// Who is asked.
#[derive(Clone, Debug, Default)]
pub(in crate::sync) struct Providers {
    /// Those whose answers count for more first.
    pub(in crate::sync) asked: Vec<Provider>,
    /// How many more are known, and are not asked.
    pub(super) left_out: usize,
}

/// A provider that answered.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub(super) provider: Provider,
    pub(super) credentials: Credentials,
    pub(super) road: Transport,
    pub(super) head: Option<Mark>,
    pub(super) reference: Option<Arc<[u8]>>,
    pub(super) owner: Option<OwnerState>,
}

impl Shared {
    /// The providers that a request names; without names, those that are connected or in the address book: as many as may be asked,
    /// chosen by [`choice::order`].
    ///
    /// # Errors
    /// `E_PEER_UNKNOWN`, `E_INPUT_FORMAT` for a damaged ticket.
    pub(in crate::sync) async fn providers(&self, from: &[String]) -> Answer<Providers> {
        let book = self.on_node(|node| peers::list(&node.reader()?)).await?;
        let mut found: BTreeMap<Principal, Provider> = BTreeMap::new();
        let own = self.net.peer_principal();
        for name in from {
            for provider in self.named(name, &book)? {
                found.insert(provider.key, provider);
            }
        }
        if from.is_empty() {
            for peer in &book {
                found.extend(of_book(peer).map(|provider| (provider.key, provider)));
            }
        }
        for connected in self.net.connected().await {
            let (peer, key) = (connected.peer, connected.principal);
            if let Some(provider) = found.get_mut(&key) {
                provider.line = Line::Open;
            } else if from.is_empty() {
                let rank = if self.parties.knows(key) { Rank::Party } else { Rank::Stranger };
                let addrs = connected.addrs;
                found.insert(key, Provider { rank, addrs, ..Provider::connected(peer, key) });
            }
        }
        found.remove(&own);
        for provider in found.values_mut() {
            provider.principal = provider.principal.or_else(|| self.contacts.principal_of(provider.key));
            let known = book.iter().find(|peer| peer.peer == provider.key);
            provider.alias = provider.alias.take().or_else(|| known.map(|peer| peer.alias.clone()));
        }
        self.choose(found.into_values().collect())
    }

    /// Those who are asked, when there are more than can be.
    fn choose(&self, found: Vec<Provider>) -> Answer<Providers> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
        let candidates: Vec<Candidate> = found.iter().map(Provider::candidate).collect();
        let (mut asked, mut left_out, mut strangers) = (Vec::new(), Vec::new(), 0);
        for at in choice::order(&candidates, &seed) {
            let provider = &found[at];
            let is_stranger = provider.rank == Rank::Stranger;
            if asked.len() < ASKED_MAX && !(is_stranger && strangers >= self.limits.peers_max) {
                strangers += usize::from(is_stranger);
                asked.push(provider.clone());
            } else {
                left_out.push(provider.name());
            }
        }
        let count = left_out.len();
        self.node()?.note_cut(Cut::Providers, left_out);
        Ok(Providers { asked, left_out: count })
    }

    fn named(&self, name: &str, book: &[peers::KnownPeer]) -> Answer<Vec<Provider>> {
        if name.starts_with("tlp1") || name.starts_with("tls1") {
            return Ok(of_ticket(name.parse::<Ticket>()?)?.into_iter().collect());
        }
        let principal = name.parse::<Principal>().ok();
        let fits = |peer: &&peers::KnownPeer| {
            peer.alias == name || principal.is_some_and(|p| p == peer.principal || p == peer.peer)
        };
        let mut found: Vec<Provider> = book.iter().filter(fits).filter_map(of_book).collect();
        if let Some(principal) = principal.filter(|_| found.is_empty()) {
            let keys = self.contacts.peers_of(principal).into_iter().chain([principal]);
            let named = |key| {
                let (rank, line) = (Rank::Named, Line::None);
                Some(Provider { rank, line, ..Provider::connected(peer_of(&key)?, key) })
            };
            found.extend(keys.filter_map(named));
        }
        if found.is_empty() { Err(peers::unknown(name)) } else { Ok(found) }
    }

    /// Connects to a provider.
    pub(in crate::sync) async fn reach(
        &self,
        provider: &Provider,
        within: Duration,
    ) -> Result<Transport, PeerFault> {
        let dialled = timeout(within, self.net.dial(provider.peer, provider.addrs.clone())).await;
        let late = || PeerFault::nobodys(Code::Timeout, "the peer was not reached in time");
        Ok(dialled.map_err(|_| late())??.transport)
    }

    /// Asks every provider for its head of a session, all at once. Those that do not answer are left out.
    pub(super) async fn heads_of(
        &self,
        session: SessionId,
        providers: Vec<Provider>,
        owner: Option<OwnerState>,
        within: Duration,
    ) -> Vec<Answered> {
        let asked = providers.into_iter().map(|provider| async move {
            let name = provider.name();
            match timeout(within, self.head_of(session, provider, owner, within)).await {
                Ok(Ok(answered)) => Some(answered),
                Ok(Err(fault)) => {
                    tracing::debug!(peer = name, %fault, "a peer gave no head");
                    None
                }
                Err(_) => None,
            }
        });
        let asked: Vec<_> = asked.collect();
        let answers: Vec<Option<Answered>> =
            futures::stream::iter(asked).buffered(self.limits.peers_max.max(1)).collect().await;
        answers.into_iter().flatten().collect()
    }

    async fn head_of(
        &self,
        session: SessionId,
        provider: Provider,
        owner: Option<OwnerState>,
        within: Duration,
    ) -> Result<Answered, PeerFault> {
        let credentials =
            self.credentials(provider.peer, owner.map(|owner| owner.owner), provider.grant.clone()).await;
        let credentials = credentials.map_err(|problem| PeerFault::ours(&problem))?;
        let mut tries = Tries::default();
        let (road, told) = loop {
            let road = self.reach(&provider, within).await?;
            let ask = ChainAsk::Heads { owners: owner.into_iter().collect(), sessions: vec![session] };
            match self.ask_heads(provider.peer, &credentials, ask).await {
                Ok(told) => break (road, told),
                Err(fault) => tries.again(fault).await?,
            }
        };
        let state = told.sessions.into_iter().find(|head| head.session == session);
        let head = state.as_ref().map(mark_of);
        if let Some(head) = head {
            self.contacts.told(provider.key, session, head);
        }
        let reference = state.and_then(|state| state.reference);
        let owner = told.owners.into_iter().find(|told| owner.is_some_and(|asked| asked.owner == told.owner));
        Ok(Answered { provider, credentials, road, head, reference, owner })
    }
}

/// How often a peer that was reached is asked again at once when the line breaks: two peers that dial each other at the same time
/// have two connections for a moment, and one of them goes.
const TRIES: u32 = 3;
/// The pause before the first of these; it doubles.
const TRY_AFTER: Duration = Duration::from_millis(100);

/// How often a peer was asked again.
#[derive(Default)]
pub(super) struct Tries(u32);

impl Tries {
    /// Waits before the next try.
    ///
    /// # Errors
    /// `fault`, when another try would be of no use: it was too often, the peer was too slow, or it is to blame.
    pub(super) async fn again(&mut self, fault: PeerFault) -> Result<(), PeerFault> {
        let may_pass = fault.charged == Charged::Nobody && fault.reject.code == Code::Unreachable;
        if !may_pass || self.0 >= TRIES {
            return Err(fault);
        }
        tokio::time::sleep(TRY_AFTER * (1 << self.0)).await;
        self.0 += 1;
        Ok(())
    }
}

/// The head that is gone for, of those that nobody claimed in vain: the highest epoch, then the highest seq, then what those tell that
/// are known better. How many tell it says nothing: keys cost nothing.
pub(super) fn best_head(answers: &[Answered], unshown: &BTreeSet<EntryCid>) -> Option<Mark> {
    let heads = answers.iter().filter_map(|answer| Some((answer.head?, answer.provider.rank)));
    let open = heads.filter(|(head, _)| !unshown.contains(&head.cid));
    open.max_by_key(|(head, rank)| (head.epoch, head.seq, std::cmp::Reverse(*rank), head.cid))
        .map(|(head, _)| head)
}

/// The heads that were told and not in vain, each once.
pub(super) fn distinct_heads(answers: &[Answered], unshown: &BTreeSet<EntryCid>) -> BTreeSet<EntryCid> {
    let heads = answers.iter().filter_map(|answer| answer.head).map(|head| head.cid);
    heads.filter(|cid| !unshown.contains(cid)).collect()
}

/// A told head as a mark.
pub(in crate::sync) fn mark_of(head: &HeadState) -> Mark {
    Mark { seq: head.seq, epoch: head.epoch, cid: head.head }
}

fn of_book(peer: &peers::KnownPeer) -> Option<Provider> {
    Some(Provider {
        peer: peer_of(&peer.peer)?,
        key: peer.peer,
        alias: Some(peer.alias.clone()),
        principal: Some(peer.principal),
        grant: None,
        rank: Rank::Named,
        line: Line::None,
        addrs: peer.addrs.clone(),
    })
}

fn of_ticket(ticket: Ticket) -> Answer<Option<Provider>> {
    let (key, principal, addresses, grant) = match ticket {
        Ticket::Peer(PeerTicket { principal, peer, addresses }) => (peer, Some(principal), addresses, None),
        Ticket::Session(SessionTicket { peer, addresses, grant, .. }) => (peer, None, addresses, grant),
    };
    let peer = peer_of(&key)
        .ok_or_else(|| Problem::new(Code::InputFormat, "not a ticket: its peer key is no key"))?;
    let addrs = peers::read_addrs(&addresses)?;
    let (rank, line) = (Rank::Named, Line::None);
    Ok(Some(Provider { peer, key, alias: None, principal, grant, rank, line, addrs }))
}

#[cfg(test)]
mod tests {
    use throughline_protocol::code::Reject;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_line_that_breaks_is_tried_again_and_not_for_ever() {
        let broken = || PeerFault::nobodys(Code::Unreachable, "the connection is gone");
        let (mut tries, began) = (Tries::default(), tokio::time::Instant::now());
        for _ in 0..TRIES {
            assert_eq!(tries.again(broken()).await, Ok(()));
        }
        assert_eq!(began.elapsed(), Duration::from_millis(700));
        assert_eq!(tries.again(broken()).await, Err(broken()));
        // Neither is one that was too slow, nor one that is to blame.
        let others = [
            PeerFault::nobodys(Code::Timeout, "nothing came"),
            PeerFault::peers(Reject::new(Code::SyncUnsolicited, "not asked for")),
        ];
        for fault in others {
            assert_eq!(Tries::default().again(fault.clone()).await, Err(fault));
        }
    }
}
