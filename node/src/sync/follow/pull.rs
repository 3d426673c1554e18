//! One comparison with one peer.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use libp2p::PeerId;
use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Fault};
use throughline_protocol::control::Control;
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_protocol::limits;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::sync::engine::{End, Input, Scope, Standing, Weight};
use throughline_protocol::sync::range::Charged;
use throughline_protocol::wire::chain::{ChainAsk, HeadState, OwnerState};
use tokio::time::timeout;

use super::anchor;
use super::asking::{busy, feed, hint, standing};
use super::interest::{Interest, News, Part, follows_owner, is_foreign, is_kept, news};
use crate::api::error::Answer;
use crate::core::{ControlDigest, Cut, Node, is_held};
use crate::sync::contacts::Taken;
use crate::sync::ending::take_ending;
use crate::sync::evidence;
use crate::sync::fault::PeerFault;
use crate::sync::fetch::{FollowedUp, Provider, mark_of};
use crate::sync::shared::Shared;

/// How long anybody may take to tell its heads, and to send an owner's control blobs.
const TELLS_WITHIN: Duration = Duration::from_secs(60);
/// How long a stranger may take to send one session; what was adopted by then stays, and the next comparison goes on after
/// it. A known peer has only to keep moving.
const STRANGER_SENDS_WITHIN: Duration = Duration::from_secs(5 * 60);
/// Owners whose topics are followed.
#[derive(Default)]
pub(in crate::sync) struct Topics(tokio::sync::Mutex<BTreeSet<Principal>>);

/// Ends what takes longer.
async fn within<T>(most: Duration, act: impl Future<Output = Result<T, PeerFault>>) -> Result<T, PeerFault> {
    timeout(most, act).await.unwrap_or_else(|_| {
        let what = format!("expected an end within {} s", most.as_secs());
        Err(PeerFault::nobodys(Code::Timeout, what))
    })
}

/// Ends a stranger's transfer that takes too long; a known peer may take as long as it keeps moving.
async fn bounded<T>(
    standing: Standing,
    act: impl Future<Output = Result<T, PeerFault>>,
) -> Result<T, PeerFault> {
    match standing {
        Standing::Known(_) => act.await,
        Standing::Stranger => within(STRANGER_SENDS_WITHIN, act).await,
    }
}

/// Compares, and says how that ended.
pub(super) async fn compare(shared: &Arc<Shared>, peer: PeerId, key: Principal, scope: Scope) -> End {
    let Err(fault) = compare_all(shared, peer, key, scope).await else { return End::Done };
    tracing::debug!(%peer, %fault, "a comparison ended early");
    match fault.charged {
        Charged::Sender => {
            shared.net.charge(peer, fault.reject.code).await;
            End::Done
        }
        Charged::Teller => End::Done,
        // One that was too slow does not get its place again at once; the timer's turn comes.
        Charged::Nobody if fault.reject.code == Code::Timeout => End::Done,
        Charged::Nobody => End::MayPass,
    }
}

/// Compares with every connected peer, again and again.
pub(in crate::sync) async fn run(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(shared.limits.compare_every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        evidence::remind(&shared).await;
        for connected in shared.net.connected().await {
            hint(&shared, connected.peer, Scope::All);
        }
    }
}

/// What is followed now: the topics of its owners are subscribed to, those of others are left. Where there are more owners than topics
/// can be followed, this node's own comes first, then those that are followed already.
async fn follow_topics(shared: &Shared) -> Answer<Interest> {
    // Held while it is read: an older reading must not undo a newer one.
    let mut topics = shared.topics.0.lock().await;
    let interest = shared.on_node(Interest::read).await?;
    let owners: BTreeSet<Principal> = interest.owners.iter().map(|state| state.owner).collect();
    for left in topics.difference(&owners) {
        shared.net.unsubscribe(*left).await;
    }
    topics.retain(|owner| owners.contains(owner));
    let mut owners: Vec<Principal> = owners.into_iter().collect();
    owners.sort_by_key(|owner| (Some(*owner) != interest.own, !topics.contains(owner)));
    let mut refused = Vec::new();
    for owner in owners {
        match shared.net.subscribe(owner).await {
            Ok(()) => {
                topics.insert(owner);
            }
            Err(error) => {
                tracing::debug!(owner = owner.short(), %error, "a topic is not followed");
                refused.push(owner.to_string());
            }
        }
    }
    shared.node()?.note_cut(Cut::Topics, refused);
    Ok(interest)
}

/// A peer that asked told what it holds of owners: where that differs, it is asked back.
pub(in crate::sync) async fn notice_digests(
    shared: &Arc<Shared>,
    peer: PeerId,
    key: Principal,
    told: &[OwnerState],
) {
    let fresh: Vec<OwnerState> = told
        .iter()
        .filter(|state| shared.contacts.told_digest(key, state.owner, state.digest) == Taken::NotYet)
        .copied()
        .collect();
    if fresh.is_empty() {
        return;
    }
    let differs = shared.on_node(move |node| {
        let reader = node.reader()?;
        for state in fresh {
            let is_news = state.count > 0 && reader.owner_digest(state.owner)?.digest != state.digest;
            if is_news && follows_owner(node, &reader, state.owner)? {
                return Ok(true);
            }
        }
        Ok(false)
    });
    if matches!(differs.await, Ok(true)) {
        hint(shared, peer, Scope::All);
    }
}

