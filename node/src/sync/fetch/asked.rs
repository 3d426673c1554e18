//! Who was asked about a head, and what they said: the freshness of a report. `docs/PROTOCOL.md` R-VE-4.
//!
//! Named peers and parties of the owner count by principal, once each. Strangers are a number of keys beside them and never added:
//! whoever makes one key makes sixteen.

use std::collections::{BTreeMap, BTreeSet};

use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Principal};
use throughline_protocol::sync::choice::Rank;

use super::providers::{Answered, Provider, Providers};

/// How many were asked, and what came of that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Asked.
    pub asked: usize,
    /// Answered, also that they have nothing.
    pub answered: usize,
    /// Told the head that was gone for.
    pub agree: usize,
}

/// A peer in a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its principal, as far as known, else its connection key.
    pub peer: Principal,
    /// What the user calls it.
    pub alias: Option<String>,
    /// How well it is known.
    pub rank: Rank,
}

/// A head that a peer told and did not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who told it.
    pub who: Who,
    /// What it told.
    pub head: Mark,
}

/// Who was asked about the head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// Named peers and parties of the owner, by principal.
    pub peers: Count,
    /// Everybody else, by key.
    pub strangers: Count,
    /// Named peers and parties that did not answer.
    pub silent: Vec<Who>,
    /// Who told a head and did not show it.
    pub unshown: Vec<Claim>,
    /// How many more are known and were not asked.
    pub not_asked: usize,
}

/// Everybody who was asked for a head, and whether they answered.
pub(super) struct Asked {
    who: Vec<Who>,
    left_out: usize,
}

impl Asked {
    pub(super) fn of(providers: &Providers) -> Self {
        Asked { who: providers.asked.iter().map(who).collect(), left_out: providers.left_out }
    }

    /// How many principals that are no strangers answered.
    pub(super) fn known_that_answered(answers: &[Answered]) -> usize {
        let known = answers.iter().filter(|answer| answer.provider.rank != Rank::Stranger);
        known.map(|answer| answer.provider.identity()).collect::<BTreeSet<_>>().len()
    }

    /// What a report says, when `told` was gone for and these heads were claimed in vain.
    pub(super) fn freshness(
        &self,
        answers: &[Answered],
        told: Mark,
        unshown: &BTreeSet<EntryCid>,
    ) -> Freshness {
        // What the keys of one principal do, it did.
        let mut known: BTreeMap<Principal, (&Who, Count)> = BTreeMap::new();
        let mut strangers = Count::default();
        let count_of = |who: &Who| {
            let own = answers.iter().filter(|answer| answer.provider.identity() == who.peer);
            let heads: Vec<_> = own.map(|answer| answer.head.map(|head| head.cid)).collect();
            let agrees = heads.contains(&Some(told.cid));
            Count { asked: 1, answered: usize::from(!heads.is_empty()), agree: usize::from(agrees) }
        };
        for who in &self.who {
            let count = count_of(who);
            if who.rank == Rank::Stranger {
                strangers.add(count);
            } else {
                known.insert(who.peer, (who, count));
            }
        }
        let mut peers = Count::default();
        known.values().for_each(|(_, count)| peers.add(*count));
        let silent = known.values().filter(|(_, count)| count.answered == 0);
        let claims = answers.iter().filter_map(|answer| {
            let head = answer.head.filter(|head| unshown.contains(&head.cid))?;
            Some(Claim { who: who(&answer.provider), head })
        });
        Freshness {
            peers,
            strangers,
            silent: silent.map(|(who, _)| (*who).clone()).collect(),
            unshown: claims.collect(),
            not_asked: self.left_out,
        }
    }
}

impl Count {
    fn add(&mut self, other: Count) {
        self.asked += other.asked;
        self.answered += other.answered;
        self.agree += other.agree;
    }
}

fn who(provider: &Provider) -> Who {
    Who { peer: provider.identity(), alias: provider.alias.clone(), rank: provider.rank }
}
