//! Whom to ask when more are known than can be asked. `docs/PROTOCOL.md` R-VE-4.
//!
//! Keys cost nothing, so neither how many there are nor how low they are may decide. Who was named comes first, then who proved to be a
//! party of the owner, then strangers; within each, those that need no dialling. Among equals one of each principal and of each
//! network comes before the second of any, and the rest is drawn with a seed that nobody else knows.

use std::collections::BTreeMap;

use crate::block::sha256;
use crate::id::Principal;

/// How well a peer is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// A person named it: in the request, or in the address book.
    Named,
    /// It proved to be the owner of this node, or to have a live grant of the owner.
    Party,
    /// Anybody.
    Stranger,
}

/// Whether there is a connection already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// There is.
    Open,
    /// It has to be dialled.
    None,
}

/// A peer that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its connection key.
    pub key: Principal,
    /// Who stands behind it; where nobody proved that, the key itself.
    pub principal: Principal,
    /// How well it is known.
    pub rank: Rank,
    /// Whether it can be asked at once.
    pub line: Line,
    /// The part of the network that it is in, as far as that is known: the first bytes of its address.
    pub network: Option<Vec<u8>>,
}

/// The order in which candidates are asked, as their places in the list; whoever asks a few takes the first.
#[must_use]
pub fn order(candidates: &[Candidate], seed: &[u8; 32]) -> Vec<usize> {
    let draw = |candidate: &Candidate| sha256(&[seed.as_slice(), &candidate.key.to_bytes()].concat());
    let mut drawn: Vec<_> = candidates
        .iter()
        .enumerate()
        .map(|(at, candidate)| ((candidate.rank, candidate.line, draw(candidate)), at, candidate))
        .collect();
    drawn.sort_unstable_by_key(|(standing, ..)| *standing);
    let mut of_principal: BTreeMap<Principal, usize> = BTreeMap::new();
    let mut of_network: BTreeMap<&[u8], usize> = BTreeMap::new();
    let mut turns: Vec<_> = drawn
        .into_iter()
        .map(|((rank, line, drawn), at, candidate)| {
            let mut turn = next(of_principal.entry(candidate.principal).or_default());
            if let Some(network) = candidate.network.as_deref() {
                turn = turn.max(next(of_network.entry(network).or_default()));
            }
            ((rank, line, turn, drawn), at)
        })
        .collect();
    turns.sort_unstable();
    turns.into_iter().map(|(_, at)| at).collect()
}

/// How many came before, and one more from now on.
fn next(count: &mut usize) -> usize {
    *count += 1;
    *count - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing;

    fn candidate(name: &str, rank: Rank) -> Candidate {
        let key = testing::key(name).principal();
        Candidate { key, principal: key, rank, line: Line::Open, network: None }
    }

    fn strangers(count: usize) -> Vec<Candidate> {
        (0..count).map(|nth| candidate(&format!("stranger {nth}"), Rank::Stranger)).collect()
    }

    proptest! {
        /// However many strangers there are, whatever their keys and wherever they stand.
        #[test]
        fn whoever_is_known_better_is_asked_first(
            ranks in proptest::collection::vec(0..3_u8, 1..40), seed in any::<[u8; 32]>(),
        ) {
            let rank = |number: u8| [Rank::Named, Rank::Party, Rank::Stranger][usize::from(number)];
            let all: Vec<_> =
                ranks.iter().enumerate().map(|(nth, number)| candidate(&nth.to_string(), rank(*number))).collect();
            let order = order(&all, &seed);
            let asked: Vec<Rank> = order.iter().map(|at| all[*at].rank).collect();
            prop_assert!(asked.is_sorted(), "{asked:?}");
            let mut each: Vec<usize> = order;
            each.sort_unstable();
            prop_assert_eq!(each, (0..all.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_party_or_a_network_of_many_keys_leaves_room_for_the_others() {
        let mut all = strangers(42);
        let crowd = testing::key("crowd").principal();
        // Thirty keys of one principal, ten of one network, two of nobody in particular.
        all[..30].iter_mut().for_each(|one| one.principal = crowd);
        all[30..40].iter_mut().for_each(|one| one.network = Some(vec![203, 0, 113]));
        for seed in 0..8 {
            let first = &order(&all, &[seed; 32])[..4];
            let of = |range: std::ops::Range<usize>| first.iter().filter(|at| range.contains(at)).count();
            assert_eq!((of(0..30), of(30..40), of(40..42)), (1, 1, 2), "{seed}");
        }
    }

    #[test]
    fn no_key_is_lucky_for_ever() {
        let all = strangers(20);
        let first = |seed: u8| order(&all, &[seed; 32])[0];
        let met: std::collections::BTreeSet<usize> = (0..=255).map(first).collect();
        assert_eq!(met.len(), all.len(), "over time everybody is asked");
    }

    #[test]
    fn who_is_connected_is_asked_before_who_has_to_be_dialled() {
        let mut all =
            vec![candidate("off", Rank::Named), candidate("on", Rank::Named), candidate("x", Rank::Stranger)];
        all[0].line = Line::None;
        assert_eq!(order(&all, &[7; 32]), [1, 0, 2]);
    }
}