async fn compare_all(
    shared: &Arc<Shared>,
    peer: PeerId,
    key: Principal,
    scope: Scope,
) -> Result<(), PeerFault> {
    let interest = follow_topics(shared).await.map_err(|problem| PeerFault::ours(&problem))?;
    let worker = Arc::clone(shared);
    let interest = shared.on_node(move |node| interest.towards(&worker, node, peer, key)).await;
    let interest = interest.map_err(|problem| PeerFault::ours(&problem))?;
    let provider = Provider::connected(peer, key);
    let mut owners = interest.owners.clone();
    let mut failed = None;
    for sessions in asked(&interest, scope) {
        let credentials = shared.credentials(peer, interest.own, None).await;
        let credentials = credentials.map_err(|problem| PeerFault::ours(&problem))?;
        let ask = ChainAsk::Heads { owners: std::mem::take(&mut owners), sessions };
        let asking = shared.ask_heads(peer, &credentials, ask);
        let told = within(TELLS_WITHIN, asking).await?;
        for theirs in &told.owners {
            let ours = interest.owners.iter().find(|state| state.owner == theirs.owner);
            if ours.is_some_and(|ours| theirs.count > 0 && ours.digest != theirs.digest) {
                let taking = shared.take_difference(&provider, &credentials, theirs.owner);
                let taken = within(TELLS_WITHIN, taking).await;
                // What the peer is to blame for was charged there.
                failed = failed.or(taken.err().filter(|fault| fault.charged == Charged::Nobody));
            }
        }
        for head in &told.sessions {
            failed = failed.or(take_head(shared, &provider, head).await);
        }
    }
    failed.map_or(Ok(()), Err)
}

/// The requests of a comparison. A device asks for everything that the peer shows it.
fn asked(interest: &Interest, scope: Scope) -> Vec<Vec<SessionId>> {
    match (scope, interest.part) {
        (Scope::Session(session), _) => vec![vec![session]],
        (Scope::All, Part::Device) => vec![Vec::new()],
        (Scope::All, Part::Server) => {
            let chunks = interest.sessions.chunks(limits::HEADS_SESSIONS_MAX).map(<[_]>::to_vec);
            let asked: Vec<_> = chunks.collect();
            // Without sessions, everything visible would be asked for; the control blobs are compared all the same.
            if asked.is_empty() { vec![vec![nobody()]] } else { asked }
        }
    }
}

/// A session that is not: its genesis would hash to zero.
fn nobody() -> SessionId {
    SessionId::of_genesis(throughline_protocol::id::EntryCid::from_digest([0; 32]))
}

/// Fetches what a told head shows to be missing; tells when that failed for a reason that may pass.
async fn take_head(shared: &Arc<Shared>, provider: &Provider, head: &HeadState) -> Option<PeerFault> {
    let (session, told) = (head.session, mark_of(head));
    if let Some(reference) = &head.reference {
        let reference = Arc::clone(reference);
        match shared.on_node(move |node| take_reference(node, session, reference)).await {
            Ok(Business::Ours) => {}
            Ok(Business::Foreign) => return None,
            Err(problem) => tracing::debug!(session = session.short(), %problem, "a Ref is not taken"),
        }
    }
    match shared.contacts.told(provider.key, session, told) {
        Taken::Before => return None,
        Taken::Left(digest) => {
            // It is asked for again as soon as something came that may change what becomes of it.
            let judged_alike = shared.on_node(move |node| is_judged_by(node, session, digest)).await;
            if judged_alike.unwrap_or(true) {
                return None;
            }
        }
        Taken::NotYet => {}
    }
    let meaning = shared.on_node(move |node| news(node, session, told)).await;
    let Ok(News::Fetch { owner, depth }) = meaning else { return None };
    let who = (provider.key, standing(shared, provider.key));
    // Of what is held a stranger may tell as many false heads as of what is not.
    let is_claim = owner.is_some() || who.1 == Standing::Stranger;
    if is_claim && shared.asking.weigh(who, session, told.cid) == Weight::Leave {
        return None;
    }
    // In a box: what waits for it would be as large.
    let fetching = Box::pin(shared.follow_up(session, provider.clone(), owner, depth));
    let fetched = bounded(who.1, fetching.map(Ok)).await.unwrap_or_else(|fault| Err(fault.into()));
    if fetched.is_err() && matches!(take_ending(shared, provider, head).await, Ok(true)) {
        shared.contacts.took(provider.key, session, told.cid, None);
        return None;
    }
    if is_claim {
        let kept = shared.on_node(move |node| is_held(&node.reader()?, told.cid)).await;
        judge_claim(shared, who, (session, told.cid), &fetched, kept.unwrap_or(true));
    }
    if matches!(fetched, Ok(FollowedUp::Busy)) {
        busy(shared, provider.key, session);
        return None;
    }
    feed(shared, Input::Settled { session });
    if let Err(problem) = &fetched
        && is_foreign(problem.code())
    {
        // It stays another owner's: it is not asked for again until the head moves.
        shared.contacts.took(provider.key, session, told.cid, None);
    }
    let problem = settle(shared, session, fetched).await.err()?;
    tracing::debug!(session = session.short(), %problem, "a session is not followed up");
    let may_pass = matches!(problem.code(), Code::Unreachable | Code::Timeout);
    may_pass.then(|| PeerFault::ours(&problem))
}

