//! Bringing a session here, or judging it without keeping it. `docs/PROTOCOL.md` §Streams.
//!
//! ```text
//!  providers ─heads─▶ the head to go for ─control─▶ ─range─▶ frames on all cores ─▶ place ─▶ Adopt | Audit
//!                                             ▲                                   │
//!                                             └─── next provider, from there on ──┘ fails
//! ```
//!
//! Whatever was verified is kept when a provider fails; the next one goes on after it. A provider that did not keep to the
//! protocol is charged. Nothing that a peer says is believed: only what verifies counts.

mod adopting;
mod ahead;
mod answer;
mod asked;
mod auditing;
mod blobs;
mod check;
mod difference;
mod mend;
mod pipeline;
mod providers;
mod range;
mod run;
mod sink;
mod taking;
mod tally;
mod unfetched;
mod witness;

#[cfg(test)]
mod parts_tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throughline_protocol::clock::Apart;
use throughline_protocol::code::Code;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::verify::Report;
use throughline_protocol::wire::chain::OwnerState;
use throughline_store::PinDepth;

use super::shared::Shared;
use super::view::apart_json;
use crate::api::error::{Answer, Problem};
use crate::core::Evaluated;
use crate::report::Required;
use adopting::Told;
use asked::Asked;
use providers::{Answered, best_head};
use run::Run;

pub(super) use answer::answer;
pub use asked::{Claim, Count, Freshness, Who};
pub use mend::BlobsCame;
pub(super) use providers::{Provider, mark_of};
pub use tally::{Tallied, Tally};
pub use unfetched::Unfetched;

/// Which payloads come along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None.
    None,
    /// The words of the entries: payloads and config blocks.
    Referenced,
    /// Files too.
    All,
}

impl Wanted {
    /// What has to be here in the end.
    #[must_use]
    pub fn required(self) -> Required {
        match self {
            Wanted::None => Required::Nothing,
            Wanted::Referenced => Required::Payloads,
            Wanted::All => Required::All,
        }
    }
}

/// What becomes of what is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is adopted as far as it verifies.
    Adopt,
    /// It is judged and dropped.
    Audit,
}

/// A session to fetch.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    /// Which.
    pub session: SessionId,
    /// Aliases, principals or tickets; none asks everybody who is known.
    pub from: Vec<String>,
    /// What comes along with the entries.
    pub payloads: Wanted,
    /// How long a peer may send nothing; none is the configured time.
    pub idle: Option<Duration>,
    /// Adopt or audit.
    pub mode: Use,
    /// How many named peers and parties of the owner must have answered before a head is taken as told; strangers do not count.
    pub peers_min: usize,
}

/// What came from one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromPeer {
    /// Its principal, as far as known, else its connection key.
    pub peer: Principal,
    /// What the user calls it.
    pub alias: Option<String>,
    /// `chain-sync/quic` or `chain-sync/tcp`.
    pub road: &'static str,
    /// Entries that verified.
    pub entries: u64,
    /// Bytes on the wire.
    pub bytes: u64,
}

/// The figures of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Who sent what.
    pub from: Vec<FromPeer>,
    /// Requests that were waited for one after the other.
    pub round_trips: u64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// The seq after which the transfer began, when something was held.
    pub resumed_from: Option<u64>,
    /// How long it took.
    pub elapsed: Duration,
}

/// What a fetch gave.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The session.
    pub session: SessionId,
    /// The head that was gone for.
    pub told: Mark,
    /// The key that signed the Ref which came with that head.
    pub told_by: Option<Principal>,
    /// The figures.
    pub transfer: Transfer,
    /// Who was asked.
    pub freshness: Freshness,
    /// What became of it.
    pub mode: Use,
    /// What the adoption came to; none for an audit, or when everything was here.
    pub evaluated: Option<Evaluated>,
    /// What an audit found, or an adoption from the genesis on; none where what is held has to be read for that.
    pub report: Option<Report>,
}

/// What became of a look at what a peer has of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowedUp {
    /// Everything that verified was taken in.
    Taken,
    /// The peer shows nothing of it any more.
    Nothing,
    /// The session is being fetched already.
    Busy,
}

