//! A table as a snapshot or a batch sees it: the rows of the database, with those that changed since in their place.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::RangeBounds;
use std::sync::Arc;

use redb::{
    Key, OwnedAccessGuard, OwnedRange, ReadOnlyTable, ReadableTableMetadata as _, StorageError, Value,
};

use crate::error::StoreError;
use crate::memtable::{Changed, ChangedRange, KeyBytes};
use crate::source::KeyOf;
use crate::tables::Spec;

/// A key or a value that was read.
pub(crate) enum Guard<T: Value + 'static> {
    /// From the database.
    Stored(OwnedAccessGuard<T>),
    /// Changed since.
    Changed(Arc<[u8]>),
}

impl<T: Value + 'static> Guard<T> {
    pub(crate) fn value(&self) -> T::SelfType<'_> {
        match self {
            Guard::Stored(guard) => guard.value(),
            Guard::Changed(bytes) => T::from_bytes(bytes),
        }
    }
}

/// A row that was read.
pub(crate) type RowOf<S> = (Guard<<S as Spec>::K>, Guard<<S as Spec>::V>);

/// One table of a snapshot or of a batch. What is changed later is not seen.
pub(crate) struct TableView<'s, S: Spec> {
    base: &'s ReadOnlyTable<S::K, S::V>,
    changed: Changed<S::K>,
}

impl<'s, S: Spec> TableView<'s, S> {
    pub(crate) fn new(base: &'s ReadOnlyTable<S::K, S::V>, changed: Changed<S::K>) -> Self {
        TableView { base, changed }
    }

    /// The value of a key.
    pub(crate) fn get<'k>(&self, key: impl Borrow<KeyOf<'k, S>>) -> Result<Option<Guard<S::V>>, StoreError> {
        let key = key.borrow();
        match self.changed.get(key) {
            Some(now) => Ok(now.clone().map(Guard::Changed)),
            None => Ok(self.base.get_owned(key)?.map(Guard::Stored)),
        }
    }

    /// Rows in a range of keys, ascending, or descending from the other end.
    pub(crate) fn range<'k, KR>(&self, range: impl RangeBounds<KR>) -> Result<TableRange<S>, StoreError>
    where
        KR: Borrow<KeyOf<'k, S>>,
    {
        let changed = Ends::new(self.changed.range(&range));
        Ok(TableRange { base: Ends::new(self.base.range_owned(range)?), changed })
    }

    /// All rows, ascending.
    pub(crate) fn iter(&self) -> Result<TableRange<S>, StoreError> {
        self.range::<KeyOf<'_, S>>(..)
    }

    pub(crate) fn first(&self) -> Result<Option<RowOf<S>>, StoreError> {
        self.iter()?.next().transpose()
    }

    pub(crate) fn last(&self) -> Result<Option<RowOf<S>>, StoreError> {
        self.iter()?.next_back().transpose()
    }

    /// How many rows there are. The number that the database keeps may be damaged: then it is wrong, and no more than that.
    pub(crate) fn len(&self) -> Result<u64, StoreError> {
        let mut count = self.base.len()?;
        for (key, now) in self.changed.iter() {
            let was_there = self.base.get_owned(S::K::from_bytes(key.bytes()))?.is_some();
            match (was_there, now) {
                (false, Some(_)) => count = count.saturating_add(1),
                (true, None) => count = count.saturating_sub(1),
                (true, Some(_)) | (false, None) => {}
            }
        }
        Ok(count)
    }
}

/// Rows of a table in a range of keys.
pub(crate) struct TableRange<S: Spec> {
    base: Ends<OwnedRange<S::K, S::V>>,
    changed: Ends<ChangedRange<S::K>>,
}

/// An end of a range.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

/// An iterator whose next item is looked at, at either end.
struct Ends<I: DoubleEndedIterator> {
    rest: I,
    front: Option<I::Item>,
    back: Option<I::Item>,
}

impl<I: DoubleEndedIterator> Ends<I> {
    fn new(rest: I) -> Self {
        Ends { rest, front: None, back: None }
    }

    fn take(&mut self, end: End) -> Option<I::Item> {
        match end {
            End::Front => self.front.take().or_else(|| self.rest.next()).or_else(|| self.back.take()),
            End::Back => self.back.take().or_else(|| self.rest.next_back()).or_else(|| self.front.take()),
        }
    }

    fn peek(&mut self, end: End) -> Option<&I::Item> {
        let next = self.take(end);
        let slot = match end {
            End::Front => &mut self.front,
            End::Back => &mut self.back,
        };
        *slot = next;
        slot.as_ref()
    }
}

/// Whose row is next.
enum Next {
    Base,
    Changed,
    /// One that stands for the other.
    Both,
}

impl<S: Spec> TableRange<S> {
    fn step(&mut self, end: End) -> Option<Result<RowOf<S>, StoreError>> {
        loop {
            let Some(changed) = self.changed.peek(end) else { return self.step_base(end) };
            let next = match self.base.peek(end) {
                None => Next::Changed,
                Some(Err(_)) => Next::Base,
                Some(Ok(row)) => order::<S>(row, &changed.0, end),
            };
            match next {
                Next::Base => return self.step_base(end),
                Next::Both => drop(self.base.take(end)),
                Next::Changed => {}
            }
            let (key, now) = self.changed.take(end)?;
            if let Some(value) = now {
                return Some(Ok((Guard::Changed(Arc::clone(key.bytes())), Guard::Changed(value))));
            }
        }
    }

    fn step_base(&mut self, end: End) -> Option<Result<RowOf<S>, StoreError>> {
        let row: Result<_, StorageError> = self.base.take(end)?;
        Some(row.map(|(key, value)| (Guard::Stored(key), Guard::Stored(value))).map_err(StoreError::from))
    }
}

fn order<S: Spec>(
    (base, _): &(OwnedAccessGuard<S::K>, OwnedAccessGuard<S::V>),
    changed: &KeyBytes<S::K>,
    end: End,
) -> Next {
    let base = base.value();
    let order = S::K::compare(S::K::as_bytes(&base).as_ref(), changed.bytes());
    let order = match end {
        End::Front => order,
        End::Back => order.reverse(),
    };
    match order {
        Ordering::Less => Next::Base,
        Ordering::Equal => Next::Both,
        Ordering::Greater => Next::Changed,
    }
}

impl<S: Spec> Iterator for TableRange<S> {
    type Item = Result<RowOf<S>, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(End::Front)
    }
}

impl<S: Spec> DoubleEndedIterator for TableRange<S> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(End::Back)
    }
}
