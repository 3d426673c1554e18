//! Sessions that are held in part: somebody told a head that is not here. Before the owner signs what decides about a session for
//! good, known peers are asked for it, and what is still not here is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::SessionId;
use throughline_protocol::limits;
use throughline_protocol::sync::choice::Rank;
use throughline_protocol::wire::chain::ChainAsk;
use tokio::time::timeout;

use super::super::shared::Shared;
use super::mark_of;
use super::providers::Provider;
use crate::api::error::Answer;
use crate::core::{Node, is_held};

/// A session of which somebody told more than is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfetched {
    /// Which.
    pub session: SessionId,
    /// The newest entry that is held.
    pub held: Mark,
    /// The highest head that was told.
    pub told: Mark,
    /// Who told it.
    pub by: BTreeSet<String>,
}

/// The highest head that was told of each session, and by whom.
type Heads = BTreeMap<SessionId, (Mark, BTreeSet<String>)>;

fn note(heads: &mut Heads, session: SessionId, head: Mark, who: String) {
    let rank = |mark: &Mark| (mark.epoch, mark.seq, mark.cid);
    let (told, by) = heads.entry(session).or_insert_with(|| (head, BTreeSet::new()));
    if rank(&head) > rank(told) {
        (*told, *by) = (head, BTreeSet::new());
    }
    if *told == head {
        by.insert(who);
    }
}

impl Shared {
    /// Asks known peers for their heads of sessions; tells those above what is held, and which peers did not answer. A head counts
    /// that a known peer told before, too.
    pub(in crate::sync) async fn told_above(
        &self,
        sessions: Vec<SessionId>,
        idle: Duration,
    ) -> Answer<(Vec<Unfetched>, Vec<String>)> {
        let is_known = |provider: &Provider| provider.rank != Rank::Stranger;
        let providers: Vec<Provider> =
            self.providers(&[]).await?.asked.into_iter().filter(is_known).collect();
        let at_a_time = self.limits.peers_max.max(1);
        let asked: Vec<_> =
            providers.iter().map(|provider| self.heads_from(provider, &sessions, idle)).collect();
        let answered: Vec<bool> = futures::stream::iter(asked).buffered(at_a_time).collect().await;
        let wanted: BTreeSet<SessionId> = sessions.iter().copied().collect();
        let (mut heads, mut silent) = (Heads::new(), Vec::new());
        for (provider, answered) in providers.iter().zip(answered) {
            if !answered {
                silent.push(provider.name());
            }
            for (session, told) in self.contacts.heads(provider.key) {
                if wanted.contains(&session) {
                    note(&mut heads, session, told.head, provider.name());
                }
            }
        }
        Ok((self.on_node(move |node| above(node, heads)).await?, silent))
    }

    /// Those of them that are still not here.
    pub(in crate::sync) async fn still_above(&self, told: Vec<Unfetched>) -> Answer<Vec<Unfetched>> {
        let heads = told.into_iter().map(|it| (it.session, (it.told, it.by))).collect();
        self.on_node(move |node| above(node, heads)).await
    }

    /// Asks one peer for its heads of these sessions; says whether it answered.
    async fn heads_from(&self, provider: &Provider, sessions: &[SessionId], idle: Duration) -> bool {
        let asking = async {
            self.reach(provider, idle).await.ok()?;
            for chunk in sessions.chunks(limits::HEADS_SESSIONS_MAX) {
                let owner = self.on_node(|node| Ok(node.owner())).await.ok()?;
                let credentials = self.credentials(provider.peer, owner, None).await.ok()?;
                let ask = ChainAsk::Heads { owners: Vec::new(), sessions: chunk.to_vec() };
                let told =
                    timeout(idle, self.ask_heads(provider.peer, &credentials, ask)).await.ok()?.ok()?;
                for head in &told.sessions {
                    self.contacts.told(provider.key, head.session, mark_of(head));
                }
            }
            Some(())
        };
        asking.await.is_some()
    }
}

/// Those heads that stand above what is held.
fn above(node: &Node, heads: Heads) -> Answer<Vec<Unfetched>> {
    let reader = node.reader()?;
    let mut found = Vec::new();
    for (session, (told, by)) in heads {
        let Some(row) = reader.session(session)? else { continue };
        let is_above = (told.epoch, told.seq) > (row.tip.epoch, row.tip.seq);
        if is_above && !is_held(&reader, told.cid)? {
            found.push(Unfetched { session, held: row.tip, told, by });
        }
    }
    Ok(found)
}
