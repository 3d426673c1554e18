//! Mutations, all decided by a seed: of bytes ([`bytes`]), of the tree of a DAG-CBOR item with a new signature ([`tree`]), of what a whole
//! session says, signed again ([`meaning`]), and of keys and signatures ([`crypto`]).
//!
//! The same seed and the same input give the same mutant on every machine, so a failure is named by a number.

pub mod bytes;
pub mod crypto;
pub mod meaning;
pub mod tree;
mod words;

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, good enough to pick mutations.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator of this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A byte.
    pub fn byte(&mut self) -> u8 {
        self.next_u64().to_le_bytes()[0]
    }

    /// A number below `count`; 0 when that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        let count = u64::try_from(count.max(1)).unwrap();
        usize::try_from(self.next_u64() % count).unwrap()
    }

    /// Whether something that happens once in `count` happens now.
    pub fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// One of some things.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.below(things.len())]
    }

    /// This many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.byte()).take(count).collect()
    }

    /// 32 bytes.
    pub fn array(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.byte())
    }
}
