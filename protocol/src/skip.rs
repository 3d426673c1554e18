//! Skip pointers: the skew-binary jump pointer of each entry. `docs/PROTOCOL.md` §The chain.
//!
//! Any ancestor of entry n is at most 25 hops away up to n = 1,000 and 44 up to a million. The construction is
//! Myers' "An applicative random-access stack" (1983): with p = prev, j = skip(p), jj = skip(j),
//! skip(n) = jj if p − j = j − jj, else p. The genesis skips to itself.

/// The seq that entry `seq` skips to, by the closed form n − w, where w is the weight of the lowest non-zero digit of
/// n in skew binary. The genesis gives 0.
#[must_use]
pub fn target(seq: u64) -> u64 {
    let mut rest = seq;
    let mut weight = 0;
    // Greedy skew-binary digits, from the largest weight 2^k − 1 down; the last weight taken is that of the lowest
    // non-zero digit.
    for bits in (1..=u64::BITS - 1).rev() {
        let step = (1_u64 << bits) - 1;
        while rest >= step {
            rest -= step;
            weight = step;
        }
    }
    seq - weight
}

/// The seqs on the way from entry `want` down to `base`, both included: each step takes the skip unless it passes the
/// base, else prev. Only `want` when the base lies above it.
pub fn path(want: u64, base: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(want), move |&seq| {
        let skip = target(seq);
        (seq > base).then(|| if skip >= base { skip } else { seq - 1 })
    })
}

/// The chain's skip path from its tip: tip, skip(tip), skip of that, … genesis. Grows by one entry at a time in
/// constant time and holds at most about 2·log2(n) items; it is both the next skip pointer and a request's locator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkipPath<T> {
    /// Oldest first: the genesis is at 0, the tip last.
    hops: Vec<(u64, T)>,
}

impl<T: Copy> SkipPath<T> {
    /// The path of a chain that holds only its genesis.
    #[must_use]
    pub fn genesis(genesis: T) -> Self {
        SkipPath { hops: vec![(0, genesis)] }
    }

    /// A path from stored hops, tip first. `None` if the seqs are not the skip path of the first.
    #[must_use]
    pub fn from_hops(hops: impl IntoIterator<Item = (u64, T)>) -> Option<Self> {
        let mut hops: Vec<_> = hops.into_iter().collect();
        let fits = hops.windows(2).all(|pair| target(pair[0].0) == pair[1].0 && pair[0].0 > pair[1].0);
        if !fits || hops.last()?.0 != 0 {
            return None;
        }
        hops.reverse();
        Some(SkipPath { hops })
    }

    /// Seq and id that the entry after the tip skips to.
    #[must_use]
    pub fn next_skip(&self) -> (u64, T) {
        self.hops[self.next_base()]
    }

    /// Puts the entry after the tip on the path.
    pub fn push(&mut self, id: T) {
        let seq = self.tip().0 + 1;
        self.hops.truncate(self.next_base() + 1);
        self.hops.push((seq, id));
    }

    /// The tip: seq and id. A path always has one.
    #[must_use]
    pub fn tip(&self) -> (u64, T) {
        self.hops[self.hops.len() - 1]
    }

    /// All hops, tip first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, T)> + '_ {
        self.hops.iter().rev().copied()
    }

    /// Index of the hop that the next entry skips to.
    fn next_base(&self) -> usize {
        let last = self.hops.len() - 1;
        let at = |back: usize| self.hops[last.saturating_sub(back)].0;
        let (p, j, jj) = (at(0), at(1), at(2));
        // p − j = j − jj. For the genesis all three are 0 and the next entry skips to it either way.
        if p - j == j - jj { last.saturating_sub(2) } else { last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_form_equals_construction_to_200_000() {
        let mut path = SkipPath::genesis(());
        for seq in 1..=200_000 {
            assert_eq!(path.next_skip().0, target(seq), "seq {seq}");
            path.push(());
            assert_eq!(path.tip().0, seq);
        }
    }

    #[test]
    fn any_ancestor_is_within_the_stated_hops() {
        let hops = |from: u64, to: u64| {
            let (mut at, mut count) = (from, 1);
            while at > to {
                at = if target(at) >= to { target(at) } else { at - 1 };
                count += 1;
            }
            count
        };
        assert!((0..=1_000).all(|to| hops(1_000, to) <= 25));
        let longest = (0..1_000_000).step_by(997).map(|to| hops(1_000_000, to)).max();
        assert!(longest.is_some_and(|longest| longest <= 44), "{longest:?}");
    }

    #[test]
    fn stored_hops_are_checked() {
        let mut path = SkipPath::genesis(0_u8);
        (0..40).for_each(|_| path.push(1));
        let hops: Vec<_> = path.iter().collect();
        assert_eq!(hops.iter().map(|hop| hop.0).collect::<Vec<_>>(), [40, 39, 38, 31, 0]);
        assert_eq!(SkipPath::from_hops(hops.clone()), Some(path));
        assert_eq!(SkipPath::from_hops(hops[1..4].to_vec()), None);
    }
}