impl Shared {
    /// Fetches a session as `request` says.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET` when nobody who was asked offers it, `E_UNREACHABLE` when nobody who was named answers; the code of what was
    /// wrong, with the peer, when no provider gave all of it.
    pub(super) async fn fetch(&self, request: FetchRequest, tally: Arc<Tally>) -> Answer<Fetched> {
        let began = Instant::now();
        let idle = match request.idle {
            Some(idle) => idle,
            None => self.node()?.config().limits.idle_timeout,
        };
        let providers = self.providers(&request.from).await?;
        let named = !request.from.is_empty();
        let names: Vec<String> = providers.asked.iter().map(Provider::name).collect();
        let keys: Vec<Principal> = providers.asked.iter().map(|provider| provider.key).collect();
        let session = request.session;
        let owner = self.on_node(move |node| owner_state(node, session)).await?;
        let asked = Asked::of(&providers);
        let answers = self.heads_of(session, providers.asked, owner, idle).await;
        let Some(mut told) = best_head(&answers, &BTreeSet::new()) else {
            let mut apart = names.iter().zip(keys).filter_map(|(name, key)| {
                self.contacts.apart_of(key).map(|apart| clock_differs(session, name, apart))
            });
            return Err(apart.next().unwrap_or_else(|| nothing_told(session, &answers, &names, named)));
        };
        tracing::debug!(peers = answers.len(), seq = told.seq.get(), took = ?began.elapsed(), "heads were told");
        let known = Asked::known_that_answered(&answers);
        if known < request.peers_min {
            let what = format!(
                "expected answers of {} peers that are named or parties of the owner, got {known}",
                request.peers_min
            );
            return Err(Problem::new(Code::Unreachable, what).with("asked", names));
        }
        let turn = self.turn_of(session);
        let _turn = turn.lock().await;
        let mut run = Run::new(self, session, request.payloads, idle, Arc::clone(&tally));
        run.transfer.round_trips = 1;
        let mut first_failure = None;
        loop {
            tally.again();
            let fetched = match request.mode {
                Use::Adopt => run.adopt(told, &answers, owner, None, Told::Report(told.cid)).await,
                Use::Audit => run.audit(told, &answers).await,
            };
            let failure = match fetched {
                Ok(mut fetched) => {
                    fetched.freshness = asked.freshness(&answers, told, &run.unshown);
                    fetched.transfer.elapsed = began.elapsed();
                    tracing::debug!(took = ?fetched.transfer.elapsed, "a fetch has ended");
                    return Ok(fetched);
                }
                Err(failure) => failure,
            };
            // Anybody can claim a head above all others. One that is not shown must not hide those that are.
            run.unshown.insert(told.cid);
            let failure = first_failure.take().unwrap_or(failure);
            told = match best_head(&answers, &run.unshown) {
                Some(next) => next,
                None => return Err(failure),
            };
            first_failure = Some(failure);
        }
    }

    /// Fetches what one connected peer has of a session that is followed. Only a session of `owner` is taken.
    pub(super) async fn follow_up(
        &self,
        session: SessionId,
        from: Provider,
        owner: Option<Principal>,
        depth: PinDepth,
    ) -> Answer<FollowedUp> {
        let turn = self.turn_of(session);
        // Somebody fetches it already; then this peer is asked again.
        let Ok(_turn) = turn.try_lock() else { return Ok(FollowedUp::Busy) };
        let idle = self.node()?.config().limits.idle_timeout;
        let held = self.on_node(move |node| owner_state(node, session)).await?;
        let answers = self.heads_of(session, vec![from], held, idle).await;
        let Some(told) = best_head(&answers, &BTreeSet::new()) else { return Ok(FollowedUp::Nothing) };
        let wanted = match depth {
            PinDepth::Entries => Wanted::None,
            PinDepth::Payloads => Wanted::Referenced,
            PinDepth::Files => Wanted::All,
        };
        let mut run = Run::new(self, session, wanted, idle, Tally::new());
        run.adopt(told, &answers, held, owner, Told::Nothing).await.map(|_| FollowedUp::Taken)
    }
}

/// What is held of the session's owner, when the session is held.
fn owner_state(node: &crate::core::Node, session: SessionId) -> Answer<Option<OwnerState>> {
    let reader = node.reader()?;
    let Some(row) = reader.session(session)? else { return Ok(None) };
    let held = reader.owner_digest(row.owner)?;
    Ok(Some(OwnerState { owner: row.owner, count: held.count, digest: held.digest }))
}

/// The answer when nobody told of the session and a peer that was asked took no proof: it shows only what anybody may see.
fn clock_differs(session: SessionId, name: &str, apart: Apart) -> Problem {
    let what = format!("{name} took no proof of who asks, since its clock is {apart}");
    Problem::new(Code::PeerProof, what)
        .with("session", session.to_string())
        .with("peer", name)
        .with("clock", apart_json(apart))
        .hint("set the clock that is wrong, here or there; then the same command again")
}

/// The one answer for absent, private, and held by somebody who is off.
fn nothing_told(session: SessionId, answers: &[Answered], names: &[String], named: bool) -> Problem {
    if answers.is_empty() && named {
        return Problem::new(Code::Unreachable, "none of the named peers could be reached")
            .with("session", session.to_string())
            .with("asked", names.to_vec());
    }
    if names.is_empty() {
        let what = "nobody could be asked: no peer is known here and none was named (a peer prints its ticket with `id --ticket`)";
        return Problem::new(Code::NotFoundYet, what)
            .with("session", session.to_string())
            .with("searched", serde_json::json!({"store": true, "peers": 0, "dht": false}))
            .with("asked", names.to_vec())
            .hint(format!(
                "throughline fetch {session} --from TICKET, or throughline peer add ALIAS TICKET"
            ));
    }
    Problem::new(
        Code::NotFoundYet,
        "nobody that was asked has it; it may not exist, be private, or its holders may be off",
    )
    .with("session", session.to_string())
    .with("searched", serde_json::json!({"store": true, "peers": answers.len(), "dht": false}))
    .with("asked", names.to_vec())
    .hint("throughline peer list")
}
