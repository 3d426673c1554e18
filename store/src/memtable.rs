//! What changed since the last checkpoint: rows by table, over those of the database. `docs/ARCHITECTURE.md` §Store.
//!
//! A batch that the journal makes durable is not written to the database; its rows are put here, and everyone reads the database
//! through them. A copy costs a few pointers and never changes, so each snapshot and each batch has one of its own, and a
//! batch that fails is undone by forgetting its copy. A checkpoint writes all of them to the database in one transaction, in the
//! order of the tables, and begins with none again. The journal's lap bounds how much there is.
//!
//! It decides nothing, and must hold every row that the journal made durable after the commit of the database under it.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use redb::{Key, WriteTransaction};
use rpds::RedBlackTreeMapSync;

use crate::error::StoreError;
use crate::tables::Spec;
use crate::verbatim;

pub(crate) use crate::tables::Memtable;

/// A key as the database keeps it, in the order of its type.
pub(crate) struct KeyBytes<K> {
    bytes: Arc<[u8]>,
    order: PhantomData<fn() -> K>,
}

impl<K: Key + 'static> KeyBytes<K> {
    pub(crate) fn of(key: &K::SelfType<'_>) -> Self {
        KeyBytes { bytes: K::as_bytes(key).as_ref().into(), order: PhantomData }
    }

    pub(crate) fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

impl<K> Clone for KeyBytes<K> {
    fn clone(&self) -> Self {
        KeyBytes { bytes: Arc::clone(&self.bytes), order: PhantomData }
    }
}

impl<K: Key> Ord for KeyBytes<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        K::compare(&self.bytes, &other.bytes)
    }
}

impl<K: Key> PartialOrd for KeyBytes<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Key> PartialEq for KeyBytes<K> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<K: Key> Eq for KeyBytes<K> {}

/// A row as it stands now, as the database keeps values; none when it is gone.
pub(crate) type Now = Option<Arc<[u8]>>;

/// The changed rows of one table.
pub(crate) struct Changed<K: Key + 'static>(RedBlackTreeMapSync<KeyBytes<K>, Now>);

impl<K: Key + 'static> Clone for Changed<K> {
    fn clone(&self) -> Self {
        Changed(self.0.clone())
    }
}

impl<K: Key + 'static> Default for Changed<K> {
    fn default() -> Self {
        Changed(RedBlackTreeMapSync::new_sync())
    }
}

impl<K: Key + 'static> Changed<K> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How a row stands; none when it was not changed.
    pub(crate) fn get(&self, key: &K::SelfType<'_>) -> Option<&Now> {
        if self.is_empty() { None } else { self.0.get(&KeyBytes::of(key)) }
    }

    pub(crate) fn put(&mut self, key: KeyBytes<K>, now: Now) {
        self.0.insert_mut(key, now);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&KeyBytes<K>, &Now)> {
        self.0.iter()
    }

    /// The changed rows in a range of keys, ascending.
    pub(crate) fn range<'k, KR>(&self, range: &impl RangeBounds<KR>) -> ChangedRange<K>
    where
        KR: std::borrow::Borrow<K::SelfType<'k>>,
    {
        if self.is_empty() {
            // Nothing to compare keys with.
            return ChangedRange { changed: self.clone(), first: Bound::Unbounded, last: Bound::Unbounded };
        }
        let bytes = |key: &KR| KeyBytes::<K>::of(key.borrow());
        let (first, last) = (range.start_bound().map(bytes), range.end_bound().map(bytes));
        ChangedRange { changed: self.clone(), first, last }
    }

    /// Writes them to their table.
    pub(crate) fn apply<S: Spec<K = K>>(&self, txn: &WriteTransaction, _: S) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        let mut table = txn.open_table(verbatim::definition::<S>())?;
        for (key, now) in self.iter() {
            let key = K::from_bytes(&key.bytes);
            match now {
                Some(value) => drop(table.insert(key, &value[..])?),
                None => drop(table.remove(key)?),
            }
        }
        Ok(())
    }
}

/// Changed rows in a range of keys. It looks for each when it is asked for, so that who wants a few does not pay for all.
pub(crate) struct ChangedRange<K: Key + 'static> {
    changed: Changed<K>,
    first: Bound<KeyBytes<K>>,
    last: Bound<KeyBytes<K>>,
}

impl<K: Key + 'static> ChangedRange<K> {
    /// Whether it ends before it begins, which holds nothing.
    fn is_inside_out(&self) -> bool {
        match (&self.first, &self.last) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(first), Bound::Included(last)) => first > last,
            (
                Bound::Included(first) | Bound::Excluded(first),
                Bound::Included(last) | Bound::Excluded(last),
            ) => first >= last,
        }
    }

    fn left(&self) -> Option<impl DoubleEndedIterator<Item = (&KeyBytes<K>, &Now)>> {
        (!self.is_inside_out()).then(|| self.changed.0.range((self.first.as_ref(), self.last.as_ref())))
    }
}

impl<K: Key + 'static> Iterator for ChangedRange<K> {
    type Item = (KeyBytes<K>, Now);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, now) = self.left()?.next().map(|(key, now)| (key.clone(), now.clone()))?;
        self.first = Bound::Excluded(key.clone());
        Some((key, now))
    }
}

impl<K: Key + 'static> DoubleEndedIterator for ChangedRange<K> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (key, now) = self.left()?.next_back().map(|(key, now)| (key.clone(), now.clone()))?;
        self.last = Bound::Excluded(key.clone());
        Some((key, now))
    }
}

#[cfg(test)]
#[path = "memtable_tests.rs"]
mod tests;