/// Tells what became of a head of a session that is not held. What this machine is to blame for says nothing of the peer.
fn judge_claim(
    shared: &Arc<Shared>,
    (peer, standing): (Principal, Standing),
    (session, head): (SessionId, EntryCid),
    fetched: &Answer<FollowedUp>,
    is_kept: bool,
) {
    match fetched {
        // A tail for which there is no room: nobody is to blame, and the next one waits.
        Ok(FollowedUp::Taken) if !is_kept => {
            feed(shared, Input::Failed { peer, standing, session, head, fault: None });
        }
        Ok(FollowedUp::Taken) => feed(shared, Input::Kept { peer }),
        Ok(FollowedUp::Nothing | FollowedUp::Busy) => {}
        Err(problem) if problem.code().fault() == Fault::Local => {}
        Err(problem) => {
            let fault = Some(problem.code()).filter(|code| is_a_fault(*code));
            feed(shared, Input::Failed { peer, standing, session, head, fault });
        }
    }
}

/// Whether a peer is to blame for a claim that came to nothing. Another owner's session is none of this node's business, and no
/// fault of who shows it; a line that is slow or broke is nobody's. Both count for the pause.
fn is_a_fault(code: Code) -> bool {
    !is_foreign(code) && !matches!(code, Code::Timeout | Code::Unreachable)
}

/// Whether a session that is held would be judged by the same control blobs.
fn is_judged_by(node: &Node, session: SessionId, digest: ControlDigest) -> Answer<bool> {
    let reader = node.reader()?;
    let Some(row) = reader.session(session)? else { return Ok(false) };
    Ok(ControlDigest::of(&reader, row.owner, session)? == digest)
}

/// Whose session a Ref tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Business {
    Ours,
    Foreign,
}

/// Takes in the Ref that came with a head: anchors do not count in the digest, so this is how a missed one arrives.
fn take_reference(node: &Node, session: SessionId, bytes: Arc<[u8]>) -> Answer<Business> {
    let signed = Signed::<Control>::check(bytes, &mut VerifyingKeys::default())?;
    let Control::Ref(value) = signed.value() else { return Ok(Business::Ours) };
    if value.session_head()?.session != session {
        return Ok(Business::Ours);
    }
    let reader = node.reader()?;
    let owner = value.owner();
    let Some(row) = reader.session(session)? else {
        let wanted = Some(owner) == node.owner() || reader.pin(session)?.is_some();
        return Ok(if wanted { Business::Ours } else { Business::Foreign });
    };
    if row.owner == owner && is_kept(&reader, owner, session, value)? {
        node.take_controls(vec![signed])?;
    }
    Ok(Business::Ours)
}

/// After a session moved: a device anchors what it adopted.
async fn settle(shared: &Arc<Shared>, session: SessionId, fetched: Answer<FollowedUp>) -> Answer<()> {
    if fetched? == FollowedUp::Taken {
        anchor::anchor(shared, session).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stranger_that_drips_is_left_and_a_known_peer_is_waited_for() {
        let peer = Principal::from_key([1; 32]);
        // Each step takes less than any wait for a single frame; there is no end to them, or one that is late.
        let drip = async |steps: u32| {
            for _ in 0..steps {
                tokio::time::sleep(Duration::from_secs(9)).await;
            }
            Ok::<_, PeerFault>(())
        };
        let fault = bounded(Standing::Stranger, drip(u32::MAX)).await.unwrap_err();
        assert_eq!((fault.reject.code, fault.charged), (Code::Timeout, Charged::Nobody));
        assert_eq!(bounded(Standing::Stranger, drip(30)).await, Ok(()));
        assert_eq!(bounded(Standing::Known(peer), drip(60)).await, Ok(()));
    }

    #[test]
    fn nobody_is_charged_for_a_slow_line_or_for_the_session_of_another() {
        for code in [Code::Timeout, Code::Unreachable, Code::Refused] {
            assert!(!is_a_fault(code), "{code}");
        }
        assert!(is_a_fault(Code::SyncUnsolicited) && is_a_fault(Code::CapMissing));
    }
}
